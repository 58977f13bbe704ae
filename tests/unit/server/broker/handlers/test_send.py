"""Every check of a send, in its order, the stored record and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.model import QueueId
from downrange.server.outputs import Peer
from downrange.wire.codes import RequestCode, ResponseCode, SysFlag
from downrange.wire.limits import BATCH_MESSAGES_MAX
from downrange.wire.records import BatchItem, Record, encode_batch
from tests.unit.server.broker.broker_stage import NOW_MS, Stage, pull_request, send_request

if TYPE_CHECKING:
    from downrange.wire.command import Command

BATCH = RequestCode.SEND_BATCH_MESSAGE
HOST_BITS = int(SysFlag.BORN_HOST_V6) | int(SysFlag.STORE_HOST_V6)


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.create("T")
    return made


def a_batch(*bodies: bytes, properties: bytes = b"") -> bytes:
    return encode_batch([BatchItem(3, body, properties) for body in bodies])


def only_record(stage: Stage, topic: str = "T", queue_id: int = 0) -> Record:
    (record,) = stage.records(topic, queue_id)
    return record


# ---- the checks, in their order ----


@pytest.mark.parametrize("permission", [4, 0])
@pytest.mark.parametrize("code", [BATCH, RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_broker_without_write_permission_refuses_every_send(
    code: RequestCode, permission: int
) -> None:
    stage = Stage(permission=permission)
    stage.create("T")
    for topic in ("T", "New", "%RETRY%G", "illegal topic"):
        answer = stage.ask(send_request(topic=topic, code=code))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[10.0.0.2] sending message is forbidden"
        assert set(answer.fields) == {"MSG_REGION", "TRACE_ON"}
    assert stage.records("T", 0) == []
    assert stage.state.topics.get("New") is None


def test_a_broker_without_read_permission_accepts_sends() -> None:
    stage = Stage(permission=2)
    assert stage.ask(send_request()).code == 0


def test_half_messages_are_refused_when_the_setting_says_so(stage: Stage) -> None:
    half = send_request(properties={"TRAN_MSG": "true", "PGROUP": "P"})
    assert stage.ask(half).code == 0
    stage.state.change_settings({"rejectTransactionMessage": "true"}, NOW_MS)
    answer = stage.ask(send_request(properties={"TRAN_MSG": "true", "PGROUP": "P"}))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[10.0.0.2] sending transaction message is forbidden"
    assert stage.ask(send_request()).code == 0


def test_a_send_without_a_body_is_refused_before_all_else(stage: Stage) -> None:
    answer = stage.ask(send_request(b"", "illegal topic"))
    assert (answer.code, answer.remark) == (1, "the message has no body")


@pytest.mark.parametrize("topic", ["a b", "t" * 128, "../../etc", "a\x00b", ""])
def test_a_send_to_an_illegal_topic_is_refused(topic: str, stage: Stage) -> None:
    answer = stage.ask(send_request(topic=topic))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert stage.state.topics.get(topic) is None


@pytest.mark.parametrize(
    "topic",
    [
        *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
        "rmq_sys_wheel_timer",
    ],
)
def test_a_send_to_a_topic_of_the_brokers_own_is_forbidden(topic: str, stage: Stage) -> None:
    answer = stage.ask(send_request(topic=topic))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."


@pytest.mark.parametrize("default", ["missing", "BenchmarkTest", ""])
def test_a_topic_that_nothing_makes_does_not_exist(default: str, stage: Stage) -> None:
    answer = stage.ask(send_request(topic="New", default_topic=default))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith("topic[New] not exist, apply first please!\nSee ")


def test_a_missing_topic_is_made_with_as_many_queues_as_asked_and_allowed(stage: Stage) -> None:
    assert stage.ask(send_request(topic="Four", default_topic_queue_nums=4)).code == 0
    assert stage.ask(send_request(topic="Many", default_topic_queue_nums=10_000)).code == 0
    four, many = stage.state.topics.get("Four"), stage.state.topics.get("Many")
    assert four is not None
    assert many is not None
    assert (four.write_queue_nums, many.write_queue_nums) == (4, 8)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("queue_id", [4, 2**31 - 1])
def test_a_queue_that_a_topic_does_not_have_is_refused(
    queue_id: int, code: RequestCode, stage: Stage
) -> None:
    answer = stage.ask(send_request(queue_id=queue_id, code=code))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"request queueId[{queue_id}] is illegal, topic[T] has 4 queues" in (answer.remark or "")


def test_a_queue_that_only_readers_have_is_taken(stage: Stage) -> None:
    config = stage.state.topics.get("T")
    assert config is not None
    config.write_queue_nums = 1
    assert stage.ask(send_request(queue_id=3)).code == 0
    assert len(stage.records(queue_id=3)) == 1


@pytest.mark.parametrize("queue_id", [-1, -(2**31)])
def test_a_negative_queue_lets_the_broker_choose_all_in_turn(queue_id: int, stage: Stage) -> None:
    chosen = [stage.ask(send_request(queue_id=queue_id)).fields["queueId"] for _ in range(4)]
    assert sorted(chosen) == ["0", "1", "2", "3"]
    assert all(len(stage.records(queue_id=number)) == 1 for number in range(4))


def test_a_topic_that_may_not_be_written_takes_messages_even_so(stage: Stage) -> None:
    stage.create("ReadOnly", perm=4)
    assert stage.ask(send_request(topic="ReadOnly")).code == 0


def test_nothing_is_stored_while_the_broker_refuses(stage: Stage) -> None:
    stage.state.unwritable = "the disk is full"
    half = {"TRAN_MSG": "true", "PGROUP": "P"}
    for request in (
        send_request(),
        send_request(a_batch(b"a"), code=BATCH),
        send_request(properties=half),
    ):
        answer = stage.ask(request)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark == "no message is stored: the disk is full"


def test_a_topic_is_checked_before_the_disk(stage: Stage) -> None:
    stage.state.unwritable = "the disk is full"
    answer = stage.ask(send_request(topic="New", default_topic="missing"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("half", [{}, {"TRAN_MSG": "true", "PGROUP": "P"}])
def test_a_body_that_is_too_large_is_refused(half: dict[str, str]) -> None:
    stage = Stage(message_bytes_max=100)
    assert stage.ask(send_request(bytes(100), properties=half)).code == 0
    answer = stage.ask(send_request(bytes(101), properties=half))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg body length limit 100B" in (answer.remark or "")


def test_properties_are_measured_with_what_the_broker_adds(stage: Stage) -> None:
    stage.ask(send_request(properties="k\x01v\x02"))
    added = len(only_record(stage).property_bytes) - len("k\x01v\x02")
    fitting = "k\x01" + "v" * (32767 - added - 3) + "\x02"
    assert stage.ask(send_request(properties=fitting)).code == 0
    assert len(stage.records()[1].property_bytes) == 32767
    too_long = fitting.replace("k", "kk")
    assert stage.ask(send_request(properties=too_long)).code == ResponseCode.MESSAGE_ILLEGAL


def test_refusals_carry_region_and_trace_switch() -> None:
    stage = Stage(region="R", is_trace_on=False)
    answer = stage.ask(send_request(b""))
    assert answer.fields == {"MSG_REGION": "R", "TRACE_ON": "false"}


# ---- what is stored ----


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_message_is_stored_with_all_that_it_said(code: RequestCode, stage: Stage) -> None:
    request = send_request(
        b"body",
        code=code,
        queue_id=2,
        sys_flag=1,
        reconsume_times=3,
        properties={"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "U"},
    )
    assert stage.ask(request, Peer(9, "10.9.8.7:4321")).code == 0
    record = only_record(stage, queue_id=2)
    assert (record.body, record.flag, record.sys_flag, record.reconsume_times) == (b"body", 7, 1, 3)
    assert (record.born_ms, record.store_ms) == (NOW_MS - 5, NOW_MS)
    assert (record.born_host, record.store_host) == ("10.9.8.7:4321", "10.0.0.2:10911")
    assert record.properties() == {
        "KEYS": "k",
        "TAGS": "t",
        "UNIQ_KEY": "U",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_an_answer_says_where_the_message_is(stage: Stage) -> None:
    stage.ask(send_request(queue_id=1))
    answer = stage.ask(send_request(queue_id=1, properties={"UNIQ_KEY": "U"}))
    record = stage.records(queue_id=1)[1]
    assert answer.fields == {
        "queueId": "1",
        "queueOffset": "1",
        "msgId": record.offset_id,
        "transactionId": "U",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
    }


@pytest.mark.parametrize("text", [None, "", "KEYS\x01k", "KEYS\x01k\x02", "garbage"])
def test_a_message_without_a_unique_id_gets_one(text: str | None, stage: Stage) -> None:
    answer = stage.ask(send_request(properties=text))
    properties = only_record(stage).properties()
    assert properties["UNIQ_KEY"] == answer.fields["transactionId"] == f"id{NOW_MS}"
    assert properties["CLUSTER"] == "DefaultCluster"
    assert properties.get("KEYS") == ("k" if text and "KEYS" in text else None)


def test_marks_of_the_broker_replace_those_of_the_client(stage: Stage) -> None:
    stage.ask(send_request(properties={"CLUSTER": "forged", "MSG_REGION": "x", "TRACE_ON": "no"}))
    properties = only_record(stage).properties()
    assert properties["CLUSTER"] == "DefaultCluster"
    assert properties["MSG_REGION"] == "DefaultRegion"
    assert only_record(stage).property_bytes.count(b"CLUSTER\x01") == 1


def test_the_checkpoint_of_a_pop_is_taken_out(stage: Stage) -> None:
    stage.ask(send_request(properties={"POP_CK": "1 2 3", "KEYS": "k"}))
    assert b"POP_CK" not in only_record(stage).property_bytes


@pytest.mark.parametrize("sys_flag", [HOST_BITS, 0x4, 0x8, 0xC, 0x30 | 0x40 | 0x80, 0x7FFFFFFF, -1])
def test_a_client_cannot_make_a_record_that_reads_differently(sys_flag: int, stage: Stage) -> None:
    for number, request in enumerate(
        (
            send_request(b"one", sys_flag=sys_flag),
            send_request(a_batch(b"two"), code=BATCH, sys_flag=sys_flag),
        )
    ):
        assert stage.ask(request).code == 0
        record = stage.records()[number]
        assert record.sys_flag & ~0x703 == 0
        assert record.topic == "T"
    stage.flush()
    again = Stage(stage.files)
    assert again.state.store.recovery.cut_at is None
    assert [record.body for record in again.records()] == [b"one", b"two"]


def test_a_message_from_ipv6_says_so(stage: Stage) -> None:
    stage.ask(send_request(sys_flag=HOST_BITS), Peer(9, "[2001:db8::1]:4321"))
    record = only_record(stage)
    assert record.sys_flag == int(SysFlag.BORN_HOST_V6)
    assert (record.born_ip.hex(), record.born_port) == ("20010db8" + "0" * 23 + "1", 4321)


@pytest.mark.parametrize(
    "changes",
    [
        {"flag": 2**31},
        {"born_timestamp": 2**63},
        {"queue_id": 2**31},
        {"reconsume_times": -(2**31) - 1},
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes: dict[str, Any], stage: Stage) -> None:
    assert stage.ask(send_request(**changes)).code == ResponseCode.SYSTEM_ERROR
    assert stage.records() == []


def test_extreme_numbers_that_fit_are_kept(stage: Stage) -> None:
    stage.ask(send_request(flag=-(2**31), born_timestamp=-1, reconsume_times=2**31 - 1))
    record = only_record(stage)
    assert (record.flag, record.born_ms, record.reconsume_times) == (-(2**31), -1, 2**31 - 1)


def test_a_one_way_send_is_stored_and_not_answered(stage: Stage) -> None:
    for request in (
        send_request(is_oneway=True),
        send_request(a_batch(b"a"), code=BATCH, is_oneway=True),
    ):
        stage.hand_in(request)
        stage.commit()
        assert stage.answer_to(request) is None
    assert len(stage.records()) == 2


def test_a_delayed_message_is_answered_with_the_queue_that_was_asked_for(stage: Stage) -> None:
    answer = stage.ask(send_request(queue_id=3, properties={"DELAY": "1"}))
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("3", "0")
    assert len(stage.records("SCHEDULE_TOPIC_XXXX", 0)) == 1
    assert stage.records(queue_id=3) == []


def test_a_timed_message_is_answered_with_what_takes_it_back(stage: Stage) -> None:
    answer = stage.ask(send_request(properties={"TIMER_DELAY_SEC": "60"}))
    assert answer.fields["recallHandle"]
    assert len(stage.records("rmq_sys_wheel_timer")) == 1


def test_a_half_message_is_in_no_topic_of_consumers(stage: Stage) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U"}
    answer = stage.ask(send_request(queue_id=2, properties=half))
    assert (answer.fields["queueId"], answer.fields["transactionId"]) == ("2", "U")
    assert stage.records(queue_id=2) == []
    assert only_record(stage, "RMQ_SYS_TRANS_HALF_TOPIC").properties()["REAL_TOPIC"] == "T"


def test_what_is_sent_can_be_pulled(stage: Stage) -> None:
    stage.ask(send_request(b"body", properties={"TAGS": "a"}))
    assert stage.ask(pull_request(tags="a")).code == 0
    assert stage.ask(pull_request(tags="b")).code == ResponseCode.PULL_RETRY_IMMEDIATELY


# ---- retries ----


def retry(times: int = 0, **changes: Any) -> Command:
    return send_request(b"again", "%RETRY%G", reconsume_times=times, **changes)


def test_a_retry_topic_is_made_though_topics_are_not() -> None:
    stage = Stage(is_topic_created=False)
    assert stage.ask(retry()).code == 0
    config = stage.state.topics.get("%RETRY%G")
    assert config is not None
    assert (config.write_queue_nums, config.perm) == (1, 6)
    assert stage.ask(send_request(topic="New")).code == ResponseCode.TOPIC_NOT_EXIST


def test_retry_topics_count_like_others() -> None:
    stage = Stage(topics_created_per_minute_max=0)
    assert stage.ask(retry()).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_retry_creates_its_group_where_that_is_allowed() -> None:
    stage = Stage()
    assert stage.ask(retry()).code == 0
    assert stage.state.groups.get("G") is not None
    strict = Stage(is_group_created=False)
    answer = strict.ask(retry())
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (answer.remark or "").startswith("subscription group not exist, G\nSee ")


@pytest.mark.parametrize(
    ("times", "limit", "is_dead"),
    [(16, None, False), (17, None, True), (2, 2, False), (3, 2, True), (0, -1, True)],
)
def test_a_retry_that_was_tried_too_often_is_a_dead_letter(
    times: int, limit: int | None, is_dead: bool, stage: Stage
) -> None:
    assert stage.ask(retry(times, max_reconsume_times=limit)).code == 0
    assert len(stage.records("%DLQ%G" if is_dead else "%RETRY%G")) == 1
    if is_dead:
        assert only_record(stage, "%DLQ%G").properties()["DELAY"] == "-1"


def test_a_retry_is_a_dead_letter_while_its_group_holds_a_lock(stage: Stage) -> None:
    stage.state.locks.lock("G", "client", [QueueId("T", "broker-a", 0)], NOW_MS)
    assert stage.ask(retry(0)).code == 0
    assert stage.ask(retry(1)).code == 0
    assert len(stage.records("%RETRY%G")) == 1
    assert len(stage.records("%DLQ%G")) == 1


# ---- batches ----


def test_a_batch_is_one_range_of_offsets(stage: Stage) -> None:
    stage.ask(send_request(b"before"))
    properties = b"KEYS\x01k\x02WAIT\x01true\x02"
    bodies = [b"a", b"b", b"c"]
    answer = stage.ask(
        send_request(
            a_batch(*bodies, properties=properties), code=BATCH, properties={"UNIQ_KEY": "B"}
        )
    )
    records = stage.records()[1:]
    assert [record.body for record in records] == bodies
    assert [record.property_bytes for record in records] == [properties] * 3
    assert [record.queue_offset for record in records] == [1, 2, 3]
    assert answer.fields == {
        "queueId": "0",
        "queueOffset": "1",
        "msgId": ",".join(record.offset_id for record in records),
        "transactionId": "B",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
    }


def test_a_batch_without_an_id_is_answered_without_one(stage: Stage) -> None:
    answer = stage.ask(send_request(a_batch(b"a"), code=BATCH))
    assert "transactionId" not in answer.fields


def test_a_batch_may_choose_not_to_wait_for_the_flush() -> None:
    stage = Stage(flush="sync")
    stage.create("T")
    waiting = stage.hand_in(send_request(a_batch(b"a"), code=BATCH))
    hasty = stage.hand_in(send_request(a_batch(b"a"), code=BATCH, properties={"WAIT": "false"}))
    stage.commit()
    assert stage.answer_to(waiting) is None
    assert stage.answer_to(hasty) is not None


def test_a_batch_that_would_wrap_a_queue_offset_is_refused(stage: Stage) -> None:
    largest = a_batch(*[b"x"] * BATCH_MESSAGES_MAX)
    assert stage.ask(send_request(largest, code=BATCH)).code == 0
    assert stage.state.store.queue("T", 0).max_offset == BATCH_MESSAGES_MAX
    answer = stage.ask(send_request(largest + a_batch(b"x"), code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "32768 messages" in (answer.remark or "")
    assert stage.state.store.queue("T", 0).max_offset == BATCH_MESSAGES_MAX


def test_a_batch_to_a_retry_topic_is_refused(stage: Stage) -> None:
    answer = stage.ask(send_request(a_batch(b"a"), "%RETRY%G", code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == "batch request does not support retry group"


def test_a_batch_that_is_too_large_is_refused() -> None:
    stage = Stage(message_bytes_max=50)
    answer = stage.ask(send_request(a_batch(bytes(20), bytes(20)), code=BATCH))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    "body", [b"x", a_batch(b"a")[:-1], a_batch(b"a") + b"\x00", b"\xff" * 40, bytes(40)]
)
def test_a_batch_that_cannot_be_read_is_refused_whole(body: bytes, stage: Stage) -> None:
    assert stage.ask(send_request(a_batch(b"good") + body, code=BATCH)).code == 1
    assert stage.records() == []


def test_statistics_count_what_was_stored(stage: Stage) -> None:
    stage.ask(send_request())
    stage.ask(send_request(a_batch(b"a", b"b"), code=BATCH))
    assert stage.state.statistics.totals(NOW_MS).messages_stored == 3


@pytest.mark.parametrize("body", [b"\0\0\0\x05abc", b"x" * 200, a_batch(b"x") + b"y"])
def test_a_batch_that_is_refused_creates_no_topic(body: bytes) -> None:
    stage = Stage(message_bytes_max=100)
    answer = stage.ask(send_request(body, "new", code=BATCH))
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert stage.state.topics.get("new") is None
    assert stage.ask(send_request(a_batch(b"x", b"y"), "new", code=BATCH, queue_id=3)).code == 0
    assert [record.body for record in stage.records("new", 3)] == [b"x", b"y"]


def test_all_stored_messages_are_counted_by_the_topic_in_which_they_are(stage: Stage) -> None:
    stage.ask(send_request())
    stage.ask(send_request(a_batch(b"x", b"y"), code=BATCH))
    stage.ask(send_request(properties={"DELAY": "1"}))
    sizes = [record.size for record in stage.records()]
    for passed_ms in (1_000, 9_000):
        stage.tick(passed_ms)
    statistics = stage.state.statistics
    found = {
        (name, topic): counts.stats_minute.sum
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
        for topic in ("T", "SCHEDULE_TOPIC_XXXX")
        if (counts := statistics.counts(name, topic, "")) is not None
    }
    assert found["TOPIC_PUT_NUMS", "T"] == 4
    assert found["TOPIC_PUT_SIZE", "T"] == sum(sizes) + stage.records()[-1].size
    assert found["TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"] == 1
    totals = statistics.totals(stage.now_ms)
    assert (totals.messages_stored, totals.user_messages_stored) == (5, 4)
