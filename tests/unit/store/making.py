"""Records for the store's tests."""

from __future__ import annotations

from downrange.store.message_store import StoreOptions
from downrange.wire.batches import RecordBatch, record_batch
from downrange.wire.records import BatchItem, Record, encode_batch

#: Files so small that every test crosses from one to the next.
SMALL = StoreOptions(
    log_segment_bytes=4096,
    queue_segment_units=8,
    key_slots=7,
    key_entries=20,
    queue_memory_units=6,
    key_memory_entries=9,
)


def record(
    number: int, *, topic: str = "T", queue_id: int = 0, size: int = 20, sys_flag: int = 0
) -> Record:
    """Return a record that tells its number in body, key and unique id."""
    properties = f"KEYS\x01k{number} common\x02UNIQ_KEY\x01u{number}\x02TAGS\x01t\x02"
    return Record(
        topic_bytes=topic.encode(),
        queue_id=queue_id,
        sys_flag=sys_flag,
        body=f"body {number}".encode().ljust(size, b"."),
        property_bytes=properties.encode(),
    )


def batch_of(records: list[Record]) -> RecordBatch:
    """Return a batch of messages like these, which are of one queue."""
    items = [BatchItem(made.flag, made.body, made.property_bytes) for made in records]
    first = records[0]
    shared = Record(topic_bytes=first.topic_bytes, queue_id=first.queue_id)
    return record_batch(shared, encode_batch(items))
