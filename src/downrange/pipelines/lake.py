"""Topics to Parquet files, exactly once.

    lake/topic=orders/date=2026-11-16/part-….parquet

The date is the UTC date of the store time. All columns with the position of a message are kept, so
any row can be found again in its topic. Exactly once rests on three things: the source plans a
batch from stored offsets only, Spark's file sink lists the files of each batch, and a checkpoint
that does not belong to the output is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.cluster_check import check_sources
from downrange.pipelines.folders import absolute, claim_output, folder_of, local_path, lock_folder
from downrange.pipelines.manifest import read_manifest
from downrange.pipelines.options import ReadingOptions
from downrange.pipelines.stream_run import (
    own_session,
    run_stream,
    take_checkpoint,
    translate_errors,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from downrange.pipelines.stream_run import Show, StopRequest
    from downrange.pipelines.summary import Summary

#: Batches from one condensed list of files to the next. `compact` merges only files of such a list,
#: so Spark's default of 10 would leave more files for a later run.
_LIST_INTERVAL: Final = "4"
_SETTINGS: Final = {
    "spark.sql.streaming.fileSink.log.compactInterval": _LIST_INTERVAL,
    # Every Parquet reader supports this type; Spark's default INT96 is deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions(ReadingOptions):
    """What goes into a lake, and how.

    Attributes:
        output: The folder, local or on any file system of Spark.
        body: Bodies as bytes, or as text, with U+FFFD for invalid UTF-8.
        compression: The compression of the files.
        include_metadata: Whether to keep hosts, flags and the count of deliveries, too.
    """

    output: str = field(metadata=flag("Folder of the Parquet files.", metavar="DIR"))
    body: Literal["binary", "text"] = field(
        default="binary", metadata=flag("Bodies as bytes, or as text in UTF-8.")
    )
    compression: Literal["zstd", "snappy", "gzip", "uncompressed"] = field(
        default="zstd", metadata=flag("Compression of the files.")
    )
    include_metadata: bool = field(
        default=False, metadata=flag("Keep hosts, flags and counts of deliveries, too.")
    )

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        ReadingOptions.__post_init__(self)
        # A reader would have to escape them, and Spark then ignores the list of files.
        if marks := set("[]{}*?") & set(self.output):
            raise OptionError(
                f"output {self.output!r} contains {marks.pop()!r}, a wildcard for Spark; give "
                "another folder"
            )


def run_lake(
    options: LakeOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Write topics to Parquet, until everything is written or a stop is requested.

    Args:
        options: What to write, and where.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop; SIGINT and SIGTERM set it, too.

    Returns:
        The summary, with the facts `output`, `checkpoint` and, on this machine, `files`.

    Raises:
        OptionError: An option is invalid, or output or checkpoint belong to another job.
        RouteNotFound: A topic does not exist.
        FolderBusy: Another process uses the output.
        PipelineFailed: Spark ended with an error.
    """
    output = absolute(options.output)
    folder = local_path(output)
    job = {
        "pipeline": "lake",
        "topics": sorted(options.topics),
        "output": output,
        "body": options.body,
        "include_metadata": options.include_metadata,
        "tags": options.tags,
    }
    default = f"{output}/_downrange/checkpoint"
    if spark is None:
        check_sources(options.cluster, options.topics, checkpoint=options.run.checkpoint or default)
    with (
        own_session("lake", spark, options.spark, _SETTINGS) as session,
        lock_folder(folder, "the lake"),
    ):
        output_folder = folder_of(output, session)
        checkpoint, job_id = take_checkpoint(session, options.run, default, job)
        claim_output(output, output_folder, job_id)
        with translate_errors():
            rows = lake_rows(messages_of(session, options), options.body)
        writer = (
            rows.writeStream.format("parquet")
            .queryName("downrange lake")
            .partitionBy("topic", "date")
            .option("path", output)
            .option("compression", options.compression)
        )
        summary = run_stream(
            "lake", writer, options.run, checkpoint=checkpoint, show=show, stop=stop
        )
        return replace(summary, facts={"output": output, **summary.facts, **_count(folder)})


def messages_of(spark: SparkSession, options: LakeOptions) -> DataFrame:
    """Return the stream of messages."""
    source = options.source_options()
    if options.include_metadata:
        source["includeMetadata"] = "true"
    return spark.readStream.format("downrange").options(**source).load()


def lake_rows(messages: DataFrame, body: Literal["binary", "text"] = "binary") -> DataFrame:
    """Return the rows of a lake: the columns of messages, and the date of the store time."""
    from pyspark.sql import functions as F

    if body == "text":
        # A cast alone would leave invalid UTF-8, on which other Parquet readers fail.
        text = F.make_valid_utf8(F.col("body").cast("string"))
        messages = messages.withColumn("body", text)
    return messages.withColumn("date", F.to_date("store_timestamp"))


def _count(folder: Path | None) -> dict[str, int]:
    if folder is None or not (folder / "_spark_metadata").is_dir():
        return {}
    return {"files": len(read_manifest(folder).files)}
