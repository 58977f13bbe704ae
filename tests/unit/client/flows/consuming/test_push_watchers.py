"""What hooks, traces and tools see of the handlers of a push consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.hooks import HandleContext, Hooks
from downrange.client.flows.notices import QueueRecovered
from downrange.errors import ConnectFailed, DeadLetter, Retry
from downrange.model import QueueId
from downrange.options.consumers import ConsumerOptions
from downrange.wire.properties import encode_properties
from tests.unit.client.flows.consuming.group_stage import A0, A1, GROUP, R0, Stage
from tests.unit.client.flows.consuming.test_delivery_window import messages_at

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage

TRACED = encode_properties({"MSG_REGION": "r", "TRACE_ON": "true"})


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    stage.spawned.clear()
    stage.notices.clear()
    return stage


# ---- hooks and traces ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ValueError("bad")])
def test_hooks_are_called_around_a_handler(error: Exception | None) -> None:
    seen: list[tuple[str, BaseException | None]] = []

    def before(context: HandleContext) -> None:
        seen.append(("before", context.error))

    def after(context: HandleContext) -> None:
        seen.append(("after", context.error))
        assert (context.group, context.queue, len(context.messages)) == (GROUP, A0, 1)

    stage = entered(hooks=Hooks(before_handle=(before,), after_handle=(after,)))
    stage.errors = [error]
    stage.fill(A0, 1)
    stage.work()
    assert seen == [("before", None), ("after", error)]
    assert stage.member.counts.failed == (error is not None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "true\x01null\x010"),
        (Retry(), "false\x01null\x014"),
        (DeadLetter("why"), "false\x01null\x014"),
        (ValueError("bad"), "false\x01null\x012"),
    ],
)
def test_each_delivery_is_traced(error: Exception | None, outcome: str) -> None:
    stage = entered(trace=True)
    stage.errors = [error]
    stage.fill(A0, 1, properties=TRACED)
    stage.work()
    trace = stage.push.tracer.trace
    assert trace is not None
    (taken,) = trace.take_all()
    before, after = taken.body.decode().split("\x02")[:-1]
    assert before.startswith("SubBefore")
    assert after.startswith("SubAfter")
    assert outcome in after


def test_the_flows_of_the_trace_run_with_those_of_the_member() -> None:
    plain, traced = entered(), entered(trace=True)
    assert len(traced.push.background()) == len(plain.push.background()) + 1


# ---- what tools ask --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "result"),
    [(None, "CR_SUCCESS"), (Retry(), "CR_LATER"), (ValueError("bad"), "CR_THROW_EXCEPTION")],
)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_message_is_handled_for_a_tool(error: Exception | None, result: str, batch: int) -> None:
    stage = entered(batch=batch, namespace="prod")
    linked: list[ReceivedMessage] = []
    if batch == 1:
        stage.member.link = linked.append
    stage.errors = [error]
    (message,) = messages_at(7, properties=encode_properties({"RETRY_TOPIC": "prod%refunds"}))
    body = stage.run(stage.member.consume_directly(message))
    assert (body.consume_result, body.order) == (result, False)
    assert (body.remark is None) == (error is None)
    assert stage.handled == [message if batch == 1 else [message]]
    assert (message.topic, linked) == ("refunds", [message] if batch == 1 else [])
    assert stage.window().position == 0


def test_a_consumer_without_a_handler_says_so_to_a_tool() -> None:
    stage = Stage()
    core, options = stage.servers.core, ConsumerOptions()
    push = PushCore(core, "other", options, None, None, Hooks(), stage.spawn)
    body = stage.run(push.member.consume_directly(messages_at(7)[0]))
    assert body.remark == "this consumer has no handler"


def test_a_group_that_is_reset_continues_elsewhere() -> None:
    stage = entered()
    stage.run(stage.member.reset({A0: 7, QueueId("gone", "a", 0): 3}))
    stage.run_spawned(last=1)
    assert stage.member.positions() == {A0: 7, A1: 0, R0: 0}
    assert stage.member.assigned() == [R0, A0, A1]
    assert set(stage.member.running_state().mq_table) == {A0, A1, R0}


def test_a_rebalance_is_due_when_members_change() -> None:
    stage = entered()
    stage.member.members_changed()
    assert stage.member.changed.is_fired


# ---- notices ---------------------------------------------------------------------------------


def test_what_goes_on_is_published_once() -> None:
    stage = entered()
    member, error = stage.member, ConnectFailed("a:1", "away")
    member.note_untaken(A0, error)
    member.note_untaken(A0, error)
    assert len(stage.servers.core.notices) == 1
    assert "cannot be taken" in member.problems()[0]
    window = stage.window()
    window.failing_since = stage.now  # it was not told yet
    stage.run(member.note_recovery(window))
    assert window.failing_since is None
    assert not stage.published(QueueRecovered)
