"""The command `pipeline trace`: a trace topic to tables, measures and a report.

    out/sends …          tables, see `TraceTables`
    out/measures/…       measures, see `TraceMeasures`
    out/report.html      the report
    out/stream/…         with `stream`: appended records and tables, see `TraceStream`

A batch reads a time range and writes all files again. A stream continues at its checkpoint, and
when it ends makes tables and report of everything that it has appended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.batch_run import run_batch
from downrange.pipelines.cluster_check import check_sources
from downrange.pipelines.folders import absolute, claim_output, folder_of, local_path, lock_folder
from downrange.pipelines.options import RunOptions, SourceOptions, time_ms
from downrange.pipelines.stream_run import (
    own_session,
    run_stream,
    take_checkpoint,
    translate_errors,
)
from downrange.pipelines.summary import Progress, Summary
from downrange.wire.system_names import TRACE_TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from downrange.pipelines.stream_run import Show, StopRequest
    from downrange.pipelines.summary import Ended
    from downrange.pipelines.trace.trace_stream import TraceStream

_SETTINGS: Final = {
    # Every Parquet reader supports this type; Spark's default INT96 is deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A table of a few rows is one file and one task, instead of one for each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # A stateful stream that is stopped within its first batch leaves a partial file, and Spark
    # would not start it again. The owner of the checkpoint is checked by `claim_checkpoint`.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
_FOLLOW_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions(SourceOptions):
    """Which traces are read, and where the tables and the report go.

    Attributes:
        output: The folder, local or on any file system of Spark.
        trace_topic: The topic of the traces.
        topics: Business topics. They add the queues, which traces do not contain, and messages that
            were sent without a trace.
        from_time: Only events at this time or later; ISO 8601 with its zone, or ms.
        to_time: Only events before this time; for batches.
        settle: Seconds after `to_time` in which consumptions still count.
        stream: Whether to follow the topic and append, instead of one batch.
        window: Seconds of a window.
        late: Seconds that a trace may be late in a stream and still count in its window.
        handling: Seconds that a stream waits for the end of a consumption.
        report: The HTML file; `report.html` in the output if None.
        title: The title of the report.
    """

    output: str = field(metadata=flag("Folder of the tables.", metavar="DIR"))
    trace_topic: str = field(
        default=TRACE_TOPIC, metadata=flag("Topic of the traces.", metavar="TOPIC")
    )
    topics: tuple[str, ...] = field(
        default=(),
        metadata=flag("Business topic to read, too; repeatable.", metavar="TOPIC", name="topic"),
    )
    from_time: str | None = field(
        default=None,
        metadata=flag("Events at this time or later.", metavar="TIME", name="from"),
    )
    to_time: str | None = field(
        default=None, metadata=flag("Events before this time.", metavar="TIME", name="to")
    )
    settle: float = field(
        default=3600.0,
        metadata=flag("How long after --to consumptions still count.", metavar="SECONDS"),
    )
    stream: bool = field(
        default=False, metadata=flag("Follow the topic and append, instead of one batch.")
    )
    window: float = field(default=60.0, metadata=flag("Length of windows.", metavar="SECONDS"))
    late: float = field(
        default=600.0,
        metadata=flag("How late a trace may be in a stream.", metavar="SECONDS"),
    )
    handling: float = field(
        default=3600.0,
        metadata=flag("How long a stream waits for a consumption's end.", metavar="SECONDS"),
    )
    report: str | None = field(
        default=None, metadata=flag("The report; report.html in the output.", metavar="FILE")
    )
    title: str = field(
        default="Message traces", metadata=flag("Title of the report.", metavar="TEXT")
    )

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise OptionError(f"from_time {self.from_time} is not before to_time {self.to_time}")
        if self.stream and self.to_time is not None:
            raise OptionError("to_time is for batches; leave to_time or stream out")
        if not self.stream and (self.run.every is not None or self.run.checkpoint is not None):
            raise OptionError("every and checkpoint are for a stream; turn stream on")
        if self.trace_topic in self.topics:
            raise OptionError(f"{self.trace_topic!r} cannot be a business topic, too")
        for name in ("window", "late", "handling"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} = {getattr(self, name):g} is less than a second")
        if self.settle < 0:
            raise OptionError(f"settle = {self.settle:g} is negative")
        SourceOptions.__post_init__(self)
        if self.report is None and local_path(absolute(self.output)) is None:
            raise OptionError(
                f"output {self.output} is not on this machine; give report, a path for the HTML"
            )

    @property
    def begin(self) -> datetime | None:
        """The start of the time range; inclusive."""
        return None if self.from_time is None else _time_of("from_time", self.from_time)

    @property
    def end(self) -> datetime | None:
        """The end of the time range; exclusive."""
        return None if self.to_time is None else _time_of("to_time", self.to_time)

    def page(self) -> Path:
        """Return the path of the report."""
        path = local_path(self.report or f"{absolute(self.output)}/report.html")
        if path is None:
            raise OptionError(f"report {self.report} is not on this machine")
        return path

    def source_options(self, *topics: str) -> dict[str, str]:
        """Return these as options of the `rocketmq` source, for some topics."""
        options = self.read_options(topics) | {"includeMetadata": "true"}
        # A trace is stored after the event that it describes.
        if self.begin is not None:
            options["startingTimestamp"] = str(_ms(self.begin))
        else:
            options["startingOffsets"] = "earliest"
        if self.end is not None:
            options["endingTimestamp"] = str(_ms(self.end) + round(self.settle * 1000))
        return options | self.read


def run_trace(
    options: TraceOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Make tables and a report of traces.

    Args:
        options: Which traces, and where to.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop; SIGINT and SIGTERM set it, too.

    Returns:
        The summary. `rows` is the number of traced messages, in a stream those of this run; the
        facts are the path of the report and counts of its content.

    Raises:
        OptionError: An option is invalid, or output or checkpoint belong to another job.
        FolderBusy: Another process uses the output.
        PipelineFailed: Spark ended with an error.
    """
    output = absolute(options.output)
    started = time.monotonic()
    if spark is None:
        default = f"{output}/_downrange/checkpoint"
        check_sources(
            options.cluster,
            (options.trace_topic, *options.topics),
            checkpoint=(options.run.checkpoint or default) if options.stream else None,
        )
    with (
        own_session("trace", spark, options.spark, _SETTINGS) as session,
        lock_folder(local_path(output), "the trace pipeline"),
        translate_errors(),
    ):
        if options.stream:
            return _run_stream(session, options, output, show, stop)
        facts, ended = run_batch(
            session,
            lambda: make_report(session, options, output, _traces(session, options)),
            show=show,
            stop=stop,
        )
    return _summary(ended, facts or {}, started)


def make_report(
    spark: SparkSession, options: TraceOptions, output: str, records: DataFrame
) -> dict[str, Any]:
    """Write tables, measures and report of records; replace existing ones.

    Args:
        spark: Reads business topics.
        options: Topics and time range.
        output: The folder.
        records: The result of `decode_records`.

    Returns:
        The path of the report, and counts of its content.
    """
    from downrange.pipelines.trace.figures import collect_figures
    from downrange.pipelines.trace.measures import trace_measures
    from downrange.pipelines.trace.report import render, write_page
    from downrange.pipelines.trace.table_files import write_measures, write_tables
    from downrange.pipelines.trace.tables import tables_of_records

    business: DataFrame | None = None
    if options.topics:
        source = options.source_options(*options.topics)
        business = spark.read.format("downrange").options(**source).load()
    found = tables_of_records(records, business, begin=options.begin, end=options.end)
    tables = write_tables(found, output)
    measures = write_measures(trace_measures(tables, window=_span(options.window)), output)
    figures = collect_figures(tables, measures)
    page = write_page(render(figures, title=options.title), options.page())
    totals = figures.totals
    return {
        "output": output,
        "report": str(page),
        "sends": totals["sent_message_count"],
        "consumptions": totals["consumed_delivery_count"],
        "unconsumed": totals["unconsumed_count"],
        "unknown_lines": totals["unknown_line_count"],
    }


def _traces(spark: SparkSession, options: TraceOptions) -> DataFrame:
    """Return the records of a time range."""
    from downrange.pipelines.trace.records import decode_records

    source = options.source_options(options.trace_topic)
    return decode_records(spark.read.format("downrange").options(**source).load())


# ---- the stream ----------------------------------------------------------------------------------


def _run_stream(
    spark: SparkSession,
    options: TraceOptions,
    output: str,
    show: Show | None,
    stop: StopRequest | None,
) -> Summary:
    from downrange.pipelines.trace.records import RECORD_SCHEMA
    from downrange.pipelines.trace.trace_stream import FOLLOWERS, TraceStream

    started = time.monotonic()
    job = {
        "pipeline": "trace",
        "trace_topic": options.trace_topic,
        "output": output,
        **{name: getattr(options, name) for name in ("window", "late", "handling")},
    }
    default = f"{output}/_downrange/checkpoint"
    checkpoint, job_id = take_checkpoint(spark, options.run, default, job)
    claim_output(output, folder_of(output, spark), job_id)
    # Each task of a stateful table has files of its own; the default of 200 suits large clusters.
    spark.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    source = options.source_options(options.trace_topic)
    source["maxOffsetsPerTrigger"] = str(options.batch_messages_max)
    stream = TraceStream(
        spark.readStream.format("downrange").options(**source).load(),
        f"{output}/stream",
        checkpoint=checkpoint,
        window=_span(options.window),
        late=_span(options.late),
        handling=_span(options.handling),
    )
    followers = _Followers(stream, show)
    try:
        summary = run_stream(
            "trace",
            stream.records(),
            options.run,
            checkpoint=stream.checkpoint_of("records"),
            show=show if options.run.once else followers.update,
            stop=stop,
        )
    finally:
        followers.stop()
    # The tables catch up with the records, from their own checkpoints.
    for table in FOLLOWERS:
        run_stream(
            "trace",
            stream.follower(table),
            RunOptions(once=True),
            checkpoint=stream.checkpoint_of(table),
            show=show and (lambda progress: show(Progress(doing=f"tables: {progress}"))),
        )
    appended = spark.read.schema(RECORD_SCHEMA).parquet(f"{output}/stream/records")
    records = appended.dropDuplicates(["record_id"])
    facts, _ = run_batch(spark, lambda: make_report(spark, options, output, records), show=show)
    return Summary(
        pipeline="trace",
        ended=summary.ended,
        rows=summary.rows,
        batches=summary.batches,
        seconds=time.monotonic() - started,
        lag=summary.lag,
        facts={**(facts or {}), "checkpoint": checkpoint},
    )


class _Followers:
    """The streams that read the records while these are written.

    They start after the first batch of the records, because they need its list of files.
    """

    def __init__(self, stream: TraceStream, show: Show | None) -> None:
        self._stream = stream
        self._show = show
        self._running: list[StreamingQuery] = []

    def update(self, progress: Progress) -> None:
        """Start the next stream if its source has finished a batch; raise if one has failed."""
        from downrange.pipelines.trace.trace_stream import FOLLOWERS

        if self._show is not None:
            self._show(progress)
        for query in self._running:
            if error := query.exception():
                raise error
        is_ready = self._running[-1].lastProgress is not None if self._running else progress.batches
        if is_ready and len(self._running) < len(FOLLOWERS):
            table = FOLLOWERS[len(self._running)]
            self._running.append(
                self._stream.follower(table)
                .option("checkpointLocation", self._stream.checkpoint_of(table))
                .trigger(processingTime=f"{_FOLLOW_SECONDS:g} seconds")
                .start()
            )

    def stop(self) -> None:
        """Stop the streams; the next run continues at their checkpoints."""
        for query in self._running:
            query.stop()


def _summary(ended: Ended, facts: dict[str, Any], started: float) -> Summary:
    return Summary(
        pipeline="trace",
        ended=ended,
        rows=facts.get("sends", 0) + facts.get("consumptions", 0),
        seconds=time.monotonic() - started,
        facts=facts,
    )


def _span(seconds: float) -> str:
    return f"{round(seconds)} seconds"


def _time_of(name: str, text: str) -> datetime:
    return datetime.fromtimestamp(time_ms(name, text) / 1000, UTC)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
