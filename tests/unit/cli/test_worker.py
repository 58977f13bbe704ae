"""The life of a worker of `downrange consume`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from downrange.cli.worker import Work
from downrange.errors import OptionError, RetrySome
from tests.unit.client.flows.consuming.test_delivery_window import messages_at


class BusyOutput:
    """A stream that a thread is writing to: a signal handler of this thread cannot flush it."""

    def flush(self) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")


def test_the_last_line_tells_failed_messages_from_handled_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = Work(drain_timeout=1.0)
    outcomes: list[object] = [None, ValueError("bad"), (number for number in range(2))]

    def handle(_: Any) -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    handler = work.counted(handle)
    first, second, third = messages_at(1, 2, 3)
    handler(first)
    cases: list[tuple[Any, type[Exception]]] = [(second, ValueError), (third, OptionError)]
    for message, error in cases:  # a generator has not done its work
        with pytest.raises(error):
            handler(message)
    work.finish()
    assert capsys.readouterr().out == "stopped handled=1 failed=2 unfinished=0\n"


def test_a_batch_may_fail_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(drain_timeout=1.0, as_json=True)
    first, second, third = batch = messages_at(1, 2, 3)

    async def handle(_: Any) -> None:
        raise RetrySome([second])

    async def stop(_: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RetrySome):
        asyncio.run(work.counted_async(handle)(batch))
    assert (work.ended, work.failed) == (3, 1)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work.counted_async(stop)([first, third]))
    assert (work.ended, work.failed, work.running) == (3, 1, 2)
    assert capsys.readouterr().out == ""


def test_a_second_signal_ends_the_process_while_a_line_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[int]()
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sys, "stdout", BusyOutput())
    work = Work(drain_timeout=600.0)
    work._on_signal(signal.SIGTERM, None)
    assert ended == []
    work._on_signal(signal.SIGTERM, None)
    assert ended == [128 + signal.SIGTERM]
