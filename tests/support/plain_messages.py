"""The plain way from records to messages, which `wire.reply_messages` must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from downrange.wire.compression import Compression, compression_of, decompress
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record, unwrap

if TYPE_CHECKING:
    from downrange.model import CompressionName

_NAMES: Final[dict[Compression, CompressionName]] = {
    Compression.ZLIB: "zlib",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}


def received(record: Record, broker: str, *, body_bytes_max: int) -> list[ReceivedMessage]:
    """Return the messages in a record: one, or those of an inner batch; bodies decompressed.

    See `received_as_stored` for bodies that stay compressed.

    Args:
        record: A record from the reply to a pull, query or view request.
        broker: The name of the broker that sent it; a record does not contain it.
        body_bytes_max: The largest body after decompression.

    Raises:
        MalformedBody: The body cannot be decompressed.
    """
    return [
        _message_of(inner, decompress(inner.body, inner.sys_flag, body_bytes_max), broker)
        for inner in unwrap(record)
    ]


def received_as_stored(record: Record, broker: str) -> list[ReceivedMessage]:
    """Return the messages in a record: one, or those of an inner batch; bodies as they are stored.

    Raises:
        MalformedBody: The compression is of an unknown type, or an inner batch is malformed.
    """
    return [
        _message_of(inner, inner.body, broker, _compression_name(inner.sys_flag))
        for inner in unwrap(record)
    ]


def _compression_name(sys_flag: int) -> CompressionName | None:
    compression = compression_of(sys_flag)
    return None if compression is None else _NAMES[compression]


def _message_of(
    record: Record, body: bytes, broker: str, compression: CompressionName | None = None
) -> ReceivedMessage:
    properties = record.properties()
    offset_id = record.offset_id
    return ReceivedMessage(
        message_id=properties.get(PropertyKey.UNIQUE_KEY, offset_id),
        queue=QueueId(record.topic, broker, record.queue_id),
        offset=QueueOffset(record.queue_offset),
        body=body,
        properties=properties,
        offset_id=offset_id,
        log_offset=LogOffset(record.log_offset),
        flag=record.flag,
        born_at_ms=record.born_ms,
        born_host=record.born_host,
        stored_at_ms=record.store_ms,
        delivery_attempts=record.reconsume_times,
        compression=compression,
    )
