"""Our bytes, compared with those of the real Java classes."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from downrange.model import QueueId
from downrange.wire import bodies
from downrange.wire.bodies import Body, decode_body
from downrange.wire.codes import HeaderCodec, Language, ReleaseVersion
from downrange.wire.command import Command, decode, encode
from downrange.wire.compression import Compression, compress
from downrange.wire.consumer_bodies import (
    ConsumeRates,
    ConsumeResult,
    PopQueueRunningState,
    QueueAndOffset,
    QueueRunningState,
    ResetOffsetListBody,
    RunningProperty,
    RunningStateBody,
    decode_reset,
)
from downrange.wire.fields import REPLY_HEADERS, REQUEST_HEADERS, Header
from downrange.wire.frames import FrameSplitter
from downrange.wire.hashes import java_hash
from downrange.wire.ids import UniqueIdMaker, parse_offset_id, parse_unique_id
from downrange.wire.pop_bodies import (
    AckBody,
    BatchAck,
    BatchAckBody,
    CheckpointBody,
    bit_set,
    decode_pop_body,
    encode_pop_body,
)
from downrange.wire.pop_receipts import (
    Receipt,
    offsets_texts,
    order_counts_text,
    parse_receipt,
)
from downrange.wire.properties import decode_properties, encode_properties
from downrange.wire.records import (
    MAGIC_V2,
    BatchItem,
    Record,
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
)
from downrange.wire.registration import decode_registration, encode_registration
from downrange.wire.signatures import signature
from tests.apache.java_names import BESIDE_THE_CLASS, BODIES, HEADERS, ONLY_5X, WITHOUT_CLASS

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.java_client import JavaClient

TEXTS = ["", "a", "TagA", "polygenelubricants", "中文", "emoji 🚀", "T#key", "\x7f /\u2028"]
PROPERTIES = {"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "7F", "色": "青い"}
CODECS = {HeaderCodec.JSON: "JSON", HeaderCodec.BINARY: "ROCKETMQ"}


def _command(data: bytes) -> Command:
    frames = FrameSplitter()
    frames.receive(data)
    frame = frames.next_frame()
    assert frame is not None
    return decode(frame)


# ---- commands and headers ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", HeaderCodec)
def test_java_reads_the_command_that_we_write(java_client: JavaClient, codec: HeaderCodec) -> None:
    command = Command(
        310,
        {"a": "gruppe ü", "i": "K\x01v\x02", "emoji": "🚀"},
        b"\x00body\xff",
        remark='a "remark" \\ with\nlines',
        request_id=2_147_483_647,
        flags=3,
        language=Language.GO,
        version=479,
        codec=codec,
    )
    read = java_client.call("command.decode", hex=encode(command).hex())
    assert b64decode(read.pop("body")) == command.body
    assert read == {
        "code": 310,
        "fields": command.fields,
        "remark": command.remark,
        "opaque": command.request_id,
        "flag": 3,
        "language": "GO",
        "version": 479,
        "serialize": CODECS[codec],
    }


@pytest.mark.parametrize("codec", HeaderCodec)
def test_we_write_the_bytes_that_java_writes(java_client: JavaClient, codec: HeaderCodec) -> None:
    """The command has one field, so that the order of a Java map does not matter."""
    command = Command(
        105,
        {"topic": "Tö"},
        b"body",
        remark="r",
        request_id=77,
        flags=1,
        language=Language.JAVA,
        version=401,
        codec=codec,
    )
    written = java_client.call(
        "command.encode",
        code=105,
        fields=command.fields,
        body=b64encode(command.body).decode(),
        remark="r",
        opaque=77,
        flag=1,
        version=401,
        serialize=CODECS[codec],
    )
    assert encode(command) == bytes.fromhex(written)
    assert _command(bytes.fromhex(written)) == command


def test_every_header_has_its_java_class() -> None:
    declared = {*REQUEST_HEADERS.values(), *REPLY_HEADERS.values()}
    assert declared == {*HEADERS} | WITHOUT_CLASS


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.__name__)
def test_java_class_has_every_field_of_ours(
    header: type[Header], apache: ApacheCluster, java_client: JavaClient
) -> None:
    """Java reads our fields into its class and writes them again; unknown ones would be missing."""
    is_5x = apache.version.startswith("5.")
    if header in ONLY_5X and not is_5x:
        with pytest.raises(Exception, match="ClassNotFound"):
            java_client.call("header.roundtrip", type=HEADERS[header], fields={})
        return
    members = [m for m in struct_fields(header) if m.encode_name not in BESIDE_THE_CLASS]
    sent = header(**{m.name: _value_for(m, n) for n, m in enumerate(members)}).to_fields()
    sent = {name: value for name, value in sent.items() if name not in BESIDE_THE_CLASS}
    came_back = java_client.call("header.roundtrip", type=HEADERS[header], fields=sent) or {}
    if is_5x:
        # Only 4.9 has this field name.
        assert sent.items() - came_back.items() <= {("removeOffset", "true")}
    required = {m.encode_name for m in members if m.required}
    assert required <= came_back.keys()
    assert came_back.items() <= sent.items()


#: Values for the fields that Java validates.
CHECKED_VALUES = {
    "commit_or_rollback": 8,
    "topic_filter_type": "MULTI_TAG",
    "boundary_type": "UPPER",
}


def _value_for(member: FieldInfo, number: int) -> Any:
    """Return a value that differs from field to field."""
    if member.name in CHECKED_VALUES:
        return CHECKED_VALUES[member.name]
    text = str(member.type)
    if "int" in text:
        return number + 1
    return True if "bool" in text else f"text-{member.name}"


# ---- JSON bodies ---------------------------------------------------------------------------------

QUEUE = QueueId("T", "broker-a", 3)
SUBSCRIPTION = bodies.Subscription(
    topic="T", sub_string="a||b", tags_set=["a"], code_set=[97], sub_version=5
)
TOPIC = bodies.TopicConfig(topic_name="T", read_queue_nums=3, perm=4, order=True)
CONNECTION = bodies.ClientConnection(
    client_id="c@1", client_addr="127.0.0.1:9", language="PYTHON", version=401
)
RUNNING_STATE = RunningStateBody(
    properties={
        RunningProperty.NAME_SERVERS: "h:1;h:2",
        RunningProperty.CONSUME_TYPE: "CONSUME_PASSIVELY",
        RunningProperty.CLIENT_VERSION: "V5_5_0",
        RunningProperty.THREADS: "20",
        RunningProperty.ORDERLY: "false",
        RunningProperty.STARTED_MS: "1700000000000",
    },
    subscription_set=[SUBSCRIPTION],
    mq_table={
        QUEUE: QueueRunningState(
            commit_offset=1,
            cached_msg_min_offset=2,
            cached_msg_max_offset=3,
            cached_msg_count=4,
            cached_msg_size_mib=5,
            transaction_msg_min_offset=6,
            transaction_msg_max_offset=7,
            transaction_msg_count=8,
            locked=True,
            try_unlock_times=9,
            last_lock_timestamp=10,
            droped=True,
            last_pull_timestamp=11,
            last_consume_timestamp=12,
        ),
        QueueId("T", "broker-b", 0): QueueRunningState(commit_offset=13),
    },
    status_table={
        "T": ConsumeRates(
            pull_ms=1.5,
            pull_rate=2.5,
            consume_ms=3.5,
            consume_ok_rate=4.5,
            consume_failed_rate=5.5,
            consume_failed_msgs=6,
        )
    },
    jstack="main\n  at a line",
)
REPLICAS = bodies.BrokerReplicas(
    broker_name="broker-a", broker_addrs={0: "h:1", 1: "h:2"}, cluster="C"
)
QUEUES = bodies.BrokerQueues(
    broker_name="broker-a", read_queue_nums=4, write_queue_nums=3, perm=6, topic_sys_flag=1
)
SAMPLES: list[Body] = [
    bodies.RouteBody(
        queue_datas=[QUEUES],
        broker_datas=[REPLICAS],
        filter_server_table={"h:1": ["f"]},
        order_topic_conf="broker-a:3",
    ),
    bodies.ClusterBody(
        broker_addr_table={"broker-a": REPLICAS}, cluster_addr_table={"C": ["broker-a"]}
    ),
    bodies.TopicNamesBody(topic_list=["T", "U"], broker_addr="h:1"),
    bodies.KeyValueBody(table={"key": "wert ü/\x7f"}),
    bodies.DataVersion(timestamp=5, counter=7),
    TOPIC,
    bodies.TopicTableBody(
        topic_config_table={"T": TOPIC}, data_version=bodies.DataVersion(timestamp=5, counter=7)
    ),
    bodies.RegisterBrokerBody(
        topic_config_serialize_wrapper=bodies.TopicTableBody(topic_config_table={"T": TOPIC}),
        filter_server_list=["f"],
    ),
    SUBSCRIPTION,
    bodies.HeartbeatBody(
        client_id="c@1",
        producer_data_set=[bodies.ProducerMember(group_name="p")],
        consumer_data_set=[
            bodies.ConsumerMember(
                group_name="g", message_model="BROADCASTING", subscription_data_set=[SUBSCRIPTION]
            )
        ],
    ),
    bodies.CheckClientBody(client_id="c", group="g", subscription_data=SUBSCRIPTION),
    bodies.GroupMembersBody(consumer_id_list=["c@1", "c@2"]),
    bodies.LockQueuesBody(consumer_group="g", client_id="c", mq_set=[QUEUE]),
    bodies.LockedQueuesBody(locked=[QUEUE]),
    bodies.ProducerConnectionsBody(connection_set=[CONNECTION]),
    bodies.ConsumerConnectionsBody(
        connection_set=[CONNECTION],
        subscription_table={"T": SUBSCRIPTION},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    ),
    bodies.ResetOffsetBody(offset_table={QUEUE: 9}),
    bodies.ConsumerStatusBody(message_queue_table={QUEUE: 9}, consumer_table={"c": {QUEUE: 8}}),
    bodies.ConsumeDirectlyBody(consume_result="CR_LATER", remark="r", spent_time_mills=4),
    ResetOffsetListBody(
        offset_table=[QueueAndOffset(topic="T", broker_name="broker-a", queue_id=3, offset=9)]
    ),
    RUNNING_STATE,
    bodies.GroupConfig(group_name="g", retry_max_times=3, consume_enable=False),
    bodies.GroupTableBody(
        subscription_group_table={"g": bodies.GroupConfig(group_name="g")},
        data_version=bodies.DataVersion(timestamp=5, counter=7),
    ),
    bodies.TopicStatsBody(
        offset_table={
            QUEUE: bodies.TopicOffset(min_offset=1, max_offset=2, last_update_timestamp=3)
        }
    ),
    bodies.ConsumeStatsBody(
        offset_table={QUEUE: bodies.ConsumeOffset(broker_offset=4, consumer_offset=3)},
        consume_tps=1.5,
    ),
    bodies.AllProducersBody(
        data={
            "g": [
                bodies.ProducerEntry(client_id="c@1", remote_ip="h:1", language="JAVA", version=5)
            ]
        }
    ),
    bodies.GroupNamesBody(group_list=["g"]),
    bodies.BrokerConsumeStatsBody(
        consume_stats_list=[
            {"g": [bodies.ConsumeStatsBody(offset_table={QUEUE: bodies.ConsumeOffset()})]}
        ],
        broker_addr="h:1",
        total_diff=3,
    ),
    bodies.TimeSpansBody(
        consume_time_span_set=[bodies.QueueTimeSpan(message_queue=QUEUE, min_time_stamp=1)]
    ),
    bodies.QueueUnitsBody(
        queue_data=[bodies.QueueUnit(physic_offset=1, physic_size=2, tags_code=3, eval=True)],
        max_queue_index=1,
        subscription_data=SUBSCRIPTION,
    ),
    bodies.CountsBody(stats_minute=bodies.Count(sum=5, tps=0.5)),
    bodies.CorrectionOffsetsBody(correction_offsets={0: 4, 7: 2**63 - 1}),
]


def test_every_body_with_a_java_class_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == {*BODIES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_java_reads_our_json_and_we_read_what_it_writes(
    sample: Body, java_client: JavaClient
) -> None:
    answer = java_client.call(
        "json.roundtrip", type=BODIES[type(sample)], json=sample.encode().decode()
    )
    read = decode_body(type(sample), answer["json"].encode())
    assert _known(read, sample) == json.loads(json.dumps(_known(sample, sample)))


def _known(body: Any, like: Any) -> Any:
    """Return the members of `body` that `like` has set; Java adds defaults of its release."""
    if isinstance(like, Body):
        return {
            name: _known(getattr(body, name), value)
            for name in like.__struct_fields__
            if (value := getattr(like, name)) is not None
        }
    if isinstance(like, dict):
        return {str(key): _known(body[key], value) for key, value in like.items()}
    if isinstance(like, list):
        return [_known(one, other) for one, other in zip(body, like, strict=True)]
    return str(like) if isinstance(like, QueueId) and body == like else body


def test_tools_read_and_analyze_our_running_state(java_client: JavaClient) -> None:
    """As `mqadmin consumerStatus` does with the state of every member."""
    state = RUNNING_STATE.encode().decode()
    shown = java_client.call("runningState.analyze", clients={"c@1": state, "c@2": state})
    assert "PROP_CONSUME_TYPE" in shown["text"]
    for text in ("V5_5_0", "broker-a", "main\n  at a line", "a||b", "1700000000000"):
        assert text in shown["text"]
    assert shown["subscription"] is True  # both members read the same
    assert isinstance(shown["queues"], str)


def test_java_5_reads_the_parts_of_a_running_state_that_4_9_lacks(java_client: JavaClient) -> None:
    state = RunningStateBody(
        mq_pop_table={
            QUEUE: PopQueueRunningState(wait_ack_count=1, droped=True, last_pop_timestamp=2)
        },
        user_consumer_info={"name": "wert ü"},
    )
    answer = java_client.call(
        "json.roundtrip", type="ConsumerRunningInfo", json=state.encode().decode()
    )
    read = decode_body(RunningStateBody, answer["json"].encode())
    if java_client.version.startswith("4."):
        assert read == RunningStateBody()
    else:
        assert read == state


def test_we_read_both_forms_in_which_java_writes_new_offsets(java_client: JavaClient) -> None:
    for sample in SAMPLES:
        if isinstance(sample, bodies.ResetOffsetBody | ResetOffsetListBody):
            written = java_client.call(
                "json.roundtrip", type=BODIES[type(sample)], json=sample.encode().decode()
            )
            assert decode_reset(written["json"].encode()) == {QUEUE: 9}


def test_results_of_a_message_consumed_directly_are_those_of_java(java_client: JavaClient) -> None:
    assert java_client.call("enum", type="CMResult") == [*ConsumeResult]


def test_compressed_registration_is_what_java_packs(
    apache: ApacheCluster, java_client: JavaClient
) -> None:
    is_5x = apache.version.startswith("5.")
    version = int(ReleaseVersion.V5_5_0 if is_5x else ReleaseVersion.V4_9_4)
    attributes = {"message.type": "FIFO"} if is_5x else None
    topics = {
        name: bodies.TopicConfig(topic_name=name, read_queue_nums=3, attributes=attributes)
        for name in ("T", "U")
    }
    body = bodies.RegisterBrokerBody(
        topic_config_serialize_wrapper=bodies.TopicTableBody(
            topic_config_table=topics,
            data_version=bodies.DataVersion(timestamp=5, counter=7),
        ),
        filter_server_list=["f"],
    )
    packed = java_client.call("registerBody.encode", json=body.encode().decode())
    ours = decode_registration(bytes.fromhex(packed), version)
    table = ours.topic_config_serialize_wrapper
    assert _known(table.topic_config_table, topics) == _known(topics, topics)
    assert (table.data_version.timestamp, table.data_version.counter) == (5, 7)
    assert ours.filter_server_list == ["f"]

    unpacked = java_client.call(
        "registerBody.decode", hex=encode_registration(body, version).hex(), version=version
    )
    text = json.dumps(unpacked)
    assert '"readQueueNums": 3' in text
    assert ("FIFO" in text) is is_5x


# ---- pop consumption -----------------------------------------------------------------------------

CHECKPOINT = CheckpointBody(
    broker="broker-a",
    group="G",
    differences=[0, 2, 31],
    invisible_ms=8_000,
    count=3,
    pop_ms=1_794_918_618_355,
    queue_id=1,
    revive_ms=1_794_918_626_355,
    start=7,
    topic="%RETRY%G_T",
)
ACK = AckBody(
    offset=9, broker="broker-a", group="G", pop_ms=5, queue_id=1, start=7, topic="%RETRY%G_T"
)
BATCH_ACK = AckBody(
    offset=-1, offsets=[7, 9], broker="b", group="G", pop_ms=5, queue_id=1, start=7, topic="T"
)


@pytest.fixture
def java_client_5(apache: ApacheCluster, java_client: JavaClient) -> JavaClient:
    """The Java client, for classes that 4.9 does not have."""
    if not apache.version.startswith("5."):
        pytest.skip("4.9 has no pop consumption")
    return java_client


@pytest.mark.parametrize(
    ("body", "name"),
    [(CHECKPOINT, "PopCheckPoint"), (ACK, "AckMsg"), (BATCH_ACK, "BatchAckMsg")],
    ids=["checkpoint", "ack", "batch"],
)
def test_java_writes_the_same_bytes_of_checkpoints_and_acknowledgements(
    body: CheckpointBody | AckBody, name: str, java_client_5: JavaClient
) -> None:
    ours = encode_pop_body(body).decode()
    answer = java_client_5.call("json.roundtrip", type=name, json=ours)
    assert answer["json"] == ours
    assert decode_pop_body(type(body), answer["json"].encode()) == body


@pytest.mark.parametrize("offsets", [[7], [7, 16], [14, 15], [8, 70, 7 + 255], [7 + 1_000]])
def test_java_reads_the_same_bit_set(offsets: list[int], java_client_5: JavaClient) -> None:
    ack = BatchAck(
        bits=bit_set(7, offsets),
        group="G",
        invisible_ms=1,
        pop_ms=2,
        queue_id=3,
        kind="1",
        revive_queue=4,
        start=7,
        topic="T",
    )
    ours = BatchAckBody(acks=[ack], broker_name="broker-a").encode().decode()
    answer = java_client_5.call("json.roundtrip", type="BatchAckMessageRequestBody", json=ours)
    assert answer["json"] == ours  # Java decodes the bits into its own set and encodes that
    read = decode_pop_body(BatchAckBody, answer["json"].encode())
    assert read.acks is not None
    assert list(read.acks[0].offsets()) == offsets


@pytest.mark.parametrize(("kind", "topic"), [("0", "T"), ("1", "%RETRY%G_T"), ("2", "%RETRY%G+T")])
def test_receipt_is_that_of_java(kind: str, topic: str, java_client_5: JavaClient) -> None:
    receipt = Receipt(3, 1_794_918_618_607, 12_000, 999, kind, "broker-a", 2, 5)
    written = java_client_5.call(
        "receipt.encode",
        start=receipt.start,
        popTime=receipt.pop_ms,
        invisibleTime=receipt.invisible_ms,
        reviveQueue=receipt.revive_queue,
        topic=topic,
        broker=receipt.broker,
        queueId=receipt.queue_id,
        offset=receipt.offset,
    )
    assert written == str(receipt)
    assert parse_receipt(written) == receipt
    read = java_client_5.call("receipt.decode", text=str(receipt), topic="T", group="G")
    assert read == {
        "CkQueueOffset": 3,
        "PopTime": 1_794_918_618_607,
        "InvisibleTime": 12_000,
        "ReviveQid": 999,
        "BrokerName": "broker-a",
        "QueueId": 2,
        "QueueOffset": 5,
        "RealTopic": receipt.topic("T", "G"),
        "isOrder": receipt.is_in_order,
    }


def test_java_reads_the_offsets_of_a_reply(java_client_5: JavaClient) -> None:
    popped = [("0", 3, 5, [5, 7]), ("1", 0, 0, [2])]
    starts_text, messages_text = offsets_texts(popped)
    starts = java_client_5.call(
        "popOffsets.decode", method="parseStartOffsetInfo", text=starts_text
    )
    assert starts == {"0@3": 5, "1@0": 0}
    offsets = java_client_5.call(
        "popOffsets.decode", method="parseMsgOffsetInfo", text=messages_text
    )
    assert offsets == {"0@3": [5, 7], "1@0": [2]}
    counts = order_counts_text([("0", 3, 5, 2), ("0", 3, None, 1)])
    read = java_client_5.call("popOffsets.decode", method="parseOrderCountInfo", text=counts)
    assert read == {"0@qo3%5": 2, "0@3": 1}


# ---- records, batches, properties ----------------------------------------------------------------


def _record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "queue_id": 2,
        "flag": 9,
        "queue_offset": 5,
        "log_offset": 1024,
        "born_ms": 1_700_000_000_000,
        "born_ip": b"\x0a\x00\x00\x01",
        "born_port": 50_000,
        "store_ms": 1_700_000_000_123,
        "store_ip": b"\x0a\x00\x00\x02",
        "store_port": 10_911,
        "reconsume_times": 3,
        "prepared_offset": 77,
        "body": "körper".encode(),
        "topic_bytes": b"TopicTest",
        "property_bytes": encode_properties(PROPERTIES).encode(),
    }
    return Record(**(values | changes))


@pytest.mark.parametrize("is_v6", [False, True])
def test_java_reads_the_record_that_we_write(java_client: JavaClient, is_v6: bool) -> None:
    hosts = {
        "born_ip": bytes(15) + b"\x01",
        "store_ip": b"\xfe\x80" + bytes(13) + b"\x02",
        "sys_flag": 0x30,
    }
    record = _record(**(hosts if is_v6 else {}))
    read = java_client.call("record.decode", hex=encode_record(record).hex())
    assert b64decode(read["body"]) == record.body
    assert read["topic"] == "TopicTest"
    assert (read["queueId"], read["queueOffset"], read["commitLogOffset"]) == (2, 5, 1024)
    assert (read["bornTimestamp"], read["storeTimestamp"]) == (record.born_ms, record.store_ms)
    assert read["reconsumeTimes"] == 3
    assert read["sysFlag"] == record.sys_flag
    assert read["offsetMsgId"] == record.offset_id
    assert PROPERTIES.items() <= read["properties"].items()


def test_java_reads_the_long_topic_of_a_v2_record(
    apache: ApacheCluster, java_client: JavaClient
) -> None:
    topic = b"%RETRY%" + b"g" * 150
    record = encode_record(_record(magic=MAGIC_V2, topic_bytes=topic))
    if apache.version.startswith("5."):
        assert java_client.call("record.decode", hex=record.hex())["topic"] == topic.decode()
    assert decode_record(record).topic == topic.decode()


@pytest.mark.parametrize("compression", Compression)
def test_java_unpacks_what_we_compress(java_client: JavaClient, compression: Compression) -> None:
    body = bytes(range(256)) * 64
    packed, flags = compress(body, compression)
    record = encode_record(_record(body=packed, sys_flag=int(flags)))
    read = java_client.call("record.decode", hex=record.hex())
    assert b64decode(read["body"]) == body


def test_batch_is_what_java_writes(java_client: JavaClient) -> None:
    written = java_client.call(
        "batch.encode",
        messages=[
            {"topic": "T", "body": b64encode(b"a").decode()},
            {"topic": "T", "body": b64encode(b"bc").decode(), "flag": 9, "tags": "TagA"},
        ],
    )
    items = decode_batch(bytes.fromhex(written))
    assert [(item.flag, item.body) for item in items] == [(0, b"a"), (9, b"bc")]
    assert decode_properties(items[1].property_bytes.decode())["TAGS"] == "TagA"
    assert encode_batch(items) == bytes.fromhex(written)
    ours = encode_batch([BatchItem(1, "ü".encode(), encode_properties(PROPERTIES).encode())])
    (read,) = java_client.call("batch.decode", hex=ours.hex())
    assert PROPERTIES.items() <= read["properties"].items()


def test_properties_are_encoded_and_decoded_as_in_java(java_client: JavaClient) -> None:
    ours = encode_properties(PROPERTIES)
    assert java_client.call("properties.decode", text=ours) == PROPERTIES
    theirs = java_client.call("properties.encode", properties=PROPERTIES)
    assert decode_properties(theirs) == PROPERTIES
    odd = "a\x01b\x01c\x02\x02=\x02\x01x\x02e\x01\x02z\x019"
    assert decode_properties(odd) == java_client.call("properties.decode", text=odd)


# ---- hashes, ids, signatures ---------------------------------------------------------------------


def test_hashes_are_those_of_java(java_client: JavaClient) -> None:
    assert [java_hash(text) for text in TEXTS] == java_client.call("hash", texts=TEXTS)


def test_ids_are_those_of_java(java_client: JavaClient) -> None:
    theirs = java_client.call("offsetId.encode", host="10.0.0.2", port=10911, offset=1024)
    assert parse_offset_id(theirs) == ("10.0.0.2", 10911, 1024)
    assert str(parse_offset_id(theirs)) == theirs
    fresh = java_client.call("uniqueId")["id"]
    # Java dates an id of the current millisecond to the month before, so wait before it decodes it.
    time.sleep(0.05)
    theirs = java_client.call("uniqueId", id=fresh)
    ours = parse_unique_id(theirs["id"])
    assert ours.process_id == theirs["pid"]
    assert ip_address(ours.host) == ip_address(theirs["ip"])

    month_start_ms = theirs["timeMs"] - ours.month_ms
    maker = UniqueIdMaker(b"\x0a\x00\x00\x01", 4242, 7, lambda _: (month_start_ms, 2**62))
    made = maker.make(theirs["timeMs"])
    read = java_client.call("uniqueId", id=made)
    assert (read["ip"], read["pid"], read["timeMs"]) == ("10.0.0.1", 4242, theirs["timeMs"])


def test_signature_is_that_of_java(java_client: JavaClient) -> None:
    fields = {"AccessKey": "ak", "b": "wert ü", "Zed": "1", "a": "2", "topic": "T"}
    theirs = java_client.call(
        "sign", fields=fields, body=b64encode(b"body").decode(), secretKey="geheim"
    )
    assert signature(fields, b"body", "geheim") == theirs["signature"]
