"""Hostile requests: well framed, with bad contents."""

from __future__ import annotations

import json
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
    yield from _pops()
    yield from _strange_bodies()
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
    # A pop does not wait: the sender waits for its answer.
    RequestCode.POP_MESSAGE: {
        "consumerGroup": "pops",
        "topic": "shared",
        "queueId": "-1",
        "maxMsgNums": "2",
        "invisibleTime": "2000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        "attemptId": "a",
    },
    RequestCode.ACK_MESSAGE: {
        "consumerGroup": "pops",
        "topic": "shared",
        "queueId": "0",
        "extraInfo": "0 1 60000 0 0 broker-a 0 0",
        "offset": "0",
    },
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {
        "consumerGroup": "pops",
        "topic": "shared",
        "queueId": "0",
        "extraInfo": "0 1 60000 0 0 broker-a 0 0",
        "offset": "0",
        "invisibleTime": "1000",
        "suspend": "true",
    },
    RequestCode.PEEK_MESSAGE: {
        "consumerGroup": "pops",
        "topic": "shared",
        "queueId": "0",
        "maxMsgNums": "32",
    },
    RequestCode.NOTIFICATION: {
        "consumerGroup": "pops",
        "topic": "shared",
        "queueId": "-1",
        "pollTime": "0",
        "bornTime": "0",
        "order": "true",
        "attemptId": "a",
        "expType": "TAG",
        "exp": "*",
    },
    RequestCode.POLLING_INFO: {"consumerGroup": "pops", "topic": "shared", "queueId": "-1"},
}
#: With this field a pop waits for a message: each gets a group of its own, which has popped none.
_WAITS = "pollTime"
_RECEIPTS = (
    *("0 0 0 0 0 b", "0 0 0 999 0 b", "a b c d e f g h", "0 " * 5_000, "0  0 0 0 0 0 0"),
    *("-1 9223372036854775807 9223372036854775807 0 1 b 0 0", "0 1 2 3 2 broker-a 0 0"),
    *("9223372036854775807 1 -9223372036854775808 2147483647 1 b -2147483648 -1", "0 0 0 0 0 b 0"),
    *(
        "0 1 60000 0 1 broker-a 0 0",
        "0 1 60000 0 \x01 \x02 0 0",
        "0 9223372036854775808 0 0 0 b 0 0",
    ),
)
_SQL = (
    *("a = 1 AND", "((((", "(" * 5_000, "a = '", "a BETWEEN 1 AND", "a IN ()", "a IN ('x')", "NOT"),
    *(
        "a > 9" + "9" * 400,
        "a > 1e999",
        "a = -9223372036854775808",
        "a IS NOT NULL",
        "TRUE",
        "1 = 1",
    ),
    *("a = 'x' OR " * 2_000 + "a = 'x'", "NOT " * 2_000 + "TRUE", "a" * 66_000, "a LIKE '%'"),
    *("a CONTAINS 'x'", "a STARTSWITH 'x'", "__proto__ = 1", "a = \x00", "\ufffd = 1", "a <> NULL"),
)
#: Valid bodies; one of the values is replaced by each of the edge values.
_BODIES: dict[RequestCode, dict[str, Any]] = {
    RequestCode.CHECK_CLIENT_CONFIG: {
        "clientId": "c",
        "group": "pops",
        "namespace": "",
        "subscriptionData": {
            "topic": "shared",
            "subString": "a = 1",
            "expressionType": "SQL92",
            "subVersion": 1,
            "classFilterMode": False,
            "tagsSet": [],
            "codeSet": [],
        },
    },
    RequestCode.QUERY_ASSIGNMENT: {
        "topic": "shared",
        "consumerGroup": "pops",
        "clientId": "c",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    RequestCode.SET_MESSAGE_REQUEST_MODE: {
        "topic": "shared",
        "consumerGroup": "pops",
        "mode": "POP",
        "popShareQueueNum": 0,
    },
    RequestCode.BATCH_ACK_MESSAGE: {
        "brokerName": "broker-a",
        "acks": [
            {
                "b": "AQ==",
                "c": "pops",
                "it": 60_000,
                "pt": 1,
                "q": 0,
                "r": "0",
                "rq": 0,
                "so": 0,
                "t": "shared",
            }
        ],
    },
    RequestCode.LOCK_BATCH_MQ: {
        "consumerGroup": "lockers",
        "clientId": "c",
        "mqSet": [{"topic": "shared", "brokerName": "broker-a", "queueId": 0}],
    },
}
_JSON_EDGES: tuple[Any, ...] = (
    *(None, True, [], {}, [None], [[]], 0.5, 1e300, "\ud800", "!!", "/" * 30_000, "A" * 4_001),
    *(
        sign * 2**bits + more
        for bits in (7, 31, 63, 64, 200)
        for sign in (1, -1)
        for more in (0, -1)
    ),
)


def _strange_fields(log_end: int) -> Iterator[Command]:
    edges = (*_INT_EDGES, *_LONG_EDGES, str(log_end), *_NAMES, "||||", "a||" * 9_000, "SQL92")
    for code, form in _FORMS.items():
        for name in form:
            for number, edge in enumerate(edges):
                fresh = {"consumerGroup": f"waits-{number}"} if name == _WAITS else {}
                yield Command(int(code), form | fresh | {name: edge})


def _pops() -> Iterator[Command]:
    """Return requests about pops with receipts, expressions and pairs of edges."""
    pop, notify = RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        for receipt in _RECEIPTS:
            for offset in ("-1", "0", "1", "9223372036854775807"):
                yield Command(int(code), _FORMS[code] | {"extraInfo": receipt, "offset": offset})
    for code in (pop, notify):
        for text in _SQL:
            for kind in ("SQL92", "TAG", "x"):
                yield Command(int(code), _FORMS[code] | {"exp": text, "expType": kind})
    for order in ("true", "false"):
        for number, edge in enumerate(_LONG_EDGES[:3]):
            group = {"consumerGroup": f"edges-{order}-{number}", "order": order}
            for queue_id in ("-1", "0"):
                fields = group | {"invisibleTime": edge, "queueId": queue_id, "maxMsgNums": "32"}
                yield Command(int(pop), _FORMS[pop] | fields)


def _strange_bodies() -> Iterator[Command]:
    for code, body in _BODIES.items():
        for strange in _with_edges(body):
            yield Command(int(code), {}, json.dumps(strange).encode())
    acks = _BODIES[RequestCode.BATCH_ACK_MESSAGE]["acks"]
    for many in (acks * 1_024, acks * 1_025, acks * 20_000):
        text = json.dumps({"brokerName": "broker-a", "acks": many})
        yield Command(int(RequestCode.BATCH_ACK_MESSAGE), {}, text.encode())
    for text in _SQL:
        body = _BODIES[RequestCode.CHECK_CLIENT_CONFIG]
        subscription = body["subscriptionData"] | {"subString": text}
        strange = json.dumps(body | {"subscriptionData": subscription})
        yield Command(int(RequestCode.CHECK_CLIENT_CONFIG), {}, strange.encode())
    for topic in ("shared", "none"):
        queues = [{"topic": topic, "brokerName": "broker-a", "queueId": n} for n in range(100_000)]
        body = _BODIES[RequestCode.LOCK_BATCH_MQ] | {"mqSet": queues}
        yield Command(int(RequestCode.LOCK_BATCH_MQ), {}, json.dumps(body).encode())


def _with_edges(value: Any) -> Iterator[Any]:
    """Return a value of JSON with each of its parts replaced by each edge."""
    yield from (*_JSON_EDGES, *_INT_EDGES, *_NAMES)
    if isinstance(value, dict):
        for name, part in value.items():
            yield from (value | {name: strange} for strange in _with_edges(part))
            yield {other: value[other] for other in value if other != name}
    elif isinstance(value, list):
        for part in value:
            yield from ([strange] for strange in _with_edges(part))


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
