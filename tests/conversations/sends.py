"""Sending: both header versions, batches and one-way, with each header codec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import MissingField
from downrange.wire.codes import HeaderCodec, PullFlag, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import Compression, compress
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    MaxOffsetRequest,
    OffsetReply,
    PullRequest,
    SendReply,
    SendRequest,
)
from downrange.wire.ids import parse_offset_id
from downrange.wire.properties import encode_properties
from downrange.wire.records import BatchItem, Record, decode_records, encode_batch
from tests.conversations.scene import Scene, read_header
from tests.support.plain_messages import received

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage
    from downrange.wire.fields import Header
    from tests.conversations.peers import Peer

BODY_BYTES_MAX = 4 * 1024 * 1024


def messages_sent_with_json_headers_are_read_back(scene: Scene) -> None:
    _send_in_every_form(scene, scene.broker(HeaderCodec.JSON))


def messages_sent_with_binary_headers_are_read_back(scene: Scene) -> None:
    _send_in_every_form(scene, scene.broker(HeaderCodec.BINARY))


def _send_in_every_form(scene: Scene, broker: Peer) -> None:
    topic = scene.create_topic(broker, "sent")
    ids = [scene.unique_id(number) for number in range(4)]
    text = "körper \x00 ends".encode()
    properties = {"KEYS": "k-1 k-2", "UNIQ_KEY": ids[0], "WAIT": "true", "TAGS": "A", "色": "青"}

    v1 = _v1_request(scene, topic, flag=7, properties=encode_properties(properties))
    first = read_header(SendReply, broker.ask(request_command(v1, text)))
    second = scene.send(broker, topic, b"second", {"UNIQ_KEY": ids[1], "TAGS": "B"})
    batch = scene.send_request(topic, batch=True, properties=encode_properties({"WAIT": "true"}))
    items = [
        BatchItem(9, b"third", encode_properties({"UNIQ_KEY": ids[2], "TAGS": "A"}).encode()),
        BatchItem(0, b"fourth", encode_properties({"UNIQ_KEY": ids[3], "TAGS": "C"}).encode()),
    ]
    reply = broker.ask(
        request_command(batch, encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE)
    )
    third = read_header(SendReply, reply)

    assert [first.queue_offset, second.queue_offset, third.queue_offset] == [0, 1, 2]
    assert (second.region, second.trace_on) == ("DefaultRegion", True)
    assert (second.transaction_id == ids[1]) is scene.is_5x
    batch_ids = third.msg_id.split(",")
    assert len(batch_ids) == 2

    records = pull(scene, broker, topic, count=4)
    assert [record.queue_offset for record in records] == [0, 1, 2, 3]
    assert [record.offset_id for record in records] == [first.msg_id, second.msg_id, *batch_ids]
    assert parse_offset_id(first.msg_id).log_offset == records[0].log_offset
    assert all(record.is_intact for record in records)
    assert records[0].store_host == scene.facts.broker_address
    messages = _messages(records, scene)
    assert [message.body for message in messages] == [text, b"second", b"third", b"fourth"]
    assert [message.message_id for message in messages] == [ids[0], ids[1], ids[2], ids[3]]
    assert [message.flag for message in messages] == [7, 0, 9, 0]
    assert [message.born_at_ms for message in messages] == [scene.facts.now_ms] * 4
    assert messages[0].keys == ["k-1", "k-2"]
    assert messages[0].properties["色"] == "青"


def _v1_request(scene: Scene, topic: str, *, flag: int = 0, properties: str = "") -> SendRequest:
    return SendRequest(
        producer_group=scene.name("producers"),
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=scene.facts.now_ms,
        flag=flag,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
    )


def compressed_bodies_come_back_whole(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "compressed")
    body = b"abcdefgh" * 625
    for number, kind in enumerate(Compression):
        packed, flags = compress(body, kind)
        properties = {"UNIQ_KEY": scene.unique_id(number)}
        scene.send(broker, topic, packed, properties, sys_flag=int(flags))
    records = pull(scene, broker, topic, count=len(Compression))
    assert [message.body for message in _messages(records, scene)] == [body] * len(Compression)
    assert [record.sys_flag for record in records] == [kind | 1 for kind in Compression]


def a_oneway_send_is_stored_and_not_answered(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "oneway")
    header = scene.send_request(topic, properties=encode_properties({"TAGS": "quiet"}))
    broker.notify(request_command(header, b"psst"))

    def end() -> int:
        request = MaxOffsetRequest(topic=topic, queue_id=0, broker_name=scene.facts.broker)
        return read_header(OffsetReply, broker.ask(request_command(request))).offset

    assert scene.poll(end, bool) == 1
    (record,) = pull(scene, broker, topic, count=1)
    assert record.body == b"psst"


def refused_sends_say_why(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "refused")

    def refusal(body: bytes = b"x", **changes: object) -> tuple[int, str]:
        reply = broker.ask(request_command(scene.send_request(topic, **changes), body))
        assert reply.remark is not None
        return reply.code, reply.remark

    illegal = ResponseCode.INVALID_PARAMETER if scene.is_5x else ResponseCode.SYSTEM_ERROR
    assert refusal(queue_id=99)[0] == illegal
    assert "queueId[99] is illegal" in refusal(queue_id=99)[1]
    assert refusal(topic="no spaces allowed")[0] == illegal
    code, remark = refusal(topic=scene.name("absent"), default_topic=scene.name("no_default"))
    assert code == ResponseCode.TOPIC_NOT_EXIST
    assert "not exist" in remark
    code, remark = refusal(properties=encode_properties({"big": "x" * 33_000}))
    assert code == ResponseCode.MESSAGE_ILLEGAL
    assert "32KB" in remark


def a_send_that_lacks_a_field_is_refused_where_ours_raises(scene: Scene) -> None:
    """A server fails without some fields and ignores others; our header declares which."""
    broker = scene.broker()
    topic = scene.create_topic(broker, "lacking_send")
    for header, code in (
        (scene.send_request(topic), RequestCode.SEND_MESSAGE_V2),
        (_v1_request(scene, topic), RequestCode.SEND_MESSAGE),
    ):
        whole = header.to_fields()
        for missing in whole:
            fields = {name: value for name, value in whole.items() if name != missing}
            reply = broker.ask(Command(int(code), fields, b"x"))
            assert (reply.code == ResponseCode.SUCCESS) is _is_readable(type(header), fields), (
                missing
            )


def _is_readable(header: type[Header], fields: dict[str, str]) -> bool:
    try:
        header.from_fields(fields)
    except MissingField:
        return False
    return True


def an_inner_batch_is_stored_whole_and_unwraps(scene: Scene) -> None:
    """Topics of the batch queue type exist in 5.x only; 4.9 ignores the attribute."""
    broker = scene.broker()
    attributes = {"attributes": "+queue.type=BatchCQ"} if scene.is_5x else {}
    topic = scene.create_topic(broker, "inner", **attributes)
    items = [
        BatchItem(
            number,
            f"item {number}".encode(),
            encode_properties({"UNIQ_KEY": scene.unique_id(number), "TAGS": f"t{number}"}).encode(),
        )
        for number in range(3)
    ]
    # Without a unique id of the batch itself, a 5.x broker stores its messages one by one; with
    # one, a 4.9 broker sets it on every message instead of the message's own.
    properties = encode_properties({"UNIQ_KEY": scene.unique_id(9)} if scene.is_5x else {"W": "1"})
    header = scene.send_request(topic, batch=True, properties=properties)
    batch = request_command(header, encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE)
    offsets = [read_header(SendReply, broker.ask(batch)).queue_offset for _ in range(2)]
    assert offsets == [0, 3]
    records = pull(scene, broker, topic, count=2 if scene.is_5x else 6)
    assert len(records) == (2 if scene.is_5x else 6)
    messages = _messages(records, scene)
    assert [message.offset for message in messages] == [0, 1, 2, 3, 4, 5]
    assert [message.body for message in messages] == [item.body for item in items] * 2
    assert [message.flag for message in messages] == [0, 1, 2] * 2
    assert [message.tags for message in messages] == ["t0", "t1", "t2"] * 2


def pull(scene: Scene, broker: Peer, topic: str, *, count: int, queue_id: int = 0) -> list[Record]:
    """Read a queue from its start until it has this many records."""

    def ask() -> list[Record]:
        request = PullRequest(
            consumer_group=scene.name("readers"),
            topic=topic,
            queue_id=queue_id,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=int(PullFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        reply = broker.ask(request_command(request))
        return decode_records(reply.body)

    return scene.poll(ask, lambda records: len(records) >= count)


def _messages(records: list[Record], scene: Scene) -> list[ReceivedMessage]:
    return [
        message
        for record in records
        for message in received(record, scene.facts.broker, body_bytes_max=BODY_BYTES_MAX)
    ]
