"""Rows of files as messages: the mapping of columns, and the check for rows that cannot be sent.

Every rule of the sink is checked here first, so that the error names the file of a bad row and its
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

#: The separators of properties, which no text may contain.
_MARKS: Final = "[\\x01\\x02]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """The columns that become the parts of a message.

    Attributes:
        body: The body; the whole row as JSON if None.
        keys: Keys.
        tags: The tag.
        properties: Property -> column.
        properties_column: A map of properties.
        sharding_key: Rows with equal values go to one queue.
        delay: The delay in milliseconds.
        id: The message id; derived from the row's position if None.
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
        """Reject columns that the files do not have.

        Raises:
            OptionError: Names the option, and suggests a similar column.
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
        mapped = [*named.items(), *(("keys", column) for column in self.keys)]
        for option, column in mapped:
            if column is not None and column not in columns:
                raise OptionError(
                    f"{option}: the files have no column {column!r}{hint(column, columns)}"
                )
        for name in self.properties:
            if name in RESERVED_PROPERTIES:
                raise OptionError(
                    f"property {name!r} is reserved by the protocol; use another name"
                )


def checked_rows(rows: DataFrame, mapping: RowMapping, columns: list[str]) -> DataFrame:
    """Return the columns of messages, and those that describe a bad row.

    These are `file`, `row`, `given` (the row as JSON) and `problem`, which is null in a good row.

    Args:
        rows: Rows with the position columns of `file_rows`.
        mapping: The mapping of columns.
        columns: The columns of the files.
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
    """Return the columns that the sink takes.

    Args:
        rows: Checked rows.
        fail: Whether a bad row is an error, with its file and number.
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
    """Return the problem of a row; null without one."""
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
    key_words = f"a key of {', '.join(mapping.keys)} contains a blank, which separates keys"
    rules = [
        (F.col("corrupt").isNotNull(), F.lit("it cannot be parsed")),
        (F.col("body").isNull(), F.lit(f"{name} is null, and a message needs a body")),
        (size == 0, F.lit(f"{name} is empty, and a message needs a body")),
        (
            size > BODY_BYTES_MAX,
            F.concat(F.lit(f"{name} has "), size.cast("string"), F.lit(" bytes, more than 4 MiB")),
        ),
        (F.exists("keys", lambda key: key.rlike(r"\s")), F.lit(key_words)),
        (texts.rlike(_MARKS), F.lit("a text contains byte 1 or 2, which separate properties")),
        (
            F.col("delay_text").isNotNull() & (delay.isNull() | (delay < 0)),
            F.concat(F.lit(f"column {mapping.delay!r} is not a delay: "), F.col("delay_text")),
        ),
        (
            F.col("msg_id").isNull() | ~F.col("msg_id").rlike(ID_PATTERN),
            F.lit(f"column {mapping.id!r} is not an id: 1 to 128 visible ASCII characters"),
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
    """Return a column as bytes: binary unchanged, anything else as text in UTF-8."""
    is_binary = rows.schema[name].dataType.simpleString() == "binary"
    return _col(name) if is_binary else _col(name).cast("string").cast("binary")


def _text(name: str | None) -> Column:
    """Return a column as text; null for blank."""
    from pyspark.sql import functions as F

    text = (F.lit(None) if name is None else _col(name)).cast("string")
    return F.when(F.trim(text) != "", text)


def _col(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(
        "`" + name.replace("`", "``") + "`"
    )  # so that a dot in a name does not select a struct field
