"""Rows of files as messages: which column is what, and which rows cannot be sent.

Every rule of the sink is looked at here first, so that a bad row is named by its file and its
number there, which the sink does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from downrange.client.flows.validation import RESERVED_PROPERTIES
from downrange.errors import OptionError
from downrange.options.hints import hint
from downrange.pipelines.file_rows import CORRUPT, PLACE_COLUMNS
from downrange.pipelines.topic_copy import place_id
from downrange.spark.write.write_options import ID_PATTERN
from downrange.wire.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The marks of the protocol, which no text may hold.
_MARKS: Final = "[\\x01\\x02]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """Which column is what.

    Attributes:
        body: The body; the whole row as JSON if None.
        keys: Keys.
        tags: The tag.
        properties: Property -> column.
        properties_column: A map of properties.
        sharding_key: Equal values meet in one queue.
        delay: Milliseconds.
        id: The message id; made of the row's place if None.
    """

    body: str | None = None
    keys: tuple[str, ...] = ()
    tags: str | None = None
    properties: dict[str, str] = field(default_factory=dict[str, str])
    properties_column: str | None = None
    sharding_key: str | None = None
    delay: str | None = None
    id: str | None = None

    def check(self, columns: list[str]) -> None:
        """Refuse columns that the files do not have.

        Raises:
            OptionError: Names the option, and what may have been meant.
        """
        named = {
            "body": self.body,
            "tags": self.tags,
            "properties_column": self.properties_column,
            "sharding_key": self.sharding_key,
            "delay": self.delay,
            "id": self.id,
            **{f"property {name}": column for name, column in self.properties.items()},
            **dict.fromkeys((f"keys {column}" for column in self.keys), None),
        }
        wanted = [*named.items(), *(("keys", column) for column in self.keys)]
        for option, column in wanted:
            if column is not None and column not in columns:
                raise OptionError(
                    f"{option}: the files have no column {column!r}{hint(column, columns)}"
                )
        for name in self.properties:
            if name in RESERVED_PROPERTIES:
                raise OptionError(f"property {name!r} belongs to the protocol; choose another name")


def checked_rows(rows: DataFrame, mapping: RowMapping, columns: list[str]) -> DataFrame:
    """Return the columns of messages, and those that tell a bad row.

    These are `file`, `row`, `given` (the row as JSON) and `problem`, null where a row is good.

    Args:
        rows: With the columns of `reading`.
        mapping: Which column is what.
        columns: The files' own columns.
    """
    from pyspark.sql import functions as F

    whole = F.to_json(F.struct(*(_col(name) for name in columns)), {"ignoreNullFields": "false"})
    body = whole.cast("binary") if mapping.body is None else _bytes(rows, mapping.body)
    keys = F.array_compact(F.array(*(_text(name) for name in mapping.keys)))
    known = rows.select(
        F.col("_file").alias("file"),
        _row_text().alias("row"),
        (F.col(CORRUPT) if CORRUPT in rows.columns else F.lit(None))
        .cast("string")
        .alias("corrupt"),
        whole.alias("given"),
        body.alias("body"),
        (keys if mapping.keys else F.lit(None)).cast("array<string>").alias("keys"),
        _text(mapping.tags).alias("tags"),
        _properties(mapping).alias("properties"),
        _text(mapping.sharding_key).alias("sharding_key"),
        _text(mapping.delay).alias("delay_text"),
        (place_id(*PLACE_COLUMNS, label="load") if mapping.id is None else _text(mapping.id)).alias(
            "msg_id"
        ),
    )
    given = F.coalesce("corrupt", "given")
    delay = F.col("delay_text").try_cast("bigint")
    return known.select(
        "file",
        "row",
        given.alias("given"),
        _problem(mapping).alias("problem"),
        "body",
        "keys",
        "tags",
        "properties",
        "sharding_key",
        delay.alias("delay_time_ms"),
        "msg_id",
    )


def sent_columns(rows: DataFrame, *, fail: bool) -> DataFrame:
    """Return what the sink takes.

    Args:
        rows: Checked ones.
        fail: Whether a bad row ends everything, with its file and number.
    """
    from pyspark.sql import functions as F

    body: Column = F.col("body")
    if fail:
        place = F.concat(F.col("file"), F.lit(", row "), F.col("row"), F.lit(": "))
        failure = F.raise_error(F.concat(place, F.col("problem")))
        body = F.when(F.col("problem").isNotNull(), failure.cast("binary")).otherwise(body)
    more = ("keys", "tags", "properties", "sharding_key", "delay_time_ms", "msg_id")
    return rows.select(body.alias("body"), *more)


def _problem(mapping: RowMapping) -> Column:
    """Return what is wrong with a row, null if nothing is."""
    from pyspark.sql import functions as F

    size = F.octet_length("body")
    delay = F.col("delay_text").try_cast("bigint")
    texts = F.concat_ws(
        "",
        F.array_join("keys", ""),
        "tags",
        "sharding_key",
        F.map_keys("properties"),
        F.map_values("properties"),
    )
    name = "the row" if mapping.body is None else f"column {mapping.body!r}"
    key_words = f"a key of {', '.join(mapping.keys)} holds a blank, which separates keys"
    rules = [
        (F.col("corrupt").isNotNull(), F.lit("it cannot be read")),
        (F.col("body").isNull(), F.lit(f"{name} is null, and a message needs a body")),
        (size == 0, F.lit(f"{name} is empty, and a message needs a body")),
        (
            size > BODY_BYTES_MAX,
            F.concat(F.lit(f"{name} has "), size.cast("string"), F.lit(" bytes, more than 4 MiB")),
        ),
        (F.exists("keys", lambda key: key.rlike(r"\s")), F.lit(key_words)),
        (texts.rlike(_MARKS), F.lit("a text holds one of the bytes 1 and 2, which separate")),
        (
            F.col("delay_text").isNotNull() & (delay.isNull() | (delay < 0)),
            F.concat(F.lit(f"column {mapping.delay!r} is no delay: "), F.col("delay_text")),
        ),
        (
            F.col("msg_id").isNull() | ~F.col("msg_id").rlike(ID_PATTERN),
            F.lit(f"column {mapping.id!r} is no id: 1 to 128 visible ASCII characters"),
        ),
    ]
    problem = F.lit(None).cast("string")
    for is_so, words in reversed(rules):
        problem = F.when(is_so, words).otherwise(problem)
    return problem


def _properties(mapping: RowMapping) -> Column:
    from pyspark.sql import functions as F

    pairs = [
        part for name, column in mapping.properties.items() for part in (F.lit(name), _text(column))
    ]
    empty = F.create_map().cast("map<string,string>")
    named = F.create_map(*pairs) if pairs else empty
    column = mapping.properties_column
    if column is not None:
        given = F.coalesce(_col(column).cast("map<string,string>"), empty)
        own = F.map_filter(given, lambda name, _: ~name.isin(*mapping.properties or [""]))
        named = F.map_concat(own, named)
    return F.map_filter(named, lambda name, value: F.trim(value) != "")


def _row_text() -> Column:
    from pyspark.sql import functions as F

    row = F.col("_row").cast("string")
    late = F.concat(row, F.lit(" after byte "), F.col("_block").cast("string"))
    return F.when(F.col("_block") > 0, late).otherwise(row)


def _bytes(rows: DataFrame, name: str) -> Column:
    """Return a column as bytes: binary as it is, anything else as text in UTF-8."""
    is_binary = rows.schema[name].dataType.simpleString() == "binary"
    return _col(name) if is_binary else _col(name).cast("string").cast("binary")


def _text(name: str | None) -> Column:
    """Return a column as text; blank is null."""
    from pyspark.sql import functions as F

    text = (F.lit(None) if name is None else _col(name)).cast("string")
    return F.when(F.trim(text) != "", text)


def _col(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")  # a dot in a name is no member
