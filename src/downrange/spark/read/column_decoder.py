"""Decode pull replies into rows, column by column: the fast twin of `record_decoder`.

Each column is built for all rows at once by numpy and Arrow. Python touches single records only if
their bodies are compressed or inner batches. Below some dozens of records the loop of
`record_decoder` is faster. It also words the errors: after any error here, it decodes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from downrange.errors import WireError
from downrange.spark.read.property_columns import (
    PropertyTable,
    arrow,
    pick_slices,
    property_values,
)
from downrange.spark.read.record_decoder import (
    Decoded,
    check_bodies,
    check_input,
    decode_each,
    unpacked,
)
from downrange.spark.read.record_table import RecordTable, find_records, unwrap_batches
from downrange.spark.schema import TIME_MS_MAX, TIME_MS_MIN, arrow_schema
from downrange.wire.codes import SysFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from downrange.spark.read.property_columns import Array
    from downrange.spark.read.record_decoder import DecodeSpec

#: From this many records on, columns cost less than the loop, with and without properties. Each
#: column has a fixed cost (`python -m benchmarks.spark_decoder`).
CROSSOVER: Final = 64
CROSSOVER_OF_NUMBERS: Final = 24
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
#: Column -> its property.
_PROPERTY_OF: Final = {
    "msg_id": PropertyKey.UNIQUE_KEY,
    "keys": PropertyKey.KEYS,
    "tags": PropertyKey.TAGS,
}


def decode(chunks: Sequence[bytes], spec: DecodeSpec) -> Decoded:
    """Turn the bodies of pull replies into rows; faster per record the more there are.

    Args:
        chunks: Stored records back to back; no record spans two chunks.
        spec: Which rows and columns.

    Returns:
        The same as `decode_each`.

    Raises:
        WireError: The same as from `decode_each`.
    """
    check_input(chunks, spec)
    try:
        data, starts = find_records(chunks)
        if len(starts) >= (CROSSOVER if spec.needs_properties else CROSSOVER_OF_NUMBERS):
            return decode_columns(data, starts, spec)
    except WireError:
        pass  # `decode_each` raises it again, with the position
    return decode_each(chunks, spec)


def decode_columns(data: bytes, starts: NDArray[np.int64], spec: DecodeSpec) -> Decoded:
    """Turn the records that begin at these positions into rows.

    Raises:
        WireError: A record is damaged.
    """
    rows = _Rows(RecordTable(data, starts), spec)
    schema = arrow_schema(spec.columns)
    arrays = [_ARRAYS[name](rows) for name in spec.columns]
    return Decoded(pa.RecordBatch.from_arrays(arrays, schema=schema), rows.damaged_count)


class _Rows:
    """The records that become rows, and data that several columns share.

    Attributes:
        spec: Which rows and columns.
        table: The records, one per row.
        damaged: Rows without a body: damaged inner batches.
        damaged_count: How many bodies are lost; final once the body column is built.
    """

    __slots__ = ("_properties", "_values", "damaged", "damaged_count", "spec", "table")

    def __init__(self, table: RecordTable, spec: DecodeSpec) -> None:
        self.spec = spec
        self._properties: PropertyTable | None = None
        self._values: dict[str, Array] = {}
        self.table, self.damaged = unwrap_batches(table, spec)
        offsets = self.table.numbers("queue_offset")
        self._keep((offsets >= spec.begin) & (offsets < spec.end))
        if spec.tags:
            chosen = pa.array(sorted(spec.tags), pa.string())
            is_in = arrow.is_in(self.values(PropertyKey.TAGS), value_set=chosen)
            self._keep(is_in.to_numpy(zero_copy_only=False))
        self.damaged_count = len(self.damaged)

    @property
    def properties(self) -> PropertyTable:
        """The rows' properties, parsed at the first access."""
        if self._properties is None:
            self._properties = PropertyTable(self.table)
        return self._properties

    def values(self, name: PropertyKey) -> Array:
        """Return each row's value of a property that is a column of its own."""
        if self._properties is not None or "properties" in self.spec.columns:
            return self.properties.values(name)  # it is needed for the map in any case
        if name not in self._values:
            wanted = {
                _PROPERTY_OF[column] for column in self.spec.columns if column in _PROPERTY_OF
            }
            self._values = property_values(self.table, sorted(wanted | {name}))
        return self._values[name]

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        if chosen.all():
            return
        is_damaged = np.zeros(len(chosen), np.bool_)
        is_damaged[self.damaged] = True
        self.damaged = np.flatnonzero(is_damaged[chosen])
        self.table = self.table.select(chosen)
        self._properties = None
        self._values = {}


# ---- columns -------------------------------------------------------------------------------------


def _constant(text: str, rows: _Rows) -> Array:
    return pa.repeat(pa.scalar(text, pa.string()), len(rows.table))


def _numbers(field: str) -> Callable[[_Rows], Array]:
    return lambda rows: pa.array(rows.table.numbers(field))


def _times(field: str) -> Callable[[_Rows], Array]:
    def times(rows: _Rows) -> Array:
        times_ms = rows.table.numbers(field)
        is_strange = (times_ms < TIME_MS_MIN) | (times_ms > TIME_MS_MAX)
        absent = is_strange if is_strange.any() else None
        if absent is not None:
            times_ms[absent] = 0
        return pa.array(times_ms * 1000, mask=absent).view(pa.timestamp("us", tz="UTC"))

    return times


def _hosts(field: str) -> Callable[[_Rows], Array]:
    def hosts(rows: _Rows) -> Array:
        found = rows.table.hosts(field)
        # Few hosts send many messages, so each host is formatted once.
        texts = {
            host: Record(
                born_ip=host[:-4], born_port=int.from_bytes(host[-4:], "big", signed=True)
            ).born_host
            for host in {*found}
        }
        return pa.array([texts[host] for host in found], pa.string())

    return hosts


def _message_ids(rows: _Rows) -> Array:
    ids = rows.values(PropertyKey.UNIQUE_KEY)
    if not ids.null_count:
        return ids
    is_absent = ids.is_null()
    table = rows.table.select(is_absent.to_numpy(zero_copy_only=False))
    offset_ids = [
        (host + position.to_bytes(8, "big", signed=True)).hex().upper()
        for host, position in zip(
            table.hosts("store_host"), table.numbers("log_offset").tolist(), strict=True
        )
    ]
    return arrow.replace_with_mask(ids, is_absent, pa.array(offset_ids, pa.string()))


def _bodies(rows: _Rows) -> Array:
    table = rows.table
    is_special = table.numbers("sys_flag") & _COMPRESSED != 0
    is_special[rows.damaged] = True
    if not is_special.any():
        return pick_slices(pa.binary(), table.data, table.body_starts, table.body_ends)
    starts, ends = table.body_starts, table.body_ends.copy()
    ends[is_special] = starts[is_special]
    replaced = _unpacked_bodies(rows, np.flatnonzero(is_special), int((ends - starts).sum()))
    rows.damaged_count = replaced.null_count
    plain = pick_slices(pa.binary(), table.data, starts, ends)
    return arrow.replace_with_mask(plain, pa.array(is_special), replaced)


def _unpacked_bodies(rows: _Rows, special: NDArray[np.int64], plain_size: int) -> Array:
    """Return the decompressed bodies of these rows; null for a damaged one."""
    table, spec = rows.table, rows.spec
    lost = {*rows.damaged.tolist()}
    size = plain_size
    bodies: list[bytes | None] = []
    fields: list[list[Any]] = [
        array[special].tolist()
        for array in (
            table.body_starts,
            table.body_ends,
            table.numbers("sys_flag"),
            table.numbers("queue_id"),
            table.numbers("queue_offset"),
        )
    ]
    for row, start, end, sys_flag, queue_id, offset in zip(special.tolist(), *fields, strict=True):
        body = None
        if row not in lost:
            packed = table.data[start:end]
            body = unpacked(packed, sys_flag, spec, queue_id=queue_id, offset=offset)
        size += len(body or b"")
        check_bodies(size, spec)
        bodies.append(body)
    return pa.array(bodies, pa.binary())


_ARRAYS: Final[dict[str, Callable[[_Rows], Array]]] = {
    "topic": lambda rows: _constant(rows.spec.topic, rows),
    "broker_name": lambda rows: _constant(rows.spec.broker, rows),
    "queue_id": _numbers("queue_id"),
    "offset": _numbers("queue_offset"),
    "msg_id": _message_ids,
    "keys": lambda rows: rows.values(PropertyKey.KEYS),
    "tags": lambda rows: rows.values(PropertyKey.TAGS),
    "body": _bodies,
    "properties": lambda rows: rows.properties.maps(),
    "born_timestamp": _times("born_ms"),
    "store_timestamp": _times("store_ms"),
    "born_host": _hosts("born_host"),
    "store_host": _hosts("store_host"),
    "reconsume_times": _numbers("reconsume_times"),
    "flag": _numbers("flag"),
    "sys_flag": _numbers("sys_flag"),
}
