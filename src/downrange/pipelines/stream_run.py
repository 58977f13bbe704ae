"""Runs the stream of a pipeline: progress, stop on signals, and readable errors.

A signal never interrupts a batch: after the first one the running batch finishes. The second one
ends the process at once, which is safe, because every pipeline can be killed and started again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError, RocketMQError
from downrange.pipelines.folders import absolute, claim_checkpoint, folder_of
from downrange.pipelines.session import make_session
from downrange.pipelines.summary import Progress, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from downrange.pipelines.options import RunOptions, SparkOptions
    from downrange.pipelines.summary import Ended

    Show = Callable[[Progress], None]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS: Final = 0.2
_START_ATTEMPTS: Final = 5
_START_PAUSE: Final = 2.0
_SLOW_START: Final = "Python worker failed to connect back"
#: Python errors inside the text of a Spark error: the last lines of tracebacks.
_OUR_ERROR: Final = re.compile(r"^downrange\.[\w.]*\.(\w+): (.+(?:\n  \d+\. .+)*)", re.MULTILINE)
_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+Error): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_SPARK_ERROR: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")
_OPTION_ERRORS: Final = ("OptionError", "InvalidMessage")


class PipelineFailed(RocketMQError):
    """A pipeline ended with an error of Spark, of its source or of its sink.

    Attributes:
        error_name: The class of the Python error inside Spark's, such as "NoPermission"; "" if
            there is none.
    """

    def __init__(self, reason: str, error_name: str = "") -> None:
        """Take the reason and the name of the error inside Spark's."""
        super().__init__(f"{error_name}: {reason}" if error_name else reason)
        self.error_name = error_name


class StopRequest:
    """A request to stop a pipeline, set by a signal or by the program."""

    def __init__(self) -> None:
        self._wanted = threading.Event()

    def ask(self) -> None:
        """Request a stop after the running batch."""
        self._wanted.set()

    @property
    def is_wanted(self) -> bool:
        """Whether a stop was requested."""
        return self._wanted.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for a request up to some seconds; return whether there was one."""
        # Callers wait in short turns, because a signal handler runs between two of them only.
        return self._wanted.wait(seconds)


@contextmanager
def stop_on_signals(stop: StopRequest) -> Generator[None]:
    """Make SIGINT and SIGTERM request a stop; a second signal ends the process at once.

    Does nothing outside the main thread, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def arrive(number: int, _frame: object) -> None:
        if stop.is_wanted:
            os._exit(128 + number)  # the shell's exit code; Java ends when its pipe closes
        stop.ask()

    before = {number: signal.signal(number, arrive) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def own_session(
    name: str,
    spark: SparkSession | None,
    options: SparkOptions,
    settings: Mapping[str, str] | None = None,
) -> Generator[SparkSession]:
    """Yield a separate session with the data source registered and these SQL settings.

    Args:
        name: The name of the pipeline.
        spark: The caller's session, whose settings stay unchanged; if None, Spark is started, and
            stopped at the end.
        options: Where Spark runs, and its settings.
        settings: SQL settings of this pipeline.

    Raises:
        JavaMissing: There is no Java for Spark.
    """
    from downrange.spark import register

    if spark is not None and options != type(options)():
        raise OptionError(
            "the session has its own Spark settings; give either a session or settings"
        )
    base = spark or make_session(f"downrange {name}", master=options.master, settings=options.conf)
    try:
        session = base.newSession()
        for key, value in {"spark.sql.session.timeZone": "UTC", **(settings or {})}.items():
            session.conf.set(key, value)
        register(session)
        make_active(session)
        yield session
    finally:
        make_active(base)
        if spark is None:
            base.stop()


def make_active(spark: SparkSession) -> None:
    """Make a session the active one of this thread, where Spark looks up source names."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is not None:  # None with Spark Connect, which does not use the active session
        jvm.SparkSession.setActiveSession(getattr(spark, "_jsparkSession"))  # noqa: B009


def run_stream(
    name: str,
    writer: DataStreamWriter,
    run: RunOptions,
    *,
    checkpoint: str,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Run a stream to its end, or until a stop is requested.

    Args:
        name: The name of the pipeline.
        writer: The stream, without checkpoint and trigger.
        run: How to run.
        checkpoint: The folder of its offsets, already claimed.
        show: Called with the progress, a few times per second.
        stop: A request to stop; signals set it, too.

    Raises:
        PipelineFailed: Spark ended the stream with an error.
        OptionError: The source or the sink rejected an option.
    """
    stop = stop or StopRequest()
    writer = writer.option("checkpointLocation", checkpoint)
    if run.once:
        writer = writer.trigger(availableNow=True)
    elif run.every is not None:
        writer = writer.trigger(processingTime=f"{round(run.every * 1000)} milliseconds")
    started = time.monotonic()
    with stop_on_signals(stop), translate_errors():
        ended, last = _run_to_end(writer, run, stop, show)
    return Summary(
        pipeline=name,
        ended=ended,
        rows=last.rows,
        batches=last.batches,
        seconds=time.monotonic() - started,
        lag=last.lag,
        facts={"checkpoint": checkpoint},
    )


def _run_to_end(
    writer: DataStreamWriter, run: RunOptions, stop: StopRequest, show: Show | None
) -> tuple[Ended, Progress]:
    from pyspark.errors import StreamingQueryException

    for attempts_left in reversed(range(_START_ATTEMPTS)):
        query = writer.start()
        progress = StreamProgress(query)
        try:
            return _follow(query, progress, run, stop, show), progress.update()
        except StreamingQueryException as error:
            # Spark allows ten seconds for the start of a source's Python process, which a busy
            # machine may exceed. Nothing was read by then, so the start is repeated.
            is_slow_start = _SLOW_START in str(error) and query.lastProgress is None
            if not is_slow_start or not attempts_left or stop.wait(_START_PAUSE):
                raise
    raise AssertionError("the last attempt returns or raises")


def _follow(
    query: StreamingQuery,
    progress: StreamProgress,
    run: RunOptions,
    stop: StopRequest,
    show: Show | None,
) -> Ended:
    try:
        while query.isActive and not stop.wait(_LOOK_SECONDS):
            if show is not None:
                show(progress.update())
        if query.isActive:
            finish_batch(query, run.stop_within, lambda: show and show(progress.update("stopping")))
            query.stop()
            return "stopped"
    except BaseException:
        query.stop()
        raise
    if error := query.exception():
        raise error
    return "stopped" if stop.is_wanted and not run.once else "finished"


def finish_batch(query: StreamingQuery, within: float, show: Callable[[], object]) -> None:
    """Wait for the end of the running batch, up to some seconds."""
    deadline = time.monotonic() + within
    before = _last_batch(query)
    while (
        query.isActive
        and query.status["isTriggerActive"]
        and _last_batch(query) == before
        and time.monotonic() < deadline
    ):
        show()
        time.sleep(_LOOK_SECONDS / 4)


def _last_batch(query: StreamingQuery) -> int:
    """Return the number of the last finished batch; -1 before the first."""
    last = query.lastProgress
    if last is None:
        return -1
    # The report of an idle trigger has the number of the next batch.
    return int(last["batchId"]) - (0 if last["numInputRows"] else 1)


class StreamProgress:
    """Sums up the progress reports of a stream.

    Args:
        query: The stream.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        #: The reports that Spark still holds and that are counted already.
        self._seen: set[tuple[int, str]] = set()
        self._rows = 0
        self._batches = 0
        self._speed = 0.0
        self._lag: int | None = None

    def update(self, doing: str = "") -> Progress:
        """Count the reports since the last call; return the progress."""
        last = self._query.lastProgress
        # Fetching all reports is slow, and there is only one new report per batch.
        if last is not None and _key(last) not in self._seen:
            reports = self._query.recentProgress
            for report in reports:
                if _key(report) not in self._seen:
                    self._take(report)
            self._seen = {_key(report) for report in reports}
        return Progress(
            rows=self._rows,
            batches=self._batches,
            rows_per_second=self._speed,
            lag=self._lag,
            doing=doing,
        )

    def _take(self, report: Mapping[str, Any]) -> None:
        rows = int(report["numInputRows"])
        self._rows += rows
        self._batches += rows > 0
        speed = report.get("processedRowsPerSecond")
        self._speed = float(speed) if isinstance(speed, int | float) else 0.0
        self._lag = lag_of(report)


def _key(report: Mapping[str, Any]) -> tuple[int, str]:
    return int(report["batchId"]), str(report["timestamp"])


def lag_of(report: Mapping[str, Any]) -> int | None:
    """Return how many messages wait, from a progress report; None if no source reports it."""
    behind: int | None = None
    for source in report.get("sources", ()):
        latest, end = (_queues(source.get(name)) for name in ("latestOffset", "endOffset"))
        if latest is None or end is None:
            continue
        # A queue that is not in the end of the batch had nothing to read, as in `spark.read.lag`;
        # its offset may be high all the same, if its messages have expired.
        waiting = [max(0, latest[queue] - end[queue]) for queue in latest.keys() & end.keys()]
        behind = sum(waiting) + (behind or 0)
    return behind


def _queues(offset: Any) -> dict[tuple[str, str, str], int] | None:
    """Return the offsets by queue in a report of the `rocketmq` source; None for others."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict) or not isinstance(offset.get("q"), dict):
        return None
    return {
        (topic, broker, queue): int(number)
        for topic, brokers in offset["q"].items()
        for broker, queues in brokers.items()
        for queue, number in queues.items()
    }


# ---- errors --------------------------------------------------------------------------------------


@contextmanager
def translate_errors() -> Generator[None]:
    """Turn a Spark error into one with the reason only, without the Java stack trace.

    Raises:
        OptionError: The source or the sink rejected an option.
        PipelineFailed: Any other error; the Spark error is its cause.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        kind, reason = reason_of(str(error))
        if kind in _OPTION_ERRORS:
            raise OptionError(reason) from error
        raise PipelineFailed(reason, kind) from error


def reason_of(text: str) -> tuple[str, str]:
    """Return class name and text of the Python error inside the text of a Spark error.

    Without one, the class name is empty and the text is the first line of Spark's error.
    """
    for pattern in (_OUR_ERROR, _PYTHON_ERROR):
        if found := list(pattern.finditer(text)):
            return found[-1][1], found[-1][2].strip()
    if raised := _RAISED.search(text):
        return "", raised[1].strip()
    if spark_error := _SPARK_ERROR.search(text):
        return "", spark_error[0].strip()
    return "", text.strip().splitlines()[0] if text.strip() else "Spark gave no reason"


def take_checkpoint(
    spark: SparkSession, run: RunOptions, default: str, job: Mapping[str, Any]
) -> tuple[str, str]:
    """Claim the checkpoint of a job.

    Args:
        spark: Gives access to file systems.
        run: May name the checkpoint.
        default: The checkpoint otherwise.
        job: What identifies the job, see `claim_checkpoint`.

    Returns:
        The absolute path of the checkpoint, and the job's id.

    Raises:
        OptionError: The checkpoint belongs to another job.
    """
    checkpoint = absolute(run.checkpoint or default)
    return checkpoint, claim_checkpoint(checkpoint, folder_of(checkpoint, spark), job)
