"""The command `pipeline trace`: a trace topic to tables, measures and a report.

    out/sends …          tables, see `TraceTables`
    out/measures/…       what they come to, see `TraceMeasures`
    out/report.html      the report
    out/stream/…         with `stream`: what was appended, see `TraceStream`

A batch looks at a time range and writes all of it anew. A stream goes on where it was, and makes
tables and report of all that it has appended whenever it ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.batch_run import run_batch
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
    # Timestamps as every reader of Parquet understands them; Spark's default is a relic.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Tables of a few rows become one file and one task, instead of one for each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # A stream with state that was stopped within its first batch leaves a half-written file, and
    # Spark would never start it again. Whose checkpoint it is, is checked by ourselves.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
_FOLLOW_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions(SourceOptions):
    """Which traces are looked at, and where the tables and the report go.

    Attributes:
        output: The folder; local, or on any file system of Spark's.
        trace_topic: Where the traces are.
        topics: Business topics, for the queues that traces do not tell, and for what was sent
            without a trace.
        from_time: Only what happened at this time or later; ISO 8601 with its zone, or ms.
        to_time: Only what happened before this time; for batches.
        settle: Seconds after `to_time` in which consumptions still count.
        stream: Whether to follow the topic and append, instead of one batch.
        window: Seconds of a window.
        late: Seconds that a trace may be late in a stream and still be in its window.
        handling: Seconds that a stream waits for the end of a consumption.
        report: The HTML file; `report.html` in the output if not given.
        title: What stands at its top.
    """

    output: str = field(metadata=flag("Folder of the tables.", metavar="DIR"))
    trace_topic: str = field(
        default=TRACE_TOPIC, metadata=flag("Topic of the traces.", metavar="TOPIC")
    )
    topics: tuple[str, ...] = field(
        default=(),
        metadata=flag("Business topic to look at, too; repeatable.", metavar="TOPIC", name="topic"),
    )
    from_time: str | None = field(
        default=None,
        metadata=flag("What happened at this time or later.", metavar="TIME", name="from"),
    )
    to_time: str | None = field(
        default=None, metadata=flag("What happened before this time.", metavar="TIME", name="to")
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
        default="Message traces", metadata=flag("What stands at its top.", metavar="TEXT")
    )

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option.
        """
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise OptionError(f"from_time {self.from_time} is not before to_time {self.to_time}")
        if self.stream and self.to_time is not None:
            raise OptionError("a stream has no end; leave to_time out, or stream")
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
                f"output {self.output} is not on this machine; say with report where the HTML goes"
            )

    @property
    def begin(self) -> datetime | None:
        """The first progress."""
        return None if self.from_time is None else _time_of("from_time", self.from_time)

    @property
    def end(self) -> datetime | None:
        """The moment after the last."""
        return None if self.to_time is None else _time_of("to_time", self.to_time)

    def page(self) -> Path:
        """Return where the report goes."""
        path = local_path(self.report or f"{absolute(self.output)}/report.html")
        if path is None:
            raise OptionError(f"report {self.report} is not on this machine")
        return path

    def source_options(self, *topics: str) -> dict[str, str]:
        """Return these as options of the `rocketmq` data source, for some topics."""
        options = self.read_options(topics) | {"includeMetadata": "true"}
        # A trace is stored after what it tells of.
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
        options: Which, and where to.
        spark: A session to use; one is made and stopped otherwise.
        show: Told how far it is.
        stop: Asks to stop; SIGINT and SIGTERM do so too.

    Returns:
        What was done. `rows` are the messages that traces spoke of, in a stream those of this run;
        its facts name the report and count what is in it.

    Raises:
        OptionError: An option makes no sense, or output or checkpoint belong to another job.
        FolderBusy: Another process works in the output.
        PipelineFailed: Spark ended it with an error.
    """
    output = absolute(options.output)
    started = time.monotonic()
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
    """Write tables, measures and report of records, in place of what was there.

    Args:
        spark: Reads business topics.
        options: Which topics, which time.
        output: The folder.
        records: What `decode_records` returns.

    Returns:
        The report's place, and how many of what are in it.
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
        "unknown_lines": totals["unknown_count"],
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
    # Each task of a table with state keeps files for it; the default of 200 is for large clusters.
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
    # What the others have not seen yet; they go on where they were.
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
    """The streams that follow the records while these go on.

    They are started when the records' first batch is done, as they look for its list of files.
    """

    def __init__(self, stream: TraceStream, show: Show | None) -> None:
        self._stream = stream
        self._show = show
        self._running: list[StreamingQuery] = []

    def update(self, progress: Progress) -> None:
        """Start the next one when its source has had a batch; end all if one has failed."""
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
        """End them; what they have not finished they do in the next run."""
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
