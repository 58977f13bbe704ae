"""Whatever a handler raises, and whatever fails after it, the delivery ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.push_core import _trace_result
from downrange.client.flows.effects import UserCall, Wait
from downrange.client.flows.hooks import HandleContext, Hooks
from downrange.client.flows.notices import HandlerFailed, UserCodeFailed
from downrange.client.flows.producing.trace_records import SubResult
from downrange.errors import Retry, RetrySome
from tests.unit.client.flows.consuming.group_stage import A0, Stage, offsets
from tests.unit.client.flows.consuming.test_delivery_window import messages_at

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow

MODES = [
    {"mode": "concurrent"},
    {"mode": "orderly"},
    {"model": "broadcast"},
    {"model": "broadcast", "mode": "orderly"},
]


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    stage.spawned.clear()
    stage.notices.clear()
    return stage


def broken(*_: Any, **__: Any) -> Flow[None]:
    raise LookupError("broken")


# ---- no message failed -----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()))
def test_a_batch_of_which_none_is_retried_is_done(mode: dict[str, str], batch: int) -> None:
    stage = entered(batch=batch, **mode)
    stage.errors = [RetrySome([])] * 2
    stage.fill(A0, 3)
    stage.work()
    assert not stage.window().running
    assert stage.window().position == 3
    assert (stage.member.counts.handled, stage.member.counts.failed) == (3, 0)
    assert stage.member.buffer.count == 0
    assert stage.sent_back == stage.published(HandlerFailed) == []
    stage.fill(A0, 1)
    stage.work()
    assert stage.window().position == 4


def test_for_a_tool_and_the_trace_it_is_done_too() -> None:
    stage = entered()
    stage.errors = [RetrySome([])]
    body = stage.run(stage.member.consume_directly(messages_at(7)[0]))
    assert (body.consume_result, body.remark) == ("CR_SUCCESS", None)
    assert _trace_result(RetrySome([])) is SubResult.SUCCESS
    assert _trace_result(RetrySome(messages_at(7))) is SubResult.FAILED


def test_a_handler_may_change_the_list_that_it_is_given() -> None:
    stage = entered(batch=4)
    seen: list[int] = []

    def empty(messages: list[Any]) -> None:
        while messages:
            seen.append(messages.pop().offset)

    stage.push._handler = empty
    stage.fill(A0, 3)
    stage.work()
    assert seen == [2, 1, 0]
    assert stage.window().position == 3
    assert stage.member.counts.handled == 3


def test_hooks_see_the_messages_and_cannot_change_them() -> None:
    contexts: list[HandleContext] = []
    stage = entered(batch=4, hooks=Hooks(before_handle=(contexts.append,)))
    stage.fill(A0, 2)
    stage.work()
    assert isinstance(contexts[0].messages, tuple)
    assert offsets(contexts[0].messages) == [0, 1]


def test_a_handler_that_returns_a_generator_has_failed() -> None:
    stage = entered()
    stage.push._handler = lambda message: (each for each in [message])
    stage.fill(A0, 1)
    stage.work()
    assert stage.sent_back == [(0, 0)]


# ---- what fails after the handler ------------------------------------------------------------


class OtherRetry(Retry):
    def __init__(self) -> None:
        """Leave out what `Retry` sets."""


def test_an_exception_that_cannot_be_read_is_a_failure_like_any_other() -> None:
    stage = entered()
    stage.errors = [OtherRetry()]
    stage.fill(A0, 2)
    stage.work()
    assert stage.sent_back == [(0, 0)]
    assert stage.window().position == 2
    (report,) = stage.published(UserCodeFailed)
    assert isinstance(report.error, AttributeError)
    (failure,) = stage.published(HandlerFailed)
    assert failure.plan == "attempt 2 of 17 follows in about 10 s"


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_a_message_that_cannot_be_sent_back_by_a_mistake_is_handled_here_again(mode: str) -> None:
    stage = entered(mode=mode, retries=0)
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    give_back, stage.member.give_back = stage.member.give_back, broken  # type: ignore[method-assign]
    stage.work()
    assert not stage.window().running
    (report,) = stage.published(UserCodeFailed)
    assert (report.where, str(report.error)) == (
        "sending back messages of group billing",
        "broken",
    )
    assert (
        "could not be sent back (LookupError('broken'))" in stage.published(HandlerFailed)[0].plan
    )
    stage.member.give_back = give_back  # type: ignore[method-assign]
    stage.run_spawned()  # five seconds later
    stage.work()
    assert offsets(stage.handled) == [0, 0]
    assert stage.window().position == 1


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()))
def test_after_any_other_mistake_the_queue_is_read_again(mode: dict[str, str]) -> None:
    stage = entered(**mode)
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    stage.push._repeat = broken  # type: ignore[assignment, method-assign]
    stage.work()
    old = stage.window()
    assert not old.running
    assert old.idle.is_fired
    stage.run_spawned(last=1)
    assert stage.window() is not old
    assert stage.window().position == 0
    assert [str(report.error) for report in stage.published(UserCodeFailed)] == ["broken"]
    assert stage.published(HandlerFailed)[0].plan == "it is delivered again"


def test_broadcast_a_message_may_be_tried_again_any_number_of_times() -> None:
    stage = entered(model="broadcast", broadcast_retries=5000)
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    waiting = stage.window().waiting
    waiting[0] = replace(waiting[0], delivery_attempts=2000)
    stage.work()
    assert stage.published(HandlerFailed)[0].plan == "it is tried again here in 5 s"


def test_a_failure_goes_on_when_its_caller_gives_up() -> None:
    stage = entered()
    stage.fill(A0, 1)
    delivery = stage.push._take()
    assert delivery is not None
    failing = stage.push.fail_to_its_end(delivery, ValueError("bad"))
    call = next(failing)
    assert isinstance(call, UserCall)
    stage.servers.perform(call)
    waiting = failing.send(None)
    assert isinstance(waiting, Wait)
    assert isinstance(failing.send(False), Wait)  # it takes longer than one wait
    stage.run_spawned()
    assert waiting.signal.is_fired
    assert stage.sent_back == [(0, 0)]
    assert stage.window().position == 1
    with pytest.raises(StopIteration):
        failing.send(True)


# ---- leaving ---------------------------------------------------------------------------------


def test_workers_end_whatever_fails_when_it_leaves() -> None:
    stage = entered()
    stage.member.exit = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(LookupError):
        stage.run(stage.push.exit(stage.now + 5))
    with pytest.raises(StopIteration):
        next(stage.push.work())
