"""The files that a real broker writes, read with `wire`."""

from __future__ import annotations

import time
from struct import Struct
from typing import TYPE_CHECKING

from downrange.wire.hashes import key_hash, tag_hash
from downrange.wire.ids import parse_offset_id
from downrange.wire.records import blank_record, scan_segment
from tests.conversations.recorder import Facts
from tests.conversations.scene import live_scene
from tests.conversations.sends import pull
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from downrange.wire.headers import SendReply
    from downrange.wire.records import Record
    from tests.apache.cluster import ApacheCluster

QUEUE_UNIT = Struct(">qiq")  # commit-log offset, record size, tag hash
INDEX_HEAD = Struct(">qqqqii")  # begin and end time, begin and end offset, slots used, entries
INDEX_ENTRY = Struct(">iqii")  # key hash, commit-log offset, seconds since begin, previous entry
INDEX_SLOT = Struct(">i")
SLOTS = 5000  # the test bed's maxHashSlotNum


def _segments(cluster: ApacheCluster) -> list[tuple[int, bytes]]:
    """Return the commit log's segments with their first offsets, in order."""
    files = sorted((cluster.brokers[0].store / "commitlog").iterdir())
    return [(int(path.name), path.read_bytes()) for path in files]


def _records(cluster: ApacheCluster) -> dict[int, Record]:
    return {
        record.log_offset: record
        for _, segment in _segments(cluster)
        for record in scan_segment(segment)
    }


def _send(
    cluster: ApacheCluster, prefix: str, bodies: list[bytes], **properties: str
) -> tuple[str, list[SendReply]]:
    """Send bodies to a fresh topic, wait until they can be pulled, return topic and replies."""
    (broker,) = cluster.brokers
    facts = Facts(
        server=cluster.version,
        prefix=prefix,
        now_ms=int(time.time() * 1000),
        broker=broker.name,
        broker_address=broker.address,
    )
    addresses = {"name server": cluster.name_server, "broker": broker.address}
    with live_scene(facts, addresses) as scene:
        connection = scene.broker()
        topic = scene.create_topic(connection, "stored")
        replies = [
            scene.send(connection, topic, body, {"UNIQ_KEY": scene.unique_id(number), **properties})
            for number, body in enumerate(bodies)
        ]
        pull(scene, connection, topic, count=1)
        return topic, replies


def test_commit_log_holds_the_records_that_were_acknowledged(
    apache: ApacheCluster, unique_name: Callable[[str], str]
) -> None:
    bodies = [b"one", b"two", "drei ü".encode()]
    topic, replies = _send(apache, unique_name("s"), bodies, TAGS="paid", KEYS="k-1")
    stored = _records(apache)
    for body, reply in zip(bodies, replies, strict=True):
        record = stored[parse_offset_id(reply.msg_id).log_offset]
        assert (record.body, record.topic) == (body, topic)
        assert (record.queue_offset, record.offset_id) == (reply.queue_offset, reply.msg_id)
        assert record.store_host == apache.brokers[0].address


def test_queue_and_key_index_hold_our_hashes(
    apache: ApacheCluster, unique_name: Callable[[str], str]
) -> None:
    tag, key = "Größe", "schlüssel-7"
    topic, (reply,) = _send(apache, unique_name("s"), [b"indexed"], TAGS=tag, KEYS=key)
    offset = parse_offset_id(reply.msg_id).log_offset
    store = apache.brokers[0].store

    (queue,) = (store / "consumequeue" / topic / "0").iterdir()
    record = _records(apache)[offset]
    assert QUEUE_UNIT.unpack_from(queue.read_bytes()) == (offset, record.size, tag_hash(tag))

    wait_until(lambda: offset in _index_entries(store, key_hash(topic, key)))


def _index_entries(store: Path, hash_value: int) -> list[int]:
    """Return the commit-log offsets that the newest key index file holds for a hash."""
    files = sorted((store / "index").glob("*"))
    data = files[-1].read_bytes() if files else b""
    if len(data) <= INDEX_HEAD.size + SLOTS * INDEX_SLOT.size:
        return []  # the broker makes the file when it indexes its first message
    (number,) = INDEX_SLOT.unpack_from(data, INDEX_HEAD.size + hash_value % SLOTS * 4)
    found: list[int] = []
    while number > 0:
        at = INDEX_HEAD.size + SLOTS * 4 + number * INDEX_ENTRY.size
        entry_hash, offset, _, number = INDEX_ENTRY.unpack_from(data, at)
        if entry_hash == hash_value:
            found.append(offset)
    return found


def test_full_segment_ends_with_a_blank_record(
    apache: ApacheCluster, unique_name: Callable[[str], str]
) -> None:
    first = _segments(apache)[0][1]
    body = bytes(4_000_000)
    _send(apache, unique_name("s"), [body] * (len(first) // len(body) + 1))
    segments = _segments(apache)
    assert len(segments) >= 2
    (start, segment), (next_start, following) = segments[:2]
    end = sum(record.size for record in scan_segment(segment))
    left = len(segment) - end
    assert segment[end : end + 8] == blank_record(left)
    assert next_start == start + len(segment)
    assert next(iter(scan_segment(following))).log_offset == next_start
