"""Stores and records for the store's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.batches import BatchRun, record_batch
from downrange.wire.records import BatchItem, Record, decode_record, encode_batch

if TYPE_CHECKING:
    from downrange.store.files import Files

#: Files so small that every test crosses from one to the next.
SMALL = StoreOptions(
    log_segment_bytes=4096,
    queue_segment_units=8,
    key_slots=7,
    key_entries=20,
    queue_memory_units=6,
    key_memory_entries=9,
    recovery_records=7,
)


def record(
    number: int, *, topic: str = "T", queue_id: int = 0, size: int = 20, sys_flag: int = 0
) -> Record:
    """Return a record with its number in body, key and unique id."""
    properties = f"KEYS\x01k{number} common\x02UNIQ_KEY\x01u{number}\x02TAGS\x01t\x02"
    return Record(
        topic_bytes=topic.encode(),
        queue_id=queue_id,
        sys_flag=sys_flag,
        body=f"body {number}".encode().ljust(size, b"."),
        property_bytes=properties.encode(),
    )


def batch_of(records: list[Record]) -> BatchRun:
    """Return a batch of messages like these, which are of one queue."""
    items = [BatchItem(made.flag, made.body, made.property_bytes) for made in records]
    first = records[0]
    shared = Record(topic_bytes=first.topic_bytes, queue_id=first.queue_id)
    return record_batch(shared, encode_batch(items))


def open_store(files: Files) -> MessageStore:
    """Open a store of small files."""
    return MessageStore(files, SMALL)


def fill(store: MessageStore, count: int, first: int = 0) -> list[Record]:
    """Store numbered records, each a second later than the last."""
    records = [record(number) for number in range(first, first + count)]
    for number, made in enumerate(records):
        store.append([made], (first + number) * 1000)
    return records


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    """Return the bodies of a topic's queue 0, without their filling."""
    queue = store.queue(topic, 0)
    units = queue.units(queue.min_offset, 10_000)
    return [decode_record(store.read(unit)).body.rstrip(b".") for unit in units]


def expected(*numbers: int) -> list[bytes]:
    """Return the bodies of records with these numbers."""
    return [f"body {number}".encode() for number in numbers]


def find(store: MessageStore, key: str) -> list[int]:
    """Return the log offsets of the messages of topic T with a key."""
    return store.find("T", key, begin_ms=0, end_ms=2**62, found_max=64).log_offsets


def spoil(files: Files, position: int) -> None:
    """Change a byte of the log."""
    size = SMALL.log_segment_bytes
    files.open(f"commitlog/{position - position % size:020}").write(position % size, [b"?"])
