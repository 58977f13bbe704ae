"""Stored messages: the same bytes on a broker's disk and in the replies to pulls and queries.

    i32 size of the whole record         i32 magic (V1, or V2 for topics over 127 bytes)
    i32 CRC of the body (31 bits)        i32 queue id             i32 flag
    i64 queue offset                     i64 commit-log offset    i32 sysFlag
    i64 born time, ms                    4 or 16 bytes IP + i32 port of the producer
    i64 store time, ms                   4 or 16 bytes IP + i32 port of the broker
    i32 reconsume times                  i64 commit-log offset of the half message
    i32 length + body                    V1: i8, V2: i16 length + topic
    i16 length + properties

Two sysFlag bits say whether the hosts are IPv6. If the next record does not fit into a segment, a
blank record fills it: i32 the bytes that are left, i32 its magic, any bytes.

A batch is the body of one command: per message i32 size, i32 0, i32 0, i32 flag, i32 length +
body, i16 length + properties. The same bytes are the body of an inner-batch record, which a 5.x
broker stores whole.

All numbers are signed, also lengths. A record whose lengths do not add up to its size is damaged.
"""

from __future__ import annotations

import zlib
from ipaddress import ip_address
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from downrange.errors import MalformedBody, MalformedRecord, Unencodable
from downrange.wire.codes import SysFlag
from downrange.wire.ids import offset_id
from downrange.wire.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, TOPIC_BYTES_V2_MAX
from downrange.wire.properties import PropertyKey, decode_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC_V1: Final = -626843481  # daa320a7
MAGIC_V2: Final = -626843477  # daa320ab
BLANK_MAGIC: Final = -875286124  # cbd43194
#: The bytes that must be left behind every record of a segment, so that a blank one fits.
BLANK_BYTES_MIN: Final = 8
#: The positions in a record of the two fields that the log sets.
QUEUE_OFFSET_AT: Final = 20
LOG_OFFSET_AT: Final = 28

_SYS_FLAG_LOW_BYTE_AT: Final = 39
_MAGIC_LOW_BYTE_AT: Final = 7
_MAGIC_V1_LOW: Final = MAGIC_V1 & 0xFF
# Plain numbers: arithmetic with enum members costs more than reading a record.
V6_BITS: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_INNER_BITS: Final = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)
#: sysFlag's host bits -> the fixed part, from the size to the body's length.
_FIXED: Final = {
    0: Struct(">iiiiiqqiq4siq4siiqi"),
    int(SysFlag.BORN_HOST_V6): Struct(">iiiiiqqiq16siq4siiqi"),
    int(SysFlag.STORE_HOST_V6): Struct(">iiiiiqqiq4siq16siiqi"),
    V6_BITS: Struct(">iiiiiqqiq16siq16siiqi"),
}
#: The same bits -> the fixed part, and the lengths of the two hosts.
FORMS: Final = {
    0: (_FIXED[0], 4, 4),
    int(SysFlag.BORN_HOST_V6): (_FIXED[int(SysFlag.BORN_HOST_V6)], 16, 4),
    int(SysFlag.STORE_HOST_V6): (_FIXED[int(SysFlag.STORE_HOST_V6)], 4, 16),
    V6_BITS: (_FIXED[V6_BITS], 16, 16),
}
_FIXED_BYTES_MIN: Final = _FIXED[0].size
#: The same bits -> reads what `intact_run` needs of the fixed part, and the size of that part.
_INDEXED: Final = {
    bits: (Struct(f">iiii4xqqi8x{born}x4xq{store}x4x4x8xi").unpack_from, fixed.size)
    for bits, (fixed, born, store) in FORMS.items()
}
_FIXED_BYTES_MAX: Final = _FIXED[V6_BITS].size
#: In the smallest record, only the lengths of topic and properties follow the fixed part.
RECORD_BYTES_MIN: Final = _FIXED_BYTES_MIN + 3
_I16: Final = Struct(">h")
_I8: Final = Struct(">b")
_BLANK: Final = Struct(">ii")
_BATCH_ITEM: Final = Struct(">iiiii")


class Record(msgspec.Struct, gc=False):
    """One stored message; the fields are in the order of the bytes.

    Writing the record computes `size` and `body_crc` and sets them.
    """

    size: int = 0
    magic: int = MAGIC_V1
    body_crc: int = 0
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_ip: bytes = b"\x00\x00\x00\x00"
    born_port: int = 0
    store_ms: int = 0
    store_ip: bytes = b"\x00\x00\x00\x00"
    store_port: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    body: bytes = b""
    topic_bytes: bytes = b""
    property_bytes: bytes = b""

    @property
    def topic(self) -> str:
        """The topic as a string."""
        return self.topic_bytes.decode(errors="replace")

    @property
    def born_host(self) -> str:
        """The producer's address, "host:port"."""
        return host_text(self.born_ip, self.born_port)

    @property
    def store_host(self) -> str:
        """The broker's address, "host:port"."""
        return host_text(self.store_ip, self.store_port)

    @property
    def offset_id(self) -> str:
        """The id by which the broker finds this record."""
        return offset_id(self.store_ip, self.store_port, self.log_offset)

    @property
    def is_intact(self) -> bool:
        """Whether the body matches its CRC."""
        return body_crc(self.body) == self.body_crc

    def properties(self) -> dict[str, str]:
        """Parse the properties; bytes that are not UTF-8 become U+FFFD, as in Java."""
        return decode_properties(self.property_bytes.decode(errors="replace"))


def host_text(ip: bytes, port: int) -> str:
    """Return an address of a record, "host:port"; IPv4 and IPv6."""
    if len(ip) == 4:  # faster than an object of `ipaddress`
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    return f"{ip_address(ip)}:{port}"


def body_crc(body: bytes) -> int:
    """Return the CRC of a body in a record: 31 bits."""
    return zlib.crc32(body) & 0x7FFFFFFF


def record_size(record: Record) -> int:
    """Return the size of a record in bytes, without encoding it."""
    return (
        _FIXED[record.sys_flag & V6_BITS].size
        + len(record.body)
        + (2 if record.magic == MAGIC_V2 else 1)
        + len(record.topic_bytes)
        + 2
        + len(record.property_bytes)
    )


def encode_record(record: Record) -> bytes:
    """Encode a record; its size and CRC are computed and set.

    Raises:
        Unencodable: A part is too long for its length field, or a host does not match `sys_flag`.
    """
    return b"".join(encode_parts(record))


def encode_parts(record: Record) -> tuple[bytes, bytes, bytes]:
    """Encode a record in three parts, so that its body is not copied; see `encode_record`."""
    body, topic, properties = record.body, record.topic_bytes, record.property_bytes
    magic, sys_flag = record.magic, record.sys_flag
    born_ip, store_ip = record.born_ip, record.store_ip
    fixed, born_size, store_size = FORMS[sys_flag & V6_BITS]
    if len(born_ip) != born_size or len(store_ip) != store_size:
        raise Unencodable("record hosts", "IPv4 or IPv6 does not match sysFlag")
    body_size = len(body)
    try:
        topic_head = (_I8 if magic == MAGIC_V1 else _I16).pack(len(topic))
        tail = b"".join((topic_head, topic, _I16.pack(len(properties)), properties))
        record.size = size = fixed.size + body_size + len(tail)
        record.body_crc = crc = zlib.crc32(body) & 0x7FFFFFFF
        head = fixed.pack(
            size,
            magic,
            crc,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.log_offset,
            sys_flag,
            record.born_ms,
            born_ip,
            record.born_port,
            record.store_ms,
            store_ip,
            record.store_port,
            record.reconsume_times,
            record.prepared_offset,
            body_size,
        )
    except StructError as error:
        raise _unencodable(record, error) from error
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise Unencodable("record magic", f"{magic & 0xFFFFFFFF:08x} is unknown")
    return head, body, tail


def _unencodable(record: Record, error: StructError) -> Unencodable:
    """Return the error that names the part that does not fit."""
    topic_size, properties_size = len(record.topic_bytes), len(record.property_bytes)
    if topic_size > (TOPIC_BYTES_MAX if record.magic == MAGIC_V1 else TOPIC_BYTES_V2_MAX):
        return Unencodable("record topic", f"{topic_size} bytes do not fit its length field")
    if properties_size > PROPERTIES_BYTES_MAX:
        return Unencodable(
            "record properties", f"{properties_size} bytes are more than {PROPERTIES_BYTES_MAX}"
        )
    return Unencodable("record", str(error))


def decode_record(data: bytes, at: int = 0) -> Record:
    """Read the record that begins at a position.

    The CRC is not checked; use `is_intact` for bytes from a disk.

    Raises:
        MalformedRecord: The record is cut off, or its lengths contradict each other.
    """
    left = len(data) - at
    if left < RECORD_BYTES_MIN:
        raise MalformedRecord(at, f"{left} bytes are less than the smallest record")
    fixed = _FIXED[data[at + _SYS_FLAG_LOW_BYTE_AT] & V6_BITS]
    fixed_size = fixed.size
    if left < fixed_size:
        raise MalformedRecord(at, f"{left} bytes are less than the fixed part")
    values = fixed.unpack_from(data, at)
    size, magic, body_size = values[0], values[1], values[-1]
    if not RECORD_BYTES_MIN <= size <= left:
        raise MalformedRecord(at, f"a size of {size} where {left} bytes follow")
    end = at + size
    body_at = at + fixed_size
    topic_at = body_at + body_size + 1
    if body_size < 0 or topic_at > end:
        raise MalformedRecord(at, f"a body of {body_size} bytes in a record of {size}")
    if magic == MAGIC_V1:
        topic_size = _I8.unpack_from(data, topic_at - 1)[0]
    elif magic == MAGIC_V2:
        if topic_at == end:
            raise MalformedRecord(at, "ends within the topic's length")
        topic_size = _I16.unpack_from(data, topic_at - 1)[0]
        topic_at += 1
    else:
        raise MalformedRecord(at, f"unknown magic {magic & 0xFFFFFFFF:08x}")
    properties_at = topic_at + topic_size + 2
    if topic_size < 0 or properties_at > end:
        raise MalformedRecord(at, f"a topic of {topic_size} bytes passes the end")
    properties_size = _I16.unpack_from(data, properties_at - 2)[0]
    if properties_at + properties_size != end:
        raise MalformedRecord(at, f"properties of {properties_size} bytes do not end the record")
    arguments: tuple[Any, ...] = (
        *values[:-1],
        data[body_at : body_at + body_size],
        data[topic_at : topic_at + topic_size],
        data[properties_at:end],
    )
    return Record(*arguments)


def decode_fixed(data: bytes) -> Record:
    """Read the fixed part of a record, whose lengths were checked before; the rest stays empty."""
    values: tuple[Any, ...] = _FIXED[data[_SYS_FLAG_LOW_BYTE_AT] & V6_BITS].unpack_from(data)
    return Record(*values[:-1])


def properties_at(data: bytes, at: int, end: int) -> dict[str, str]:
    """Return the properties of the record between two positions, without reading the rest.

    Raises:
        MalformedRecord: The record is cut off, or its lengths contradict each other.
    """
    properties_from = end
    try:
        body_at = at + _FIXED[data[at + _SYS_FLAG_LOW_BYTE_AT] & V6_BITS].size
        topic_at = body_at + int.from_bytes(data[body_at - 4 : body_at], "big") + 1
        properties_from = topic_at + data[topic_at - 1] + 2
        size = data[properties_from - 2] << 8 | data[properties_from - 1]
        is_usual = data[at + _MAGIC_LOW_BYTE_AT] == _MAGIC_V1_LOW and properties_from + size == end
    except IndexError:
        is_usual = False
    if not is_usual:  # a long topic (V2), or damaged
        return decode_record(data[at:end]).properties()
    return decode_properties(data[properties_from:end].decode(errors="replace"))


def decode_records(data: bytes) -> list[Record]:
    """Read the records in the body of a reply.

    Raises:
        MalformedRecord: One is damaged; `data[:error.position]` has those before it.
    """
    records: list[Record] = []
    at, end = 0, len(data)
    while at < end:
        record = decode_record(data, at)
        records.append(record)
        at += record.size
    return records


#: What the indexes need of a stored record: log offset, size, queue id, queue offset, sysFlag,
#: store time, topic, properties. A plain tuple: recovery makes one per record.
IndexFields: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes]


def intact_run(data: bytes, at: int, log_offset: int) -> list[IndexFields]:
    """Read what the indexes need of the records from a position on, without an object per record.

    The run ends before the first record that is not of the usual form: damaged, cut off, blank, of
    another log offset, with a long topic (V2), with a NUL byte in its properties, or close to the
    end of the data. The caller reads that one with `decode_record`, which says what is wrong.

    Args:
        data: Bytes of a commit log.
        at: Where a record begins in them.
        log_offset: The log offset of that record.
    """
    run: list[IndexFields] = []
    note, view, forms, crc32 = run.append, memoryview(data), _INDEXED, zlib.crc32
    data_end = len(data)
    last_at = data_end - _FIXED_BYTES_MAX
    while at <= last_at:
        unpack_from, fixed_size = forms[data[at + _SYS_FLAG_LOW_BYTE_AT] & V6_BITS]
        size, magic, crc, queue_id, queue_offset, own_offset, sys_flag, store_ms, body_size = (
            unpack_from(data, at)
        )
        end = at + size
        body_at = at + fixed_size
        topic_at = body_at + body_size + 1  # behind its length of one byte
        if (
            magic != MAGIC_V1
            or own_offset != log_offset
            or body_size < 0
            or not topic_at + 2 <= end <= data_end
        ):
            break
        topic_end = topic_at + data[topic_at - 1]
        properties_at = topic_end + 2
        if (
            topic_end - topic_at > TOPIC_BYTES_MAX
            or not 0 <= end - properties_at <= PROPERTIES_BYTES_MAX
            or data[topic_end] << 8 | data[topic_end + 1] != end - properties_at
            or crc32(view[body_at : topic_at - 1]) & 0x7FFFFFFF != crc
        ):
            break
        properties = data[properties_at:end]
        if 0 in properties:
            break
        topic = data[topic_at:topic_end]
        note((log_offset, size, queue_id, queue_offset, sys_flag, store_ms, topic, properties))
        at = end
        log_offset += size
    return run


def index_fields(record: Record) -> IndexFields:
    """Return what the indexes need of a record."""
    return (
        record.log_offset,
        record.size,
        record.queue_id,
        record.queue_offset,
        record.sys_flag,
        record.store_ms,
        record.topic_bytes,
        record.property_bytes,
    )


def scan_segment(data: bytes) -> Iterator[Record]:
    """Read the records of a commit-log segment, up to the blank record or to unwritten bytes.

    Raises:
        MalformedRecord: A record is damaged, or its body does not match its CRC.
    """
    at, end = 0, len(data)
    while end - at >= _BLANK.size:
        size, magic = _BLANK.unpack_from(data, at)
        if magic == BLANK_MAGIC or (size == 0 and magic == 0):
            return
        record = decode_record(data, at)
        if not record.is_intact:
            raise MalformedRecord(at, "the body does not match its CRC")
        yield record
        at += record.size


def blank_record(bytes_left: int) -> bytes:
    """Return the first bytes of a blank record; the others can have any value."""
    return _BLANK.pack(bytes_left, BLANK_MAGIC)


# ---- batches -------------------------------------------------------------------------------------


#: One message of a batch: its flag, and the positions of its body, its properties and its end.
BatchSpan: TypeAlias = tuple[int, int, int, int]


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    property_bytes: bytes


def encode_batch(items: Iterable[BatchItem | tuple[int, bytes, bytes]]) -> bytes:
    """Encode messages, as `BatchItem` or plain tuples, as the body of one batch.

    Raises:
        Unencodable: A part does not fit its field.
    """
    parts: list[bytes] = []
    try:
        for flag, body, properties in items:
            size = _BATCH_ITEM.size + len(body) + 2 + len(properties)
            parts += (
                _BATCH_ITEM.pack(size, 0, 0, flag, len(body)),
                body,
                _I16.pack(len(properties)),
                properties,
            )
    except StructError as error:
        raise Unencodable(f"batch item {len(parts) // 4}", str(error)) from error
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchItem]:
    """Split the body of a batch.

    Raises:
        MalformedBody: A length passes the end, or an item's lengths do not add up.
    """
    return [
        BatchItem(flag, data[body_at : properties_at - 2], data[properties_at:end])
        for flag, body_at, properties_at, end in batch_spans(data)
    ]


def batch_spans(data: bytes) -> list[BatchSpan]:
    """Find the messages in the body of a batch.

    Raises:
        MalformedBody: A length passes the end, or an item's lengths do not add up.
    """
    spans: list[BatchSpan] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < _BATCH_ITEM.size + 2:
            raise MalformedBody(f"batch byte {at}", f"{end - at} bytes are less than an item")
        size, _, _, flag, body_size = _BATCH_ITEM.unpack_from(data, at)
        body_at = at + 20
        properties_at = body_at + body_size + 2
        if not 0 <= body_size <= end - body_at - 2:
            raise MalformedBody(f"batch byte {at}", f"a body of {body_size} bytes passes the end")
        item_end = properties_at + _I16.unpack_from(data, properties_at - 2)[0]
        if item_end != at + size or not properties_at <= item_end <= end:
            raise MalformedBody(f"batch byte {at}", f"the item's lengths do not add up to {size}")
        spans.append((flag, body_at, properties_at, item_end))
        at = item_end
    return spans


def unwrap(record: Record) -> list[Record]:
    """Return the messages of an inner-batch record as records; other records unchanged.

    They share the log offset and hosts of the record. The queue offset of the first one is the
    property INNER_BASE, or that of the record if the property is missing.

    Raises:
        MalformedBody: The body is not a batch, or INNER_BASE is not a number.
    """
    if record.sys_flag & _INNER_BITS != _INNER_BITS:
        return [record]
    text = record.properties().get(PropertyKey.INNER_BASE, str(record.queue_offset))
    if len(text) > 19 or not text.isdecimal():
        raise MalformedBody("inner batch", f"INNER_BASE {text[:40]!r} is not an offset")
    base = int(text)
    return [
        msgspec.structs.replace(
            record,
            queue_offset=base + index,
            sys_flag=record.sys_flag & ~_INNER_BITS,
            flag=item.flag,
            body=item.body,
            body_crc=body_crc(item.body),
            property_bytes=item.property_bytes,
        )
        for index, item in enumerate(decode_batch(record.body))
    ]
