"""Rows of Parquet, CSV or JSON lines files to a topic.

Files are read as a stream, with or without `watch`: a checkpoint stores which files were sent, so a
load can be killed and started again, and sends new files only. A row that is sent twice has the
same id, which is derived from its file and its position there, or taken from a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from downrange.client.flows.validation import check_topic
from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.cluster_check import check_target
from downrange.pipelines.file_rows import SETTINGS, FileRows, numbered
from downrange.pipelines.folders import absolute, folder_of, local_path, spark_path
from downrange.pipelines.options import ClusterOptions, RunOptions, SparkOptions
from downrange.pipelines.row_mapping import RowMapping, checked_rows, sent_columns
from downrange.pipelines.stream_run import (
    own_session,
    run_stream,
    take_checkpoint,
    translate_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from downrange.pipelines.stream_run import Show, StopRequest
    from downrange.pipelines.summary import Summary

Format: TypeAlias = Literal["parquet", "csv", "json"]
#: Suffix of a file name -> its format.
_FORMATS: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What is sent, and how rows become messages.

    Attributes:
        path: A file, a folder, or a pattern.
        topic: The topic to send to.
        cluster: The cluster of the topic.
        format: The format of the files; derived from their names if None.
        columns: The columns of the files, as in "id BIGINT, name STRING"; inferred from the files
            if None, with text for all columns of CSV.
        header: Whether CSV files begin with column names.
        delimiter: The separator of CSV values.
        body: The column with the body.
        body_json: Whether the whole row is the body, as JSON.
        keys: Columns with keys.
        tags: The column with the tag.
        properties: Property -> column.
        properties_column: A column with a map of properties.
        sharding_key: A column; rows with equal values go to one queue.
        delay: The column with the delay in milliseconds.
        id: The column with the message id, unique for each row.
        bad_rows: Folder for rows that cannot be sent, as JSON lines; if None they are an error.
        watch: Whether to run on and send new files.
        batch_files_max: Files of one batch, at most.
        write: More options of the `rocketmq` sink, by name.
        run: How to run.
        spark: Where Spark runs.
    """

    path: str = field(metadata=flag("File, folder or pattern.", metavar="PATH"))
    topic: str = field(metadata=flag("Topic to send to.", metavar="NAME"))
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    format: Format | None = field(
        default=None, metadata=flag("Format of the files; by default from their names.")
    )
    columns: str | None = field(
        default=None, metadata=flag("Columns: 'id BIGINT, name STRING'.", metavar="DDL")
    )
    header: bool = field(default=True, metadata=flag("CSV begins with column names."))
    delimiter: str = field(default=",", metadata=flag("Separator of CSV values.", metavar="MARK"))
    body: str | None = field(default=None, metadata=flag("Column with the body.", metavar="COLUMN"))
    body_json: bool = field(default=False, metadata=flag("The whole row is the body, as JSON."))
    keys: tuple[str, ...] = field(
        default=(), metadata=flag("Columns with keys: A,B.", metavar="COLUMNS")
    )
    tags: str | None = field(default=None, metadata=flag("Column with the tag.", metavar="COLUMN"))
    properties: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag("A property; repeatable.", metavar="NAME=COLUMN", name="property"),
    )
    properties_column: str | None = field(
        default=None, metadata=flag("Column with a map of properties.", metavar="COLUMN")
    )
    sharding_key: str | None = field(
        default=None, metadata=flag("Rows with equal values go to one queue.", metavar="COLUMN")
    )
    delay: str | None = field(
        default=None, metadata=flag("Column with the delay in milliseconds.", metavar="COLUMN")
    )
    id: str | None = field(
        default=None, metadata=flag("Column with the message id.", metavar="COLUMN")
    )
    bad_rows: str | None = field(
        default=None, metadata=flag("Folder for rows that cannot be sent.", metavar="DIR")
    )
    watch: bool = field(default=False, metadata=flag("Run on and send new files."))
    batch_files_max: int = field(
        default=100, metadata=flag("The most files of one batch.", metavar="COUNT")
    )
    write: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag(
            "An option of the rocketmq sink; repeatable.", metavar="NAME=VALUE", name="write-option"
        ),
    )
    run: RunOptions = field(default_factory=RunOptions)
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        check_topic(self.topic)
        if (self.body is None) != self.body_json:
            raise OptionError("give either body (a column) or body_json (the whole row)")
        if self.run.checkpoint is None:
            raise OptionError(
                "checkpoint is missing: name a folder for the list of files that were sent, such "
                "as load-checkpoint"
            )
        if self.watch and self.run.once:
            raise OptionError("watch and once exclude each other; give one of them")
        if self.run.every is not None and not self.watch:
            raise OptionError("every is the interval of watch; give watch, too, or leave every out")
        if self.batch_files_max < 1:
            raise OptionError(f"batch_files_max = {self.batch_files_max} leaves no files")

    def mapping(self) -> RowMapping:
        """Return how rows become messages."""
        return RowMapping(
            body=self.body,
            keys=tuple(key.strip() for text in self.keys for key in text.split(",")),
            tags=self.tags,
            properties=self.properties,
            properties_column=self.properties_column,
            sharding_key=self.sharding_key,
            delay=self.delay,
            id=self.id,
        )


def run_load(
    options: LoadOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Send the rows of files, until all are sent or, with `watch`, until a stop is requested.

    Args:
        options: What to send, and where.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop; SIGINT and SIGTERM set it, too.

    Raises:
        OptionError: An option is invalid, or the checkpoint belongs to another job.
        PipelineFailed: A row cannot be sent (the error names it), or Spark ended with an error.
    """
    kind = options.format or format_of(options.path)
    path = absolute(options.path)
    mapping = options.mapping()
    job = {"pipeline": "load", "path": path, "topic": options.topic, "id": options.id}
    run = options.run if options.watch else replace(options.run, once=True)
    if spark is None:
        check_target(options.cluster, options.topic)
    with own_session("load", spark, options.spark, SETTINGS) as session:
        checkpoint, _ = take_checkpoint(session, run, "", job)
        files = FileRows(
            # A file stream takes folders and patterns only, so a file becomes a pattern.
            path=f"{path[:-1]}[{path[-1]}]" if folder_of(path, session).is_file() else path,
            format=kind,
            columns=options.columns,
            header=options.header,
            delimiter=options.delimiter,
            batch_files_max=options.batch_files_max,
        )
        with translate_errors():
            columns = files.data_columns(session)
            mapping.check(columns)
            sender = BatchSender(options, mapping, columns)
            rows = files.stream(session).writeStream.queryName("downrange load")
            writer = rows.foreachBatch(sender.send)
        summary = run_stream("load", writer, run, checkpoint=checkpoint, show=show, stop=stop)
        facts = {"path": path, "topic": options.topic, **summary.facts}
        if options.bad_rows is not None:
            facts["bad_rows"] = absolute(options.bad_rows)
            facts["bad"] = _count_bad(session, absolute(options.bad_rows))
        return replace(summary, facts=facts)


def format_of(path: str) -> Format:
    """Return the format of files by their names.

    Raises:
        OptionError: The names show no format, or several.
    """
    local = local_path(path)
    names = [path]
    if local is not None and local.is_dir():
        names = [str(one) for one in sorted(local.rglob("*"))]
    found: set[Format] = {
        kind for name in names for end, kind in _FORMATS.items() if name.endswith(end)
    }
    if len(found) != 1:
        seen = ", ".join(sorted(found)) or "none"
        raise OptionError(
            f"format is missing, and the names of {path} show {seen}; give parquet, csv or json"
        )
    return found.pop()


class BatchSender:
    """Sends the rows of batches; runs on the driver.

    Args:
        options: The topic, and the folder for bad rows.
        mapping: How rows become messages.
        columns: The columns of the files.
    """

    def __init__(self, options: LoadOptions, mapping: RowMapping, columns: list[str]) -> None:
        self._mapping = mapping
        self._columns = columns
        self._bad_rows = None if options.bad_rows is None else absolute(options.bad_rows)
        self._target = options.cluster.source_options() | {
            "topic": options.topic,
            "dedup": "column",
            **options.write,
        }

    def send(self, batch: DataFrame, number: int) -> None:
        """Send a batch; write its bad rows to their folder, or fail with the first."""
        rows = checked_rows(numbered(batch), self._mapping, self._columns)
        if self._bad_rows is None:
            self._write(sent_columns(rows, fail=True))
            return
        rows.persist()
        try:
            bad = rows.where("problem IS NOT NULL").select("file", "row", "problem", "given")
            # A repeated batch overwrites its folder, which is named by the batch number.
            if not bad.isEmpty():
                bad.write.mode("overwrite").json(f"{self._bad_rows}/batch={number}")
            self._write(sent_columns(rows.where("problem IS NULL"), fail=False))
        finally:
            rows.unpersist()

    def _write(self, rows: DataFrame) -> None:
        # A task of the sink costs more than a task that reads a small file.
        few = rows.coalesce(2 * rows.sparkSession.sparkContext.defaultParallelism)
        few.write.format("downrange").options(**self._target).mode("append").save()


def _count_bad(spark: SparkSession, path: str) -> int:
    """Return the number of bad rows of all runs."""
    local = local_path(path)
    if local is None:
        return spark.read.text(path).count()
    return spark.read.text(spark_path(local)).count() if any(local.glob("batch=*")) else 0
