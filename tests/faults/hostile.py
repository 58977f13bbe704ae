"""Hostile requests: well framed, with bad contents."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from downrange.server.broker.broker import HANDLERS
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.properties import encode_properties
from downrange.wire.records import BatchItem, encode_batch
from tests.embedded.brokers import send_request

if TYPE_CHECKING:
    from collections.abc import Iterator

_INT_EDGES = ("-2147483648", "-1", "0", "2147483647", "2147483648", "9" * 40, "", "x", "1.5", "0x1")
_LONG_EDGES = ("-9223372036854775808", "-1", "9223372036854775807", "9" * 40, "", "x")
_NAMES = (
    *("", " ", ".", "..", "../../x", "a/b", "/etc/passwd", "a\x00b", "a\nb", "a\x01b\x02c"),
    *("x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 70_000, "тема", "\ufffd", "%RETRY%../x"),
    *("%RETRY%", "%DLQ%", "%DLQ%x", "%RETRY%" + "g" * 248, "%RETRY%" + "g" * 249),
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    *("rmq_sys_wheel_timer", "TBW102", "DefaultCluster", "broker-a", "TRANS_CHECK_MAX_TIME_TOPIC"),
)
_PROPERTIES = (
    *("\x00", "\x01", "\x02", "\x01\x02\x01\x02", "a", "a\x01", "\x01b\x02", "a\x01b\x01c\x02"),
    *("a\x01b\x00c\x02", "\ufffd\x01\ufffd\x02", "x" * 32_767, "x" * 70_000, "a\x01b\x02" * 8_000),
    "KEYS\x01" + " ".join(f"k{number}" for number in range(5_000)) + "\x02",
)
_FORGED = (
    *({"DELAY": text} for text in ("-1", "0", "1", "999999999", "9" * 40, "x", "1.5")),
    *({"TIMER_DELIVER_MS": text} for text in ("-1", "0", "1", "9" * 18, "9" * 40, "x")),
    *({"TIMER_DELAY_SEC": text} for text in ("-1", "0", "9" * 18, "9" * 40, "x")),
    {"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "x"},
    {"TIMER_DELAY_MS": "50", "TIMER_ROLL_TIMES": "1", "TIMER_ENQUEUE_MS": "x"},
    {"TIMER_DELAY_MS": "50", "TIMER_DEL_UNIQKEY": "shared+u-witness"},
    {"TIMER_DELAY_MS": "50", "REAL_TOPIC": "../x", "REAL_QID": "x"},
    {"DELAY": "1", "REAL_TOPIC": "../x", "REAL_QID": "-1"},
    {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "99999999999"},
    {"TRAN_MSG": "true"},
    {"TRAN_MSG": "true", "PGROUP": "P", "CHECK_IMMUNITY_TIME_IN_SECONDS": "x"},
    {"TRAN_MSG": "true", "PGROUP": "P", "TRANSACTION_CHECK_TIMES": "9" * 40},
    {"TRAN_MSG": "true", "PGROUP": "P", "TRAN_PREPARED_QUEUE_OFFSET": "-5"},
    {"TRAN_MSG": "true", "PGROUP": "P", "DELAY": "1", "TIMER_DELAY_MS": "50"},
    {"INNER_NUM": "99", "INNER_BASE": "-1"},
    {"INNER_MULTI_DISPATCH": "%LMQ%x", "INNER_MULTI_QUEUE_OFFSET": "7"},
    {"__CRC32#": "0", "POP_CK": "1 2 3", "CLUSTER": "x", "MSG_REGION": "x", "TRACE_ON": "x"},
    {"UNIQ_KEY": "x" * 30_000},
    {"TAGS": "||", "KEYS": "   ", "UNIQ_KEY": " "},
)
_ITEM = Struct(">iiiii")
_LENGTHS = (-1, 0, 1, 2**31 - 1, -(2**31), 32_768, 65_535)


def requests(log_end: int) -> Iterator[Command]:
    """Return all of them.

    Args:
        log_end: An earlier end of the log; a position between two records, or inside one.
    """
    yield from _sends()
    yield from _batches()
    yield from _readers(log_end)
    yield from _strange_fields(log_end)
    yield from _bare()


def _sends() -> Iterator[Command]:
    for bit in range(32):
        flag = 1 << bit if bit < 31 else -(2**31)
        yield send_request(b"sysFlag", "shared", sys_flag=flag)
        yield send_request(b"flag", "shared", flag=flag, born_timestamp=-(2**63) + bit)
    for flag in (0xC, 0xF0, 0x7FFFFFFF, -1):
        yield send_request(b"sysFlag", "shared", sys_flag=flag)
    for topic in _NAMES:
        yield send_request(b"topic", topic)
        yield send_request(b"topic", f"auto-{len(topic)}", default_topic=topic)
        yield send_request(b"group", "shared", producer_group=topic)
    for properties in _PROPERTIES:
        yield send_request(b"properties", "shared", properties=properties)
    for forged in _FORGED:
        yield send_request(b"forged", "shared", properties=encode_properties(forged))
    for number in (-(2**31), -1, 1, 2**31 - 1):
        yield send_request(b"queue", "shared", queue_id=number)
        yield send_request(b"queues", f"made-{number}", default_topic_queue_nums=number)
        yield send_request(b"tried", "%RETRY%G", reconsume_times=number, max_reconsume_times=number)
        yield send_request(b"tried", "shared", reconsume_times=number, born_timestamp=2**63 - 1)
    yield send_request(b"", "shared")
    yield send_request(bytes(4 * 1024 * 1024 + 1), "shared")


def _batches() -> Iterator[Command]:
    yield _batch(encode_batch([BatchItem(0, b"x", b"")] * 32_768))
    yield _batch(encode_batch([BatchItem(0, b"x", b"")] * 40_000))
    yield _batch(encode_batch([BatchItem(-1, b"", b"")]))
    for properties in (b"\x00", b"\xff\xfe", b"a\x01b\x00\x02", b"\x01\x02" * 5_000):
        yield _batch(encode_batch([BatchItem(0, b"good", b""), BatchItem(0, b"bad", properties)]))
    for size in _LENGTHS:
        yield _batch(_ITEM.pack(size, 0, 0, 0, 4) + b"body\x00\x00")
        yield _batch(_ITEM.pack(26, 0, 0, 0, size) + b"body\x00\x00")
        yield _batch(_ITEM.pack(26, 0, 0, 0, 4) + b"body" + (size & 0xFFFF).to_bytes(2, "big"))
    for data in (b"x", b"\x00" * 22, b"\xff" * 100, b"\x00\x00\x00\x16" * 50):
        yield _batch(data)
    yield _batch(encode_batch([BatchItem(0, b"x", b"")]), topic="%RETRY%G")
    yield _batch(encode_batch([BatchItem(0, b"x", b"")]), sys_flag=0xF0)


def _batch(body: bytes, topic: str = "shared", **changes: Any) -> Command:
    command = send_request(body, topic, batch=True, **changes)
    command.code = int(RequestCode.SEND_BATCH_MESSAGE)
    return command


def _readers(log_end: int) -> Iterator[Command]:
    """Return requests with positions in the log: before it, behind it, inside records."""
    for offset in (-(2**63), -1, 0, 1, 7, log_end - 1, log_end, log_end + 1, 2**40, 2**63 - 1):
        yield Command(int(RequestCode.VIEW_MESSAGE_BY_ID), {"offset": str(offset)})
        for level in (-(2**31), -1, 0, 3, 2**31 - 1):
            fields = {"offset": str(offset), "group": "G", "delayLevel": str(level)}
            yield Command(int(RequestCode.CONSUMER_SEND_MSG_BACK), fields)
        for outcome in (0, 4, 8, 12, 99):
            fields = {
                "producerGroup": "P",
                "tranStateTableOffset": str(offset),
                "commitLogOffset": str(offset),
                "commitOrRollback": str(outcome),
                "fromTransactionCheck": "true",
                "msgId": "x",
            }
            yield Command(int(RequestCode.END_TRANSACTION), fields)
        message_id = f"7F00000100002A9F{offset & (2**64 - 1):016X}"
        yield Command(int(RequestCode.RESUME_CHECK_HALF_MESSAGE), {"msgId": message_id})
        fields = {"topic": "shared", "queueId": "0", "index": str(offset), "count": "2147483647"}
        yield Command(int(RequestCode.QUERY_CONSUME_QUEUE), fields)
    for handle in ("", "x", "djEgeA==", "djEgLi4vLi4veCBicm9rZXItYSA5OTk5OTk5OTk5OTk5IHU="):
        fields = {"topic": "shared", "recallHandle": handle, "producerGroup": "P"}
        yield Command(int(RequestCode.RECALL_MESSAGE), fields)


#: Valid fields; one of them is replaced by each of its edge values.
_FORMS: dict[RequestCode, dict[str, str]] = {
    RequestCode.PULL_MESSAGE: {
        "consumerGroup": "G",
        "topic": "shared",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1",
        "subVersion": "0",
        "subscription": "*",
        "expressionType": "TAG",
    },
    RequestCode.QUERY_CONSUMER_OFFSET: {"consumerGroup": "G", "topic": "shared", "queueId": "0"},
    RequestCode.UPDATE_CONSUMER_OFFSET: {
        "consumerGroup": "G",
        "topic": "shared",
        "queueId": "0",
        "commitOffset": "1",
    },
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {
        "topic": "shared",
        "queueId": "0",
        "timestamp": "1",
        "boundaryType": "upper",
    },
    RequestCode.GET_MAX_OFFSET: {"topic": "shared", "queueId": "0"},
    RequestCode.GET_MIN_OFFSET: {"topic": "shared", "queueId": "0"},
    RequestCode.GET_EARLIEST_MSG_STORETIME: {"topic": "shared", "queueId": "0"},
    RequestCode.QUERY_MESSAGE: {
        "topic": "shared",
        "key": "k",
        "maxNum": "8",
        "beginTimestamp": "0",
        "endTimestamp": "9223372036854775807",
    },
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "topic": "edges",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "",
    },
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
        "topic": "shared",
        "group": "G",
        "timestamp": "0",
        "isForce": "true",
        "queueId": "0",
        "offset": "0",
    },
    RequestCode.QUERY_CORRECTION_OFFSET: {
        "topic": "shared",
        "filterGroups": "H",
        "compareGroup": "G",
    },
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: {
        "group": "H",
        "topic": "shared",
        "readable": "false",
    },
    RequestCode.VIEW_BROKER_STATS_DATA: {"statsName": "GROUP_GET_NUMS", "statsKey": "shared@G"},
    RequestCode.UNREGISTER_CLIENT: {"clientID": "c", "producerGroup": "P", "consumerGroup": "G"},
    RequestCode.GET_CONSUME_STATS: {"consumerGroup": "G", "topic": "shared"},
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"groupName": "no-such"},
    RequestCode.CLONE_GROUP_OFFSET: {"srcGroup": "G", "destGroup": "H", "topic": "shared"},
}


def _strange_fields(log_end: int) -> Iterator[Command]:
    edges = (*_INT_EDGES, *_LONG_EDGES, str(log_end), *_NAMES, "||||", "a||" * 9_000, "SQL92")
    for code, form in _FORMS.items():
        for name in form:
            for edge in edges:
                yield Command(int(code), form | {name: edge})


def _bare() -> Iterator[Command]:
    """Return all request codes that are served, and some that are not, empty and with garbage."""
    codes = sorted({*HANDLERS, *range(0, 400, 7), 901, 65_535, 200_050, -1})
    texts = (
        b"",
        b"{",
        b"[" * 5_000,
        b"{}",
        b"[]",
        b"null",
        b'{"a":' * 3_000,
        b"\xff\xfe\x00",
        b"9",
    )
    for code in codes:
        for text in texts:
            yield Command(code, {}, text)
