"""Spark batch jobs with progress, which can be stopped."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from downrange.pipelines.stream_run import StopRequest, make_active, stop_on_signals
from downrange.pipelines.summary import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from downrange.pipelines.stream_run import Show
    from downrange.pipelines.summary import Ended

    ResultT = TypeVar("ResultT")

_LOOK_SECONDS: Final = 0.2
#: Seconds to wait for cancelled jobs to end.
_CANCEL_SECONDS: Final = 60.0


def run_batch(
    spark: SparkSession,
    work: Callable[[], ResultT],
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> tuple[ResultT | None, Ended]:
    """Run Spark jobs in a thread, report how many tasks are done, and cancel them on request.

    Args:
        spark: The session.
        work: Runs the jobs and returns a result.
        show: Called with the progress.
        stop: A request to stop; signals set it, too.

    Returns:
        The result, None if it was stopped, and how it ended.
    """
    from pyspark import InheritableThread

    stop = stop or StopRequest()
    context = spark.sparkContext
    group = f"downrange-{secrets.token_hex(4)}"
    results: list[ResultT] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        context.setJobGroup(group, "downrange", interruptOnCancel=True)
        make_active(spark)
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = InheritableThread(target=run)
    tracker = context.statusTracker()
    with stop_on_signals(stop):
        thread.start()
        while not done.wait(_LOOK_SECONDS) and not stop.is_wanted:
            if show is not None:
                show(Progress(doing=_tasks(tracker, group)))
        if not done.is_set():
            context.cancelJobGroup(group)
            done.wait(_CANCEL_SECONDS)
    if results:
        return results[0], "finished"
    if stop.is_wanted:
        return None, "stopped"
    raise failures[0]


def _tasks(tracker: StatusTracker, group: str) -> str:
    total = finished = 0
    for job in tracker.getJobIdsForGroup(group):
        facts = tracker.getJobInfo(job)
        for stage in facts.stageIds if facts is not None else ():
            if (about := tracker.getStageInfo(stage)) is not None:
                total += about.numTasks
                finished += about.numCompletedTasks
    return f"{finished}/{total} tasks" if total else "planning"
