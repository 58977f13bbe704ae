"""Held pops: what wakes them, in which order they are served, and how they end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from downrange.errors import CorruptStore
from downrange.server.broker import record_scan
from downrange.server.broker.handlers import pop, pop_polls
from downrange.server.broker.pop import held_pops, pop_plan, queue_reader
from downrange.server.outputs import HELD, Peer
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    PopStage,
    ack_request,
    notification_request,
    pop_request,
    popped_of,
)

OTHER = Peer(2, "10.0.0.3:1002")


@pytest.fixture
def stage() -> PopStage:
    return PopStage(queues=2)


def bodies_of(stage: PopStage, request: Command) -> list[str]:
    return [one.body for one in popped_of(stage.answer_of(request))]


@pytest.mark.parametrize("queue_id", [1, -1])
def test_message_wakes_a_pop(queue_id: int, stage: PopStage) -> None:
    request = stage.hold(queue_id=queue_id)
    assert stage.answer_to(request) is None
    stage.send("a", queue_id=1)
    assert bodies_of(stage, request) == ["a"]
    assert len(stage.state.held_pops) == 0


def test_message_of_another_queue_does_not_wake_a_pop(stage: PopStage) -> None:
    request = stage.hold(queue_id=0)
    stage.send("a", queue_id=1)
    assert stage.answer_to(request) is None
    stage.send("b", queue_id=0)
    assert bodies_of(stage, request) == ["b"]


def test_message_of_another_topic_does_not_wake_a_pop(stage: PopStage) -> None:
    request = stage.hold()
    stage.send("a", topic="U")
    assert stage.answer_to(request) is None


@pytest.mark.parametrize("queue_id", [1, -1])
@pytest.mark.parametrize("is_v2", [False, True])
def test_revived_message_wakes_a_pop(queue_id: int, is_v2: bool) -> None:
    stage = PopStage(queues=2, is_retry_topic_v2=is_v2)
    stage.send("a")
    stage.pop()
    request = stage.hold(queue_id=queue_id, poll_ms=INVISIBLE_MS + 10_000)
    stage.tick(INVISIBLE_MS)
    assert bodies_of(stage, request) == ["a"]


def test_pops_are_served_in_the_order_of_arrival(stage: PopStage) -> None:
    requests = [stage.hold(count=1) for _ in range(3)]
    stage.send("a", "b")
    assert bodies_of(stage, requests[0]) == ["a"]
    assert bodies_of(stage, requests[1]) == ["b"]
    assert stage.answer_to(requests[2]) is None


def test_groups_are_served_independently(stage: PopStage) -> None:
    requests = [stage.hold(group=group) for group in "GH"]
    stage.send("a")
    assert [bodies_of(stage, request) for request in requests] == [["a"], ["a"]]


def test_filter_of_a_held_pop(stage: PopStage) -> None:
    request = stage.hold(exp="B")
    stage.send("a", TAGS="A")
    assert stage.answer_to(request) is None
    assert stage.committed() == 1
    stage.send("b", TAGS="B")
    (one,) = popped_of(stage.answer_of(request))
    assert (one.body, one.receipt.start) == ("b", 1)


def test_number_of_pops_that_are_woken_in_vain_is_limited(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_polls, "_MISSES_MAX", 1)
    tried: list[int] = []
    original = pop_plan._start

    def counted(*arguments: Any) -> Any:
        tried.append(1)
        return original(*arguments)

    for _ in range(5):
        stage.hold(exp="B", queue_id=0)
    monkeypatch.setattr(pop_plan, "_start", counted)
    stage.send("a", TAGS="A")
    assert len(tried) == 2
    assert len(stage.state.held_pops) == 5


@pytest.mark.parametrize(("exp", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_one_search_is_made_per_tick_however_many_pops_wait(
    exp: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", 3)
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", 3)
    stage = PopStage(queues=4)
    for queue_id in range(4):
        stage.send(*["a"] * 12, queue_id=queue_id, TAGS="A")
    requests = [stage.hold(exp=exp, exp_type=kind) for _ in range(5)]

    def examined() -> int:
        return sum(stage.committed(queue_id) or 0 for queue_id in range(4))

    counts = [examined()]
    while stage.broker.is_behind(stage.now_ms):
        stage.tick()
        counts.append(examined())
    assert {after - before for before, after in pairwise(counts)} == {3}
    assert counts[-1] == 4 * 12
    stage.send("b", queue_id=2, TAGS="B")
    assert bodies_of(stage, requests[0]) == ["b"]


def test_places_are_looked_at_again_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that goes on does not keep the others waiting."""
    monkeypatch.setattr(held_pops, "_WOKEN_MAX", 1)
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", 2)
    stage = PopStage()
    stage.send(*"aaaaaaaaab", TAGS="A")
    for group in "GH":
        stage.hold(exp="B", group=group)
    for _ in range(4):
        stage.tick()
    assert [stage.committed(group=group) for group in "GH"] == [6, 6]


#: Does not match the messages of these tests, and has ten comparisons.
SLOW = " OR ".join(["TAGS = 'B'", *(f"TAGS = 'C{number}'" for number in range(9))])


def searching(monkeypatch: pytest.MonkeyPatch, groups: str) -> tuple[PopStage, list[Command]]:
    """Return a broker where each group has a held pop that searches 40 messages, 4 at a time."""
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", 4)
    stage = PopStage()
    stage.send(*["a"] * 40, TAGS="A")
    return stage, [stage.hold(exp=SLOW, exp_type="SQL92", group=group) for group in groups]


def test_all_places_share_the_comparisons_of_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, requests = searching(monkeypatch, "GHI")
    monkeypatch.setattr(pop_polls, "COMPARED_MAX", 41)  # two searches
    counts = [{group: stage.committed(group=group) or 0 for group in "GHI"}]
    while stage.broker.is_behind(stage.now_ms):
        stage.tick()
        counts.append({group: stage.committed(group=group) or 0 for group in "GHI"})
    for before, after in pairwise(counts[:-1]):
        assert sum(after.values()) - sum(before.values()) == 8
        assert max(after.values()) - min(after.values()) <= 4
    assert set(counts[-1].values()) == {40}
    stage.send("b", TAGS="B")
    assert [bodies_of(stage, request) for request in requests] == [["b"]] * 3


def test_messages_do_not_make_places_search_that_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, (request,) = searching(monkeypatch, "G")
    before = stage.committed()
    stage.send("b", TAGS="B")
    assert stage.committed() == before
    stage.drain(50)
    assert bodies_of(stage, request) == ["b"]


def test_place_beyond_the_comparisons_between_two_ticks_is_served_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_polls, "COMPARED_MAX", 10)
    stage = PopStage()
    requests = [stage.hold(exp=SLOW, exp_type="SQL92", group=group) for group in "GHI"]
    notification = stage.hand_in(
        notification_request(exp=SLOW, exp_type="SQL92", consumer_group="J", poll_time=10_000)
    )
    plain = stage.hold(group="K")
    stage.tick()
    stage.send("b", TAGS="B")
    assert bodies_of(stage, requests[0]) == ["b"]
    assert bodies_of(stage, plain) == ["b"]
    for request in (*requests[1:], notification):
        assert stage.answer_to(request) is None
        assert stage.broker.is_behind(stage.now_ms)
        stage.tick()
        assert stage.answer_of(request).code == 0
    assert not stage.broker.is_behind(stage.now_ms)


def test_time_of_a_pop_ends_while_others_search(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, _ = searching(monkeypatch, "G")
    monkeypatch.setattr(pop_polls, "COMPARED_MAX", 1)
    request = stage.hold(exp=SLOW, exp_type="SQL92", group="H", poll_ms=1_000)
    stage.tick(1_000)
    assert stage.answer_of(request).code == 210
    stage.send("b", TAGS="B")
    found: list[str] = []
    for _ in range(20):
        found += stage.bodies(exp=SLOW, exp_type="SQL92", group="H")
    assert found == ["b"]


@pytest.mark.parametrize("make", [pop_request, notification_request])
def test_request_that_waits_keeps_little_and_is_not_counted_as_unanswered(
    make: Any, stage: PopStage
) -> None:
    """A consumer holds thousands of them on a connection, where it also acknowledges."""
    key = "poll_ms" if make is pop_request else "poll_time"
    request = make(exp="B", exp_type="TAG", **{key: 10_000})
    request.body = bytes(1_000_000)
    stage.hand_in(request)
    assert (request.fields, request.body) == ({}, b"")
    assert stage.others == [HELD]
    stage.send("b", TAGS="B")
    assert stage.answer_of(request).code == 0


def test_request_beyond_the_limit_is_not_held(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_pops, "ALL_MAX", 0)
    stage.hold()
    stage.hand_in(notification_request(poll_time=10_000))
    assert stage.others == []


def test_pop_of_no_messages_keeps_no_one_busy(stage: PopStage) -> None:
    stage.hold(count=0)
    stage.send("a")
    stage.tick()
    assert not stage.broker.is_behind(stage.now_ms)


def test_time_of_a_pop_ends(stage: PopStage) -> None:
    request = stage.hold(poll_ms=1_000)
    stage.tick(999)
    assert stage.answer_to(request) is None
    stage.tick(1)
    answer = stage.answer_of(request)
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert answer.fields["popTime"] == str(stage.now_ms)
    stage.send("a")
    assert stage.bodies() == ["a"]


def test_pop_is_tried_once_more_at_its_end(stage: PopStage) -> None:
    """A limit of checkpoints may have kept it from its message."""
    stage = PopStage(pop_checkpoints_max=1)
    request = stage.hold(poll_ms=500)
    stage.send("a", topic="U")
    (one,) = stage.pop(topic="U")
    stage.send("b")
    assert stage.answer_to(request) is None
    stage.ack(one, topic="U")
    stage.tick(500)
    assert bodies_of(stage, request) == ["b"]


def test_limit_per_queue(stage: PopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pops, "PER_QUEUE_MAX", 2)
    for _ in range(2):
        stage.hold(queue_id=0)
    answer = stage.answer_of(stage.hold(queue_id=0))
    assert (answer.code, answer.remark) == (209, "NO_MESSAGE_IN_QUEUE")
    assert stage.answer_to(stage.hold(queue_id=1)) is None
    assert stage.answer_to(stage.hold(queue_id=-1)) is None
    assert stage.answer_to(stage.hold(queue_id=0, group="H")) is None


def test_limit_of_all(stage: PopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pops, "ALL_MAX", 2)
    stage.hold(queue_id=0)
    stage.hold(queue_id=1)
    assert stage.answer_of(stage.hold(group="H")).code == 209
    stage.tick(20_000)
    assert stage.answer_to(stage.hold(group="H")) is None


def test_connection_that_ended(stage: PopStage) -> None:
    gone = stage.hold(OTHER)
    stays = stage.hold()
    stage.act(stage.broker.on_disconnect(OTHER, stage.now_ms))
    stage.send("a")
    assert bodies_of(stage, stays) == ["a"]
    stage.tick(20_000)
    assert stage.answer_to(gone) is None


def test_broker_stops(stage: PopStage) -> None:
    requests = [stage.hold(), stage.hold(group="H")]
    stage.act(stage.broker.close(stage.now_ms))
    assert [stage.answer_of(request).code for request in requests] == [210, 210]


def test_pops_wait_until_the_records_of_the_last_run_are_read(stage: PopStage) -> None:
    stage.send("a", "b")
    (one,) = stage.pop(count=1)
    stage.restart(tick=False)
    assert stage.bodies() == []
    request = stage.hold()
    assert stage.answer_to(request) is None
    stage.tick()
    assert bodies_of(stage, request) == ["b"]
    stage.ack(one)


def test_pops_are_held_while_an_append_wakes_others(stage: PopStage) -> None:
    """A pop that waits for another group's message is not answered by it."""
    request = stage.hold(group="H", queue_id=1)
    stage.hold(group="G", queue_id=0)
    stage.send("a", queue_id=0)
    assert stage.answer_to(request) is None


@pytest.mark.parametrize("error", [CorruptStore("commitlog", 0, "damaged"), OSError(5, "EIO")])
@pytest.mark.parametrize("how", ["wake", "expire"])
def test_pop_that_fails_is_answered_and_the_others_go_on(
    how: str, error: Exception, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stage.hold(count=1, poll_ms=1_000)
    second = stage.hold(count=1, poll_ms=1_000)
    original, calls = queue_reader.take, list[int]()

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(pop_plan, "take", fail_once)
    if how == "wake":
        stage.send("a")
        assert bodies_of(stage, second) == ["a"]
    else:
        stage.tick(1_000)
        assert stage.answer_of(second).code == 210
    assert stage.answer_of(first).code == 210


def test_pops_whose_time_is_over_are_answered_although_the_disk_fails(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [stage.hold(poll_ms=1_000), stage.hold(group="H", poll_ms=1_000)]

    def fail(*_: object) -> None:
        raise OSError(5, "EIO")

    monkeypatch.setattr(pop, "take_messages", fail)
    stage.tick(1_000)
    assert [stage.answer_of(request).code for request in requests] == [210, 210]


def test_topic_with_fewer_queues_than_when_the_pop_was_held(stage: PopStage) -> None:
    request = stage.hold(queue_id=1, poll_ms=1_000)
    stage.ask(Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": "T"}))
    stage.create("T", 1)
    stage.tick(1_000)
    assert stage.answer_of(request).code == 210
    assert ("T", 1) not in set(stage.state.store.queue_names())


# ---- in order ----


def ordered(stage: PopStage, **changes: Any) -> Command:
    return stage.hold(order=True, poll_ms=100_000, **changes)


def test_last_acknowledgement_wakes_a_pop(stage: PopStage) -> None:
    stage.send("a", "b", "c")
    one, two = stage.pop(order=True, count=2)
    request = ordered(stage, queue_id=0)
    stage.ack(one)
    assert stage.answer_to(request) is None
    ack = stage.hand_in(ack_request(two))
    assert bodies_of(stage, request) == ["c"]
    assert stage.answer_of(ack).code == 0


def test_end_of_the_block_wakes_a_pop(stage: PopStage) -> None:
    stage.send("a")
    stage.pop(order=True)
    request = ordered(stage)
    stage.tick(INVISIBLE_MS - 1)
    assert stage.answer_to(request) is None
    stage.tick(1)
    assert bodies_of(stage, request) == ["a"]


def test_end_of_a_block_that_began_later_wakes_a_pop(stage: PopStage) -> None:
    requests = [ordered(stage, queue_id=0), ordered(stage, queue_id=0)]
    stage.send("a")
    assert bodies_of(stage, requests[0]) == ["a"]
    stage.tick(INVISIBLE_MS - 1)
    assert stage.answer_to(requests[1]) is None
    stage.tick(1)
    assert bodies_of(stage, requests[1]) == ["a"]


@pytest.mark.parametrize("invisible_ms", [0, 1_000, INVISIBLE_MS + 5_000])
def test_changed_time_wakes_a_pop(invisible_ms: int, stage: PopStage) -> None:
    stage.send("a")
    (one,) = stage.pop(order=True)
    request = ordered(stage)
    answer = stage.change(one, invisible_ms)
    assert answer.code == 0
    if invisible_ms:
        stage.tick(invisible_ms - 1)
        assert stage.answer_to(request) is None
        stage.tick(1)
    assert bodies_of(stage, request) == ["a"]


def test_each_blocked_queue_wakes_a_pop(stage: PopStage) -> None:
    stage.send("a")
    stage.send("b", queue_id=1)
    stage.pop(order=True, queue_id=0, invisible_ms=5_000)
    stage.pop(order=True, queue_id=1, invisible_ms=9_000)
    requests = [ordered(stage, count=1, queue_id=-1) for _ in range(2)]
    stage.tick(5_000)
    assert bodies_of(stage, requests[0]) == ["a"]
    stage.tick(4_000)
    assert bodies_of(stage, requests[1]) == ["b"]


def test_end_of_a_block_wakes_its_pop_however_many_wait_for_other_queues() -> None:
    stage = PopStage(queues=40)
    stage.send("a", queue_id=39)
    stage.pop(order=True, queue_id=39)
    requests = [ordered(stage, queue_id=queue_id) for queue_id in range(40)]
    stage.tick(INVISIBLE_MS)
    assert bodies_of(stage, requests[39]) == ["a"]


def test_retry_topic_does_not_wake_a_pop_in_order(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    request = ordered(stage)
    stage.tick(INVISIBLE_MS)
    assert stage.answer_to(request) is None
