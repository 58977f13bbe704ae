from __future__ import annotations

import asyncio
import threading

import pytest

from downrange.demo.pace import Pace, count_by, due_at


@pytest.mark.parametrize("seconds", [2.0, 12.0])
def test_rate_swells_first_and_ends_at_its_mean(seconds: float) -> None:
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
    pace = Pace(0.05, 400, threading.Event(), overtime=1000)
    assert list(pace.beats()) == list(range(20))
    assert pace.planned == 20


def test_async_beats_are_the_same() -> None:
    async def take() -> list[int]:
        pace = Pace(0.05, 400, threading.Event(), overtime=1000)
        return [beat async for beat in pace.async_beats()]

    assert asyncio.run(take()) == list(range(20))


def test_stopping_ends_the_beats_at_once() -> None:
    stopped = threading.Event()
    seen: list[int] = []
    for beat in Pace(3600.0, 1000, stopped).beats():
        seen.append(beat)
        stopped.set()
    assert seen == [0]


def test_who_was_held_up_too_long_gives_up_the_rest() -> None:
    pace = Pace(1.0, 100, threading.Event(), begun_at=-1e6)
    assert list(pace.beats()) == []
