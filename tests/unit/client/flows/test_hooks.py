from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.effects import Flow, UserCall
from downrange.client.flows.hooks import (
    Hooks,
    MessageType,
    SendContext,
    message_type_of,
    run_forbidden,
    run_observers,
)
from downrange.errors import OptionError, SendForbidden
from downrange.model import Message, QueueId


def look(context: SendContext) -> None:
    """A hook; the flows only pass it on."""


def look_again(context: SendContext) -> None:
    """Another hook."""


def context() -> SendContext:
    return SendContext(
        group="shop",
        messages=(Message("orders", b"1"), Message("orders", b"2")),
        queue=QueueId("orders", "broker-a", 1),
        address="127.0.0.1:10911",
        mode="sync",
    )


class Reports(list[tuple[str, BaseException]]):
    def __call__(self, where: str, error: BaseException) -> Flow[None]:
        self.append((where, error))
        yield from ()


@pytest.mark.parametrize(
    ("properties", "message_type"),
    [
        ({}, MessageType.NORMAL),
        ({"TRAN_MSG": "true"}, MessageType.HALF),
        ({"TRAN_MSG": "false"}, MessageType.NORMAL),
        ({"DELAY": "3"}, MessageType.DELAY),
        ({"__STARTDELIVERTIME": "1"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_MS": "1"}, MessageType.DELAY),
        ({"TRAN_MSG": "true", "DELAY": "3"}, MessageType.DELAY),
        ({"__SHARDINGKEY": "a"}, MessageType.NORMAL),
    ],
)
def test_message_type_follows_from_the_properties(
    properties: dict[str, str], message_type: MessageType
) -> None:
    assert message_type_of(properties) is message_type


def test_message_types_have_the_numbers_of_java() -> None:
    assert [*MessageType] == [0, 1, 2, 3, 4]
    assert [kind.name for kind in MessageType] == ["NORMAL", "HALF", "COMMIT", "DELAY", "ORDER"]


def test_context_of_a_batch_names_its_first_message() -> None:
    assert context().message.body == b"1"


def test_contexts_keep_notes_apart() -> None:
    first = context()
    first.notes["span"] = 1
    assert context().notes == {}


@pytest.mark.parametrize("hooks", [look, [look], (look, None)])
def test_hooks_refuse_what_is_no_tuple_of_functions(hooks: Any) -> None:
    with pytest.raises(OptionError, match="after_send="):
        Hooks(after_send=hooks)


def test_hooks_are_none_unless_given() -> None:
    assert Hooks(before_send=(look,)) == Hooks(
        forbid_send=(),
        before_send=(look,),
        after_send=(),
        before_call=(),
        after_call=(),
        end_transaction=(),
    )


def test_observers_are_called_in_order_with_the_arguments() -> None:
    args = (context(),)
    flow = run_observers((look, look_again), args, Reports())
    assert next(flow) == UserCall(look, args)
    assert flow.send(None) == UserCall(look_again, args)
    with pytest.raises(StopIteration):
        flow.send(None)


def test_observer_that_fails_is_reported_and_the_next_one_is_called() -> None:
    reports, args = Reports(), (context(),)
    flow = run_observers((look, look_again), args, reports)
    next(flow)
    error = ZeroDivisionError("oops")
    assert flow.throw(error) == UserCall(look_again, args)
    assert reports == [(f"hook {__name__}.look", error)]


def test_observer_without_a_name_is_reported_by_what_it_is() -> None:
    class Counter:
        def __call__(self, context: SendContext) -> None:
            """Count."""

        def __repr__(self) -> str:
            return "Counter()"

    reports = Reports()
    flow = run_observers((Counter(),), (context(),), reports)
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(ValueError("x"))
    assert [where for where, _ in reports] == ["hook Counter()"]


def test_ctrl_c_in_an_observer_is_not_taken_for_its_error() -> None:
    reports = Reports()
    flow = run_observers((look, look_again), (context(),), reports)
    next(flow)
    with pytest.raises(KeyboardInterrupt):
        flow.throw(KeyboardInterrupt())
    assert reports == []


def test_message_may_be_sent_when_no_hook_objects() -> None:
    flow = run_forbidden((look, look_again), asked := context())
    assert next(flow) == UserCall(look, (asked,))
    assert flow.send(None) == UserCall(look_again, (asked,))
    with pytest.raises(StopIteration):
        flow.send("what it returns does not matter")


def test_any_error_of_a_forbidding_hook_stops_the_send() -> None:
    flow = run_forbidden((look, look_again), context())
    next(flow)
    reason = ValueError("no!")
    with pytest.raises(
        SendForbidden, match="look forbids to send to 'orders': ValueError: no!"
    ) as it:
        flow.throw(reason)
    assert it.value.__cause__ is reason
    assert it.value.topic == "orders"


def test_forbidding_hook_may_say_it_in_its_own_words() -> None:
    flow = run_forbidden((look,), context())
    next(flow)
    own = SendForbidden("not after hours")
    with pytest.raises(SendForbidden) as it:
        flow.throw(own)
    assert it.value is own


def test_ctrl_c_in_a_forbidding_hook_passes_through() -> None:
    flow = run_forbidden((look,), context())
    next(flow)
    with pytest.raises(KeyboardInterrupt):
        flow.throw(KeyboardInterrupt())


def test_without_hooks_nothing_is_asked() -> None:
    assert list(run_observers((), (context(),), Reports())) == []
    assert list(run_forbidden((), context())) == []
