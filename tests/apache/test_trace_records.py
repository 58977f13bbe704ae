"""Our trace records, compared with those of Java's codec."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Literal

import pytest

from downrange.client.flows.consuming.consume_traces import trace_after, trace_before
from downrange.client.flows.hooks import MessageType
from downrange.client.flows.producing.trace_buffer import TraceBuffer
from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    KnownTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    SubResult,
    decode_trace,
    encode_contexts,
    index_keys,
)
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from downrange.options.clients import Trace
from tests.apache.java_client import message
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient

ID = "7F0000010B5E4E2524860C1DB8A20000"
OFFSET_ID = "7F00000100002A9F0000000000000F1E"

#: For each kind of record: ours, the properties of Java's context, those of its bean.
CASES: dict[str, tuple[KnownTrace, dict[str, Any], dict[str, Any]]] = {
    "pub": (
        PubTrace(
            time_ms=1_700_000_000_123,
            region="DefaultRegion",
            group="gruppe",
            topic="orders",
            message_id=ID,
            tags="色",
            keys="k1",
            address="127.0.0.1:10911",
            body_bytes=77,
            cost_ms=3,
            message_type=MessageType.HALF,
            offset_id=OFFSET_ID,
            is_success=True,
        ),
        {
            "traceType": "Pub",
            "timeStamp": 1_700_000_000_123,
            "regionId": "DefaultRegion",
            "groupName": "gruppe",
            "costTime": 3,
            "success": True,
        },
        {
            "topic": "orders",
            "msgId": ID,
            "tags": "色",
            "keys": "k1",
            "storeHost": "127.0.0.1:10911",
            "bodyLength": 77,
            "msgType": "Trans_Msg_Half",
            "offsetMsgId": OFFSET_ID,
        },
    ),
    "pub-of-a-bare-message": (
        PubTrace(
            time_ms=1,
            region="DefaultRegion",
            group="g",
            topic="t",
            message_id=ID,
            tags=None,
            keys=None,
            address="127.0.0.1:10911",
            body_bytes=0,
            cost_ms=0,
            message_type=MessageType.DELAY,
            offset_id=None,
            is_success=False,
        ),
        {
            "traceType": "Pub",
            "timeStamp": 1,
            "regionId": "DefaultRegion",
            "groupName": "g",
            "success": False,
        },
        # The texts of a bean are empty, not null, until they are set.
        {
            "topic": "t",
            "msgId": ID,
            "tags": None,
            "keys": None,
            "storeHost": "127.0.0.1:10911",
            "msgType": "Delay_Msg",
            "offsetMsgId": None,
        },
    ),
    "sub-before": (
        SubBeforeTrace(
            time_ms=1_700_000_000_123,
            region="r",
            group="g",
            request_id="req",
            message_id=ID,
            retry_count=2,
            keys="k1",
        ),
        {
            "traceType": "SubBefore",
            "timeStamp": 1_700_000_000_123,
            "regionId": "r",
            "groupName": "g",
            "requestId": "req",
        },
        {"msgId": ID, "retryTimes": 2, "keys": "k1"},
    ),
    "sub-after": (
        SubAfterTrace(
            request_id="req",
            message_id=ID,
            cost_ms=9,
            is_success=False,
            keys="k1",
            result=4,
            time_ms=1_700_000_000_132,
            group="g",
        ),
        {
            "traceType": "SubAfter",
            "requestId": "req",
            "costTime": 9,
            "success": False,
            "contextCode": 4,
            "timeStamp": 1_700_000_000_132,
            "groupName": "g",
        },
        {"msgId": ID, "keys": "k1"},
    ),
    "end-transaction": (
        EndTransactionTrace(
            time_ms=5,
            region="r",
            group="g",
            topic="t",
            message_id=ID,
            tags="a",
            keys="k1",
            address="127.0.0.1:10911",
            message_type=MessageType.COMMIT,
            transaction_id="tx",
            state="UNKNOW",
            is_from_check=True,
        ),
        {"traceType": "EndTransaction", "timeStamp": 5, "regionId": "r", "groupName": "g"},
        {
            "topic": "t",
            "msgId": ID,
            "tags": "a",
            "keys": "k1",
            "storeHost": "127.0.0.1:10911",
            "msgType": "Trans_msg_Commit",
            "transactionId": "tx",
            "transactionState": "UNKNOW",
            "fromTransactionCheck": True,
        },
    ),
    "recall": (
        RecallTrace(time_ms=5, region="r", group="g", topic="t", message_id=ID, is_success=False),
        {
            "traceType": "Recall",
            "timeStamp": 5,
            "regionId": "r",
            "groupName": "g",
            "success": False,
        },
        {"topic": "t", "msgId": ID},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_we_write_the_record_that_java_writes_and_each_reads_the_other(
    java_client: JavaClient, case: str
) -> None:
    ours, context, bean = CASES[case]
    if java_client.version.startswith("4."):
        if case == "recall":
            pytest.skip("4.9 has no recall")
    else:
        context = {**context, "accessChannel": "LOCAL"}
    written = java_client.call("trace.encode", context=context, beans=[bean])
    assert encode_contexts([ours]) == written["text"].encode()
    assert decode_trace(written["text"].encode()) == [ours]
    assert set(index_keys(ours)) == set(written["keys"])
    [read] = java_client.call("trace.decode", text=encode_contexts([ours]).decode())
    context.pop("accessChannel", None)  # not part of the record
    assert [name for name, value in context.items() if read[name] != value] == []
    [read_bean] = read["traceBeans"]
    # Java writes a missing text as "null", and reads it back as this word.
    sent = {name: "null" if value is None else value for name, value in bean.items()}
    assert [name for name, value in sent.items() if read_bean[name] != value] == []


def test_java_writes_one_record_per_consumed_message_and_we_read_them_all(
    java_client: JavaClient,
) -> None:
    _, context, bean = CASES["sub-before"]
    written = java_client.call(
        "trace.encode", context=context, beans=[bean, {**bean, "msgId": "2"}]
    )
    read = decode_trace(written["text"].encode())
    assert [record.message_id for record in read if isinstance(record, SubBeforeTrace)] == [ID, "2"]
    assert encode_contexts(read) == written["text"].encode()


@pytest.mark.parametrize("channel", ["local", "cloud"])
def test_java_reads_what_our_consumer_traces_about_a_batch(
    java_client: JavaClient, channel: Literal["local", "cloud"]
) -> None:
    clock = FakeClock(1_700_000_000.0)
    buffer = TraceBuffer(Trace(batch_count=20), clock, channel)
    messages = [received(ID, KEYS="k1 k2"), received("2")]
    batch = trace_before(buffer, messages, group="g", request_id="req")
    clock.seconds += 0.5
    trace_after(buffer, batch, SubResult.EXCEPTION)
    [sent] = buffer.take_all()
    assert {*sent.keys} == {ID, "2", "k1", "k2"}
    read = java_client.call("trace.decode", text=sent.body.decode())
    assert [context["traceType"] for context in read] == ["SubBefore"] * 2 + ["SubAfter"] * 2
    assert {context["requestId"] for context in read} == {"req"}
    beans = [bean for context in read for bean in context["traceBeans"]]
    assert [bean["msgId"] for bean in beans] == [ID, "2", ID, "2"]
    assert [bean["keys"] for bean in beans] == ["k1 k2", "null"] * 2
    for before, after in zip(read[:2], read[2:], strict=True):
        assert (before["timeStamp"], before["regionId"]) == (1_700_000_000_000, "r")
        assert before["groupName"] == "g"
        assert before["traceBeans"][0]["retryTimes"] == 3
        assert (after["costTime"], after["success"], after["contextCode"]) == (250, False, 2)
        if channel == "local":
            assert (after["timeStamp"], after["groupName"]) == (1_700_000_000_500, "g")


def test_java_writes_the_same_record_of_a_cloud(java_client: JavaClient) -> None:
    if java_client.version.startswith("4."):
        pytest.skip("4.9.4 has no cloud channel")
    _, context, bean = CASES["sub-after"]
    written = java_client.call(
        "trace.encode", context={**context, "accessChannel": "CLOUD"}, beans=[bean]
    )
    [read] = decode_trace(written["text"].encode())
    assert encode_contexts([read]) == written["text"].encode()


def test_results_of_consumption_are_numbered_as_in_java(java_client: JavaClient) -> None:
    kind = "org.apache.rocketmq.client.consumer.listener.ConsumeReturnType"
    names = java_client.call("enum", type=kind)
    assert names == ["SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED"]
    assert [*SubResult] == [*range(len(names))]


def received(message_id: str, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        message_id=message_id,
        queue=QueueId("orders", "broker-a", 0),
        offset=QueueOffset(0),
        body=b"",
        properties={"MSG_REGION": "r", **properties},
        offset_id=OFFSET_ID,
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="127.0.0.1:1",
        stored_at_ms=0,
        delivery_attempts=3,
    )


def test_we_read_what_a_consumer_of_a_cloud_writes(java_client: JavaClient) -> None:
    if java_client.version.startswith("4."):
        pytest.skip("4.9.4 has no cloud channel")
    ours, context, bean = CASES["sub-after"]
    written = java_client.call(
        "trace.encode", context={**context, "accessChannel": "CLOUD"}, beans=[bean, bean]
    )
    assert isinstance(ours, SubAfterTrace)
    read = decode_trace(written["text"].encode())
    assert len(read) == 2
    for record in read:
        assert isinstance(record, SubAfterTrace)
        assert (record.result, record.time_ms, record.group) == (ours.result, None, None)


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_old_sent_records_are_read_as_java_reads_them(
    java_client: JavaClient, dropped: int
) -> None:
    """Old records lack the offset id, and older ones also the success flag."""
    fields = encode_contexts([CASES["pub"][0]]).decode().rstrip("\x02").split("\x01")
    fields = [*fields[: 14 - 2], *fields[12 + dropped :]]
    text = "\x01".join(fields) + "\x02"
    [theirs] = java_client.call("trace.decode", text=text)
    [ours] = decode_trace(text.encode())
    assert isinstance(ours, PubTrace)
    assert ours.is_success == theirs["success"]
    assert (ours.offset_id or "") == (theirs["traceBeans"][0]["offsetMsgId"] or "")


def test_we_read_what_a_java_producer_traces_about_its_sends(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic, group, trace_topic = unique_name("topic"), unique_name("group"), unique_name("trace")
    producer = java_client.start_producer(
        apache.name_server, group, options={"enableTrace": True, "traceTopic": trace_topic}
    )
    [single] = java_client.send(producer, [message(topic, b"123", tags="new", keys="k1 k2")])
    [delayed] = java_client.send(producer, [message(topic, b"later", delayTimeLevel=1)])
    [batch] = java_client.send(
        producer, [message(topic, b"a", keys="k3"), message(topic, b"b")], mode="batch"
    )
    consumer = java_client.start_consumer(
        apache.name_server, unique_name("group"), {trace_topic: "*"}
    )
    found: dict[str | None, tuple[PubTrace, list[str]]] = {}
    for count in range(1, 4):  # one to three messages, depending on the speed of the sends
        for delivery in java_client.received(consumer, count):
            for record in decode_trace(b64decode(delivery["body"])):
                assert isinstance(record, PubTrace)
                found[record.message_id] = record, delivery["keys"].split()
        if len(found) == 3:
            break
    java_client.stop(consumer)
    java_client.stop(producer)
    for sent, message_type, tags, keys in (
        (single, MessageType.NORMAL, "new", "k1 k2"),
        (delayed, MessageType.DELAY, None, None),
        (batch, MessageType.NORMAL, None, None),
    ):
        record, index = found[sent["msgId"]]
        assert (record.topic, record.group, record.region) == (topic, group, sent["regionId"])
        assert (record.address, record.offset_id) == (
            apache.brokers[0].address,
            sent["offsetMsgId"],
        )
        assert (record.message_type, record.is_success) == (message_type, True)
        assert (record.tags, record.keys) == (tags, keys)
        assert {*sent["msgId"].split(), *(keys or "").split()} <= {*index}
    assert found[single["msgId"]][0].body_bytes == 3
