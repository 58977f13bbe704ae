"""Traces as a stream: records are appended to Parquet, and tables that need some memory follow.

    topic ──> records (by kind) ──> send_windows
                              └───> consumptions ──> consumption_windows

The topic is read and decoded once, without state: no record is lost or written twice, however late
it is. The tables to the right read the files of those to the left, again exactly once, and keep
state for as long as the watermark says; what comes later than that is not in them. Watermarks go by
`time`, which no client's clock can push ahead of the broker's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from downrange.errors import RocketMQError
from downrange.pipelines.folders import folder_of
from downrange.pipelines.trace.measures import measure_deliveries, measure_sends
from downrange.pipelines.trace.records import RECORD_SCHEMA, decode_records
from downrange.pipelines.trace.tables import (
    afters_of,
    befores_of,
    pair_consumptions,
    sends_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

#: The tables that follow the records, each after what it reads.
FOLLOWERS: Final = ("send_windows", "consumptions", "consumption_windows")
#: A file that Spark does not look at, so that there is a folder.
_MARK: Final = "_table"


class TraceStream:
    """The streams from a trace topic to files.

    Args:
        traces: The trace topic as a stream, with the data source's columns.
        folder: Where the tables go, one folder each.
        checkpoint: Where the streams keep their places, one folder each.
        window: How long a window is.
        late: How late a record may be and still be counted in a window.
        handling: How long after its begin the end of a consumption is waited for.
    """

    def __init__(
        self,
        traces: DataFrame,
        folder: str | Path,
        *,
        checkpoint: str | Path,
        window: str = "1 minute",
        late: str = "10 minutes",
        handling: str = "1 hour",
    ) -> None:
        self._traces = traces
        self._spark: SparkSession = traces.sparkSession
        self._folder = str(folder)
        self._checkpoint = str(checkpoint)
        self._window = window
        self._late = late
        self._handling = handling

    def records(self) -> DataStreamWriter:
        """Return the stream of records, but for checkpoint and trigger."""
        return (
            decode_records(self._traces)
            .writeStream.format("parquet")
            .queryName("downrange trace records")
            .partitionBy("kind")
            .option("path", f"{self._folder}/records")
        )

    def checkpoint_of(self, table: str) -> str:
        """Return where the stream of a table keeps its place."""
        return f"{self._checkpoint}/{table}"

    def follower(self, table: str) -> DataStreamWriter:
        """Return the stream of a table that follows, but for checkpoint and trigger.

        Start it only when its source has been started once: Spark looks for the list of files that
        a stream has finished, and takes all that it sees where there is none yet.
        """
        match table:
            case "send_windows":
                rows = self._send_windows()
            case "consumptions":
                rows = self._consumptions()
            case "consumption_windows":
                rows = self._consumption_windows()
            case _:
                raise ValueError(table)
        return (
            rows.writeStream.format("parquet")
            .queryName(f"downrange trace {table}")
            .outputMode("append")
            .option("path", f"{self._folder}/{table}")
        )

    def _send_windows(self) -> DataFrame:
        sends = sends_of(self._files("records", RECORD_SCHEMA)).withWatermark("time", self._late)
        window = F.window("time", self._window).alias("window")
        return measure_sends(
            sends.withColumnRenamed("address", "broker"),
            [window, "topic", "broker"],
            with_retries=False,
        )

    def _consumptions(self) -> DataFrame:
        records = self._files("records", RECORD_SCHEMA)
        befores = befores_of(records).withWatermark("begin_time", self._late)
        afters = afters_of(records).withWatermark("end_time", self._late)
        began, ended = F.col("begin_time"), F.col("end_time")
        within = (ended >= began - F.expr(f"INTERVAL {self._late}")) & (
            ended <= began + F.expr(f"INTERVAL {self._handling}")
        )
        return pair_consumptions(
            befores.dropDuplicatesWithinWatermark(["delivery_id"]),
            afters.dropDuplicatesWithinWatermark(["delivery_id"]),
            within,
        )

    def _consumption_windows(self) -> DataFrame:
        empty = self._spark.createDataFrame([], RECORD_SCHEMA)
        schema = pair_consumptions(befores_of(empty), afters_of(empty)).schema
        rows = self._files("consumptions", schema)
        window = F.window("time", self._window).alias("window")
        return measure_deliveries(
            rows.withWatermark("time", self._late), [window, "consumer_group"]
        )

    def _files(self, table: str, schema: str | StructType) -> DataFrame:
        folder = f"{self._folder}/{table}"
        # Without a row so far there may be no folder, which Spark would not wait for.
        folder_of(folder, self._spark).write(_MARK, "")
        return self._spark.readStream.schema(schema).parquet(folder)


def stream_tables(
    traces: DataFrame,
    folder: str | Path,
    *,
    checkpoint: str | Path,
    window: str = "1 minute",
    late: str = "10 minutes",
    handling: str = "1 hour",
    once: bool = False,
    within: int = 600,
) -> list[StreamingQuery]:
    """Append the records of a stream, and the tables that follow them, to Parquet.

    Args:
        traces: The trace topic as a stream, with the data source's columns.
        folder: Where the tables go, one folder each.
        checkpoint: Where the streams keep their places; the same in every run.
        window: How long a window is.
        late: How late a record may be and still be counted in a window.
        handling: How long after its begin the end of a consumption is waited for.
        once: Whether to end when all is done that was there at the start.
        within: Seconds that a table may take with `once`, or its first batch without.

    Returns:
        The queries that run on; none with `once`.

    Raises:
        TimeoutError: It took longer than `within`.
    """
    stream = TraceStream(
        traces, folder, checkpoint=checkpoint, window=window, late=late, handling=handling
    )
    running: list[StreamingQuery] = []
    try:
        for table, writer in _writers(stream):
            located = writer.option("checkpointLocation", stream.checkpoint_of(table))
            if once:
                _finish(located.trigger(availableNow=True).start(), table, within)
            else:
                running.append(located.start())
                _await_first_batch(running[-1], table, within)
    except BaseException:
        for query in running:
            query.stop()
        raise
    return running


def _writers(stream: TraceStream) -> Iterator[tuple[str, DataStreamWriter]]:
    """Return the tables in the order in which they can be started."""
    yield "records", stream.records()
    for table in FOLLOWERS:
        yield table, stream.follower(table)


def _finish(query: StreamingQuery, table: str, within: int) -> None:
    try:
        if not query.awaitTermination(within):
            raise TimeoutError(f"the stream of {table} was not done after {within} s")
    finally:
        query.stop()


def _await_first_batch(query: StreamingQuery, table: str, within: int) -> None:
    """Wait until the first batch is done, which always runs: then there is a list of files."""
    deadline = time.monotonic() + within
    while query.lastProgress is None:
        if not query.isActive:
            raise query.exception() or RocketMQError(f"the stream of {table} ended by itself")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stream of {table} had no batch after {within} s")
        time.sleep(0.1)
