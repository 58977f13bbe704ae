"""Reading: pulls and their filters, single messages by id and key, offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.codes import PullFlag, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    EarliestTimeReply,
    EarliestTimeRequest,
    GroupOffsetRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetByTimeRequest,
    OffsetReply,
    PullReply,
    PullRequest,
    QueryByKeyRequest,
    QueryReply,
    ViewRequest,
)
from downrange.wire.ids import parse_offset_id
from downrange.wire.records import decode_records
from tests.conversations.scene import Scene, read_header, succeed
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from downrange.wire.fields import Header
    from downrange.wire.records import Record
    from tests.conversations.peers import Peer

LAST_MS = 2**63 - 1


def pulls_filter_by_tag_and_say_where_to_go_on(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "tagged")
    for number, tag in enumerate(["red", "blue", "red"]):
        scene.send(broker, topic, tag.encode(), {"TAGS": tag, "UNIQ_KEY": scene.unique_id(number)})
    pull(scene, broker, topic, count=3)

    reply = _pull_once(scene, broker, topic, offset=0, expression="red")
    header = read_header(PullReply, reply)
    assert [record.body for record in decode_records(reply.body)] == [b"red", b"red"]
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (3, 0, 3)
    assert reply.remark == "FOUND"
    assert header.suggest_which_broker_id == 0

    for offset, expression, code, next_offset in (
        (3, "*", ResponseCode.PULL_NOT_FOUND, 3),
        (9, "*", ResponseCode.PULL_OFFSET_MOVED, 3),
        (0, "green", ResponseCode.PULL_RETRY_IMMEDIATELY, 3),
    ):
        reply = _pull_once(scene, broker, topic, offset=offset, expression=expression)
        assert reply.code == code
        assert PullReply.from_fields(reply.fields).next_begin_offset == next_offset
        assert reply.body == b""


def messages_are_found_by_id_and_key(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "indexed")
    sent = [
        scene.send(
            broker,
            topic,
            f"body {number}".encode(),
            {"KEYS": f"common key-{number}", "UNIQ_KEY": scene.unique_id(number)},
        )
        for number in range(3)
    ]

    offset = parse_offset_id(sent[1].msg_id).log_offset
    reply = succeed(broker.ask(request_command(ViewRequest(offset=offset, topic=topic))))
    (viewed,) = decode_records(reply.body)
    assert viewed.body == b"body 1"
    assert viewed.offset_id == sent[1].msg_id
    reply = broker.ask(request_command(ViewRequest(offset=10**15, topic=topic)))
    assert reply.code == ResponseCode.SYSTEM_ERROR

    def query(key: str, *, is_unique_key: bool = False) -> Command:
        request = QueryByKeyRequest(
            topic=topic,
            key=key,
            max_num=10,
            begin_timestamp=0,
            end_timestamp=LAST_MS,
            is_unique_key=is_unique_key,
        )
        return broker.ask(request_command(request))

    found = scene.poll(lambda: query("common"), lambda reply: reply.body.count(b"body ") == 3)
    assert [record.body for record in decode_records(found.body)] == [
        b"body 0",
        b"body 1",
        b"body 2",
    ]
    assert read_header(QueryReply, found).index_last_update_phyoffset > 0
    # The keys of a message get into the index one after the other.
    found = scene.poll(lambda: query("key-2"), lambda reply: reply.code == ResponseCode.SUCCESS)
    (record,) = decode_records(found.body)
    assert record.offset_id == sent[2].msg_id
    (record,) = decode_records(succeed(query(scene.unique_id(0), is_unique_key=True)).body)
    assert record.offset_id == sent[0].msg_id
    missing = query("never-used")
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert QueryReply.from_fields(missing.fields).index_last_update_phyoffset == 0


def offsets_are_kept_and_searched(scene: Scene) -> None:
    broker = scene.broker()
    topic, group = scene.create_topic(broker, "offsets"), scene.name("readers")
    for number in range(3):
        scene.send(broker, topic, b"x", {"UNIQ_KEY": scene.unique_id(number)})
        scene.pause(0.002)  # of messages of one millisecond, 4.9 finds any
    records = pull(scene, broker, topic, count=3)

    def offset(request: Header) -> int:
        return read_header(OffsetReply, broker.ask(request_command(request))).offset

    assert offset(MinOffsetRequest(topic=topic, queue_id=0)) == 0
    assert offset(MaxOffsetRequest(topic=topic, queue_id=0)) == 3
    assert offset(MaxOffsetRequest(topic=topic, queue_id=1)) == 0
    early = OffsetByTimeRequest(topic=topic, queue_id=0, timestamp=records[0].store_ms)
    assert offset(early) == 0
    late = OffsetByTimeRequest(topic=topic, queue_id=0, timestamp=records[2].store_ms + 3_600_000)
    assert offset(late) == (3 if scene.is_5x else 2)
    reply = broker.ask(request_command(EarliestTimeRequest(topic=topic, queue_id=0)))
    assert read_header(EarliestTimeReply, reply).timestamp == records[0].store_ms

    ask = GroupOffsetRequest(
        consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=False
    )
    reply = broker.ask(request_command(ask))
    expected = ResponseCode.QUERY_NOT_FOUND if scene.is_5x else ResponseCode.SUCCESS
    assert reply.code == expected
    # A 5.x broker refuses to commit for an unknown group; the pulls created this one.
    commit = CommitOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=2)
    succeed(broker.ask(request_command(commit)))
    assert offset(ask) == 2


def _pull_once(scene: Scene, broker: Peer, topic: str, *, offset: int, expression: str) -> Command:
    request = PullRequest(
        consumer_group=scene.name("readers"),
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=int(PullFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type="TAG",
    )
    return broker.ask(request_command(request))


def query_by_key(scene: Scene, broker: Peer, topic: str, key: str) -> list[Record]:
    """Return the messages with a key, once the broker's index has one."""
    request = QueryByKeyRequest(
        topic=topic, key=key, max_num=10, begin_timestamp=0, end_timestamp=LAST_MS
    )
    reply = scene.poll(
        lambda: broker.ask(request_command(request)),
        lambda reply: reply.code == ResponseCode.SUCCESS,
    )
    return decode_records(reply.body)
