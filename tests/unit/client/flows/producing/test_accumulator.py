"""Automatic batching: joining, leading, receipts, and what happens when a caller leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.effects import Effect, Flow, Pause, Wait
from downrange.client.flows.producing.accumulator import Accumulator, split_receipt
from downrange.client.flows.producing.batches import size_in_batch
from downrange.errors import (
    ClientClosed,
    ConnectionLost,
    InvalidMessage,
    RocketMQError,
    SendFailed,
    SendTimedOut,
)
from downrange.model import Attempt, Message, QueueId, QueueOffset, SendReceipt
from downrange.options import AutoBatch
from downrange.wire.limits import BATCH_MESSAGES_MAX
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE = QueueId("orders", "broker-a", 3)


def body_of(number: int, size: int = 1) -> Message:
    return Message("orders", f"{number}".ljust(size, "."))


def receipt_for(messages: Sequence[Message], offset: int = 100) -> SendReceipt:
    """Return a receipt whose ids contain the bodies, so that a test can match them."""
    names = [message.body.decode().rstrip(".") for message in messages]
    return SendReceipt(
        message_id=",".join(f"id-{name}" for name in names),
        queue=QUEUE,
        offset=QueueOffset(offset),
        offset_id=",".join(f"at-{name}" for name in names),
    )


class Desk:
    """An accumulator whose batches a test sends by hand.

    A batch that is being sent stops at a `Pause`; the answer to that is the answer of the send.
    """

    def __init__(self, *, body_bytes_max: int = 100_000, **options: int) -> None:
        self.clock = FakeClock(10.0)
        self.sent: list[tuple[list[Message], QueueId | None, float]] = []
        self.retried: list[bool] = []
        self.accumulator = Accumulator(
            AutoBatch(**options), self.clock, self._send, body_bytes_max=body_bytes_max
        )

    def _send(
        self, messages: list[Message], queue: QueueId | None, is_retried: bool, deadline: float
    ) -> Flow[SendReceipt]:
        self.sent.append((messages, queue, deadline))
        self.retried.append(is_retried)
        answer: SendReceipt = yield Pause(0)
        return answer

    def add(
        self, message: Message, queue: QueueId | None = None, deadline: float = 13.0
    ) -> tuple[Flow[SendReceipt], Effect]:
        flow = self.accumulator.add(message, queue, deadline)
        return flow, next(flow)

    def bodies(self) -> list[list[bytes]]:
        return [[message.body for message in messages] for messages, _, _ in self.sent]


def as_wait(effect: Effect) -> Wait:
    assert isinstance(effect, Wait)
    return effect


def result_of(flow: Flow[SendReceipt], answer: Any = True) -> SendReceipt:
    with pytest.raises(StopIteration) as finished:
        flow.send(answer)
    receipt: SendReceipt = finished.value.value
    return receipt


# ---- joining and leading -------------------------------------------------------------------------


def test_messages_that_come_within_the_hold_time_share_a_request() -> None:
    desk = Desk(hold_ms=20)
    (leader, held), (other, waiting) = desk.add(body_of(1)), desk.add(body_of(2), deadline=14.0)
    assert as_wait(held).deadline == pytest.approx(10.02)
    assert as_wait(waiting).deadline == 14.0
    assert leader.send(False) == Pause(0)
    assert desk.sent == [(desk.sent[0][0], None, 14.0)]
    assert desk.bodies() == [[b"1", b"2"]]
    mine = result_of(leader, receipt_for(desk.sent[0][0]))
    assert as_wait(waiting).signal.is_fired
    theirs = result_of(other)
    assert (mine.message_id, mine.offset, mine.offset_id) == ("id-1", 100, "at-1")
    assert (theirs.message_id, theirs.offset, theirs.offset_id) == ("id-2", 101, "at-2")
    assert mine.queue == theirs.queue == QUEUE


def test_message_alone_is_sent_alone_when_it_is_due() -> None:
    desk = Desk()
    leader, _ = desk.add(body_of(1))
    leader.send(False)
    receipt = receipt_for([body_of(1)])
    assert result_of(leader, receipt) is receipt
    assert desk.bodies() == [[b"1"]]


@pytest.mark.parametrize(
    ("other", "queue"),
    [
        (Message("bills", b"2"), None),
        (Message("orders", b"2"), QUEUE),
        (Message("orders", b"2", wait_stored=False), None),
        (Message("orders", b"2", tags="new"), None),
    ],
)
def test_messages_that_differ_in_what_a_request_says_once_do_not_meet(
    other: Message, queue: QueueId | None
) -> None:
    desk = Desk()
    flows = [desk.add(body_of(1)), desk.add(other, queue)]
    for flow, _ in flows:
        flow.send(False)
    assert desk.bodies() == [[b"1"], [b"2"]]
    assert desk.sent[1][1] == queue


def test_sharding_keys_do_not_matter_when_the_queue_is_chosen() -> None:
    desk = Desk()
    leader, _ = desk.add(Message("orders", b"1", sharding_key="a"), QUEUE)
    _other = desk.add(Message("orders", b"2", sharding_key="b"), QUEUE)
    leader.send(False)
    assert desk.bodies() == [[b"1", b"2"]]


def test_batches_of_a_chosen_queue_are_sent_one_after_the_other() -> None:
    desk = Desk(hold_ms=20)
    first, _ = desk.add(body_of(1), QUEUE)
    first.send(False)
    second, _ = desk.add(body_of(2), QUEUE)
    turn = as_wait(second.send(False))  # due, but the first one is on its way
    assert turn.deadline == 13.0
    joined, _ = desk.add(body_of(3), QUEUE)  # it grows meanwhile
    assert desk.bodies() == [[b"1"]]
    result_of(first, receipt_for([body_of(1)]))
    assert turn.signal.is_fired
    assert second.send(True) == Pause(0)
    assert desk.bodies() == [[b"1"], [b"2", b"3"]]
    result_of(second, receipt_for(desk.sent[1][0]))
    result_of(joined)
    third, _ = desk.add(body_of(4), QUEUE)
    assert third.send(False) == Pause(0)  # none is before it


def test_batch_does_not_wait_for_one_whose_callers_have_left() -> None:
    desk = Desk(hold_ms=20)
    first, _ = desk.add(body_of(1), QUEUE)
    first.send(False)
    second, _ = desk.add(body_of(2), QUEUE)
    turn = as_wait(second.send(False))
    first.close()
    assert turn.signal.is_fired
    assert second.send(True) == Pause(0)


def test_batch_waits_again_while_another_caller_repeats_the_one_before_it() -> None:
    desk = Desk(hold_ms=20)
    (first, _), (other, waiting) = desk.add(body_of(1), QUEUE), desk.add(body_of(2), QUEUE)
    first.send(False)
    second, _ = desk.add(body_of(3), QUEUE)
    second.send(False)
    first.close()  # cancelled during the send: the other one leads
    assert as_wait(waiting).signal.is_fired
    other.send(True)
    turn = as_wait(second.send(True))
    assert not turn.signal.is_fired
    assert desk.bodies() == [[b"1", b"2"], [b"2"]]
    result_of(other, receipt_for([body_of(2)]))
    assert second.send(True) == Pause(0)


def test_batch_that_waits_too_long_for_its_turn_is_left_to_the_deadline_of_its_send() -> None:
    desk = Desk(hold_ms=20)
    first, _ = desk.add(body_of(1), QUEUE)
    first.send(False)
    second, _ = desk.add(body_of(2), QUEUE)
    second.send(False)
    assert second.send(False) == Pause(0)
    assert desk.sent[1][2] == 13.0


def test_messages_that_are_sent_again_and_others_do_not_share_a_batch() -> None:
    desk = Desk()
    flows = [desk.accumulator.add(body_of(n), QUEUE, 13.0, bool(n)) for n in range(2)]
    for flow in flows:
        next(flow)
        flow.send(False)
    assert desk.bodies() == [[b"0"], [b"1"]]
    assert desk.retried == [False, True]


def test_message_that_comes_later_opens_the_next_batch() -> None:
    desk = Desk()
    first, _ = desk.add(body_of(1))
    first.send(False)
    second, _ = desk.add(body_of(2))
    second.send(False)
    assert desk.bodies() == [[b"1"], [b"2"]]


def test_hold_time_leaves_half_of_the_callers_time_for_sending() -> None:
    desk = Desk(hold_ms=30_000)
    leader, held = desk.add(body_of(1), deadline=12.0)
    late, at_once = desk.add(Message("bills", b"1"), deadline=9.0)
    assert (as_wait(held).deadline, as_wait(at_once).deadline) == (11.0, 10.0)
    leader.close()
    late.close()


# ---- when a batch is full ------------------------------------------------------------------------


def test_batch_is_sent_at_once_when_its_bodies_pass_the_hold_size() -> None:
    desk = Desk(hold_bytes=10)
    (leader, held), _second = desk.add(body_of(1, 5)), desk.add(body_of(2, 5))
    full = as_wait(held).signal
    assert not full.is_fired
    _third = desk.add(body_of(3, 1))
    assert full.is_fired
    next_one, _ = desk.add(body_of(4))
    leader.send(True)
    assert [len(batch) for batch in desk.bodies()] == [3]
    next_one.send(False)
    assert desk.bodies()[1] == [b"4"]


def test_message_larger_than_the_hold_size_does_not_wait() -> None:
    desk = Desk(hold_bytes=10)
    flow, effect = desk.add(body_of(1, 11))
    assert effect == Pause(0)
    assert len(desk.sent) == 1
    flow.close()


def test_batch_never_outgrows_one_request() -> None:
    size = size_in_batch(body_of(1, 50))
    desk = Desk(body_bytes_max=2 * size + 1)
    (leader, held), _second = desk.add(body_of(1, 50)), desk.add(body_of(2, 50))
    assert not as_wait(held).signal.is_fired
    next_one, _ = desk.add(body_of(3, 50))
    assert as_wait(held).signal.is_fired
    leader.send(True)
    next_one.send(False)
    assert [len(batch) for batch in desk.bodies()] == [2, 1]


def test_batch_that_fills_a_request_to_the_last_byte_does_not_wait() -> None:
    desk = Desk(body_bytes_max=size_in_batch(body_of(1)))
    flow, effect = desk.add(body_of(1))
    assert effect == Pause(0)
    flow.close()


def test_batch_of_as_many_messages_as_apache_can_count_does_not_wait() -> None:
    desk = Desk(body_bytes_max=2**30, hold_bytes=2**20)
    flows = [desk.add(body_of(1))[0] for _ in range(BATCH_MESSAGES_MAX + 1)]
    flows[0].send(True)
    flows[-1].send(False)
    assert [len(batch) for batch in desk.bodies()] == [BATCH_MESSAGES_MAX, 1]


def test_message_too_large_for_a_batch_is_a_batch_of_its_own() -> None:
    desk = Desk(body_bytes_max=size_in_batch(body_of(1)))
    flows = [desk.add(body_of(1, 50)), desk.add(body_of(2, 50))]
    assert [len(batch) for batch in desk.bodies()] == [1, 1]
    assert len(flows) == 2


def test_message_that_cannot_be_written_is_refused_before_it_joins() -> None:
    desk = Desk()
    leader, _ = desk.add(body_of(1))
    with pytest.raises(InvalidMessage):
        desk.add(Message("orders", b"2", keys=["a\x01b"]))
    leader.send(False)
    assert desk.bodies() == [[b"1"]]


def test_close_sends_every_batch_at_once() -> None:
    desk = Desk()
    flows = [desk.add(body_of(1)), desk.add(Message("bills", b"2"))]
    desk.accumulator.close()
    assert [as_wait(effect).signal.is_fired for _, effect in flows] == [True, True]
    for flow, _ in flows:
        flow.send(True)
    assert desk.bodies() == [[b"1"], [b"2"]]
    assert not desk.accumulator.can_hold(body_of(3))


def test_message_whose_queue_was_chosen_during_close_is_sent_at_once() -> None:
    desk = Desk()
    desk.accumulator.close()
    desk.add(body_of(1), QUEUE)
    assert desk.bodies() == [[b"1"]]


# ---- outcomes ------------------------------------------------------------------------------------


def test_error_of_the_send_goes_to_every_caller_as_its_own() -> None:
    desk = Desk()
    (leader, _), (other, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.send(False)
    lost = ConnectionLost("10.0.0.5:10911", "connection reset")
    failed = SendFailed("orders", [Attempt("broker-a", "10.0.0.5:10911", 0, lost, 0.1)], 0.1)
    failed.__cause__ = lost
    with pytest.raises(SendFailed) as mine:
        leader.throw(failed)
    with pytest.raises(SendFailed) as theirs:
        other.send(True)
    assert mine.value is not theirs.value
    for caught in (mine.value, theirs.value):
        assert str(caught) == str(failed)
        assert caught.attempts == failed.attempts
        assert caught.__cause__ is lost
    assert desk.accumulator.held_bytes == 0


def test_caller_whose_time_is_up_before_the_batch_is_sent_takes_its_message_along() -> None:
    desk = Desk(hold_ms=5000)
    (leader, _), (other, _) = desk.add(body_of(1), deadline=30.0), desk.add(body_of(2))
    desk.clock.seconds = 13.0
    with pytest.raises(SendTimedOut, match="opened 3 s ago, that was not sent yet") as caught:
        other.send(False)
    assert (caught.value.topic, caught.value.code, caught.value.retryable) == (
        "orders",
        10002,
        True,
    )
    leader.send(False)
    assert desk.bodies() == [[b"1"]]


def test_error_says_that_a_batch_may_be_stored_when_the_deadline_passes_during_the_send() -> None:
    desk = Desk()
    (leader, _), (late, _) = desk.add(body_of(1)), desk.add(body_of(2))
    third, _ = desk.add(body_of(3), deadline=15.0)
    leader.send(False)
    with pytest.raises(SendTimedOut, match="may have been stored") as caught:
        late.send(False)
    assert caught.value.may_be_stored
    receipt = receipt_for(desk.sent[0][0])
    assert result_of(leader, receipt).message_id == "id-1"
    assert result_of(third).message_id == "id-3"


def test_receipt_that_came_with_the_deadline_is_used() -> None:
    desk = Desk()
    (leader, _), (other, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.send(False)
    result_of(leader, receipt_for(desk.sent[0][0]))
    assert result_of(other, False).message_id == "id-2"


def test_every_caller_gets_the_receipt_of_the_batch_when_it_cannot_be_split() -> None:
    whole = SendReceipt(message_id="one", queue=QUEUE, offset=QueueOffset(7), offset_id="at")
    assert split_receipt(whole, 3) == [whole, whole, whole]


def test_each_receipt_keeps_all_offset_ids_when_their_number_differs() -> None:
    whole = SendReceipt(message_id="a,b", queue=QUEUE, offset=QueueOffset(7), offset_id="x,y,z")
    assert [(part.message_id, part.offset, part.offset_id) for part in split_receipt(whole, 2)] == [
        ("a", 7, "x,y,z"),
        ("b", 8, "x,y,z"),
    ]


# ---- leaving ------------------------------------------------------------------------------------


def test_next_caller_leads_when_the_leader_is_given_up_before_sending() -> None:
    desk = Desk()
    (leader, _), (second, waiting) = desk.add(body_of(1)), desk.add(body_of(2))
    third, also_waiting = desk.add(body_of(3))
    leader.close()
    assert as_wait(waiting).signal.is_fired
    assert as_wait(also_waiting).signal.is_fired
    held = as_wait(second.send(True))
    assert held.deadline == pytest.approx(10.01)  # the batch is not held back longer than before
    again = as_wait(third.send(True))
    assert not again.signal.is_fired
    second.send(False)
    assert desk.bodies() == [[b"2", b"3"]]
    assert result_of(second, receipt_for(desk.sent[0][0])).message_id == "id-2"
    assert again.signal.is_fired
    assert result_of(third).message_id == "id-3"


def test_newcomer_leads_a_batch_whose_leader_is_gone() -> None:
    desk = Desk()
    (leader, _), (second, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.close()
    newcomer, _ = desk.add(body_of(3))
    assert newcomer.send(False) == Pause(0)
    assert desk.bodies() == [[b"2", b"3"]]
    second.close()


def test_full_batch_whose_leader_is_gone_does_not_wait_again() -> None:
    desk = Desk(hold_bytes=1)
    (leader, _), (second, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.close()
    assert second.send(True) == Pause(0)
    assert desk.bodies() == [[b"2"]]


def test_batch_is_sent_again_when_its_leader_is_given_up_while_sending() -> None:
    desk = Desk()
    (leader, _), (second, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.send(False)
    leader.close()
    assert second.send(True) == Pause(0)
    assert desk.bodies() == [[b"1", b"2"], [b"2"]]
    assert result_of(second, receipt_for(desk.sent[1][0])).message_id == "id-2"
    assert (desk.accumulator.batches, desk.accumulator.messages) == (2, 3)


def test_error_of_user_code_ends_each_caller_that_leads() -> None:
    """An error of user code in a send ends only that caller; the next caller leads the batch."""
    desk = Desk()
    (leader, _), (second, _) = desk.add(body_of(1)), desk.add(body_of(2))
    leader.send(False)
    with pytest.raises(ZeroDivisionError):
        leader.throw(ZeroDivisionError())
    assert second.send(True) == Pause(0)


def test_message_of_a_caller_that_is_given_up_is_not_sent() -> None:
    desk = Desk(hold_bytes=10)
    (leader, held), (other, _) = desk.add(body_of(1, 5)), desk.add(body_of(2, 5))
    other.close()
    _third = desk.add(body_of(3, 5))
    assert not as_wait(held).signal.is_fired
    leader.send(False)
    assert desk.bodies() == [[b"1....", b"3...."]]


def test_room_of_a_caller_that_is_given_up_is_free_for_others() -> None:
    desk = Desk(body_bytes_max=2 * size_in_batch(body_of(1, 50)) + 1)
    (leader, _), (other, _) = desk.add(body_of(1, 50)), desk.add(body_of(2, 50))
    other.close()
    _third = desk.add(body_of(3, 50))
    leader.send(False)
    assert [len(batch) for batch in desk.bodies()] == [2]


def test_batch_that_all_callers_left_is_dropped() -> None:
    desk = Desk()
    flow, _ = desk.add(body_of(1))
    flow.close()
    desk.clock.seconds = 20.0
    later, held = desk.add(body_of(2), deadline=30.0)
    assert as_wait(held).deadline == pytest.approx(20.01)
    later.send(False)
    assert desk.bodies() == [[b"2"]]


def test_same_message_can_be_added_twice() -> None:
    desk = Desk()
    message = body_of(1)
    (leader, _), (other, _) = desk.add(message), desk.add(message)
    leader.send(False)
    assert result_of(leader, receipt_for([body_of(1), body_of(2)])).message_id == "id-1"
    assert result_of(other).message_id == "id-2"


# ---- what is not held ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"1", delay_level=1),
        Message("orders", b"1", deliver_in=0.5),
        Message("%RETRY%billing", b"1"),
        Message("orders", b"1", properties={"PGROUP": "pay"}),
    ],
)
def test_message_that_no_batch_can_carry_is_not_held(message: Message) -> None:
    assert not Desk().accumulator.can_hold(message)


def test_message_is_not_held_while_the_total_is_reached() -> None:
    desk = Desk(total_bytes_max=10)
    accumulator = desk.accumulator
    leader, _ = desk.add(body_of(1, 9))
    assert accumulator.can_hold(body_of(2))
    other, _ = desk.add(body_of(2))
    assert (accumulator.held_bytes, accumulator.can_hold(body_of(3))) == (10, False)
    leader.send(False)
    assert not accumulator.can_hold(body_of(3))  # a batch in flight counts as held
    result_of(leader, receipt_for(desk.sent[0][0]))
    result_of(other)
    assert (accumulator.held_bytes, accumulator.can_hold(body_of(3))) == (0, True)
    assert (accumulator.batches, accumulator.messages) == (1, 2)


# ---- random sequences ----------------------------------------------------------------------------

STEPS = st.tuples(
    st.sampled_from(["add", "add", "add", "step", "step", "fail", "give up", "wait", "close"]),
    st.integers(0, 9),
)


class Crowd:
    """Callers of one accumulator, run one step at a time in any order."""

    def __init__(self) -> None:
        self.desk = Desk(hold_bytes=12, hold_ms=1000, body_bytes_max=250)
        self.callers: dict[int, tuple[Flow[SendReceipt], Effect]] = {}
        self.requests: dict[int, list[Message]] = {}
        self.receipts: dict[int, SendReceipt] = {}
        self.errors: dict[int, RocketMQError] = {}
        self.leaders_lost = 0

    def add(self, number: int, size: int) -> None:
        topic = ("orders", "bills")[size % 2]
        message = Message(topic, f"{number}".ljust(size, "."))
        now = self.desk.clock.seconds
        flow = self.desk.accumulator.add(message, None, now + 1 + size)
        self._keep(number, flow, next(flow))

    def _keep(self, number: int, flow: Flow[SendReceipt], effect: Effect) -> None:
        self.callers[number] = (flow, effect)
        if effect == Pause(0):
            self.requests[number] = self.desk.sent[-1][0]

    def is_ready(self, number: int) -> bool:
        effect = self.callers[number][1]
        if not isinstance(effect, Wait):
            return True
        return effect.signal.is_fired or effect.deadline <= self.desk.clock.seconds

    def step(self, number: int, error: RocketMQError | None = None) -> None:
        flow, effect = self.callers.pop(number)
        try:
            if isinstance(effect, Wait):
                following = flow.send(effect.signal.is_fired)
            elif error is not None:
                following = flow.throw(error)
            else:
                following = flow.send(receipt_for(self.requests[number]))
        except StopIteration as finished:
            self.receipts[number] = finished.value
        except RocketMQError as raised:
            self.errors[number] = raised
        else:
            self._keep(number, flow, following)

    def give_up(self, number: int) -> None:
        flow, effect = self.callers.pop(number)
        self.leaders_lost += effect == Pause(0)
        flow.close()

    def finish(self) -> None:
        """Run all callers to their end; the test fails if this never ends."""
        for _ in range(1000):
            if not self.callers:
                return
            ready = [number for number in self.callers if self.is_ready(number)]
            for number in ready[:1]:
                self.step(number)
            if not ready:
                self.desk.clock.seconds += 0.5
        raise AssertionError(f"still there: {self.callers}")


@given(st.lists(STEPS, max_size=50))
def test_every_caller_gets_its_own_receipt_whoever_leaves(story: list[tuple[str, int]]) -> None:
    crowd = Crowd()
    for number, (action, choice) in enumerate(story):
        ready = [caller for caller in crowd.callers if crowd.is_ready(caller)]
        if action == "add":
            crowd.add(number, choice)
        elif action == "wait":
            crowd.desk.clock.seconds += choice / 3
        elif action == "close":
            crowd.desk.accumulator.close()
        elif action == "give up" and crowd.callers:
            crowd.give_up(list(crowd.callers)[choice % len(crowd.callers)])
        elif ready and action in ("step", "fail"):
            error = ClientClosed("the client") if action == "fail" else None
            crowd.step(ready[choice % len(ready)], error)
    crowd.finish()
    for number, receipt in crowd.receipts.items():
        assert receipt.message_id == f"id-{number}"
    sent = [body.rstrip(b".") for batch in crowd.desk.bodies() for body in batch]
    assert len(sent) - len(set(sent)) == 0 or crowd.leaders_lost
    for batch in crowd.desk.sent:
        assert sum(size_in_batch(message) for message in batch[0]) <= 250
        assert len({message.topic for message in batch[0]}) == 1
    accumulator = crowd.desk.accumulator
    assert (accumulator.held_bytes, accumulator._open) == (0, {})
