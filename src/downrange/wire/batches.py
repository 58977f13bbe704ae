"""Records that are stored together, without an object per record: batches and runs.

The records of a batch share all fields but flag, body and properties. The shared fields are in one
`Record`; the others stay in the bytes of the batch until the records are written. The result is the
same bytes as from `records.encode_record`. A run is the same for records that the broker makes
itself, whose bodies and properties are separate.
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from downrange.errors import Unencodable
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import decode_properties
from downrange.wire.records import (
    FORMS,
    LOG_OFFSET_AT,
    V6_BITS,
    BatchSpan,
    Record,
    batch_spans,
    encode_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A record of a run: its body, its properties, and the tag hash of its queue unit. A plain tuple,
#: because two are made per pop.
RunItem: TypeAlias = tuple[bytes, bytes, int]
#: The first bytes of the fixed part: only these and the body's length differ within a batch.
_OWN_BYTES: Final = LOG_OFFSET_AT + 8
_BODY_SIZE_BYTES: Final = 4
_I16: Final = Struct(">h").pack
#: Of the fixed part of a record with IPv4 hosts.
_SAME_BYTES_MIN: Final = 48
_OWN_FORMS: Final = {
    size: Struct(f">iiiiiqq{size}si").pack
    for size in (_SAME_BYTES_MIN, _SAME_BYTES_MIN + 12, _SAME_BYTES_MIN + 24)
}


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


class EncodedRun(NamedTuple):
    """The bytes of records, and the size of the first record that did not fit, or 0."""

    parts: list[bytes | memoryview]
    unfit_size: int


def record_batch(shared: Record, data: bytes) -> RecordBatch:
    """Read positions and properties of the messages of a batch, as the indexes need them.

    Raises:
        MalformedBody: The batch is damaged.
    """
    spans = batch_spans(data)
    properties = [
        decode_properties(data[properties_at:end].decode(errors="replace"))
        for _, _, properties_at, end in spans
    ]
    return RecordBatch(shared, data, spans, properties)


def encode_run(batch: RecordBatch, log_offset: int, room: int) -> EncodedRun:
    """Write as many of the unwritten records of a batch as fit.

    Args:
        batch: Its `log_offsets` and `sizes` are extended.
        log_offset: The position of the next record.
        room: The bytes available there.

    Raises:
        Unencodable: The shared fields cannot be written.
    """
    shared, data, view = batch.shared, batch.data, memoryview(batch.data)
    fixed, _, tail = encode_parts(shared)
    topic = tail[:-2]  # without the length of the properties, which is 0 here
    same = fixed[_OWN_BYTES:-_BODY_SIZE_BYTES]
    pack = _OWN_FORMS[len(same)]
    magic, queue_id, shared_size = shared.magic, shared.queue_id, len(fixed) + len(topic)
    written = len(batch.sizes)
    queue_offset = shared.queue_offset + written
    note_offset, note_size = batch.log_offsets.append, batch.sizes.append
    parts: list[bytes | memoryview] = []
    for flag, body_at, properties_at, end in islice(batch.spans, written, None):
        size = shared_size + end - body_at
        if size > room:
            return EncodedRun(parts, size)
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
    return EncodedRun(parts, 0)


def encode_items(shared: Record, items: Iterable[RunItem]) -> tuple[list[bytes], list[int]]:
    """Write the records of a run; return their bytes in parts, and their sizes.

    Args:
        shared: The shared fields, with the offsets of the first record; its topic is not a long
            one (V2).
        items: The records.

    Raises:
        Unencodable: The properties of a record are too long.
    """
    topic_bytes, queue_offset, log_offset = (
        shared.topic_bytes,
        shared.queue_offset,
        shared.log_offset,
    )
    magic, queue_id, flag = shared.magic, shared.queue_id, shared.flag
    form, _, _ = FORMS[shared.sys_flag & V6_BITS]
    same = (
        shared.sys_flag,
        shared.born_ms,
        shared.born_ip,
        shared.born_port,
        shared.store_ms,
        shared.store_ip,
        shared.store_port,
        shared.reconsume_times,
        shared.prepared_offset,
    )
    pack, pack_size = form.pack, _I16
    topic = bytes((len(topic_bytes),)) + topic_bytes
    shared_size = form.size + len(topic) + 2
    parts: list[bytes] = []
    sizes: list[int] = []
    for body, properties, _ in items:
        body_size, properties_size = len(body), len(properties)
        if properties_size > PROPERTIES_BYTES_MAX:
            raise Unencodable("record properties", f"{properties_size} bytes are too many")
        size = shared_size + body_size + properties_size
        crc = crc32(body) & 0x7FFFFFFF
        head = pack(size, magic, crc, queue_id, flag, queue_offset, log_offset, *same, body_size)
        parts += (head, body, topic, pack_size(properties_size), properties)
        sizes.append(size)
        queue_offset += 1
        log_offset += size
    return parts, sizes
