"""Back-pressure: what is admitted, what waits, and the order of the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.effects import Wait
from downrange.client.flows.producing.permits import Permits
from downrange.errors import OptionError, TooManySends
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow


def permits(count_max: int = 10, bytes_max: int = 1000, clock: FakeClock | None = None) -> Permits:
    return Permits(clock or FakeClock(), count_max, bytes_max)


def wait_of(flow: Flow[None]) -> Wait:
    effect = next(flow)
    assert isinstance(effect, Wait)
    return effect


def finish(flow: Flow[None], answer: bool) -> None:
    with pytest.raises(StopIteration):
        flow.send(answer)


def run_through(flow: Flow[None]) -> None:
    with pytest.raises(StopIteration):
        next(flow)


# ---- room ----------------------------------------------------------------------------------------


def test_take_does_not_yield_when_there_is_room() -> None:
    room = permits()
    run_through(room.take(400, deadline=1.0))
    run_through(room.take(600, deadline=1.0))
    assert (room.in_flight, room.in_flight_bytes, room.waiting) == (2, 1000, 0)


def test_try_take_says_no_when_a_limit_is_reached() -> None:
    assert permits(count_max=1).try_take(1)
    by_count, by_bytes = permits(count_max=1), permits(bytes_max=10)
    assert by_count.try_take(1)
    assert not by_count.try_take(1)
    assert by_bytes.try_take(6)
    assert not by_bytes.try_take(5)
    assert by_bytes.try_take(4)


def test_message_larger_than_the_limit_goes_alone() -> None:
    room = permits(bytes_max=10)
    assert room.try_take(1)
    assert not room.try_take(11)
    room.give_back(1)
    assert room.try_take(11)
    assert not room.try_take(1)


def test_high_marks_stay_when_everything_came_back() -> None:
    room = permits(count_max=2)
    assert room.try_take(7)
    assert room.try_take(5)
    line = room.take(1, deadline=1.0)
    next(line)
    line.close()
    room.give_back(7)
    room.give_back(5)
    assert (room.in_flight, room.in_flight_bytes) == (0, 0)
    assert (room.in_flight_high, room.in_flight_bytes_high, room.waiting_high) == (2, 12, 1)


# ---- the line ------------------------------------------------------------------------------------


def test_waiter_goes_when_room_comes_free_and_holds_it_before_it_wakes() -> None:
    room = permits(count_max=1)
    assert room.try_take(5)
    line = room.take(7, deadline=2.0)
    wait = wait_of(line)
    assert (wait.deadline, wait.signal.is_fired, room.waiting) == (2.0, False, 1)
    room.give_back(5)
    assert (wait.signal.is_fired, room.in_flight_bytes, room.waiting) == (True, 7, 0)
    assert not room.try_take(1)
    finish(line, True)
    assert room.in_flight == 1


def test_room_of_several_messages_comes_back_together() -> None:
    room = permits(count_max=3)
    assert all(room.try_take(size) for size in (1, 2, 3))
    room.give_back_together(1, 2)
    assert (room.in_flight, room.in_flight_bytes) == (2, 4)
    assert room.try_take(2)
    flows = [room.take(1, deadline=1.0) for _ in range(3)]  # kept: a dropped flow leaves the line
    waits = [wait_of(flow) for flow in flows]
    room.give_back_together(2, 3)
    assert [wait.signal.is_fired for wait in waits] == [True, True, False]


def test_a_large_message_in_line_is_not_overtaken() -> None:
    room = permits(bytes_max=10)
    assert room.try_take(6)
    large, small = room.take(8, deadline=1.0), room.take(1, deadline=1.0)
    first, second = wait_of(large), wait_of(small)
    assert not room.try_take(1)
    room.give_back(6)
    assert (first.signal.is_fired, second.signal.is_fired) == (True, True)
    assert room.in_flight_bytes == 9


def test_room_goes_to_as_many_waiters_as_it_does_for() -> None:
    room = permits(bytes_max=10)
    assert room.try_take(10)
    line = [room.take(4, deadline=1.0) for _ in range(3)]
    waits = [wait_of(flow) for flow in line]
    room.give_back(10)
    assert [wait.signal.is_fired for wait in waits] == [True, True, False]


@pytest.mark.parametrize(
    ("count_max", "bytes_max", "limit"),
    [(1, 1000, "in_flight_max=1"), (10, 8, "in_flight_bytes_max=8")],
)
def test_take_names_the_limit_that_was_short_at_the_deadline(
    count_max: int, bytes_max: int, limit: str
) -> None:
    clock = FakeClock(100.0)
    room = permits(count_max, bytes_max, clock)
    assert room.try_take(5)
    line = room.take(5, deadline=100.5)
    next(line)
    clock.seconds = 100.5
    with pytest.raises(TooManySends, match=rf"{limit} .* within 0\.5 s") as caught:
        line.send(False)
    assert caught.value.limit == limit.partition("=")[0]
    assert room.waiting == 0


def test_take_names_bytes_when_only_the_one_before_lacked_them() -> None:
    room = permits(bytes_max=8)
    assert room.try_take(5)
    ahead, behind = room.take(8, deadline=9.0), room.take(1, deadline=1.0)
    next(ahead)
    next(behind)
    with pytest.raises(TooManySends, match="in_flight_bytes_max=8"):
        behind.send(False)


def test_permit_that_came_with_the_deadline_is_used() -> None:
    room = permits(count_max=1)
    assert room.try_take(1)
    line = room.take(1, deadline=1.0)
    next(line)
    room.give_back(1)
    finish(line, False)
    assert room.in_flight == 1


def test_waiter_that_is_given_up_leaves_no_trace() -> None:
    room = permits(count_max=1)
    assert room.try_take(1)
    line, behind = room.take(2, deadline=1.0), room.take(3, deadline=1.0)
    next(line)
    wait = wait_of(behind)
    line.close()
    assert (room.waiting, wait.signal.is_fired) == (1, False)
    room.give_back(1)
    assert (room.in_flight_bytes, wait.signal.is_fired) == (3, True)


def test_waiter_that_is_given_up_passes_its_permit_on() -> None:
    room = permits(count_max=1)
    assert room.try_take(1)
    line, behind = room.take(2, deadline=1.0), room.take(3, deadline=1.0)
    next(line)
    wait = wait_of(behind)
    room.give_back(1)
    assert not wait.signal.is_fired
    line.close()
    assert (room.in_flight, room.in_flight_bytes, wait.signal.is_fired) == (1, 3, True)


def test_small_message_goes_when_the_large_one_before_it_gives_up() -> None:
    room = permits(bytes_max=10)
    assert room.try_take(8)
    large, small = room.take(10, deadline=1.0), room.take(2, deadline=9.0)
    next(large)
    wait = wait_of(small)
    with pytest.raises(TooManySends):
        large.send(False)
    assert wait.signal.is_fired


# ---- limits that change --------------------------------------------------------------------------


def test_resize_wakes_those_for_whom_there_is_room_now() -> None:
    room = permits(count_max=1, bytes_max=4)
    assert room.try_take(4)
    line = [room.take(4, deadline=1.0) for _ in range(3)]
    waits = [wait_of(flow) for flow in line]
    room.resize(count_max=3)
    assert [wait.signal.is_fired for wait in waits] == [False, False, False]
    room.resize(bytes_max=100)
    assert [wait.signal.is_fired for wait in waits] == [True, True, False]
    assert (room.count_max, room.bytes_max) == (3, 100)


def test_resize_below_what_is_in_flight_admits_no_message() -> None:
    room = permits(count_max=3)
    assert [room.try_take(1) for _ in range(3)] == [True, True, True]
    room.resize(count_max=1)
    room.give_back(1)
    room.give_back(1)
    assert not room.try_take(1)
    room.give_back(1)
    assert room.try_take(1)


def test_resize_refuses_limits_with_which_nothing_could_be_sent() -> None:
    room = permits()
    with pytest.raises(OptionError, match="in_flight_max=0"):
        room.resize(count_max=0)
    with pytest.raises(OptionError, match="in_flight_bytes_max=-1"):
        room.resize(bytes_max=-1)
    assert (room.count_max, room.bytes_max) == (10, 1000)


# ---- random sequences ----------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 12)),
    st.tuples(st.just("give_back"), st.integers(0, 5)),
    st.tuples(st.just("wake"), st.integers(0, 5)),
    st.tuples(st.just("time_out"), st.integers(0, 5)),
    st.tuples(st.just("give_up"), st.integers(0, 5)),
    st.tuples(st.just("resize"), st.integers(1, 4)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_permits_are_neither_lost_nor_made_up_nor_left_lying_about(
    story: list[tuple[str, int]],
) -> None:
    room = permits(count_max=3, bytes_max=10)
    holders: list[int] = []
    line: list[tuple[Flow[None], Wait, int]] = []
    for action, number in story:
        if action == "take":
            flow = room.take(number, deadline=1.0)
            try:
                line.append((flow, wait_of(flow), number))
            except StopIteration:
                holders.append(number)
        elif action == "give_back" and holders:
            room.give_back(holders.pop(number % len(holders)))
        elif action == "resize":
            room.resize(count_max=number)
        elif action in ("wake", "time_out", "give_up") and line:
            flow, wait, size = line[number % len(line)]
            if action == "give_up":
                flow.close()
            elif wait.signal.is_fired:
                finish(flow, action == "wake")
                holders.append(size)
            elif action == "time_out":
                with pytest.raises(TooManySends):
                    flow.send(False)
            else:
                continue
            line.remove((flow, wait, size))
        granted = [size for _, wait, size in line if wait.signal.is_fired]
        unserved = [size for _, wait, size in line if not wait.signal.is_fired]
        assert room.in_flight == len(holders) + len(granted)
        assert room.in_flight_bytes == sum(holders) + sum(granted)
        assert room.waiting == len(unserved)
        # In order: all granted ones are before all others.
        fired = [wait.signal.is_fired for _, wait, _ in line]
        assert fired == sorted(fired, reverse=True)
        # The first in line waits only if there is no room for it.
        assert not unserved or not room._has_room(unserved[0])
