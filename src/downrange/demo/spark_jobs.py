"""The Spark part of the demo: Parquet files of all topics, and a report of the traces.

Two rules. The rows in Parquet are read without Spark, by the list of files that the lake keeps, so
that the check does not depend on the code it checks. And Spark never runs in the main thread:
there pyspark installs its own handler for Ctrl-C, and a starting Java process could stay behind.
"""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from downrange.demo.audit import FoundMessages, Position
from downrange.errors import MissingExtra, RocketMQError
from downrange.pipelines.lake import LakeOptions, run_lake
from downrange.pipelines.manifest import read_manifest
from downrange.pipelines.options import ClusterOptions, RunOptions
from downrange.pipelines.session import find_java, java_hint, make_session
from downrange.pipelines.stream_run import StopRequest
from downrange.pipelines.trace.pipeline import TraceOptions, run_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pyspark.sql import SparkSession

    from downrange.demo.progress import Bar
    from downrange.pipelines.summary import Progress

ResultT = TypeVar("ResultT")

#: Folders and a file in the output folder.
LAKE, TABLES, PAGE = "lake", "trace", "report.html"
_PACKAGES: Final = ("pyspark", "pyarrow", "numpy")
#: How long Spark may take to stop; Java may be starting.
_STOP_TIMEOUT: Final = 60.0
_BATCH_TIMEOUT: Final = 5.0
_COLUMNS: Final = ("broker_name", "queue_id", "offset", "msg_id")
#: The demo has little data; more partitions would only mean more tasks to start.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    # Compiling each of many small queries takes longer than running them; together these two halve
    # the time of the demo. Pipelines on real data should not use them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def missing_for_spark() -> str | None:
    """Return why Spark cannot run here and what to install; None when it can run."""
    if any(find_spec(package) is None for package in _PACKAGES):
        return str(MissingExtra("the part with Spark", "spark"))
    return None if find_java() is not None else java_hint()


class Stopped(RocketMQError):
    """The demo was interrupted before the Spark part had ended."""


def run_in_thread(
    work: Callable[[StopRequest], ResultT], on_wait: Callable[[str], None] = lambda text: None
) -> ResultT:
    """Run a function in another thread and return its result.

    When Ctrl-C or another signal interrupts the wait, the function is asked to stop and gets some
    time to do so.

    Args:
        work: The function; it gets a request that is set when it should stop.
        on_wait: Called with a text for the user when the wait for its end begins.
    """
    stop = StopRequest()
    outcome: Future[ResultT] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(stop))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="spark", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except BaseException:
        if not outcome.done() and thread.is_alive():
            stop.ask()
            on_wait("Stopping Spark takes some seconds; press Ctrl-C again to exit at once.")
            thread.join(_STOP_TIMEOUT)
        raise


@contextmanager
def spark_session(stop: StopRequest) -> Generator[SparkSession]:
    """Run Spark on all cores of this machine; it stops at the end of the block.

    Raises:
        JavaMissing: Java is not installed.
        Stopped: The demo was interrupted while Spark started.
    """
    with warnings.catch_warnings():
        # Warnings of pyspark are for programmers, not for users of the demo.
        warnings.filterwarnings("ignore", module=r"pyspark\.")
        spark = make_session("downrange demo", settings=_SETTINGS)
        try:
            _raise_if_stopped(stop)
            yield spark
        finally:
            spark.stop()


def _raise_if_stopped(stop: StopRequest) -> None:
    if stop.is_wanted:
        raise Stopped("the demo was interrupted")


def write_lake(
    spark: SparkSession,
    name_server: str,
    topics: Iterable[str],
    lake: Path,
    *,
    bar: Bar,
    stop: StopRequest,
) -> None:
    """Write all messages that the topics hold now to Parquet.

    Args:
        spark: The session.
        name_server: Address of the name server.
        topics: Topics to read.
        lake: Folder of the files.
        bar: Shows the number of rows.
        stop: Set when the job should stop.

    Raises:
        PipelineFailed: The Spark job failed.
        Stopped: The demo was interrupted.
    """
    options = LakeOptions(
        topics=tuple(topics),
        output=str(lake),
        cluster=ClusterOptions(name_server=name_server),
        run=RunOptions(once=True, stop_within=_BATCH_TIMEOUT),
    )
    summary = run_lake(options, spark, show=_bar_updater(bar), stop=stop)
    _raise_if_stopped(stop)
    bar.update(summary.rows)


def read_lake(lake: Path, topics: Iterable[str]) -> dict[str, FoundMessages]:
    """Return the messages in the Parquet files of a lake, by topic."""
    import pyarrow.parquet as parquet

    found = {topic: FoundMessages() for topic in topics}
    for file in read_manifest(lake).files:
        # topic=orders/date=2026-11-16/part-….parquet
        topic = file.partition.parent.name.removeprefix("topic=")
        # Read as a single file: a data set would add columns from the path.
        table = parquet.ParquetFile(file.path).read(columns=list(_COLUMNS))
        for broker, queue, offset, message_id in zip(
            *(table.column(name).to_pylist() for name in _COLUMNS), strict=True
        ):
            found[topic].add(Position(broker, queue, offset), message_id)
    return found


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Numbers from the trace report.

    Attributes:
        page: The report.
        sends: Messages that a broker acknowledged.
        deliveries: Messages that a group handled.
        unconsumed: Messages that a group of their topic did not receive.
    """

    page: Path
    sends: int
    deliveries: int
    unconsumed: int


def write_report(
    spark: SparkSession,
    name_server: str,
    topics: Iterable[str],
    output: Path,
    *,
    bar: Bar,
    stop: StopRequest,
) -> TraceReport:
    """Write tables and a report of the traces.

    Args:
        spark: The session.
        name_server: Address of the name server.
        topics: Topics that the report covers.
        output: Folder of the report; the tables go to a folder in it.
        bar: Shows the current step.
        stop: Set when the job should stop.

    Raises:
        PipelineFailed: The Spark job failed.
        Stopped: The demo was interrupted.
    """
    options = TraceOptions(
        output=str(output / TABLES),
        topics=tuple(topics),
        cluster=ClusterOptions(name_server=name_server),
        window=1.0,
        report=str(output / PAGE),
        title="A day of the shop",
    )
    summary = run_trace(options, spark, show=_bar_updater(bar), stop=stop)
    _raise_if_stopped(stop)
    bar.update(1)
    facts = summary.facts
    return TraceReport(
        Path(facts["report"]), facts["sends"], facts["consumptions"], facts["unconsumed"]
    )


def _bar_updater(bar: Bar) -> Callable[[Progress], None]:
    def update(progress: Progress) -> None:
        bar.update(progress.rows, progress.doing)

    return update
