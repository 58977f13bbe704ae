"""The positions of many records in one buffer, and their fields as arrays.

The sizes of records are read one by one; everything else is read for all records at once. Any
damage raises `MalformedRecord`. The caller then falls back to `record_decoder`, which finds the
same damage and reports more about it.
"""

from __future__ import annotations

import itertools
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from downrange.errors import MalformedRecord
from downrange.native import twin
from downrange.spark.read.record_decoder import unwrapped
from downrange.wire.codes import SysFlag
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.records import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    decode_record,
    encode_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from downrange.spark.read.record_decoder import DecodeSpec

_SIZE: Final = Struct(">i")
_SYS_FLAG_LOW_BYTE_AT: Final = 39
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_INNER_BITS: Final = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)


def _layout(form: int) -> np.dtype[np.void]:
    """Return the layout of a record's fixed part for these host bits of sysFlag."""
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">i4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("log_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_ms", ">i8"),
            ("born_host", "V20" if form & _BORN_V6 else "V8"),
            ("store_ms", ">i8"),
            ("store_host", "V20" if form & _STORE_V6 else "V8"),
            ("reconsume_times", ">i4"),
            ("prepared_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


_LAYOUTS: Final = {form: _layout(form) for form in (0, _BORN_V6, _STORE_V6, _BORN_V6 | _STORE_V6)}


class RecordTable:
    """The records of one buffer, field by field.

    Args:
        data: Records back to back.
        starts: Where the records of the table begin.

    Raises:
        MalformedRecord: The lengths of a record contradict each other, or its magic is unknown.

    Attributes:
        data: The buffer.
        starts: Where the records begin in it.
        body_starts: Where the bodies begin.
        body_ends: Where the bodies end.
        property_starts: Where the properties begin.
        property_ends: Where the properties, and the records, end.
    """

    __slots__ = (
        "_heads",
        "body_ends",
        "body_starts",
        "data",
        "property_ends",
        "property_starts",
        "starts",
    )

    def __init__(self, data: bytes, starts: NDArray[np.int64]) -> None:
        self.data = data
        self.starts = starts
        octets = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        #: Per layout of the fixed part: the rows that have it, and their fixed parts.
        self._heads = list(_heads_of(data, starts, octets[starts + _SYS_FLAG_LOW_BYTE_AT]))
        self.property_ends = ends = starts + self.numbers("size")
        self.body_starts = starts + self._fixed_sizes()
        body_sizes = self.numbers("body_size")
        self.body_ends = self.body_starts + body_sizes
        topic_starts = self.body_ends + 1
        if len(starts) and (body_sizes.min() < 0 or (topic_starts > ends).any()):
            raise MalformedRecord(0, "a body passes its record's end")
        topic_sizes = self._topic_sizes(octets, topic_starts)
        self.property_starts = topic_starts + topic_sizes + 2
        if (topic_sizes < 0).any() or (self.property_starts > ends).any():
            raise MalformedRecord(0, "a topic passes its record's end")
        # The length field is signed, so 32768 or more is negative and invalid.
        sizes = octets[self.property_starts - 2].astype(np.int64) << 8
        sizes |= octets[self.property_starts - 1]
        if (sizes != ends - self.property_starts).any() or (sizes > PROPERTIES_BYTES_MAX).any():
            raise MalformedRecord(0, "properties do not end their record")

    def __len__(self) -> int:
        return len(self.starts)

    def numbers(self, field: str) -> NDArray[Any]:
        """Return a numeric field of every record in native byte order; `field` as in `Record`."""
        numbers = np.empty(len(self.starts), self._heads[0][1].dtype[field].newbyteorder("="))
        for rows, heads in self._heads:
            numbers[rows] = heads[field]
        return numbers

    def hosts(self, field: str) -> list[bytes]:
        """Return `born_host` or `store_host` of every record: 4 or 16 bytes IP, i32 port."""
        if len(self._heads) == 1:
            hosts: list[bytes] = self._heads[0][1][field].tolist()
            return hosts
        hosts = [b""] * len(self.starts)
        indices = np.arange(len(self.starts))
        for rows, heads in self._heads:
            for row, host in zip(indices[rows].tolist(), heads[field].tolist(), strict=True):
                hosts[row] = host
        return hosts

    def select(self, chosen: NDArray[Any]) -> RecordTable:
        """Return the table of some records, chosen by a mask or by indices."""
        return RecordTable(self.data, self.starts[chosen])

    def _fixed_sizes(self) -> NDArray[np.int64]:
        sizes = np.empty(len(self.starts), np.int64)
        for rows, heads in self._heads:
            sizes[rows] = heads.dtype.itemsize
        return sizes

    def _topic_sizes(
        self, octets: NDArray[np.uint8], topic_starts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the topics' sizes; with a two-byte length, advance the start by one."""
        magics = self.numbers("magic")
        sizes = octets[topic_starts - 1].view(np.int8).astype(np.int64)
        is_v2 = magics == MAGIC_V2
        if not is_v2.any():
            if (magics != MAGIC_V1).any():
                raise MalformedRecord(0, "unknown magic")
            return sizes
        if (magics[~is_v2] != MAGIC_V1).any():
            raise MalformedRecord(0, "unknown magic")
        if (topic_starts[is_v2] == self.property_ends[is_v2]).any():
            raise MalformedRecord(0, "ends within the topic's length")
        # The byte read so far is the high one, with the sign; the low one follows.
        sizes[is_v2] = sizes[is_v2] << 8 | octets[topic_starts[is_v2]]
        topic_starts[is_v2] += 1
        return sizes


def _heads_of(
    data: bytes, starts: NDArray[np.int64], flags: NDArray[np.uint8]
) -> Iterator[tuple[NDArray[np.int64] | slice, NDArray[Any]]]:
    forms = flags & (_BORN_V6 | _STORE_V6)
    if not forms.any():
        yield slice(None), _gather(data, starts, _LAYOUTS[0])
        return
    for form, layout in _LAYOUTS.items():
        rows = np.flatnonzero(forms == form)
        if len(rows):
            yield rows, _gather(data, starts[rows], layout)


def _gather(data: bytes, starts: NDArray[np.int64], layout: np.dtype[np.void]) -> NDArray[Any]:
    size = layout.itemsize
    if not len(starts):
        return np.empty(0, layout)
    if starts[-1] + size > len(data):
        raise MalformedRecord(int(starts[-1]), "ends within the fixed part")
    # A view with one overlapping item per byte of the buffer: indexing it copies whole fixed parts.
    # With items of opaque bytes this is several times faster than with fields.
    windows: NDArray[Any] = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return windows[starts].view(layout)


def find_records(chunks: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    """Join the bodies of pull replies and find where their records begin.

    Raises:
        MalformedRecord: A size is impossible, or a record passes the end of its reply.
    """
    data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    ends = list(itertools.accumulate(map(len, chunks)))
    return data, np.frombuffer(record_starts(data, ends), np.int64)


def pure_record_starts(data: bytes, ends: list[int]) -> bytes:
    """Return where records begin, as 64-bit numbers in native byte order.

    Args:
        data: Records back to back.
        ends: Where the replies end that they came in; no record spans two.

    Raises:
        MalformedRecord: A size is impossible, or a record passes the end of its reply.
    """
    starts: list[int] = []
    read_size, add = _SIZE.unpack_from, starts.append
    at = 0
    for end in ends:
        last = end - RECORD_BYTES_MIN
        while at <= last:
            (size,) = read_size(data, at)
            if size < RECORD_BYTES_MIN:
                raise MalformedRecord(at, f"a size of {size}")
            add(at)
            at += size
        if at != end:
            raise MalformedRecord(at, f"{end - at} bytes are left of a reply")
    return np.array(starts, np.int64).tobytes()


record_starts: Final = twin(pure_record_starts)


def unwrap_batches(table: RecordTable, spec: DecodeSpec) -> tuple[RecordTable, NDArray[np.int64]]:
    """Replace inner batches by their messages, as records of their own.

    Returns:
        The table, a new one if there were batches, and the rows of damaged batches.

    Raises:
        MalformedBody: A batch is damaged, and the reader is strict.
    """
    is_inner = table.numbers("sys_flag") & _INNER_BITS == _INNER_BITS
    if not is_inner.any():
        return table, np.empty(0, np.int64)
    parts: list[bytes] = []
    at = size = 0
    damaged: list[int] = []
    for start in table.starts[is_inner].tolist():
        record = decode_record(table.data, start)
        inner = unwrapped(record, spec)
        size += start - at
        parts.append(table.data[at:start])
        at = start + record.size
        if inner is None:
            damaged.append(size)
            encoded = table.data[start:at]
        else:
            encoded = b"".join([encode_record(one) for one in inner])
        parts.append(encoded)
        size += len(encoded)
    parts.append(table.data[at:])
    data, starts = find_records((b"".join(parts),))
    return RecordTable(data, starts), np.flatnonzero(np.isin(starts, damaged))
