"""Traces as a stream: records are appended to Parquet, and stateful tables are derived from them.

    topic ──> records (by kind) ──> send_windows
                              └───> consumptions ──> consumption_windows

The topic is read and decoded once, without state: no record is lost or written twice, however late
it is. The tables on the right read the files of those on the left, also exactly once, and keep
state as long as the watermark; later records are not in them. Watermarks use `time`, which a wrong
client clock cannot move ahead of the broker's.
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

#: The tables derived from the records, each after its source.
FOLLOWERS: Final = ("send_windows", "consumptions", "consumption_windows")
#: A file that Spark ignores, so that the folder exists.
_MARK: Final = "_table"


class TraceStream:
    """The streams from a trace topic to files.

    Args:
        traces: The trace topic as a stream, with the data source's columns.
        folder: Parent of the tables, one folder each.
        checkpoint: Parent of the checkpoints, one folder each.
        window: The length of a window.
        late: How late a record may be and still count in a window.
        handling: How long after its begin the end of a consumption may come.
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
        """Return the stream of records, without checkpoint and trigger."""
        return (
            decode_records(self._traces)
            .writeStream.format("parquet")
            .queryName("downrange trace records")
            .partitionBy("kind")
            .option("path", f"{self._folder}/records")
        )

    def checkpoint_of(self, table: str) -> str:
        """Return the checkpoint of a table."""
        return f"{self._checkpoint}/{table}"

    def follower(self, table: str) -> DataStreamWriter:
        """Return the stream of a derived table, without checkpoint and trigger.

        Start it only after the first batch of its source: Spark reads the source's list of files,
        and without one takes every file in the folder.
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
        # Before the first row there may be no folder, and Spark would fail instead of waiting.
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
    """Append the records of a stream, and the tables derived from them, to Parquet.

    Args:
        traces: The trace topic as a stream, with the data source's columns.
        folder: Parent of the tables, one folder each.
        checkpoint: Parent of the checkpoints; the same in every run.
        window: The length of a window.
        late: How late a record may be and still count in a window.
        handling: How long after its begin the end of a consumption may come.
        once: Whether to end after the messages that exist at the start.
        within: Seconds that a table may take with `once`, or its first batch without.

    Returns:
        The running queries; none with `once`.

    Raises:
        TimeoutError: A table took longer than `within`.
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
    """Yield the tables in the order in which they can start."""
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
    """Wait for the end of the first batch, which always runs and writes the list of files."""
    deadline = time.monotonic() + within
    while query.lastProgress is None:
        if not query.isActive:
            raise query.exception() or RocketMQError(f"the stream of {table} ended unexpectedly")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stream of {table} had no batch after {within} s")
        time.sleep(0.1)
