"""Drop the copies of messages that were sent more than once.

A producer without an answer sends again, and so does a repeated Spark task. The copies have the
same unique id. Brokers keep both, so the reader drops one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from downrange.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POSITION: Final = ("broker_name", "queue_id", "offset")
_TIME: Final = "store_timestamp"
_KEY: Final = "__downrange_key"
_RANK: Final = "__downrange_rank"


def drop_duplicates(
    df: DataFrame, *, by: str = "msg_id", watermark: str | None = "10 minutes"
) -> DataFrame:
    """Keep one of the messages with the same id, within each topic.

    A batch keeps the one with the lowest position (broker, queue, offset), so repeated reads agree.
    A stream keeps the first to arrive. It remembers ids only as long as the watermark, which must
    be longer than any retry takes. Rows without an id are all kept.

    Args:
        df: Rows of the data source with the columns `broker_name`, `queue_id` and `offset`, and in
            a stream `store_timestamp`.
        by: The column that is equal in copies: the id, or another key, such as `keys`.
        watermark: How late a copy may be, by store time; streams only. None if `df` already has a
            watermark on `store_timestamp`.

    Raises:
        OptionError: A column is missing.

    Example:
        ```python
        orders = drop_duplicates(spark.read.format("rocketmq").options(...).load())
        ```
    """
    needed = (by, *_POSITION, *((_TIME,) if df.isStreaming else ()))
    if missing := [name for name in needed if name not in df.columns]:
        raise OptionError(
            f"drop_duplicates needs the columns {', '.join(needed)}; {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: drop duplicates before selecting"
        )
    topic = ["topic"] if "topic" in df.columns else []
    # A row without an id is identified by its position.
    position = f.concat_ws("/", f.lit("at"), *(f.col(name) for name in (*topic, *_POSITION)))
    keyed = df.withColumn(_KEY, f.coalesce(f.col(by), position))
    if df.isStreaming:
        if watermark is not None:
            keyed = keyed.withWatermark(_TIME, watermark)
        return keyed.dropDuplicatesWithinWatermark([*topic, _KEY]).drop(_KEY)
    window = Window.partitionBy(*topic, _KEY).orderBy(*_POSITION)
    ranked = keyed.withColumn(_RANK, f.row_number().over(window))
    return ranked.where(f.col(_RANK) == 1).drop(_KEY, _RANK)
