"""The messages of a queue between pull and commit."""

from __future__ import annotations

import pytest

from downrange.client.flows.consuming.delivery_window import Buffer, Delivery, DeliveryWindow
from downrange.client.flows.consuming.pull import EVERYTHING, by_tags, read_messages
from downrange.model import QueueId, QueueOffset, ReceivedMessage
from tests.unit.client.flows.consuming.group_stage import A0, offsets
from tests.unit.client.flows.fake_servers import FakeServers, record


def window_at(
    first: int = 0,
    *,
    buffer: Buffer | None = None,
    queue: QueueId = A0,
) -> DeliveryWindow:
    return DeliveryWindow(queue, EVERYTHING, QueueOffset(first), buffer or Buffer(100, 1000), 50.0)


def messages_at(*numbers: int, body: bytes = b"x", properties: str = "") -> list[ReceivedMessage]:
    data = b"".join(record("orders", n, body=body, properties=properties) for n in numbers)
    return read_messages(FakeServers().core, data, "a")


def filled(*numbers: int, buffer: Buffer | None = None) -> DeliveryWindow:
    window = window_at(numbers[0], buffer=buffer)
    window.add(messages_at(*numbers), QueueOffset(numbers[-1] + 1))
    return window


def taken(window: DeliveryWindow, count: int = 1, now: float = 51.0) -> Delivery:
    delivery = window.take(count, now)
    assert delivery is not None
    return delivery


def test_the_position_is_the_first_message_that_is_not_done() -> None:
    window = filled(5, 6, 9)
    assert window.position == 5
    first, second, third = taken(window), taken(window), taken(window)
    assert window.take(1, 52.0) is None
    window.finish(second, 53.0)
    window.finish(third, 53.0)
    assert window.position == 5
    assert window.span == 4
    window.finish(first, 54.0)
    assert window.position == 10
    assert (window.count, window.bytes, window.span) == (0, 0, 0)
    assert window.handled_at == 54.0


def test_a_batch_has_no_more_than_it_may() -> None:
    window = filled(1, 2, 3)
    assert offsets(taken(window, 2).messages) == [1, 2]
    assert offsets(taken(window, 2).messages) == [3]


def test_a_postponed_message_is_handed_out_at_its_time_and_first() -> None:
    window = filled(1, 2)
    first = taken(window)
    window.end(first, 52.0)
    window.postpone(first.messages[0], 60.0)
    assert not window.has_due(59.0)
    second = taken(window, now=59.0)
    assert offsets(second.messages) == [2]
    assert window.take(1, 59.0) is None
    assert window.has_due(60.0)
    again = taken(window, now=60.0)
    assert offsets(again.messages) == [1]
    window.finish(again, 61.0)
    assert window.position == 2


def test_postponed_messages_are_handed_out_by_their_times() -> None:
    """One with a long pause does not hold the others back."""
    window = filled(1, 2, 3, 4)
    for message, until in zip(taken(window, 4).messages, (90.0, 60.0, 70.0, 60.0), strict=True):
        window.postpone(message, until)
    assert not window.has_due(59.0)
    assert [offsets(taken(window, now=60.0).messages) for _ in range(2)] == [[2], [4]]
    assert window.take(1, 60.0) is None
    assert [offsets(taken(window, now=90.0).messages) for _ in range(2)] == [[3], [1]]


def test_a_message_that_is_put_back_comes_before_all_others() -> None:
    window = filled(1, 2, 3)
    batch = taken(window, 2)
    window.end(batch, 52.0)
    window.put_back(batch.messages, 55.0)
    assert window.not_before == 55.0
    assert offsets(taken(window, 3).messages) == [1, 2, 3]


def test_a_stopped_window_is_idle_when_its_last_handler_has_ended() -> None:
    window = filled(1, 2)
    first, second = taken(window), taken(window)
    window.stop()
    assert window.room.is_fired
    window.finish(first, 52.0)
    assert not window.idle.is_fired
    window.finish(second, 52.0)
    assert window.idle.is_fired
    quiet = window_at()
    quiet.stop()
    assert quiet.idle.is_fired


def test_results_for_a_dropped_window_do_not_count() -> None:
    buffer = Buffer(100, 1000)
    window = filled(1, 2, 3, buffer=buffer)
    running = taken(window)
    window.drop()
    assert (buffer.count, buffer.bytes) == (0, 0)
    window.postpone(running.messages[0], 60.0)
    window.put_back(running.messages, 60.0)
    window.settle(running.messages[0])
    window.finish(running, 52.0)
    assert (buffer.count, buffer.bytes) == (0, 0)
    assert not window.waiting
    assert not window.postponed


def test_a_run_has_no_more_than_it_may() -> None:
    window = filled(*range(9))
    run = window.take_run(6, 51.0)
    assert run is not None
    assert run.rest is not None
    assert offsets(run.rest) == [0, 1, 2, 3, 4, 5]
    assert offsets(window.waiting) == [6, 7, 8]


def test_few_messages_are_no_run() -> None:
    delivery = filled(1, 2, 3).take_run(6, 51.0)
    assert delivery is not None
    assert delivery.rest is None
    assert offsets(delivery.messages) == [1]


def test_a_run_of_a_dropped_window_goes_to_nobody() -> None:
    window = filled(*range(9))
    run = window.take_run(6, 51.0)
    assert run is not None
    window.drop()
    assert window.share(run)
    assert not window.waiting
    assert not window.share(run)


def test_a_lock_that_is_confirmed_anew_lets_the_offset_be_committed_again() -> None:
    window = window_at(5)
    window.committed = QueueOffset(5)
    assert window.is_sure  # it never had one
    window.confirm_lock(90.0)
    assert window.committed is None
    window.committed = QueueOffset(5)
    window.confirm_lock(99.0)
    assert (window.committed, window.locked_until) == (5, 99.0)
    window.doubt_lock()
    assert (window.committed, window.locked_until) == (None, 0.0)
    assert not window.is_sure


@pytest.mark.parametrize(
    ("limits", "others", "own", "needed", "has_room"),
    [
        ((10, 1000), 0, 0, 0, True),
        ((10, 1000), 10, 0, 0, False),  # all together
        ((10, 5), 5, 0, 0, False),  # bytes of all together
        ((10, 5), 4, 0, 0, True),
        ((10, 10), 4, 0, 7, False),  # the last answer would not fit yet
        ((10, 10), 3, 0, 7, True),
        ((10, 1000), 1, 6, 0, False),  # its share of two windows
        ((10, 1000), 1, 5, 0, True),
        ((100, 10), 0, 6, 0, False),  # its share of the bytes
        ((100, 1000), 0, 8, 0, False),  # `queue_messages`
        ((1, 1), 0, 0, 7, True),  # an empty buffer takes any answer
    ],
)
def test_room_in_the_buffer(
    limits: tuple[int, int], others: int, own: int, needed: int, *, has_room: bool
) -> None:
    buffer = Buffer(*limits)
    other, window = window_at(buffer=buffer), window_at(buffer=buffer)
    other.add(messages_at(*range(others)), QueueOffset(others))
    window.add(messages_at(*range(own)), QueueOffset(own))
    window.needed = needed
    assert buffer.has_room(window, 2, 8, 1000) is has_room


def test_a_queue_has_a_limit_of_bytes_of_its_own() -> None:
    buffer = Buffer(100, 1000)
    window = window_at(buffer=buffer)
    window.add(messages_at(*range(5)), QueueOffset(5))
    assert buffer.has_room(window, 1, 100, window.bytes)
    assert not buffer.has_room(window, 1, 100, window.bytes - 1)


def test_regular_answers_of_a_queue_that_lags_allow_several_pulls() -> None:
    window = window_at(0, buffer=Buffer(1000, 1000))
    assert window.pulls_at_once(256, 1) == 1
    for first in (0, 32):
        window.note_answer(32, 64, first + 32, 10_000)
        window.next_offset = QueueOffset(first + 32)
    assert window.stride == 32
    assert window.pulls_at_once(256, 1) == 8
    assert window.pulls_at_once(1000, 1) == 8  # never more
    assert window.pulls_at_once(96, 1) == 3  # the messages that it may ask for
    assert window.pulls_at_once(256, 4) == 3  # its share of the bytes
    assert window.pulls_at_once(16, 1) == 1
    window.note_answer(32, 64, 96, 170)  # 74 messages are left
    window.next_offset = QueueOffset(96)
    assert window.pulls_at_once(256, 1) == 2
    window.note_answer(31, 64, 128, 10_000)  # one of the offsets did not match the filter
    assert window.pulls_at_once(256, 1) == 1


# ---- another filter --------------------------------------------------------------------------


def test_another_filter_reads_again_what_was_not_handed_out() -> None:
    buffer = Buffer(100, 1000)
    window = filled(5, 6, 8, 9, buffer=buffer)
    window.stride = window.needed = 7
    first, second = taken(window), taken(window)
    window.finish(second, 52.0)
    window.refilter(by_tags("new"))
    assert (window.next_offset, window.position, window.epoch) == (8, 5, 1)
    assert (buffer.count, buffer.bytes, len(window.waiting)) == (1, 1, 0)
    assert (window.stride, window.needed) == (0, 0)
    assert window.room.is_fired
    window.add(messages_at(9), QueueOffset(10))
    window.finish(first, 53.0)
    assert window.position == 9


def test_another_filter_keeps_what_failed_and_is_to_be_handled_again() -> None:
    window = filled(1, 2, 3)
    batch = taken(window, 2)
    window.end(batch, 52.0)
    window.put_back(batch.messages, 60.0)
    window.refilter(by_tags("new"))
    assert offsets(window.waiting) == [1, 2]
    assert (window.next_offset, window.count) == (3, 2)


def test_another_filter_ends_runs_behind_the_message_that_was_begun() -> None:
    window = filled(*range(1, 21))
    runs = [window.take_run(8, 51.0), window.take_run(8, 51.0)]
    for run in runs:
        assert run is not None
        assert run.rest is not None
        run.messages.append(run.rest.popleft())
    window.refilter(by_tags("new"))
    # The first run was begun before the message 9: what it leaves comes before that.
    assert offsets(window.waiting) == [2, 3, 4, 5, 6, 7, 8]
    assert (window.next_offset, window.position, window.count) == (10, 1, 9)


def test_another_filter_goes_on_behind_the_last_answer_if_nothing_waits() -> None:
    window = filled(1, 2)
    batch = taken(window, 2)
    window.refilter(by_tags("new"))
    assert (window.next_offset, window.position, window.count) == (3, 1, 2)
    window.finish(batch, 52.0)
    assert window.position == 3
