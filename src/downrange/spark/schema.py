"""The columns of the data source in Spark and in Arrow, and the check of a user's schema.

A schema that the user gives is a projection: any of the columns, in any order, with the same types.
Other columns are not decoded. A Python source has no other way to prune columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Types of PyArrow, which ships no type information.
RecordBatch: TypeAlias = Any
ArrowSchema: TypeAlias = Any

#: The first and last millisecond that a timestamp can hold: years 1 to 9999.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
#: As Spark maps MapType to Arrow: values may be null, keys may not.
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())

#: Column -> its type in Spark and in Arrow; every read has these.
_PLAIN: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "topic": (StringType(), pa.string()),
    "broker_name": (StringType(), pa.string()),
    "queue_id": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "msg_id": (StringType(), pa.string()),
    "keys": (StringType(), pa.string()),
    "tags": (StringType(), pa.string()),
    "body": (BinaryType(), pa.binary()),
    "properties": (MapType(StringType(), StringType()), _PROPERTIES),
    "born_timestamp": (TimestampType(), _TIMESTAMP),
    "store_timestamp": (TimestampType(), _TIMESTAMP),
}
#: Columns that `includeMetadata` adds.
_METADATA: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "born_host": (StringType(), pa.string()),
    "store_host": (StringType(), pa.string()),
    "reconsume_times": (IntegerType(), pa.int32()),
    "flag": (IntegerType(), pa.int32()),
    "sys_flag": (IntegerType(), pa.int32()),
}
_ALL: Final = _PLAIN | _METADATA
COLUMNS: Final = tuple(_PLAIN)
METADATA_COLUMNS: Final = tuple(_METADATA)


def spark_schema(*, include_metadata: bool) -> StructType:
    """Return the schema of a read for which the user gives none."""
    columns = _ALL if include_metadata else _PLAIN
    return StructType([StructField(name, types[0]) for name, types in columns.items()])


def arrow_schema(columns: Iterable[str]) -> ArrowSchema:
    """Return the Arrow schema of these columns; all are nullable, as in Spark's schema."""
    return pa.schema([pa.field(name, _ALL[name][1]) for name in columns])


def check_projection(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema chooses.

    Raises:
        OptionError: It has no column, an unknown column, a column twice, or a wrong type.
    """
    if not schema.fields:
        raise OptionError(f"the schema has no column; choose some of {', '.join(_ALL)}")
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in _ALL:
            raise OptionError(
                f"the source has no column {field.name!r}, only {', '.join(_ALL)}; a schema "
                "chooses columns; parse the body after reading"
            )
        expected = _ALL[field.name][0]
        if field.dataType.simpleString() != expected.simpleString():
            raise OptionError(
                f"column {field.name!r} is {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after reading"
            )
        if not field.nullable or field.dataType != expected:
            raise OptionError(f"column {field.name!r} and its values must be nullable")
        if names.count(field.name) > 1:
            raise OptionError(f"column {field.name!r} occurs twice")
    return tuple(names)
