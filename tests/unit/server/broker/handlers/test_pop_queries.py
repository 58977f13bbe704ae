"""Peeks, notifications and the number of polls."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.server.broker import record_scan
from downrange.server.broker.handlers import pop_polls
from downrange.server.broker.pop import held_pops, pop_plan, queue_reader
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.records import decode_records
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    PopStage,
    count_request,
    notification_request,
    peek_request,
)

NO_REMARK = "not set any response code"
ZEROS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
NOTHING = {"hasMsg": "false", "pollingFull": "false"}
FOUND = {"hasMsg": "true", "pollingFull": "false"}


@pytest.fixture
def stage() -> PopStage:
    return PopStage(queues=2)


# ---- peeks ----


def peeked(answer: Command) -> list[bytes]:
    assert (answer.code, answer.remark) == (0, "FOUND")
    return [record.body for record in decode_records(answer.body)]


def test_peek_makes_nothing_invisible(stage: PopStage) -> None:
    stage.send("a", "b", "c")
    answer = stage.ask(peek_request(2))
    assert peeked(answer) == [b"a", b"b"]
    assert answer.fields == {**ZEROS, "restNum": "3"}
    assert stage.committed() is None
    assert stage.bodies(count=1) == ["a"]
    assert peeked(stage.ask(peek_request())) == [b"b", b"c"]


def test_peek_of_all_queues(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.send("c", queue_id=1)
    answer = stage.ask(peek_request(queue_id=-1))
    assert peeked(answer) == [b"a", b"b", b"c"]
    assert answer.fields["restNum"] == "3"
    assert peeked(stage.ask(peek_request(2, queue_id=-1))) == [b"a", b"b"]


def test_peek_is_limited() -> None:
    stage = PopStage(queues=2, pull_bytes_max=1_024, pull_messages_max=32)
    stage.send("x" * 2_000, "y")
    stage.send("z", queue_id=1)
    assert peeked(stage.ask(peek_request(500, queue_id=-1))) == [b"x" * 2_000]


@pytest.mark.parametrize("count", [0, -1, 5])
def test_peek_that_finds_nothing(count: int, stage: PopStage) -> None:
    answer = stage.ask(peek_request(count))
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert answer.fields == ZEROS


def test_broker_that_may_not_be_read_shows_nothing() -> None:
    stage = PopStage(permission=2)
    stage.send("a")
    for request, fields in (
        (peek_request(), ZEROS),
        (notification_request(), NOTHING),
        (count_request(), {"pollingNum": "0"}),
    ):
        answer = stage.ask(request)
        assert (answer.code, answer.fields) == (16, fields)
        assert answer.remark == "the broker[10.0.0.2] peeking message is forbidden"


def test_peek_is_checked(stage: PopStage) -> None:
    for request, code in (
        (peek_request(topic="None"), 17),
        (peek_request(queue_id=7), 29),
    ):
        answer = stage.ask(request)
        assert (answer.code, answer.fields) == (code, ZEROS)
    stage.group(consume_enable=False)
    assert stage.ask(peek_request()).code == 16


# ---- notifications ----


def test_notification_at_once(stage: PopStage) -> None:
    answer = stage.ask(notification_request())
    assert (answer.code, answer.remark, answer.fields) == (0, NO_REMARK, NOTHING)
    stage.send("a", queue_id=1)
    assert stage.ask(notification_request()).fields == FOUND
    assert stage.ask(notification_request(queue_id=0)).fields == NOTHING
    assert stage.committed(1) is None
    assert stage.bodies() == ["a"]


def test_notification_counts_the_retry_topic(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    assert stage.ask(notification_request()).fields == NOTHING
    stage.drain(INVISIBLE_MS)
    assert stage.ask(notification_request(stage.now_ms)).fields == FOUND


def test_notification_with_a_filter(stage: PopStage) -> None:
    stage.send("a", TAGS="A")
    assert stage.ask(notification_request(exp="B", exp_type="TAG")).fields == NOTHING
    assert stage.ask(notification_request(exp="A", exp_type="TAG")).fields == FOUND
    answer = stage.ask(notification_request(exp="a =", exp_type="SQL92"))
    assert (answer.code, answer.fields) == (23, NOTHING)


@pytest.mark.parametrize(("exp", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_notification_asks_for_a_pop_if_there_is_more_than_one_may_examine(
    exp: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that pops only after a notification would never get the message."""
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", 3)
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", 3)
    stage = PopStage(queues=3)
    for queue_id in range(3):
        stage.send(*"aaaa", queue_id=queue_id, TAGS="A")
    stage.send("b", queue_id=2, TAGS="B")
    found: list[str] = []
    for _ in range(20):
        if stage.ask(notification_request(exp=exp, exp_type=kind)).fields == NOTHING:
            break
        found += stage.bodies(exp=exp, exp_type=kind)
    assert found == ["b"]


def test_notification_asks_for_a_pop_if_one_search_ends_by_its_bytes(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scan, "READ_BYTES_MAX", 1)
    sql: dict[str, Any] = {"exp": "TAGS = 'B'", "exp_type": "SQL92"}
    stage.send(*"aaaa", TAGS="A")
    stage.send("b", TAGS="B")
    found: list[str] = []
    for _ in range(20):
        if stage.ask(notification_request(**sql)).fields == NOTHING:
            break
        found += stage.bodies(**sql)
    assert found == ["b"]


def wait(stage: PopStage, exp: str = "TAGS = 'B'", kind: str = "SQL92", **changes: Any) -> Command:
    """Hand in a notification that waits."""
    request = notification_request(
        stage.now_ms, exp=exp, exp_type=kind, poll_time=60_000, **changes
    )
    stage.hand_in(request)
    assert stage.answer_to(request) is None
    return request


@pytest.mark.parametrize(("exp", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_messages_are_compared_once_for_all_notifications_with_a_filter(
    exp: str, kind: str, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send(*["a"] * 30, TAGS="A")
    examined: list[int] = []
    original = queue_reader.take

    def counted(*arguments: Any) -> Any:
        taken = original(*arguments)
        examined.append(taken.next_offset - taken.start)
        return taken

    monkeypatch.setattr(pop_plan, "take", counted)
    groups = ("G", "G", "H", "H")
    requests = [wait(stage, exp, kind, consumer_group=group) for group in groups]
    requests += [wait(stage, exp, kind, queue_id=0)]
    assert sum(examined) == 30
    stage.send("a", TAGS="A")
    stage.send("a", TAGS="A", queue_id=1)
    assert sum(examined) == 32
    stage.send("b", TAGS="B")
    assert [stage.answer_of(request).fields for request in requests] == [FOUND] * 5


def test_notification_sees_messages_before_those_that_were_compared(stage: PopStage) -> None:
    stage.send("b", TAGS="B")
    stage.send(*"aa", TAGS="A")
    stage.ack_together(*stage.pop())
    request = wait(stage)
    stage.reset(0)
    stage.send("a", TAGS="A")
    assert stage.answer_of(request).fields == FOUND


def test_notification_sees_the_messages_of_a_topic_that_is_created_again(stage: PopStage) -> None:
    stage.send(*"aaa", TAGS="A")
    wait(stage)
    assert len(stage.state.unmatched) == 1
    delete = Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": "T"})
    assert stage.ask(delete).code == 0
    assert len(stage.state.unmatched) == 0
    stage.create("T", 2)
    request = wait(stage)
    stage.send("b", TAGS="B")
    assert stage.answer_of(request).fields == FOUND


def test_comparisons_for_notifications_are_limited(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the limit are made in the next ticks; no notification is forgotten."""
    monkeypatch.setattr(pop_polls, "COMPARED_MAX", 5)
    tags = [f"TAGS = 'B{number}'" for number in range(12)]
    requests = [wait(stage, exp, consumer_group=group) for group in "GHI" for exp in tags]
    stage.tick()
    before = len(stage.state.unmatched)
    stage.send("a", TAGS="A")
    assert len(stage.state.unmatched) == before + 5
    stage.drain(50)
    assert len(stage.state.unmatched) == before + 12
    stage.send("b", TAGS="B11")
    stage.drain(50)
    answers = [stage.answer_to(request) for request in requests]
    assert [answer is not None for answer in answers] == ([False] * 11 + [True]) * 3


def test_notification_of_a_blocked_queue(stage: PopStage) -> None:
    stage.send("a")
    stage.pop(order=True, attempt_id="1")
    assert stage.ask(notification_request(order=True)).fields == NOTHING
    assert stage.ask(notification_request(order=True, attempt_id="1")).fields == FOUND


def test_notification_waits(stage: PopStage) -> None:
    request = stage.hand_in(notification_request(poll_time=1_000))
    stage.tick(999)
    assert stage.answer_to(request) is None
    stage.tick(1)
    assert stage.answer_of(request).fields == NOTHING
    request = stage.hand_in(notification_request(stage.now_ms, poll_time=1_000))
    stage.send("a")
    assert stage.answer_of(request).fields == FOUND
    assert stage.bodies() == ["a"]


def test_every_notification_is_answered_by_one_message(stage: PopStage) -> None:
    requests = [stage.hand_in(notification_request(poll_time=1_000)) for _ in range(3)]
    stage.send("a")
    assert [stage.answer_of(request).fields for request in requests] == [FOUND] * 3


def test_old_notification_does_not_wait(stage: PopStage) -> None:
    request = notification_request(stage.now_ms - 9_000, poll_time=1_000)
    assert stage.ask(request).fields == NOTHING


def test_notification_beyond_the_limit(stage: PopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pops, "PER_QUEUE_MAX", 1)
    stage.hand_in(notification_request(poll_time=1_000))
    answer = stage.ask(notification_request(poll_time=1_000))
    assert answer.fields == {"hasMsg": "false", "pollingFull": "true"}


def test_notification_is_checked(stage: PopStage) -> None:
    for request, code in (
        (notification_request(topic="None"), 17),
        (notification_request(queue_id=7), 29),
        (notification_request(attempt_id="x" * 1_025), 29),
    ):
        answer = stage.ask(request)
        assert (answer.code, answer.fields) == (code, NOTHING)


def test_notification_of_a_topic_that_is_deleted_meanwhile(stage: PopStage) -> None:
    other = stage.hold(poll_ms=1_000)
    request = stage.hand_in(notification_request(poll_time=1_000))
    delete = Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": "T"})
    assert stage.ask(delete).code == 0
    stage.tick(1_000)
    assert stage.notes == []
    assert stage.answer_of(request).fields == NOTHING
    assert stage.answer_of(other).code == 210


# ---- the number of polls ----


def test_number_of_polls(stage: PopStage) -> None:
    answer = stage.ask(count_request())
    assert (answer.code, answer.remark, answer.fields) == (0, NO_REMARK, {"pollingNum": "0"})
    stage.hold()
    stage.hold()
    stage.hold(queue_id=1)
    assert stage.ask(count_request()).fields == {"pollingNum": "2"}
    assert stage.ask(count_request(queue_id=1)).fields == {"pollingNum": "1"}
    assert stage.ask(count_request(consumer_group="H")).fields == {"pollingNum": "0"}
    assert stage.state.groups.get("H") is None
    for request, code in ((count_request(topic="None"), 17), (count_request(queue_id=9), 29)):
        answer = stage.ask(request)
        assert (answer.code, answer.fields) == (code, {"pollingNum": "0"})


def test_rollback_has_nothing_to_do(stage: PopStage) -> None:
    answer = stage.ask(Command(int(RequestCode.POP_ROLLBACK)))
    assert (answer.code, answer.remark, answer.fields) == (0, NO_REMARK, {})
