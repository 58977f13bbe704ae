"""Acknowledgements and changes of popped messages: every check, every reply, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.server.broker.record_scan import EXAMINED_MAX, TAGS_EXAMINED_MAX
from downrange.server.broker.state import DISK_FULL
from downrange.wire.bodies import decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.limits import INVISIBLE_MS_MAX
from downrange.wire.pop_bodies import SPAN_MAX, BatchAckBody
from tests.unit.server.broker.broker_stage import send_request
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    RETRY_TOPIC,
    TIMER_TOPIC,
    Popped,
    PopStage,
    ack_request,
    batch_ack_request,
    change_request,
    changed,
)

BATCH_ACK = int(RequestCode.BATCH_ACK_MESSAGE)


def a_stage(*bodies: str, **options: Any) -> PopStage:
    stage = PopStage(**options)
    stage.send(*(bodies or ("a", "b", "c")))
    return stage


def timed(stage: PopStage) -> list[tuple[str, bytes]]:
    """Return tags and bodies of the records of pop consumption."""
    return [(record.properties()["TAGS"], record.body) for record in stage.records(TIMER_TOPIC)]


# ---- one message ----


def test_acknowledged_message_does_not_come_back() -> None:
    stage = a_stage()
    stage.ack(*stage.pop())
    stage.drain(INVISIBLE_MS + 5_000)
    assert stage.again() == []
    assert stage.bodies() == []
    assert stage.committed() == 3


def test_reply_has_neither_fields_nor_remark() -> None:
    stage = a_stage()
    (one, *_) = stage.pop()
    answer = stage.ask(ack_request(one))
    assert (answer.code, answer.fields, answer.remark, answer.body) == (0, {}, None, b"")


def test_repeated_acknowledgement_succeeds_and_stores_nothing() -> None:
    stage = a_stage()
    (one, *_) = stage.pop()
    stage.ack(one)
    count = len(stage.records(TIMER_TOPIC))
    stage.ack(one)
    assert len(stage.records(TIMER_TOPIC)) == count


def test_same_message_twice_in_one_turn() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    requests = [ack_request(one), ack_request(one)]
    for request in requests:
        stage.hand_in(request)
    stage.commit()
    assert [stage.answer_of(request).code for request in requests] == [0, 0]
    assert stage.committed() == 1
    assert len(stage.state.checkpoints) == 0


def test_rest_of_a_pop_comes_back() -> None:
    stage = a_stage("a", "b", "c", "d")
    popped = stage.pop()
    stage.ack(popped[0], popped[2])
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["b", "d"]


def test_late_acknowledgement_counts_until_the_message_is_visible() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.now_ms += INVISIBLE_MS + 60_000
    stage.ack(one)
    stage.drain(0)
    assert stage.again() == []


def test_too_late_acknowledgement_succeeds_without_effect() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.drain(INVISIBLE_MS)
    stage.ack(one)
    assert stage.bodies() == ["a"]


@pytest.mark.parametrize(
    "receipt",
    [
        {"start": 7},
        {"pop_ms": 5},
        {"offset": 1},
        {"broker": "another", "pop_ms": 9},
    ],
)
def test_unknown_receipt_succeeds_without_effect(receipt: dict[str, Any]) -> None:
    stage = a_stage("a", "b")
    (one,) = stage.pop(count=1)
    stage.ack(Popped(one.receipt._replace(**receipt), one.record))
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["a"]


@pytest.mark.parametrize("count", [6, 7])
def test_receipt_needs_no_queue_and_offset_of_its_own(count: int) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    words = str(one.receipt).split(" ")[:count]
    assert stage.ask(ack_request(one, extra_info=" ".join(words))).code == 0
    assert len(stage.state.checkpoints) == 0


@pytest.mark.parametrize("text", ["", "a b", "x 1 2 3 0 b 0 0", "1 2 3 x 0 b 0 0", "1 2 3 4 0"])
def test_malformed_receipt_is_refused(text: str) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    answer = stage.ask(ack_request(one, extra_info=text))
    assert answer.code == 1
    assert "extraInfo" in (answer.remark or "")


@pytest.mark.parametrize("offset", [4, 100, -1])
def test_offset_outside_the_queue_is_refused(offset: int) -> None:
    stage = a_stage()
    (one, *_) = stage.pop()
    answer = stage.ask(ack_request(one, offset=offset))
    assert answer.code == 208
    assert answer.remark == f"offset is illegal, key:T@0, commit:{offset}, store:0~3"
    assert stage.ask(ack_request(one, offset=3)).code == 0  # the end is accepted, as in Apache


def test_unknown_topic_and_queue_are_refused() -> None:
    stage = a_stage()
    (one, *_) = stage.pop()
    answer = stage.ask(ack_request(one, topic="None"))
    assert answer.code == 17
    assert (answer.remark or "").startswith("topic[None] not exist, apply first please! ")
    for queue_id in (1, -1):
        answer = stage.ask(ack_request(one, queue_id=queue_id))
        assert answer.code == 13
        assert answer.remark == (
            f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[1] "
            "consumer:[/10.0.0.1:1001]"
        )


def test_acknowledgement_by_another_group_has_no_effect() -> None:
    stage = a_stage("a")
    stage.ack(*stage.pop(), group="H")
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["a"]
    assert stage.state.groups.get("H") is None


def test_message_of_a_retry_topic_is_acknowledged_by_either_name() -> None:
    for name in ("T", RETRY_TOPIC):
        stage = a_stage("a")
        stage.pop()
        stage.drain(INVISIBLE_MS)
        (one,) = stage.pop()
        assert one.receipt.kind == "1"
        assert stage.ask(ack_request(one, topic=name)).code == 0
        stage.drain(INVISIBLE_MS)
        assert stage.again() == ["a"]  # only the first copy
        assert stage.bodies() == []


def test_acknowledgement_waits_for_the_flush_in_sync_mode() -> None:
    stage = a_stage("a", flush="sync")
    (one,) = stage.pop()
    request = stage.hand_in(ack_request(one))
    stage.commit()
    assert stage.answer_to(request) is None
    stage.flush()
    assert stage.answer_of(request).code == 0


def test_acknowledgement_is_refused_while_nothing_can_be_stored() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.state.unwritable = DISK_FULL
    answer = stage.ask(ack_request(one))
    assert answer.code == 1
    assert DISK_FULL in (answer.remark or "")
    assert stage.ask(change_request(one, 5)).code == 1
    stage.state.unwritable = None
    stage.ack(one)
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []


def test_acknowledgement_that_cannot_be_appended_is_not_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()

    def fail(*_: object) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        patch.setattr(stage.state.store, "append_run", fail)
        assert stage.ask(ack_request(one)).code == 1
        assert stage.ask(change_request(one, 5)).code == 1
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["a"]


# ---- batches ----


def test_batch_acknowledges_messages_of_several_checkpoints() -> None:
    stage = PopStage(queues=2)
    stage.send("a", "b", "c", "d")
    stage.send("e", "f", queue_id=1)
    popped = [*stage.pop(count=3, queue_id=0), *stage.pop(count=1, queue_id=0)]
    popped += stage.pop(queue_id=1)
    left = popped.pop(1)
    answer = stage.ack_together(*popped)
    assert (answer.code, answer.fields, answer.remark) == (0, {}, None)
    assert [tag for tag, _ in timed(stage)][-3:] == ["bAck", "bAck", "bAck"]
    assert (stage.committed(0), stage.committed(1)) == (0, 2)
    stage.drain(INVISIBLE_MS)
    assert stage.again() == [left.body]


def test_batch_with_elements_of_unknown_topics_and_queues_passes_over_them() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    strange = Popped(one.receipt._replace(queue_id=9), one.record)
    request = batch_ack_request(strange, one)
    assert stage.ask(request).code == 0
    assert len(stage.state.checkpoints) == 0
    assert stage.ask(batch_ack_request(one, topic="None")).code == 0


def test_batch_maps_the_retry_topic() -> None:
    stage = a_stage("a")
    stage.pop()
    stage.drain(INVISIBLE_MS)
    stage.ack_together(*stage.pop())
    assert timed(stage)[-1][1].endswith(b'"t":"%RETRY%G_T"}')
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["a"]


@pytest.mark.parametrize("body", [b"{}", b'{"acks":[]}', b'{"acks":null,"brokerName":"b"}'])
def test_empty_batch_is_refused_as_in_apache(body: bytes) -> None:
    answer = a_stage("a").ask(Command(BATCH_ACK, body=body))
    assert (answer.code, answer.remark) == (208, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"junk",
        b'{"acks":[{"b":"AQ==","c":"G"}]}',
        b'{"acks":[{"b":"?","c":"G","it":1,"pt":1,"q":0,"r":"0","rq":1,"so":0,"t":"T"}]}',
    ],
)
def test_malformed_batch_is_refused(body: bytes) -> None:
    assert a_stage("a").ask(Command(BATCH_ACK, body=body)).code in (1, 208)


def test_batch_may_hold_bits_beyond_the_pop() -> None:
    stage = a_stage("a", "b")
    (one,) = stage.pop(count=1)
    beyond = Popped(one.receipt._replace(offset=1), one.record)
    assert stage.ack_together(one, beyond).code == 0
    assert len(stage.state.checkpoints) == 0


def test_batch_acknowledges_whatever_one_pop_by_tags_may_find() -> None:
    """The bits count from where the search of the pop began."""
    stage = PopStage()
    for _ in range(TAGS_EXAMINED_MAX - 1):
        stage.hand_in(send_request(b"x", properties={"TAGS": "A"}))
    stage.commit()
    stage.send("last", TAGS="B")
    (one,) = stage.pop(exp="B")
    assert one.receipt.offset - one.receipt.start == TAGS_EXAMINED_MAX - 1
    assert stage.ack_together(one).code == 0
    assert len(stage.state.checkpoints) == 0


def test_bit_sets_span_what_one_pop_examines() -> None:
    assert max(TAGS_EXAMINED_MAX, EXAMINED_MAX) <= SPAN_MAX


# ---- changes ----


def test_change_makes_a_new_receipt_and_ends_the_old_one() -> None:
    stage = a_stage("a", "b")
    one, other = stage.pop()
    stage.now_ms += 1_000
    answer = stage.change(one, 60_000)
    assert answer.remark == "not set any response code"
    assert answer.fields == {
        "popTime": str(stage.now_ms),
        "invisibleTime": "60000",
        "reviveQid": str(one.receipt.revive_queue),
    }
    (opened, closed) = timed(stage)[-2:]
    assert (opened[0], closed[0]) == ("ck", "ack")
    stage.ack(one)  # no longer valid: succeeds without effect
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["b"]
    stage.drain(60_000)
    assert stage.again() == ["b", "a"]
    assert other.body == "b"


def test_new_receipt_can_be_acknowledged_and_changed() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    second = changed(one, stage.change(one, 60_000))
    third = changed(second, stage.change(second, 90_000))
    assert len({one.receipt, second.receipt, third.receipt}) == 3
    stage.ack(third)
    stage.drain(200_000)
    assert stage.again() == []
    assert stage.committed() == 1


def test_old_receipt_cannot_be_changed_again() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.change(one, 60_000)
    answer = stage.change(one, 60_000)
    assert answer.code == 208
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    stage.drain(300_000)
    assert stage.again() == ["a"]


def test_acknowledged_message_cannot_be_changed() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.ack(one)
    assert stage.change(one, 1).code == 208
    stage.drain(300_000)
    assert stage.again() == []


@pytest.mark.parametrize("invisible_ms", [0, -5])
def test_message_is_visible_at_once(invisible_ms: int) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.now_ms += 1
    answer = stage.change(one, invisible_ms)
    assert (answer.code, answer.fields["invisibleTime"]) == (0, "0")
    stage.tick()
    assert stage.bodies() == ["a"]


@pytest.mark.parametrize("step_ms", [0, -10_000])
def test_receipts_differ_at_the_same_time_and_after_the_clock_is_set_back(step_ms: int) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    receipts = [one]
    for _ in range(5):
        stage.now_ms += step_ms
        answer = stage.change(receipts[-1], 60_000)
        receipts.append(changed(receipts[-1], answer))
        (checkpoint,) = stage.state.checkpoints
        assert checkpoint.due_ms == stage.now_ms + 60_000
    assert len({one.receipt.pop_ms for one in receipts}) == 6
    stage.ack(*receipts[:-1])
    assert len(stage.state.checkpoints) == 1
    stage.ack(receipts[-1])
    assert len(stage.state.checkpoints) == 0


@pytest.mark.parametrize("order", [None, True])
def test_changed_time_beyond_the_limit_becomes_the_limit(order: bool | None) -> None:
    stage = a_stage("a")
    (one,) = stage.pop(order=order)
    answer = stage.change(one, 2**63 - 1)
    assert answer.code == 0
    visible_ms = int(answer.fields["popTime"]) + int(answer.fields["invisibleTime"])
    assert visible_ms == stage.now_ms + INVISIBLE_MS_MAX
    found = stage.state.orders.get(("T", "G", 0))
    assert (found is not None) is (order is True)
    assert found is None or found.visible_ms == {0: visible_ms}


@pytest.mark.parametrize("pop_ms", [-(2**63), 0, 2**63 - 1])
def test_acknowledgement_with_an_invented_time_is_stored_with_a_number_of_64_bits(
    pop_ms: int,
) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.restart(tick=False)
    receipt = one.receipt._replace(pop_ms=pop_ms, invisible_ms=2**63 - 1)
    stage.ack(Popped(receipt, one.record))
    assert stage.ack_together(Popped(receipt, one.record)).code == 0
    for record in stage.records(TIMER_TOPIC):
        assert int(record.properties()["TIMER_DELIVER_MS"]) < 2**63


def test_changes_do_not_open_more_checkpoints_than_are_allowed() -> None:
    stage = PopStage(pop_checkpoints_max=3)
    stage.send(*(f"{number}" for number in range(40)))
    popped = [*stage.pop(), *stage.pop()]
    assert len(popped) == 40
    first = changed(popped[0], stage.change(popped[0], 60_000))
    assert len(stage.state.checkpoints) == 3
    answers = [stage.change(one, 60_000) for one in popped[1:]]
    assert {answer.code for answer in answers} == {2}
    assert answers[0].fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    assert "3 pops and changed messages are open" in (answers[0].remark or "")
    assert len(stage.state.checkpoints) == 3
    again = changed(first, stage.change(first, 90_000))  # takes the place of the old one
    stage.ack(*popped[1:31])
    last = changed(popped[31], stage.change(popped[31], 60_000))  # the last of its pop
    assert len(stage.state.checkpoints) == 3
    stage.ack(again)
    assert stage.change(popped[32], 60_000).code == 0  # there is room again
    stage.drain(INVISIBLE_MS)
    assert stage.again() == [one.body for one in popped[33:]]
    stage.drain(60_000)
    assert sorted(stage.again()) == sorted([*(one.body for one in popped[33:]), "32", "31"])
    assert last.body == "31"


def test_changes_of_one_turn_do_not_open_more_checkpoints_than_are_allowed() -> None:
    stage = PopStage(pop_checkpoints_max=3)
    stage.send(*"abcdef")
    popped = stage.pop()
    requests = [stage.hand_in(change_request(one, 60_000)) for one in popped]
    stage.commit()
    assert [stage.answer_of(request).code for request in requests] == [0, 0, 2, 2, 2, 2]
    assert len(stage.state.checkpoints) == 3


def test_second_change_of_a_message_in_one_turn_is_too_late() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    first = stage.hand_in(change_request(one, 60_000))
    stage.now_ms += 1
    second = stage.hand_in(change_request(one, 70_000))
    stage.commit()
    assert [stage.answer_of(request).code for request in (first, second)] == [0, 208]
    stage.drain(200_000)
    assert stage.again() == ["a"]


def test_change_that_cannot_be_stored_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = a_stage("a")
    (one,) = stage.pop()

    def fail(*_: object) -> None:
        raise OSError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        assert stage.change(one, 60_000).code == 1
    assert stage.change(one, 60_000).code == 0


def test_change_of_an_unknown_message_is_refused() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    zeros = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    cases: list[tuple[dict[str, Any], int]] = [
        ({"topic": "None"}, 17),
        ({"queue_id": 7}, 13),
        ({"offset": 1}, 208),
        ({"offset": -1}, 208),
    ]
    for changes, code in cases:
        answer = stage.ask(change_request(one, 5, **changes))
        assert (answer.code, answer.fields) == (code, zeros)


def test_batch_of_too_many_checkpoints_is_refused() -> None:
    stage = a_stage("a")
    request = batch_ack_request(*stage.pop())
    body = decode_body(BatchAckBody, request.body)
    request.body = BatchAckBody(acks=(body.acks or []) * 1_025).encode()
    answer = stage.ask(request)
    assert (answer.code, answer.remark) == (29, "1025 checkpoints are more than 1024")
    assert len(stage.state.checkpoints) == 1


# ---- before the records of the last run are read ----


def test_acknowledgement_before_the_records_are_read_counts() -> None:
    stage = a_stage("a", "b", "c")
    popped = stage.pop()
    stage.restart(tick=False)
    assert not stage.state.is_pop_loaded
    stage.ack(popped[0])
    assert stage.ack_together(popped[2]).code == 0
    assert not stage.state.is_pop_loaded
    stage.drain(0)
    assert stage.state.is_pop_loaded
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["b"]
    stage.restart()
    stage.drain(0)
    assert stage.again() == ["b"]


def test_acknowledgement_of_an_unknown_group_stores_nothing_before_the_records_are_read() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.restart(tick=False)
    count = len(stage.records(TIMER_TOPIC))
    assert stage.ask(ack_request(one, group="x\x02TAGS\x01ck")).code == 0
    assert len(stage.records(TIMER_TOPIC)) == count


def test_change_before_the_records_are_read_can_be_tried_again() -> None:
    stage = a_stage("a")
    (one,) = stage.pop()
    stage.restart(tick=False)
    answer = stage.ask(change_request(one, 60_000))
    assert answer.code == 2
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    stage.tick()
    assert stage.change(one, 60_000).code == 0
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []


# ---- restarts ----


def test_changed_message_after_a_restart() -> None:
    stage = a_stage("a", "b")
    one, other = stage.pop()
    second = changed(one, stage.change(one, 60_000))
    before = stage.progress()
    for progress in (None, before):
        stage.restart(progress)
        assert stage.change(one, 1).code == 208
        stage.ack(other)
    stage.ack(second)
    stage.restart(before)
    stage.drain(100_000)
    assert stage.again() == []
