"""Records that are stored together, without an object per record: batches.

The records of a batch share all fields but flag, body and properties. The shared fields are in one
`Record`; the others stay in the bytes of the batch until the records are written. The result is the
same bytes as from `records.encode_record`. `run_items` does the same for records that the broker
makes itself.

A store knows both batches and the sends of one read (`send_runs`) as a `RecordRun`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from zlib import crc32

import msgspec

from downrange.native import native_only
from downrange.wire.hashes import key_hash_behind, tag_hash
from downrange.wire.properties import PropertyKey, decode_properties
from downrange.wire.records import (
    LOG_OFFSET_AT,
    MAGIC_V1,
    BatchSpan,
    Record,
    batch_spans,
    encode_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: A topic's bytes and the number of one of its queues.
QueueKey: TypeAlias = tuple[bytes, int]
#: The first bytes of the fixed part: only these and the body's length differ within a batch.
_OWN_BYTES: Final = LOG_OFFSET_AT + 8
_BODY_SIZE_BYTES: Final = 4
#: Of the fixed part of a record with IPv4 hosts.
_SAME_BYTES_MIN: Final = 48
_OWN_FORMS: Final = {
    size: Struct(f">iiiiiqq{size}si").pack
    for size in (_SAME_BYTES_MIN, _SAME_BYTES_MIN + 12, _SAME_BYTES_MIN + 24)
}


# Plain strings: members of an enum hash and compare more slowly.
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_KEYS: Final = PropertyKey.KEYS.value
_TAGS: Final = PropertyKey.TAGS.value
#: One entry of a key index before it is stored: the hash of a key and a log offset.
KEY_ENTRY: Final = Struct("=iq")
#: One unit of a queue index: log offset, size, hash of the tag.
QUEUE_UNIT: Final = Struct(">qiq")


#: The bytes of records in parts, and the size of the first record that did not fit, or 0.
EncodedRun: TypeAlias = "tuple[Sequence[bytes | memoryview], int]"


class RecordRun(Protocol):
    """Records to be stored together, as a store sees them.

    `begin` comes first, then `encode` until all records are written, then the index entries. After
    an error, `begin` starts again.
    """

    @property
    def queues(self) -> Sequence[QueueKey]:
        """The queues of the records, each once, in the order of their first records."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """How many records each queue gets."""
        ...

    @property
    def queue_offsets(self) -> Sequence[int]:
        """The offset of each queue's first record."""
        ...

    @property
    def queue_bytes(self) -> Sequence[int]:
        """How many bytes of each queue are written."""
        ...

    @property
    def requests(self) -> int:
        """How many requests they came with: one for a batch."""
        ...

    @property
    def has_nul(self) -> bool:
        """Whether a property has a NUL byte, so that the records must not be stored."""
        ...

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def begin(self, store_ms: int, queue_offsets: list[int]) -> None:
        """Set the store time and each queue's first offset; nothing is written yet."""
        ...

    def encode(self, log_offset: int, room: int) -> EncodedRun:
        """Write as many of the unwritten records as fit.

        Args:
            log_offset: The position of the next record.
            room: The bytes available there.

        Raises:
            Unencodable: A record cannot be written.
        """
        ...

    def queue_units(self) -> Sequence[bytes]:
        """Return the units of each queue's index."""
        ...

    def key_entries(self, fronts: list[int], index_tags: bool) -> bytes:
        """Return the entries of the key index, in the form of `KEY_ENTRY`.

        Args:
            fronts: The `key_front` of each queue's topic.
            index_tags: Whether a tag is a key, too.
        """
        ...


class BatchRun(RecordRun, Protocol):
    """The records of one batch."""

    def ids(self, prefix: str) -> str:
        """Return the offset ids of all records, joined by commas.

        Args:
            prefix: The first part of all ids of the broker.
        """
        ...


def add_key_entries(
    entries: bytearray,
    front: int,
    log_offset: int,
    unique_key: str | None,
    keys: str | None,
    tag: str | None,
) -> None:
    """Append a record's entries of a key index: of its unique id, the user's keys, and a tag.

    Args:
        entries: The entries so far.
        front: The `key_front` of the record's topic.
        log_offset: The record's position.
        unique_key: Its property UNIQ_KEY.
        keys: Its property KEYS: keys with blanks between them.
        tag: Its property TAGS if tags are indexed, as a key like `T#tag`.
    """
    if unique_key:
        entries += _pack_key(key_hash_behind(front, unique_key), log_offset)
    if keys:
        for key in keys.split(" "):
            if key:
                entries += _pack_key(key_hash_behind(front, key), log_offset)
    if tag:
        entries += _pack_key(_tag_key_hash(front, tag), log_offset)


_pack_key: Final = KEY_ENTRY.pack


@lru_cache(maxsize=4096)
def _tag_key_hash(front: int, tag: str) -> int:
    return key_hash_behind(front, f"T#{tag}")


class RecordBatch(msgspec.Struct, gc=False):
    """Records that arrived as one batch, to be stored back to back in one queue.

    Attributes:
        shared: The shared fields. Its body and properties are empty, its queue offset is that of
            the first message.
        data: The batch as it arrived.
        spans: The positions of the messages in it.
        properties: The properties of each message.
        log_offsets: The positions of the records that are written so far.
        sizes: The sizes of these records in bytes.
    """

    shared: Record
    data: bytes
    spans: list[BatchSpan]
    properties: list[dict[str, str]]
    log_offsets: list[int] = []
    sizes: list[int] = []

    def __len__(self) -> int:
        """See `RecordRun`, as for all of these."""
        return len(self.spans)

    @property
    def queues(self) -> Sequence[QueueKey]:
        return ((self.shared.topic_bytes, self.shared.queue_id),)

    @property
    def counts(self) -> Sequence[int]:
        return (len(self.spans),)

    @property
    def queue_offsets(self) -> Sequence[int]:
        return (self.shared.queue_offset,)

    @property
    def queue_bytes(self) -> Sequence[int]:
        return (sum(self.sizes),)

    @property
    def requests(self) -> int:
        return 1

    @property
    def has_nul(self) -> bool:
        data = self.data
        return any(data.find(0, start, end) >= 0 for _, _, start, end in self.spans)

    def begin(self, store_ms: int, queue_offsets: list[int]) -> None:
        self.shared.store_ms = store_ms
        (self.shared.queue_offset,) = queue_offsets
        self.log_offsets, self.sizes = [], []

    def encode(self, log_offset: int, room: int) -> EncodedRun:
        shared, data, view = self.shared, self.data, memoryview(self.data)
        fixed, _, tail = encode_parts(shared)
        topic = tail[:-2]  # without the length of the properties, which is 0 here
        same = fixed[_OWN_BYTES:-_BODY_SIZE_BYTES]
        pack = _OWN_FORMS[len(same)]
        magic, queue_id, shared_size = shared.magic, shared.queue_id, len(fixed) + len(topic)
        written = len(self.sizes)
        queue_offset = shared.queue_offset + written
        note_offset, note_size = self.log_offsets.append, self.sizes.append
        parts: list[bytes | memoryview] = []
        for flag, body_at, properties_at, end in islice(self.spans, written, None):
            size = shared_size + end - body_at
            if size > room:
                return parts, size
            body = view[body_at : properties_at - 2]
            crc = crc32(body) & 0x7FFFFFFF
            parts += (
                pack(size, magic, crc, queue_id, flag, queue_offset, log_offset, same, len(body)),
                body,
                topic + data[properties_at - 2 : end],
            )
            note_offset(log_offset)
            note_size(size)
            queue_offset += 1
            log_offset += size
            room -= size
        return parts, 0

    def queue_units(self) -> Sequence[bytes]:
        hashes = [tag_hash(properties.get(_TAGS)) for properties in self.properties]
        return (b"".join(map(QUEUE_UNIT.pack, self.log_offsets, self.sizes, hashes)),)

    def key_entries(self, fronts: list[int], index_tags: bool) -> bytes:
        entries, (front,) = bytearray(), fronts
        for known, log_offset in zip(self.properties, self.log_offsets, strict=True):
            tag = known.get(_TAGS) if index_tags else None
            unique_key, keys = known.get(_UNIQUE_KEY), known.get(_KEYS)
            add_key_entries(entries, front, log_offset, unique_key, keys, tag)
        return bytes(entries)

    def ids(self, prefix: str) -> str:
        return ",".join([f"{prefix}{offset:016X}" for offset in self.log_offsets])


def pure_record_batch(shared: Record, data: bytes) -> RecordBatch:
    """Read positions and properties of the messages of a batch, as the indexes need them.

    Args:
        shared: The fields that all of them have.
        data: The batch.

    Raises:
        MalformedBody: The batch is damaged.
    """
    spans = batch_spans(data)
    properties = [
        decode_properties(data[properties_at:end].decode(errors="replace"))
        for _, _, properties_at, end in spans
    ]
    return RecordBatch(shared, data, spans, properties)


take_batch: Final[Callable[..., BatchRun | None] | None] = native_only("take_batch")


def record_batch(shared: Record, data: bytes) -> BatchRun:
    """Return the records of a batch, as `pure_record_batch` does, natively if they are usual ones.

    Raises:
        MalformedBody: The batch is damaged.
    """
    if take_batch is not None and shared.magic == MAGIC_V1:
        batch: BatchRun | None = take_batch(
            data,
            shared.topic_bytes,
            shared.queue_id,
            shared.sys_flag,
            shared.born_ms,
            (shared.born_ip, shared.born_port),
            (shared.store_ip, shared.store_port),
            shared.reconsume_times,
            shared.prepared_offset,
        )
        if batch is not None:
            return batch
    return pure_record_batch(shared, data)
