from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from downrange.demo import spark_jobs
from downrange.demo.spark_jobs import run_in_thread
from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.pipelines.stream_run import StopRequest

DEADLINE = 30.0


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_jobs, "find_java", lambda: None)
    assert "install Java" in (spark_jobs.missing_for_spark() or "")


def test_missing_packages_say_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        assert name in ("pyspark", "pyarrow", "numpy")

    monkeypatch.setattr(spark_jobs, "find_spec", nothing)
    assert ".[spark]" in (spark_jobs.missing_for_spark() or "")


def test_function_runs_in_another_thread_and_its_result_is_returned() -> None:
    def work(stop: StopRequest) -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert not stop.is_wanted
        return "done"

    assert run_in_thread(work) == "done"


def test_error_of_the_thread_is_raised_without_a_wait() -> None:
    texts: list[str] = []

    def work(stop: StopRequest) -> None:
        raise OptionError("no")

    with pytest.raises(OptionError, match="no"):
        run_in_thread(work, texts.append)
    assert texts == []


def test_ctrl_c_asks_the_function_to_stop_and_waits_for_it() -> None:
    texts: list[str] = []
    ends: list[bool] = []

    def work(stop: StopRequest) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ends.append(stop.wait(DEADLINE))

    # The test runner may ignore the signal, and Spark may have installed a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_thread(work, texts.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends == [True]
    assert len(texts) == 1
