from __future__ import annotations

from downrange.server.broker.held_pulls import HeldPull, HeldPulls
from downrange.server.broker.message_filter import MessageFilter
from downrange.server.outputs import Peer
from downrange.wire.command import Command
from downrange.wire.headers import PullRequest


def a_pull(
    *,
    group: str = "G",
    queue_id: int = 0,
    connection: int = 1,
    tags: set[int] | None = None,
    until_ms: int = 100,
) -> HeldPull:
    header = PullRequest(
        consumer_group=group,
        topic="T",
        queue_id=queue_id,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=0,
    )
    wanted = MessageFilter(None if tags is None else frozenset(tags))
    return HeldPull(Command(11), header, Peer(connection, "10.0.0.1:1"), wanted, until_ms)


def held(*pulls: HeldPull, pulls_max: int = 10) -> HeldPulls:
    table = HeldPulls(pulls_max)
    assert all(table.hold(pull) for pull in pulls)
    return table


def test_an_arrival_wakes_all_pulls_of_its_queue_in_the_order_of_their_coming() -> None:
    first, second, other = a_pull(), a_pull(), a_pull(queue_id=1)
    table = held(first, second, other)
    assert table.wake(("T", 0), {7}) == [first, second]
    assert table.wake(("T", 0), {7}) == []
    assert ("T", 0) not in table
    assert ("T", 1) in table
    assert len(table) == 1


def test_an_arrival_wakes_only_filters_that_take_its_tag() -> None:
    taking, leaving, everything = a_pull(tags={1, 2}), a_pull(tags={3}), a_pull()
    table = held(taking, leaving, everything)
    assert table.wake(("T", 0), {2, 9}) == [taking, everything]
    assert ("T", 0) in table


def test_the_pulls_of_one_group_are_taken_from_a_queue() -> None:
    first, other, second, elsewhere = (
        *(a_pull(tags={1}), a_pull(group="H")),
        *(a_pull(connection=2), a_pull(queue_id=1)),
    )
    table = held(first, other, second, elsewhere)
    assert table.take_group(("T", 0), "G") == [first, second]
    assert table.take_group(("T", 0), "G") == table.take_group(("T", 7), "G") == []
    assert table.all() == [other, elsewhere]


def test_a_pull_expires_at_its_time_and_once() -> None:
    late, early = a_pull(until_ms=200), a_pull(until_ms=100)
    table = held(late, early)
    assert table.expired(99) == []
    assert table.expired(100) == [early]
    assert table.expired(500) == [late]
    assert table.expired(500) == []
    assert len(table) == 0


def test_a_pull_that_was_woken_does_not_expire() -> None:
    table = held(a_pull())
    table.wake(("T", 0), {1})
    assert table.expired(1000) == []


def test_a_connection_that_ends_takes_its_pulls_along() -> None:
    table = held(a_pull(connection=1), a_pull(connection=1, queue_id=1), a_pull(connection=2))
    table.drop_connection(1)
    table.drop_connection(3)
    assert len(table) == 1
    assert ("T", 1) not in table
    assert [pull.peer.number for pull in table.all()] == [2]
    assert len(table) == 0


def test_no_more_pulls_wait_than_allowed() -> None:
    table = held(a_pull(), pulls_max=1)
    assert not table.hold(a_pull())
    table.drop_connection(1)
    assert table.hold(a_pull())


def test_only_those_that_are_wanted_are_taken() -> None:
    kept, taken = a_pull(queue_id=0), a_pull(queue_id=1)
    table = held(kept, taken)
    assert table.take_if(lambda pull: pull.header.queue_id == 1) == [taken]
    assert table.all() == [kept]


def test_pulls_that_never_expire_leave_nothing_behind_when_they_are_woken() -> None:
    table = held(a_pull(queue_id=5, until_ms=50))
    for _ in range(10_000):
        assert table.hold(a_pull(until_ms=1 << 62))
        table.wake(("T", 0), {1})
    assert len(table._times) < 2_000
    assert len(table.expired(60)) == 1
