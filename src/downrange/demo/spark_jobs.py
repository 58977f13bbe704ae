"""What Spark makes of the shop's day: Parquet files of all topics, and a report of the traces.

Two rules. What landed is read here without Spark, by the list of files that the lake keeps, so that
the demo does not ask the one it checks. And Spark never works in the main thread: there pyspark
takes Ctrl-C for itself, and a Java that was just starting would stay behind.
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

from downrange.demo.audit import Found, Position
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

#: Folders and file in the output.
LAKE, TABLES, PAGE = "lake", "trace", "report.html"
_PACKAGES: Final = ("pyspark", "pyarrow", "numpy")
#: How long Spark may take to end what it is doing when it is asked to: Java may be starting.
_STOP_TIMEOUT: Final = 60.0
_BATCH_TIMEOUT: Final = 5.0
_COLUMNS: Final = ("broker_name", "queue_id", "offset", "msg_id")
#: The data of a demo is small; more partitions would only be more tasks to start.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    # Compiling each of many small queries takes longer than running them; together these two halve
    # the time of the demo. No pipeline on real data wants them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def why_not() -> str | None:
    """Return why Spark cannot run here, and what to do about it; None when it can."""
    if any(find_spec(package) is None for package in _PACKAGES):
        return str(MissingExtra("the part with Spark", "spark"))
    return None if find_java() is not None else java_hint()


class Stopped(RocketMQError):
    """Somebody asked to stop before it was done."""


def run_apart(
    work: Callable[[StopRequest], ResultT], tell: Callable[[str], None] = lambda text: None
) -> ResultT:
    """Run something in a thread of its own, and wait for it.

    When the wait is broken off, by Ctrl-C or a signal that raises, the work is asked to stop and
    given some time to do so.

    Args:
        work: What to run; it is told when to stop.
        tell: Told when there is something to wait for.
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
            tell("Stopping Spark, which may take some seconds; a second Ctrl-C does not wait.")
            thread.join(_STOP_TIMEOUT)
        raise


@contextmanager
def running_spark(stop: StopRequest) -> Generator[SparkSession]:
    """Run Spark in this machine, on all of its cores, as long as the block lasts.

    Raises:
        JavaMissing: There is no Java for Spark.
        Stopped: Somebody asked to stop meanwhile.
    """
    with warnings.catch_warnings():
        # What pyspark advises programmers is not for those who watch.
        warnings.filterwarnings("ignore", module=r"pyspark\.")
        spark = make_session("downrange demo", settings=_SETTINGS)
        try:
            _go_on(stop)
            yield spark
        finally:
            spark.stop()


def _go_on(stop: StopRequest) -> None:
    if stop.is_wanted:
        raise Stopped("the demo was asked to stop")


def land(
    spark: SparkSession,
    name_server: str,
    topics: Iterable[str],
    lake: Path,
    *,
    bar: Bar,
    stop: StopRequest,
) -> None:
    """Write topics to Parquet, all that is there now.

    Args:
        spark: Runs it.
        name_server: Where the topics are.
        topics: Which.
        lake: Folder of the files.
        bar: Moved by the rows that landed.
        stop: Asks to stop.

    Raises:
        PipelineFailed: Spark ended it with an error.
        Stopped: Somebody asked to stop.
    """
    options = LakeOptions(
        topics=tuple(topics),
        output=str(lake),
        cluster=ClusterOptions(name_server=name_server),
        run=RunOptions(once=True, stop_within=_BATCH_TIMEOUT),
    )
    summary = run_lake(options, spark, show=_mover(bar), stop=stop)
    _go_on(stop)
    bar.update(summary.rows)


def landed_in(lake: Path, topics: Iterable[str]) -> dict[str, Found]:
    """Return what a lake holds: topic -> the messages found there."""
    import pyarrow.parquet as parquet

    found = {topic: Found() for topic in topics}
    for file in read_manifest(lake).files:
        # topic=orders/date=2026-11-16/part-….parquet
        topic = file.partition.parent.name.removeprefix("topic=")
        # As a file, not as a part of a data set, whose columns the path would add to.
        table = parquet.ParquetFile(file.path).read(columns=list(_COLUMNS))
        for broker, queue, offset, message_id in zip(
            *(table.column(name).to_pylist() for name in _COLUMNS), strict=True
        ):
            found[topic].add(Position(broker, queue, offset), message_id)
    return found


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What the traces tell, in short.

    Attributes:
        page: The report.
        sends: Messages that a broker acknowledged.
        deliveries: Messages that a group handled.
        unconsumed: Messages that a group of their topic never got.
    """

    page: Path
    sends: int
    deliveries: int
    unconsumed: int


def report(
    spark: SparkSession,
    name_server: str,
    topics: Iterable[str],
    output: Path,
    *,
    bar: Bar,
    stop: StopRequest,
) -> TraceReport:
    """Make tables and a report of the traces.

    Args:
        spark: Runs it.
        name_server: Where the traces are.
        topics: What they are about.
        output: Folder of the report; the tables go to a folder in it.
        bar: Told what it is busy with.
        stop: Asks to stop.

    Raises:
        PipelineFailed: Spark ended it with an error.
        Stopped: Somebody asked to stop.
    """
    options = TraceOptions(
        output=str(output / TABLES),
        topics=tuple(topics),
        cluster=ClusterOptions(name_server=name_server),
        window=1.0,
        report=str(output / PAGE),
        title="A day of the shop",
    )
    summary = run_trace(options, spark, show=_mover(bar), stop=stop)
    _go_on(stop)
    bar.update(1)
    facts = summary.facts
    return TraceReport(
        Path(facts["report"]), facts["sends"], facts["consumptions"], facts["unconsumed"]
    )


def _mover(bar: Bar) -> Callable[[Progress], None]:
    def move(progress: Progress) -> None:
        bar.update(progress.rows, progress.doing)

    return move
