"""Decode pull replies into rows, record by record: the simple way, which defines the result.

`column_decoder` does the same for many records at once and must give the same rows. The rules:

- A record is a row; an inner batch is as many rows as it holds. Rows keep the records' order.
- Only queue offsets of the requested range become rows. Records outside of it are not decompressed,
  so that a damaged one is not an error of this range.
- A time outside the years 1 to 9999 is null: Spark and Python cannot represent it. Invalid UTF-8
  shows as U+FFFD.
- A body that cannot be decompressed and an inner batch that cannot be decoded are errors, or, with
  failOnDataLoss=false, a row with a null body. A damaged inner batch stays one row, at its own
  offset. A record with wrong lengths is always an error: nothing after it can be found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from downrange.errors import MalformedBody, MalformedRecord, WireError
from downrange.spark.schema import TIME_MS_MAX, TIME_MS_MIN, arrow_schema
from downrange.wire.compression import decompress
from downrange.wire.limits import INT32_MAX, UNPACKED_BODY_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record, decode_record, decode_records, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

#: Bytes of replies in one batch: more could exceed the 2 GiB of a string column.
_INPUT_BYTES_MAX: Final = 256 * 2**20
#: Arrow counts the bytes of a binary column in 31 bits.
_BODIES_BYTES_MAX: Final = INT32_MAX
_PROPERTY_COLUMNS: Final = frozenset(("msg_id", "keys", "tags", "properties"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """Which records of one queue become rows, and with which columns.

    Attributes:
        columns: Names of the schema's columns, in the order of the batch.
        topic: The topic without namespace; the only value of its column.
        broker: The broker's name; the only value of its column.
        begin: The first queue offset that becomes a row.
        end: The queue offset after the last one.
        tags: If not empty, only rows with one of these tags: a broker compares hashes only.
        body_bytes_max: The largest body to decompress.
        is_strict: Whether a body that cannot be decompressed is an error; if not, it is null.
    """

    columns: tuple[str, ...]
    topic: str
    broker: str
    begin: int
    end: int
    tags: frozenset[str] = frozenset()
    body_bytes_max: int = UNPACKED_BODY_BYTES_MAX
    is_strict: bool = True

    @property
    def needs_body(self) -> bool:
        """Whether bodies are needed."""
        return "body" in self.columns

    @property
    def needs_properties(self) -> bool:
        """Whether properties are needed."""
        return bool(self.tags) or not _PROPERTY_COLUMNS.isdisjoint(self.columns)


class Decoded(NamedTuple):
    """Decoded rows."""

    batch: pa.RecordBatch
    #: Rows whose body is null because it was damaged.
    damaged: int


class _Row(NamedTuple):
    record: Record
    properties: dict[str, str]
    body: bytes | None
    is_damaged: bool


def decode_each(chunks: Sequence[bytes], spec: DecodeSpec) -> Decoded:
    """Turn the bodies of pull replies into rows, one record after the other.

    Args:
        chunks: Stored records back to back; no record spans two chunks.
        spec: Which rows and columns.

    Returns:
        A batch with exactly the columns of `spec`.

    Raises:
        WireError: A record is damaged, or the rows are too large for one batch. The text names
            the topic, the broker and, if known, queue and offset.
    """
    check_input(chunks, spec)
    rows = list(_rows_of(chunks, spec))
    schema = arrow_schema(spec.columns)
    arrays = [pa.array(_VALUES[field.name](rows, spec), type=field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Decoded(batch, sum(row.is_damaged for row in rows))


def check_input(chunks: Sequence[bytes], spec: DecodeSpec) -> None:
    """Reject more bytes than one batch is sure to hold.

    Raises:
        WireError: There are too many bytes.
    """
    size = sum(map(len, chunks))
    if size > _INPUT_BYTES_MAX:
        raise WireError(
            f"replies for {_place(spec)}",
            f"{size} bytes are too many for one batch of {_INPUT_BYTES_MAX}; lower batchBytes",
        )


def check_bodies(size: int, spec: DecodeSpec) -> None:
    """Reject decompressed bodies that are too large together.

    Raises:
        WireError: One binary column cannot hold them.
    """
    if size > _BODIES_BYTES_MAX:
        raise WireError(
            f"bodies of {_place(spec)}",
            f"decompress to over {_BODIES_BYTES_MAX} bytes in one batch; lower batchBytes",
        )


def unwrapped(record: Record, spec: DecodeSpec) -> list[Record] | None:
    """Return the messages of an inner batch within the range; for any other record itself.

    Returns:
        None for a damaged inner batch, if the reader is not strict.

    Raises:
        MalformedBody: The inner batch is damaged, and the reader is strict. A damaged one that
            begins behind the range raises nothing, as no row is lost.
    """
    try:
        inner = unwrap(record)
    except MalformedBody as error:
        if spec.is_strict and record.queue_offset < spec.end:
            raise _lost_body(error, spec, record.queue_id, record.queue_offset) from error
        return None
    return [one for one in inner if spec.begin <= one.queue_offset < spec.end]


def unpacked(
    body: bytes, sys_flag: int, spec: DecodeSpec, *, queue_id: int, offset: int
) -> bytes | None:
    """Return a body as it was sent.

    Returns:
        None for a damaged body, if the reader is not strict.

    Raises:
        MalformedBody: The body is damaged, and the reader is strict.
    """
    try:
        return decompress(body, sys_flag, spec.body_bytes_max)
    except MalformedBody as error:
        if spec.is_strict:
            raise _lost_body(error, spec, queue_id, offset) from error
        return None


def _rows_of(chunks: Sequence[bytes], spec: DecodeSpec) -> Iterator[_Row]:
    needs_body, needs_properties, tags = spec.needs_body, spec.needs_properties, spec.tags
    bodies_size = 0
    for record in _records_of(chunks, spec):
        inner = unwrapped(record, spec)
        is_broken_batch = inner is None
        for one in (record,) if inner is None else inner:
            if not spec.begin <= one.queue_offset < spec.end:
                continue
            properties = one.properties() if needs_properties else {}
            if tags and properties.get(PropertyKey.TAGS) not in tags:
                continue
            body = None
            is_damaged = is_broken_batch
            if needs_body and not is_broken_batch:
                body = unpacked(
                    one.body,
                    one.sys_flag,
                    spec,
                    queue_id=one.queue_id,
                    offset=one.queue_offset,
                )
                is_damaged = body is None
                bodies_size += len(body or b"")
                check_bodies(bodies_size, spec)
            yield _Row(one, properties, body, is_damaged)


def _records_of(chunks: Sequence[bytes], spec: DecodeSpec) -> Iterator[Record]:
    for number, chunk in enumerate(chunks, 1):
        try:
            yield from decode_records(chunk)
        except MalformedRecord as error:
            # The record before the damage is intact and holds the queue.
            queue_id = decode_record(chunk).queue_id if error.position else None
            place = f"reply {number} of {len(chunks)} for {_place(spec, queue_id)}"
            raise MalformedRecord(error.position, f"{error.problem}; in {place}") from error


def _lost_body(error: MalformedBody, spec: DecodeSpec, queue_id: int, offset: int) -> MalformedBody:
    """Return the error of a strict reader, with the position and a way out."""
    return MalformedBody(
        f"{error.where} of {_place(spec, queue_id, offset)}",
        f"{error.problem}; with failOnDataLoss=false the row has a null body instead",
    )


def _place(spec: DecodeSpec, queue_id: int | None = None, offset: int | None = None) -> str:
    """Return where rows come from, for errors."""
    place = f"topic {spec.topic!r}, broker {spec.broker!r}"
    if queue_id is not None:
        place += f", queue {queue_id}"
    if offset is not None:
        return f"{place}, offset {offset}"
    return f"{place}, offsets {spec.begin} to {spec.end}"


# ---- columns -------------------------------------------------------------------------------------


def _property(key: PropertyKey) -> Callable[[list[_Row], DecodeSpec], Iterable[Any]]:
    return lambda rows, _: [row.properties.get(key) for row in rows]


def _micros(time_ms: int) -> int | None:
    return time_ms * 1000 if TIME_MS_MIN <= time_ms <= TIME_MS_MAX else None


#: Column -> its values; `pa.array` converts them to the types of the schema.
_VALUES: Final[dict[str, Callable[[list[_Row], DecodeSpec], Iterable[Any]]]] = {
    "topic": lambda rows, spec: [spec.topic] * len(rows),
    "broker_name": lambda rows, spec: [spec.broker] * len(rows),
    "queue_id": lambda rows, _: [row.record.queue_id for row in rows],
    "offset": lambda rows, _: [row.record.queue_offset for row in rows],
    "msg_id": lambda rows, _: [
        row.properties.get(PropertyKey.UNIQUE_KEY) or row.record.offset_id for row in rows
    ],
    "keys": _property(PropertyKey.KEYS),
    "tags": _property(PropertyKey.TAGS),
    "body": lambda rows, _: [row.body for row in rows],
    "properties": lambda rows, _: [[*row.properties.items()] for row in rows],
    "born_timestamp": lambda rows, _: [_micros(row.record.born_ms) for row in rows],
    "store_timestamp": lambda rows, _: [_micros(row.record.store_ms) for row in rows],
    "born_host": lambda rows, _: [row.record.born_host for row in rows],
    "store_host": lambda rows, _: [row.record.store_host for row in rows],
    "reconsume_times": lambda rows, _: [row.record.reconsume_times for row in rows],
    "flag": lambda rows, _: [row.record.flag for row in rows],
    "sys_flag": lambda rows, _: [row.record.sys_flag for row in rows],
}
