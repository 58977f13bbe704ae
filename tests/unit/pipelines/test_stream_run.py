"""Progress, stop and errors of streams, without Spark."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from downrange.errors import OptionError
from downrange.pipelines import stream_run
from downrange.pipelines.options import RunOptions
from downrange.pipelines.stream_run import (
    PipelineFailed,
    StopRequest,
    StreamProgress,
    finish_batch,
    lag_of,
    reason_of,
    run_stream,
    stop_on_signals,
)
from downrange.pipelines.summary import Progress, Summary
from downrange.spark.read.lag import lags_of


def report(batch: int, rows: int, *, at: str = "t", lag: int = 0) -> dict[str, Any]:
    end = {"q": {"a": {"b": {"0": 10, "1": 20}}}, "v": 1}
    latest = {"q": {"a": {"b": {"0": 10, "1": 20 + lag}}}, "v": 1}
    source = {"endOffset": end, "latestOffset": latest}
    return {
        "batchId": batch,
        "timestamp": f"{at}{batch}",
        "numInputRows": rows,
        "processedRowsPerSecond": 50.0,
        "sources": [source],
    }


class FakeQuery:
    """A query with given progress reports."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.isActive = True
        self.status = {"isTriggerActive": True}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return self.reports

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.reports[-1] if self.reports else None


def test_reports_are_counted_once() -> None:
    query = FakeQuery()
    progress = StreamProgress(cast("Any", query))
    assert progress.update() == Progress()
    query.reports = [report(0, 5), report(1, 7, lag=4)]
    assert progress.update() == Progress(rows=12, batches=2, rows_per_second=50.0, lag=4)
    # An idle report has the number of the next batch.
    query.reports = [report(1, 7, lag=4), report(2, 0, at="idle"), report(2, 3)]
    found = progress.update("busy")
    assert (found.rows, found.batches, found.lag) == (15, 3, 0)
    assert str(found) == "15 rows, 50 rows/s, lag 0 (busy)"


def test_running_batch_is_waited_for() -> None:
    query = FakeQuery()
    query.reports = [report(0, 5), report(1, 0, at="idle")]
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            query.reports.append(report(1, 5))

    finish_batch(cast("Any", query), 30.0, look)
    assert looks == 3


def test_idle_stream_is_not_waited_for() -> None:
    query = FakeQuery()
    query.status = {"isTriggerActive": False}
    finish_batch(cast("Any", query), 30.0, lambda: pytest.fail("waited"))


def test_batch_that_takes_too_long_is_not_waited_for() -> None:
    looks: list[float] = []
    finish_batch(cast("Any", FakeQuery()), 0.05, lambda: looks.append(time.monotonic()))
    assert looks


@pytest.mark.parametrize("offset", [None, "null", "no json", {"offset": 1}, 5])
def test_lag_of_other_sources_is_not_known(offset: Any) -> None:
    assert lag_of({"sources": [{"endOffset": offset, "latestOffset": offset}]}) is None
    assert lag_of({}) is None


def test_lag_is_read_from_texts_too_and_counts_the_queues_of_the_batch() -> None:
    end = json.dumps({"q": {"a": {"b": {"0": 10}}}, "v": 1})
    latest = json.dumps({"q": {"a": {"b": {"0": 12, "1": 5}}}, "v": 1})
    source = {"endOffset": end, "latestOffset": latest}
    assert lag_of({"sources": [source, source, {"endOffset": None}]}) == 4


def test_both_ways_to_compute_the_lag_agree() -> None:
    source = {
        "endOffset": json.dumps({"q": {"a": {"b": {"0": 10, "2": 7}}}, "v": 1}),
        "latestOffset": json.dumps({"q": {"a": {"b": {"0": 12, "1": 5, "2": 6}}}, "v": 1}),
        "numInputRows": 1,
        "processedRowsPerSecond": 1.0,
    }
    progress = SimpleNamespace(name="q", id=1, batchId=1, sources=[SimpleNamespace(**source)])
    [lag] = lags_of(cast("Any", progress))
    assert lag_of({"sources": [source]}) == lag.total == 2


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
            '  File "x", line 1, in y\nValueError: inner\n\nThe above exception was …\n'
            "downrange.errors.OptionError: unknown option 'x'\n SQLSTATE: 38000\n",
            "OptionError",
            "unknown option 'x'",
        ),
        (
            "x\ndownrange.errors.SendFailed: not sent\n  1. a a:1\n  2. b b:1\nmore",
            "SendFailed",
            "not sent\n  1. a a:1\n  2. b b:1",
        ),
        (
            "a\nModuleNotFoundError: No module named 'x'\n",
            "ModuleNotFoundError",
            "No module named 'x'",
        ),
        (
            "Job aborted\nCaused by: [USER_RAISED_EXCEPTION] f.csv, row 3: bad SQLSTATE: P0001",
            "",
            "f.csv, row 3: bad",
        ),
        ("calling o1\n: x: [PATH_NOT_FOUND] gone\n\tat y", "", "[PATH_NOT_FOUND] gone"),
        ("only this\nand that", "", "only this"),
        ("", "", "Spark gave no reason"),
    ],
)
def test_error_is_found_in_a_page_of_java(text: str, kind: str, reason: str) -> None:
    assert reason_of(text) == (kind, reason)


def test_first_signal_asks_to_stop_and_handlers_come_back() -> None:
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(stop):
        assert not stop.wait(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    with stop_on_signals(StopRequest()):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert ends == [130]


def test_thread_has_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def run() -> None:
        with stop_on_signals(StopRequest()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert seen == [before]


def test_summary_as_json() -> None:
    summary = Summary(
        pipeline="lake", ended="stopped", rows=10, seconds=2.0, lag=3, facts={"output": "x"}
    )
    assert summary.as_json() == {
        "pipeline": "lake",
        "ended": "stopped",
        "rows": 10,
        "seconds": 2.0,
        "rows_per_second": 5.0,
        "lag": 3,
        "output": "x",
    }
    assert Summary(pipeline="x", ended="finished", rows=1, seconds=0).rows_per_second == 0


class FakeWriter:
    """Starts queries that end at once, with the given errors in turn."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.starts = 0

    def option(self, name: str, value: str) -> FakeWriter:
        return self

    def trigger(self, **given: Any) -> FakeWriter:
        return self

    def start(self) -> Any:
        query = FakeQuery()
        query.isActive = False
        error = self._errors[self.starts]
        self.starts += 1
        query.exception = lambda: error  # type: ignore[attr-defined]
        return query


def run(writer: FakeWriter) -> Summary:
    return run_stream("x", cast("Any", writer), RunOptions(once=True), checkpoint="c")


def test_python_that_starts_too_slowly_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("pyspark.errors")
    monkeypatch.setattr(stream_run, "_START_PAUSE", 0.0)
    slow = errors.StreamingQueryException("Python worker failed to connect back.")
    writer = FakeWriter(slow, slow, None)
    assert run(writer).ended == "finished"
    assert writer.starts == 3
    with pytest.raises(PipelineFailed, match="failed to connect back"):
        run(FakeWriter(*[slow] * 5))


def test_other_errors_end_the_pipeline() -> None:
    errors = pytest.importorskip("pyspark.errors")
    writer = FakeWriter(errors.StreamingQueryException("downrange.errors.OptionError: no such x"))
    with pytest.raises(OptionError, match="no such x"):
        run(writer)
    assert writer.starts == 1
