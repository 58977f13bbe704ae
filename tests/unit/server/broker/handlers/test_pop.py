"""Every check of a pop, its replies, which queues it visits, and where a group begins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from downrange.errors import DiskFull
from downrange.server.broker import record_scan
from downrange.server.broker.pop import pop_plan, queue_reader
from downrange.server.broker.state import DISK_FULL
from downrange.wire.limits import ATTEMPT_ID_BYTES_MAX, INVISIBLE_MS_MAX
from downrange.wire.records import decode_records
from tests.unit.server.broker.broker_stage import CLIENT, pull_request, send_request
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    RETRY_TOPIC,
    RETRY_TOPIC_V2,
    TIMER_TOPIC,
    PopStage,
    ack_request,
    pop_request,
    popped_of,
)

ZEROS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


@pytest.fixture
def stage() -> PopStage:
    return PopStage()


# ---- checks ----


def test_missing_topic(stage: PopStage) -> None:
    answer = stage.ask(pop_request(topic="None"))
    assert (answer.code, answer.fields) == (17, ZEROS)
    assert (answer.remark or "").startswith("topic[None] not exist, apply first please! ")


@pytest.mark.parametrize("queue_id", [5, -2])
def test_missing_queue(queue_id: int, stage: PopStage) -> None:
    answer = stage.ask(pop_request(queue_id=queue_id))
    assert (answer.code, answer.fields) == (29, ZEROS)
    assert answer.remark == (
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[1] "
        "consumer:[/10.0.0.1:1001]"
    )


@pytest.mark.parametrize("count", [33, -1])
def test_number_of_messages(count: int, stage: PopStage) -> None:
    answer = stage.ask(pop_request(count))
    assert (answer.code, answer.fields) == (29, ZEROS)


def test_no_messages_wanted(stage: PopStage) -> None:
    stage.send("a")
    assert stage.bodies(count=0) == []
    assert stage.bodies() == ["a"]


def test_topic_that_may_not_be_read(stage: PopStage) -> None:
    stage.create("W", perm=2)
    answer = stage.ask(pop_request(topic="W"))
    assert (answer.code, answer.fields) == (16, ZEROS)
    assert answer.remark == "the topic[W] peeking message is forbidden"


def test_broker_that_may_not_be_read() -> None:
    stage = PopStage(permission=2)
    answer = stage.ask(pop_request())
    assert (answer.code, answer.remark) == (16, "the broker[10.0.0.2] pop message is forbidden")


@pytest.mark.parametrize("is_ordered", [None, True])
def test_long_attempt_id_is_refused(is_ordered: bool | None, stage: PopStage) -> None:
    """The broker keeps it, and saves it with every pop in order."""
    stage.send("a")
    for text in ("x" * (ATTEMPT_ID_BYTES_MAX + 1), "\u00fc" * (ATTEMPT_ID_BYTES_MAX // 2 + 1)):
        answer = stage.ask(pop_request(order=is_ordered, attempt_id=text))
        size = len(text.encode())
        remark = f"attemptId has {size} bytes, and at most {ATTEMPT_ID_BYTES_MAX} are allowed"
        assert (answer.code, answer.remark) == (29, remark)
    longest = "\u00fc" * (ATTEMPT_ID_BYTES_MAX // 2)
    assert stage.ask(pop_request(order=is_ordered, attempt_id=longest)).code == 0


def test_group_that_is_switched_off(stage: PopStage) -> None:
    stage.group(consume_enable=False)
    answer = stage.ask(pop_request())
    assert (answer.code, answer.fields) == (16, ZEROS)
    assert answer.remark == "subscription group no permission, G"


def test_missing_group_is_created_and_the_reply_waits_for_that(stage: PopStage) -> None:
    stage.send("a")
    request = stage.hand_in(pop_request(group="New"))
    stage.commit()
    stage.flush()
    assert stage.answer_to(request) is None
    assert popped_of(stage.answer_of(request))[0].body == "a"


def test_group_that_may_not_be_created() -> None:
    answer = PopStage(is_group_created=False).ask(pop_request(group="New"))
    assert (answer.code, answer.fields) == (26, ZEROS)


@pytest.mark.parametrize(
    ("age_ms", "poll_ms", "is_old"), [(500, 0, False), (501, 0, True), (4_000, 3_499, True)]
)
def test_old_request(age_ms: int, poll_ms: int, is_old: bool, stage: PopStage) -> None:
    stage.send("a")
    answer = stage.ask(pop_request(poll_ms=poll_ms, now_ms=stage.now_ms - age_ms))
    if is_old:
        assert (answer.code, answer.fields) == (210, ZEROS)
        assert answer.remark == "the broker[10.0.0.2] pop message is timeout too much"
    else:
        assert answer.code == 0


def test_request_without_a_time_is_never_old(stage: PopStage) -> None:
    stage.send("a")
    assert stage.bodies(born_time=0) == ["a"]


@pytest.mark.parametrize(
    ("kind", "expression"), [("SQL92", "a ="), ("TAG", "||"), ("WHAT", "a"), ("SQL92", "")]
)
def test_filter_that_cannot_be_read(kind: str, expression: str, stage: PopStage) -> None:
    answer = stage.ask(pop_request(exp=expression, exp_type=kind))
    assert (answer.code, answer.fields) == (23, ZEROS)
    assert answer.remark == "parse the consumer's subscription failed"


# ---- replies ----


def test_found(stage: PopStage) -> None:
    stage.send("a", "b", "c")
    answer = stage.ask(pop_request(2))
    assert (answer.code, answer.remark) == (0, "FOUND")
    fields = dict(answer.fields)
    assert int(fields.pop("reviveQid")) in range(8)
    assert fields == {
        "popTime": str(stage.now_ms),
        "invisibleTime": str(INVISIBLE_MS),
        "restNum": "1",
        "startOffsetInfo": "0 0 0",
        "msgOffsetInfo": "0 0 0,1",
    }
    assert [record.body for record in decode_records(answer.body)] == [b"a", b"b"]


@pytest.mark.parametrize("is_ordered", [None, True])
def test_empty(is_ordered: bool | None, stage: PopStage) -> None:
    answer = stage.ask(pop_request(order=is_ordered))
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    fields = dict(answer.fields)
    assert (fields.pop("reviveQid") == "999") is bool(is_ordered)
    assert fields.pop("orderCountInfo", None) == ("" if is_ordered else None)
    assert fields == {
        "popTime": str(stage.now_ms),
        "invisibleTime": str(INVISIBLE_MS),
        "restNum": "0",
        "startOffsetInfo": "",
        "msgOffsetInfo": "",
    }


def test_records_are_those_of_apache(stage: PopStage) -> None:
    stage.send("a", "b")
    one, _ = stage.pop(invisible_ms=8_000)
    pop_ms = stage.now_ms
    (record,) = stage.records(TIMER_TOPIC)
    assert record.body == (
        b'{"bm":0,"bn":"broker-a","c":"G","d":[0,1],"it":8000,"n":2,"pt":%d,"q":0,'
        b'"reviveTime":%d,"ro":0,"so":0,"sp":false,"t":"T"}' % (pop_ms, pop_ms + 8_000)
    )
    queue = one.receipt.revive_queue
    assert record.property_bytes.decode() == (
        f"REAL_TOPIC\x01rmq_sys_REVIVE_LOG_DefaultCluster\x02TIMER_DELIVER_MS\x01{pop_ms + 7_000}"
        f"\x02UNIQ_KEY\x01T@0@0@G@{pop_ms}@broker-a@ck\x02TAGS\x01ck\x02"
        f"TIMER_OUT_MS\x01{pop_ms + 6_000}\x02REAL_QID\x01{queue}\x02"
    )
    assert (record.born_ip, record.born_port) == (record.store_ip, record.store_port)
    assert (record.flag, record.sys_flag, record.reconsume_times) == (0, 0, 0)
    stage.ack(one)
    record = stage.records(TIMER_TOPIC)[1]
    assert record.body == (
        b'{"ao":0,"bn":"broker-a","c":"G","pt":%d,"q":0,"so":0,"t":"T"}' % pop_ms
    )
    properties = record.properties()
    assert properties["UNIQ_KEY"] == f"T@0@0@G@{pop_ms}@broker-a@ack"
    assert properties["TIMER_DELIVER_MS"] == str(pop_ms + 8_000)


def test_records_are_never_delivered_to_the_revive_topic(stage: PopStage) -> None:
    stage.send("a")
    stage.ack(*stage.pop())
    stage.drain(100_000)
    for queue_id in range(8):
        assert stage.records("rmq_sys_REVIVE_LOG_DefaultCluster", queue_id) == []


def test_a_pop_goes_on_to_the_next_queues() -> None:
    stage = PopStage(queues=4)
    for queue_id in range(4):
        stage.send("a", "b", queue_id=queue_id)
    answer = stage.ask(pop_request(4))
    assert answer.fields["restNum"] == "4"
    found = popped_of(answer)
    assert len(found) == 4
    assert len(answer.fields["startOffsetInfo"].split(";")) == 2
    assert len(stage.state.checkpoints) == 2
    assert len(stage.bodies()) == 4
    assert stage.bodies() == []


@pytest.mark.parametrize("other_pops", [0, 1, 2, 3, 4, 7])
def test_a_group_begins_with_every_queue_whoever_pops_in_between(other_pops: int) -> None:
    stage = PopStage(queues=4)
    for queue_id in range(4):
        stage.send(*["a"] * 40, queue_id=queue_id)
    firsts: Counter[int] = Counter()
    for _ in range(40):
        (one,) = stage.pop(count=1)
        firsts[one.receipt.queue_id] += 1
        for _ in range(other_pops):
            stage.state.next_number()
    assert firsts.keys() == {0, 1, 2, 3}
    assert min(firsts.values()) >= 4


def test_one_queue(stage: PopStage) -> None:
    stage = PopStage(queues=2)
    stage.send("a")
    stage.send("b", queue_id=1)
    assert stage.bodies(queue_id=1) == ["b"]


def test_bytes_of_a_reply_are_limited() -> None:
    stage = PopStage(queues=2, pull_bytes_max=3_000)
    stage.send("x" * 1_500, "y" * 1_500, "z" * 1_500)
    stage.send("v" * 1_500, queue_id=1)
    assert len(stage.bodies(queue_id=0)) == 1
    assert len(stage.bodies(queue_id=0)) == 1
    assert len(stage.bodies()) == 2  # the first message of a queue is returned in any case


def test_message_larger_than_the_limit_is_delivered_alone() -> None:
    stage = PopStage(queues=2, pull_bytes_max=1_024)
    stage.send("x" * 5_000, "y")
    stage.send("z", queue_id=1)
    found = [stage.bodies() for _ in range(3)]
    assert sorted(body[0] for bodies in found for body in bodies) == ["x", "y", "z"]


# ---- where a group begins ----


def test_new_group_begins_with_the_first_message(stage: PopStage) -> None:
    stage.send("a", "b")
    assert stage.bodies(init_mode=0) == ["a", "b"]


@pytest.mark.parametrize("init_mode", [1, 2])
def test_new_group_begins_with_the_last_message(
    init_mode: int, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage.bodies(group="H", init_mode=init_mode) == []
    stage.send("a", "b")
    assert stage.bodies(group="I", init_mode=init_mode) == ["a", "b"]  # still in memory
    monkeypatch.setattr(queue_reader, "is_new", lambda *_: False)
    assert stage.bodies(init_mode=init_mode) == ["b"]


def test_retry_topic_begins_with_the_first_message_in_any_mode(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "is_new", lambda *_: False)
    stage.send("a", "b", topic=RETRY_TOPIC, ORIGIN_GROUP="G")
    assert stage.bodies(init_mode=1) == ["a", "b"]


# ---- filters ----


def send_tags(stage: PopStage, *tags: str) -> None:
    for number, tag in enumerate(tags):
        stage.send(f"{tag}{number}", TAGS=tag, a=str(number))


def test_tags(stage: PopStage) -> None:
    send_tags(stage, "A", "B", "A", "B")
    answer = stage.ask(pop_request(exp="A"))
    assert answer.fields["startOffsetInfo"] == "0 0 0"
    assert answer.fields["msgOffsetInfo"] == "0 0 0,2"
    assert answer.fields["restNum"] == "0"
    found = popped_of(answer)
    assert stage.bodies() == []
    assert stage.committed() == 0
    stage.ack_together(*found)
    assert stage.committed() == 4


def test_last_of_several(stage: PopStage) -> None:
    send_tags(stage, "A", "A", "A", "B", "B")
    answer = stage.ask(pop_request(1, exp="B"))
    assert (answer.fields["startOffsetInfo"], answer.fields["msgOffsetInfo"]) == ("0 0 0", "0 0 3")
    assert answer.fields["restNum"] == "1"
    assert stage.bodies(exp="B") == ["B4"]


def test_sql(stage: PopStage) -> None:
    send_tags(stage, "A", "B", "A", "B")
    assert stage.bodies(exp="a IN ('1', '3')", exp_type="SQL92") == ["B1", "B3"]
    assert stage.bodies() == []


def test_no_match_moves_the_group_on(stage: PopStage) -> None:
    send_tags(stage, "A", "A")
    assert stage.bodies(exp="B") == []
    assert stage.committed() == 2
    assert stage.bodies() == []


def test_no_match_does_not_pass_an_open_message(stage: PopStage) -> None:
    send_tags(stage, "A", "B", "B")
    (one,) = stage.pop(count=1)
    assert stage.bodies(exp="C") == []
    assert stage.committed() == 0
    stage.ack(one)
    assert stage.committed() == 3


def test_how_much_one_pop_examines_is_limited(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", 3)
    send_tags(stage, "A", "A", "A", "A", "B")
    assert stage.bodies(exp="B") == []
    assert stage.committed() == 3
    assert stage.bodies(exp="B") == ["B4"]


@pytest.mark.parametrize(("exp", "kind"), [("B", "TAG"), ("TAGS = 'B'", "SQL92")])
def test_held_pop_goes_on_where_one_search_ended(
    exp: str, kind: str, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", 3)
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", 3)
    send_tags(stage, *"AAAAAAAB")
    held = stage.hold(exp=exp, exp_type=kind)
    assert stage.committed() == 3
    for _ in range(3):
        stage.drain(50)
    assert [one.body for one in popped_of(stage.answer_of(held))] == ["B7"]


def test_a_pop_searches_a_limited_number_of_queues_by_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_plan, "_SQL_QUEUES_MAX", 2)
    stage = PopStage(queues=4)
    for queue_id in range(4):
        stage.send(f"{queue_id}", queue_id=queue_id)
    stage.bodies(queue_id=-1, exp="TAGS = 'B'", exp_type="SQL92")
    ends = [stage.state.offsets.get("G", "T", queue_id) or 0 for queue_id in range(4)]
    assert sum(ends) == 2


def test_filter_stops_at_the_limit_of_bytes() -> None:
    stage = PopStage(pull_bytes_max=2_000)
    for _ in range(4):
        stage.send("x" * 1_500, TAGS="A")
    assert [len(stage.bodies(exp="A")) for _ in range(5)] == [1, 1, 1, 1, 0]


def test_filter_does_not_apply_to_retry_topics(stage: PopStage) -> None:
    send_tags(stage, "A")
    stage.pop()
    stage.drain(INVISIBLE_MS)
    assert stage.bodies(exp="B") == ["A0"]


# ---- retry topics ----


def expire(stage: PopStage, *bodies: str) -> None:
    stage.send(*bodies)
    stage.pop()
    stage.drain(INVISIBLE_MS)


def test_message_of_a_retry_topic(stage: PopStage) -> None:
    stage.send("a", KEYS="k", TAGS="A", own="1")
    first_ms = stage.now_ms
    (first,) = stage.pop()
    stage.drain(INVISIBLE_MS)
    (one,) = stage.pop()
    assert one.receipt.kind == "1"
    record = one.record
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 0, 0)
    assert (record.reconsume_times, record.body) == (1, b"a")
    properties = record.properties()
    assert properties.pop("POP_CK") == str(one.receipt)
    own = first.record.properties()
    assert properties == {**own, "1ST_POP_TIME": str(first_ms), "ORIGIN_GROUP": "G"}
    (stored,) = stage.records(RETRY_TOPIC)
    assert stored.properties()["POP_CK"] == f"0 {first_ms} {INVISIBLE_MS} 1 0 - 0 0"  # the old one
    assert stored.born_ms == first.record.born_ms
    config = stage.state.topics.get(RETRY_TOPIC)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


@pytest.mark.parametrize("other_pops", [0, 1, 2, 3, 4, 7])
def test_retry_topic_comes_first_in_one_pop_of_five(other_pops: int, stage: PopStage) -> None:
    expire(stage, *["again"] * 32)
    stage.send(*["first"] * 100)
    kinds: Counter[str] = Counter()
    for _ in range(100):
        (one,) = stage.pop(count=1)
        kinds[one.receipt.kind] += 1
        for _ in range(other_pops):
            stage.state.next_number()
    assert 10 <= kinds["1"] <= 30


def test_rest_of_the_number_goes_on_to_the_other_kind(stage: PopStage) -> None:
    expire(stage, "a", "b")
    stage.send("c")
    answer = stage.ask(pop_request(2, now_ms=stage.now_ms))
    assert sorted(one.body for one in popped_of(answer)) in (["a", "c"], ["a", "b"])
    assert answer.fields["restNum"] == "1"


def test_second_form_of_the_retry_topic() -> None:
    stage = PopStage(is_retry_topic_v2=True)
    expire(stage, "a")
    assert stage.again() == []
    (one,) = stage.pop()
    assert (one.receipt.kind, one.body) == ("2", "a")
    stage.drain(INVISIBLE_MS)
    assert stage.again(RETRY_TOPIC_V2) == ["a", "a"]  # it stays in its topic
    stage.ack(*stage.pop())
    assert stage.committed(topic=RETRY_TOPIC_V2) == 2


def test_both_forms_are_read(stage: PopStage) -> None:
    stage.send("v1", "v2")
    stage.pop(count=1)
    stage.pop(invisible_ms=2 * INVISIBLE_MS)
    stage.drain(INVISIBLE_MS)
    stage.state.change_options(replace(stage.state.options, is_retry_topic_v2=True))
    stage.drain(INVISIBLE_MS)
    assert [(one.receipt.kind, one.body) for one in stage.pop()] == [("1", "v1"), ("2", "v2")]


def test_retry_topic_that_may_not_be_read_is_left_out(stage: PopStage) -> None:
    stage.create(RETRY_TOPIC, 1, perm=2)
    stage.send("a", topic=RETRY_TOPIC)
    assert stage.bodies() == []


@pytest.mark.parametrize(("length", "is_there"), [(32_680, True), (32_700, False)])
def test_receipt_is_left_out_if_there_is_no_room_for_it(length: int, is_there: bool) -> None:
    stage = PopStage(cluster="c", region="r")
    stage.create(RETRY_TOPIC, 1)
    stage.send("a", topic=RETRY_TOPIC, own="x" * length)
    stage.state.groups.delete("G_T", stage.now_ms)  # the send made it a retry of this group
    answer = stage.ask(pop_request())
    (record,) = decode_records(answer.body)
    properties = record.properties()
    assert properties["own"] == "x" * length
    assert ("POP_CK" in properties) is is_there
    assert "TRACE_ON" not in properties


def test_topic_with_a_long_name_is_written_in_the_second_form(stage: PopStage) -> None:
    topic, group = "t" * 120, "g" * 100
    stage.create(topic, 1)
    stage.send("a", topic=topic)
    stage.pop(topic=topic, group=group)
    stage.drain(INVISIBLE_MS)
    (one,) = stage.pop(topic=topic, group=group)
    assert (one.record.topic, one.receipt.kind) == (topic, "1")
    stage.ack(one, topic=topic, group=group)
    assert stage.committed(0, f"%RETRY%{group}_{topic}", group) == 1


# ---- what cannot be stored ----


def test_pop_is_answered_when_its_checkpoint_is_stored(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    stored: list[int] = []
    append = stage.state.store.append_run

    def note(*arguments: Any) -> int:
        assert stage.answer_to(request) is None
        stored.append(append(*arguments))
        return stored[-1]

    request = pop_request()
    monkeypatch.setattr(stage.state.store, "append_run", note)
    stage.hand_in(request)
    assert stored == [0]
    assert stage.answer_of(request).code == 0
    assert [record.properties()["TAGS"] for record in stage.records(TIMER_TOPIC)] == ["ck"]


def test_full_disk_loses_nothing(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.state.unwritable = DISK_FULL
    answer = stage.ask(pop_request())
    assert (answer.code, answer.fields) == (1, ZEROS)
    assert DISK_FULL in (answer.remark or "")
    assert (stage.committed(), len(stage.state.checkpoints)) == (None, 0)
    stage.state.unwritable = None
    found = stage.pop()
    assert [one.body for one in found] == ["a", "b"]
    stage.ack(*found)
    assert stage.committed() == 2


@pytest.mark.parametrize("error", [OSError("broken"), DiskFull("T")])
def test_failed_append_loses_nothing(
    error: Exception, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a", "b", "c")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        patch.setattr(stage.state.store, "append_run", fail)
        requests = [stage.hand_in(pop_request(1)) for _ in range(3)]
        stage.commit()
        assert [stage.answer_of(request).code for request in requests] == [1, 1, 1]
    stage.state.unwritable = None
    found = stage.pop()
    assert [one.body for one in found] == ["a", "b", "c"]
    stage.ack(*found)
    assert stage.committed() == 3


def test_full_disk_that_a_pop_finds_is_noted_once(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")

    def fail(*_: object) -> None:
        raise DiskFull("T")

    monkeypatch.setattr(stage.state.store, "append_run", fail)
    assert stage.ask(pop_request()).code == 1
    assert stage.state.unwritable == DISK_FULL
    stage.tick()
    stage.tick()
    assert [note.text for note in stage.notes] == [f"sends are refused: {DISK_FULL}"]


def test_pops_after_one_that_failed_begin_with_its_messages(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a restart would go on behind the later ones and lose the first message."""
    stage.send("a", "b", "c")
    append, calls = stage.state.store.append_run, list[int]()

    def fail_once(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("broken")
        return append(*arguments)

    monkeypatch.setattr(stage.state.store, "append_run", fail_once)
    answer = stage.ask(pop_request(1))
    assert (answer.code, answer.remark) == (
        1,
        "no message is popped: the log cannot be written: broken",
    )
    assert [one.body for one in stage.pop(count=1)] == ["a"]
    stage.restart()
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.bodies()) == ["a", "b", "c"]


# ---- limits ----


def test_pops_beyond_the_limit_of_checkpoints_are_refused() -> None:
    stage = PopStage(pop_checkpoints_max=2)
    stage.send("a", "b", "c")
    first, _ = stage.pop(count=1), stage.pop(count=1)
    for poll_ms in (0, 1_000):
        answer = stage.ask(pop_request(poll_ms=poll_ms))
        assert (answer.code, answer.remark) == (209, "NO_MESSAGE_IN_QUEUE")
    stage.ack(*first)
    assert stage.bodies() == ["c"]


@pytest.mark.parametrize(
    ("asked_ms", "given_ms"),
    [
        (INVISIBLE_MS_MAX, INVISIBLE_MS_MAX),
        (INVISIBLE_MS_MAX + 1, INVISIBLE_MS_MAX),
        (2**63 - 1, INVISIBLE_MS_MAX),
        (-1, 0),
        (-(2**63), 0),
    ],
)
@pytest.mark.parametrize("order", [None, True])
def test_invisible_time_beyond_the_limits_becomes_the_limit(
    asked_ms: int, given_ms: int, order: bool | None, stage: PopStage
) -> None:
    stage.send("a")
    answer = stage.ask(pop_request(invisible_ms=asked_ms, order=order))
    assert (answer.code, answer.fields["invisibleTime"]) == (0, str(given_ms))
    if order:
        found = stage.state.orders.get(("T", "G", 0))
        assert found is not None
        assert found.blocked_until_ms() == stage.now_ms + given_ms
    else:
        assert [one.due_ms for one in stage.state.checkpoints] == [stage.now_ms + given_ms]


def test_oneway_pop_does_not_wait(stage: PopStage) -> None:
    stage.hand_in(pop_request(poll_ms=1_000, is_oneway=True), CLIENT)
    assert len(stage.state.held_pops) == 0


# ---- turns ----


def test_pop_sees_the_sends_before_it_in_the_same_turn(stage: PopStage) -> None:
    sends = [stage.hand_in(send_request(b"a")), stage.hand_in(send_request(b"b"))]
    held = stage.hand_in(pop_request(1, poll_ms=1_000))
    other = stage.hand_in(pop_request(1, poll_ms=1_000))
    stage.commit()
    assert [stage.answer_of(request).code for request in sends] == [0, 0]
    bodies = [popped_of(stage.answer_of(request))[0].body for request in (held, other)]
    assert bodies == ["a", "b"]


def test_pops_and_acknowledgements_of_a_turn(stage: PopStage) -> None:
    stage.send(*"abcd")
    first = stage.pop(count=2)
    requests = [
        stage.hand_in(ack_request(first[0])),
        stage.hand_in(pop_request(1)),
        stage.hand_in(ack_request(first[1])),
        stage.hand_in(pop_request(1)),
    ]
    answers = [stage.answer_of(request) for request in requests]
    assert [answer.code for answer in answers] == [0, 0, 0, 0]
    assert [popped_of(answer)[0].body for answer in answers[1::2]] == ["c", "d"]
    assert stage.committed() == 2
    tags = [record.properties()["TAGS"] for record in stage.records(TIMER_TOPIC)]
    assert tags == ["ck", "ack", "ck", "ack", "ck"]


def test_requests_of_other_kinds_see_the_pops_before_them_in_the_same_turn(
    stage: PopStage,
) -> None:
    stage.send("a")
    popped = stage.hand_in(pop_request())
    stage.ask(pull_request())
    assert len(stage.state.checkpoints) == 1
    assert stage.answer_of(popped).code == 0


def test_timed_messages_among_the_records_of_pops(stage: PopStage) -> None:
    """Records that are not passed over are read again, without effect."""
    stage.send(*"abc")
    stage.pop(count=1)
    stage.send("timed", TIMER_DELAY_SEC="5")
    stage.ack(*stage.pop(count=1))
    one = stage.pop(count=1)
    assert stage.state.timers.is_behind(stage.state.store)
    stage.ack(*one)
    before = stage.progress()
    stage.drain(0)
    assert [checkpoint.start for checkpoint in stage.state.checkpoints] == [0]
    stage.drain(5_000)
    assert stage.bodies() == ["timed"]
    stage.restart(before)
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["a", "timed"]
