from __future__ import annotations

import asyncio
import threading

import pytest

from downrange.demo.schedule import SendSchedule, count_by, due_at


@pytest.mark.parametrize("seconds", [2.0, 12.0])
def test_rate_is_high_first_and_ends_at_its_mean(seconds: float) -> None:
    half = count_by(seconds / 2, seconds, 100)
    assert half > 100 * seconds / 2
    assert count_by(seconds, seconds, 100) == pytest.approx(100 * seconds)


def test_due_times_rise_and_are_those_of_the_count() -> None:
    times = [due_at(number, 5.0, 40) for number in range(200)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(0.0, abs=1e-6)
    assert times[-1] <= 5.0
    for number, at in enumerate(times):
        assert count_by(at, 5.0, 40) == pytest.approx(number, abs=1e-3)


def test_all_beats_come() -> None:
    schedule = SendSchedule(0.05, 400, threading.Event(), overrun_factor=1000)
    assert list(schedule.ticks()) == list(range(20))
    assert schedule.planned == 20


def test_async_beats_are_the_same() -> None:
    async def take() -> list[int]:
        schedule = SendSchedule(0.05, 400, threading.Event(), overrun_factor=1000)
        return [tick async for tick in schedule.async_ticks()]

    assert asyncio.run(take()) == list(range(20))


def test_stopping_ends_the_beats_at_once() -> None:
    stopped = threading.Event()
    seen: list[int] = []
    for tick in SendSchedule(3600.0, 1000, stopped).ticks():
        seen.append(tick)
        stopped.set()
    assert seen == [0]


def test_sender_that_is_delayed_too_long_skips_the_rest() -> None:
    schedule = SendSchedule(1.0, 100, threading.Event(), started_at=-1e6)
    assert list(schedule.ticks()) == []
