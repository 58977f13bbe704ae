"""Bodies of trace messages as rows: one for each message that a trace record names.

The record of a batch names all of its messages and becomes a row for each. A line that cannot be
decoded becomes a row of kind `unknown`, so that it can be counted. A row has two times.
`client_time` is the time of the client's clock, for differences. `time` is the same, unless it is
later than the broker's store time or long before; then it is the broker's. So a clock that is years
ahead does not move windows and watermarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from downrange.client.flows.hooks import MessageType
from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    UnknownTrace,
    decode_trace,
)
from downrange.errors import MalformedId, OptionError
from downrange.wire.ids import parse_offset_id
from downrange.wire.limits import INT32_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from downrange.client.flows.producing.trace_records import KnownTrace, TraceRecord

    Array = Any  # PyArrow ships no type information
else:
    Array = pa.Array  # Spark reads the annotations of the function that it calls

_TIME: Final = pa.timestamp("us", tz="UTC")
#: Column -> its type in Arrow and in Spark.
_COLUMNS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "kind": (pa.string(), "string"),
    "record_id": (pa.string(), "string"),
    "time": (_TIME, "timestamp"),
    "client_time": (_TIME, "timestamp"),
    "store_time": (_TIME, "timestamp"),
    "client": (pa.string(), "string"),
    "region": (pa.string(), "string"),
    "group_name": (pa.string(), "string"),
    "topic": (pa.string(), "string"),
    "message_id": (pa.string(), "string"),
    "tags": (pa.string(), "string"),
    "keys": (pa.string(), "string"),
    "address": (pa.string(), "string"),
    "body_bytes": (pa.int64(), "bigint"),
    "cost_ms": (pa.int64(), "bigint"),
    "message_kind": (pa.string(), "string"),
    "offset_id": (pa.string(), "string"),
    "is_success": (pa.bool_(), "boolean"),
    "batch_index": (pa.int32(), "int"),
    "batch_count": (pa.int32(), "int"),
    "delivery_id": (pa.string(), "string"),
    "retry_count": (pa.int32(), "int"),
    "result": (pa.int32(), "int"),
    "transaction_id": (pa.string(), "string"),
    "state": (pa.string(), "string"),
    "is_from_check": (pa.bool_(), "boolean"),
    "line": (pa.string(), "string"),
    "trace_broker": (pa.string(), "string"),
    "trace_host": (pa.string(), "string"),
}
_FIELDS: Final = [pa.field(name, types[0]) for name, types in _COLUMNS.items()]
_ROWS_TYPE: Final = f"array<struct<{','.join(f'{n}:{types[1]}' for n, types in _COLUMNS.items())}>>"
#: The columns of the records, to read them from files.
RECORD_SCHEMA: Final = ", ".join(f"{name} {types[1]}" for name, types in _COLUMNS.items())

#: Columns that are read of a trace message -> type, and whether the column is required.
_READ: Final = {
    "body": ("binary", True),
    "msg_id": ("string", True),
    "store_timestamp": ("timestamp", False),
    "born_host": ("string", False),
    "broker_name": ("string", False),
    "store_host": ("string", False),
}
_KIND_NAMES: Final = {int(kind): kind.name.lower() for kind in MessageType}
#: The end of the year 9998, so that times some days later still fit Python's calendar.
_TIME_MS_MAX: Final = 253_370_764_799_999
#: Traces are sent after some seconds; an older client time counts as wrong.
_AGE_MS_MAX: Final = 3_600_000
_LINE_CHARS_MAX: Final = 500


def decode_records(traces: DataFrame) -> DataFrame:
    """Return a row for each message of each record in the bodies of trace messages.

    In a batch, a trace message that is stored twice, because its producer sent it again, counts
    once; a stream cannot remember all ids.

    Args:
        traces: Rows of the trace topic with the columns of the `rocketmq` source: `body` and
            `msg_id`; optionally `store_timestamp` for windows, `born_host` for clients, and
            `broker_name` with `store_host` for the names of brokers.

    Raises:
        OptionError: A required column is missing.
    """
    columns: list[Any] = []
    for name, (kind, is_needed) in _READ.items():
        if name in traces.columns:
            columns.append(F.col(name).cast(kind).alias(name))
        elif is_needed:
            raise OptionError(
                f"traces have no column {name!r}; give rows of the trace topic as the data source "
                "reads them, or with at least the columns body and msg_id"
            )
        else:
            columns.append(F.lit(None).cast(kind).alias(name))
    # Not mapInArrow, which requires pandas without using it.
    make: Any = arrow_udf  # its annotations require arguments that it can infer
    decode = make(_decode_arrays, _ROWS_TYPE)
    chosen = traces.select(*columns)
    if not traces.isStreaming:
        chosen = chosen.dropDuplicates(["msg_id"])
    return chosen.select(F.inline(decode(*_READ)))


def _decode_arrays(
    body: Array,
    msg_id: Array,
    store_timestamp: Array,
    born_host: Array,
    broker_name: Array,
    store_host: Array,
) -> Array:
    """Return the list of rows of each trace message; Arrow in, Arrow out."""
    columns: list[list[Any]] = [[] for _ in _COLUMNS]
    ends = [0]
    stored = store_timestamp.cast(_TIME).cast(pa.int64())
    for trace, trace_id, stored_us, *hosts in zip(
        body.to_pylist(),
        msg_id.to_pylist(),
        stored.to_pylist(),
        born_host.to_pylist(),
        broker_name.to_pylist(),
        store_host.to_pylist(),
        strict=True,
    ):
        for index, record in enumerate(decode_trace(trace or b"")):
            for row in _rows_of(record, f"{trace_id}/{index}", stored_us, *hosts):
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
        ends.append(len(columns[0]))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _FIELDS, strict=True)]
    rows = pa.StructArray.from_arrays(arrays, fields=_FIELDS)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), rows)


def _rows_of(
    record: TraceRecord,
    record_id: str,
    stored_us: int | None,
    born_host: str | None,
    broker_name: str | None,
    store_host: str | None,
) -> list[list[Any]]:
    """Return the rows of one record, in the order of the columns."""
    values: dict[str, Any] | None = None
    if not isinstance(record, UnknownTrace):
        values = _columns_of(record, record_id)
    if values is None:
        fields = record.fields if isinstance(record, UnknownTrace) else [repr(record)]
        values = dict[str, Any](kind="unknown", line=" | ".join(fields)[:_LINE_CHARS_MAX])
    time_ms = values.pop("time_ms", None)
    values["client_time"] = None if time_ms is None else time_ms * 1000
    values["time"] = _plausible_time(values["client_time"], stored_us)
    values["store_time"] = stored_us
    values["client"] = _host_of(values.get("client") or born_host)
    values["trace_broker"], values["trace_host"] = broker_name, store_host
    ids = _split(values.get("message_id"))
    offset_ids = _split(values.get("offset_id"))
    rows: list[list[Any]] = []
    for index, message_id in enumerate(ids):
        values["record_id"] = f"{record_id}/{index}"
        values["message_id"] = message_id
        values["offset_id"] = offset_ids[index] if len(offset_ids) == len(ids) else offset_ids[0]
        values["batch_index"], values["batch_count"] = index, len(ids)
        rows.append([values.get(name) for name in _COLUMNS])
    return rows


def _columns_of(record: KnownTrace, record_id: str) -> dict[str, Any] | None:
    """Return the columns that a record contains; None if its numbers are impossible."""
    values: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    match record:
        case PubTrace():
            numbers = {"body_bytes": record.body_bytes, "cost_ms": record.cost_ms}
            values = {
                "kind": "send",
                "address": record.address or _address_of(record.offset_id),
                "message_kind": _kind_name(record.message_type),
                "offset_id": record.offset_id,
                "is_success": record.is_success,
                "client": record.client_host,
            }
        case SubBeforeTrace():
            numbers = {"retry_count": record.retry_count}
            values = {"kind": "before"}
        case SubAfterTrace():
            numbers = {"cost_ms": record.cost_ms, "result": record.result}
            values = {"kind": "after", "is_success": record.is_success}
        case EndTransactionTrace():
            values = {
                "kind": "transaction",
                "address": record.address,
                "message_kind": _kind_name(record.message_type),
                "transaction_id": record.transaction_id,
                "state": record.state,
                "is_from_check": record.is_from_check,
            }
        case RecallTrace():
            values = {"kind": "recall", "is_success": record.is_success}
    time_ms = record.time_ms
    if time_ms is not None and not 0 <= time_ms <= _TIME_MS_MAX:
        return None
    for name, number in numbers.items():
        if not -INT32_MAX <= number <= INT32_MAX:  # all of them are an int in Java
            return None
        # The clock was set back in the meantime, so the duration is unknown.
        values[name] = None if name == "cost_ms" and number < 0 else number
    if isinstance(record, SubBeforeTrace | SubAfterTrace):
        is_whole = record.request_id and record.message_id
        values["delivery_id"] = (
            f"{record.request_id}/{record.message_id}" if is_whole else record_id
        )
    # Not every kind has all of these fields.
    for name in ("topic", "region", "tags", "keys"):
        values[name] = getattr(record, name, None)
    return values | {
        "time_ms": time_ms,
        "group_name": record.group,
        "message_id": record.message_id,
    }


def _plausible_time(client_us: int | None, stored_us: int | None) -> int | None:
    if client_us is None or stored_us is None:
        return stored_us if client_us is None else client_us
    return client_us if stored_us - _AGE_MS_MAX * 1000 <= client_us <= stored_us else stored_us


def _split(ids: str | None) -> list[str | None]:
    """Return the ids of a batch or of one message; a single None if there is none."""
    return [text for text in (ids or "").split(",") if text] or [None]


def _kind_name(number: int) -> str:
    return _KIND_NAMES.get(number, "other")


def _host_of(address: str | None) -> str | None:
    """Return an address without its port, which changes with each connection."""
    if not address:
        return None
    host, colon, port = address.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() and host else address


def _address_of(offset_id: str | None) -> str | None:
    """Return the broker's address from an offset id, for records without the address."""
    first = _split(offset_id)[0]
    if first is None:
        return None
    try:
        parts = parse_offset_id(first)
    except MalformedId:
        return None
    return f"{parts.host}:{parts.port}"
