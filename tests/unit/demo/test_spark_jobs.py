from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from downrange.demo import spark_jobs
from downrange.demo.spark_jobs import run_apart
from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.pipelines.stream_run import StopRequest

DEADLINE = 30.0


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_jobs, "find_java", lambda: None)
    assert "install Java" in (spark_jobs.why_not() or "")


def test_missing_packages_say_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        assert name in ("pyspark", "pyarrow", "numpy")

    monkeypatch.setattr(spark_jobs, "find_spec", nothing)
    assert ".[spark]" in (spark_jobs.why_not() or "")


def test_work_apart_is_in_another_thread_and_its_result_comes_back() -> None:
    def work(stop: StopRequest) -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert not stop.is_wanted
        return "done"

    assert run_apart(work) == "done"


def test_error_of_work_apart_comes_back_and_nobody_waits() -> None:
    told: list[str] = []

    def work(stop: StopRequest) -> None:
        raise OptionError("no")

    with pytest.raises(OptionError, match="no"):
        run_apart(work, told.append)
    assert told == []


def test_ctrl_c_asks_work_apart_to_stop_and_waits_for_it() -> None:
    told: list[str] = []
    ends: list[bool] = []

    def work(stop: StopRequest) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ends.append(stop.wait(DEADLINE))

    # Whoever started the tests may have had the signal ignored, and Spark has a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_apart(work, told.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends == [True]
    assert len(told) == 1
