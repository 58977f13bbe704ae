"""The columns of a write, checked on the driver before any task runs.

| Column | Type | Meaning |
|---|---|---|
| `body` | string or binary | required; text is sent as UTF-8 |
| `topic` | string | required, unless the option of that name is set, which wins |
| `keys` | string (blanks separate) or array<string> | keys to find a message by |
| `tags` | string | the tag that consumers filter by |
| `properties` | map<string,string> | user properties; see `row_properties` |
| `queue_id` | int | the queue; with `broker_name` on this broker, else see `queue_choice` |
| `broker_name` | string | only together with `queue_id` |
| `sharding_key` | string | equal keys go to one queue, the one a Java producer chooses |
| `delay_time_ms` | long | milliseconds until delivery |
| `msg_id` | string | the unique id, only with dedup=column |

Any other column is an error, also the columns that only a read has: where rows go must not depend
on columns that were left in a DataFrame by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from downrange.errors import OptionError
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from downrange.spark.write.write_options import WriteOptions

#: Column -> the name of its type, for errors and casts.
_TYPES: Final = {
    "body": "binary",
    "topic": "string",
    "keys": "string",
    "tags": "string",
    "properties": "map<string,string>",
    "queue_id": "int",
    "broker_name": "string",
    "sharding_key": "string",
    "delay_time_ms": "long",
    "msg_id": "string",
}
WRITE_COLUMNS: Final = tuple(_TYPES)
#: Column of Spark's Kafka sink -> the column here.
_KAFKA_NAMES: Final = {
    "value": "'body'",
    "key": "'keys', to look messages up by, or 'sharding_key', to choose the queue",
    "partition": "'queue_id'",
    "headers": "'properties', a map<string,string>",
}
#: Columns that only a read has.
_READ_ONLY: Final = (
    *("offset", "born_timestamp", "store_timestamp", "born_host", "store_host"),
    *("reconsume_times", "flag", "sys_flag"),
)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Reject columns that cannot be written, before anything is sent.

    Raises:
        OptionError: Names the column and what to do.
    """
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in _TYPES:
            raise OptionError(_unknown(field.name, names))
        if names.count(field.name) > 1:
            raise OptionError(f"column {field.name!r} occurs twice; select it once")
        if not _is_right(field.name, field.dataType):
            raise OptionError(_wrong_type(field.name, field.dataType))
    if "body" not in names:
        raise OptionError(
            f"column 'body' is missing; the columns are: {', '.join(names) or 'none'}; add it, for "
            'example with df.select(to_json(struct("*")).alias("body"))'
        )
    if "topic" not in names and options.topic is None:
        raise OptionError("the topic is missing: set the option topic, or add a column 'topic'")
    if "broker_name" in names and "queue_id" not in names:
        raise OptionError(
            "column 'broker_name' needs column 'queue_id'; add it, or drop 'broker_name' to spread "
            "rows over all queues"
        )
    _check_ids(names, options)


def _check_ids(names: list[str], options: WriteOptions) -> None:
    if options.dedup == "column" and "msg_id" not in names:
        raise OptionError("dedup=column takes ids from the column 'msg_id', which is missing")
    if options.dedup != "column" and "msg_id" in names:
        raise OptionError(
            f"column 'msg_id' is given, but dedup={options.dedup} generates the ids; set "
            "dedup=column to use it, or drop it"
        )


def _is_right(name: str, kind: DataType) -> bool:
    match name:
        case "body":
            return isinstance(kind, StringType | BinaryType)
        case "keys":
            return isinstance(kind, StringType) or (
                isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)
            )
        case "properties":
            return (
                isinstance(kind, MapType)
                and isinstance(kind.keyType, StringType)
                and isinstance(kind.valueType, StringType)
            )
        case "queue_id" | "delay_time_ms":
            return isinstance(kind, IntegerType | LongType)
        case _:
            return isinstance(kind, StringType)


def _wrong_type(name: str, kind: DataType) -> str:
    found, expected = kind.simpleString(), _TYPES[name]
    if name == "body":
        return (
            f"column 'body' is {found}, not string or binary; convert it, for example with "
            'to_json(col("body")) for a struct or col("body").cast("string")'
        )
    also = " or array<string>" if name == "keys" else ""
    return (
        f"column {name!r} is {found}, not {expected}{also}; cast it, "
        f'col("{name}").cast("{expected}"), or drop it'
    )


def _unknown(name: str, names: list[str]) -> str:
    usable = ", ".join(f'"{one}"' for one in names if one in _TYPES and one != "msg_id")
    if name in _READ_ONLY:
        return (
            f"column {name!r} comes from a read and cannot be written; select the columns to send, "
            f"for example with df.select({usable}); with queue_id and broker_name rows go to the "
            "queues of these numbers, without them to any"
        )
    if name in _KAFKA_NAMES:
        return f"column {name!r} is called {_KAFKA_NAMES[name]} here; rename it with alias"
    meant = "".join(f"did you mean {known!r}? " for known in similar_names(name, _TYPES))
    return (
        f"column {name!r} cannot be written, only {', '.join(_TYPES)}; {meant}drop it, or put it "
        "into 'body' or 'properties'"
    )
