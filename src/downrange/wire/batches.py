"""Batches that are stored message by message, without an object for each.

The records of a batch share all but flag, body and properties. What they share stands in one
`Record`; the rest stays where it arrived, in the bytes of the batch, until each record is written
out of them. The bytes that come out are those of `records.encode_record`.
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from downrange.wire.properties import decode_properties
from downrange.wire.records import LOG_OFFSET_AT, BatchSpan, Record, batch_spans, encode_parts

#: Of a record's fixed part: up to here it differs within a batch, and in the body's length.
_OWN_BYTES: Final = LOG_OFFSET_AT + 8
_BODY_SIZE_BYTES: Final = 4


class RecordBatch(msgspec.Struct, gc=False):
    """Records that arrived as one batch, to be stored back to back in one queue.

    Attributes:
        shared: What all have in common; its body and properties are empty, its queue offset is the
            first one's.
        data: The batch as it arrived.
        spans: Where its messages lie in it.
        properties: What they have as properties.
        log_offsets: Where those lie that are written; empty before.
        sizes: How many bytes those take.
    """

    shared: Record
    data: bytes
    spans: list[BatchSpan]
    properties: list[dict[str, str]]
    log_offsets: list[int] = []
    sizes: list[int] = []


class EncodedRun(NamedTuple):
    """Records of a batch as bytes, and the size of the first one that does not fit, or 0."""

    parts: list[bytes | memoryview]
    unfit_size: int


def record_batch(shared: Record, data: bytes) -> RecordBatch:
    """Take a batch apart as far as its index entries need it.

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
    """Write the records of a batch that are not written yet, as many as fit.

    Args:
        batch: Where each record lies and what it takes is noted in it.
        log_offset: Where the next one goes.
        room: How many bytes there are.

    Raises:
        Unencodable: What they share cannot be written.
    """
    shared, data, view = batch.shared, batch.data, memoryview(batch.data)
    fixed, _, tail = encode_parts(shared)
    topic = tail[:-2]  # the length of no properties stands behind it
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
