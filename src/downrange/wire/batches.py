"""Batches that are stored message by message, without an object per message.

The records of a batch share all fields but flag, body and properties. The shared fields are in one
`Record`; the others stay in the bytes of the batch until the records are written. The result is the
same bytes as from `records.encode_record`.
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from downrange.wire.properties import decode_properties
from downrange.wire.records import LOG_OFFSET_AT, BatchSpan, Record, batch_spans, encode_parts

#: The first bytes of the fixed part: only these and the body's length differ within a batch.
_OWN_BYTES: Final = LOG_OFFSET_AT + 8
_BODY_SIZE_BYTES: Final = 4


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
    pack = Struct(f">iiiiiqq{len(same)}si").pack
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
