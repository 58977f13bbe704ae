"""Polling instead of sleeping while requests or replies follow each other closely."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from downrange.busy_poll import BusyPoll, BusyWait, has_core_to_spare

if TYPE_CHECKING:
    from pathlib import Path


class Scene:
    """A `BusyPoll`, a clock that is set by hand, and the calls scheduled for the next turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, distance: float) -> None:
        self.now = 100.0
        self.turns: list[object] = []
        self.taken = 0.0
        monkeypatch.setattr("downrange.busy_poll.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("downrange.busy_poll._yield_core", self._pass_time)
        loop = asyncio.new_event_loop()
        monkeypatch.setattr(loop, "call_soon", self.turns.append)
        loop.close()
        self.busy_poll = BusyPoll(loop, distance)

    def _pass_time(self) -> None:
        self.now += self.taken

    def read(self, after: float) -> None:
        self.now += after
        self.busy_poll.on_read()

    def turn(self, after: float) -> None:
        self.now += after
        turn = self.turns.pop()
        assert callable(turn)
        turn()


def test_the_first_request_does_not_start_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.read(0.0)
    assert scene.turns == []


def test_requests_far_from_each_other_do_not_start_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    for _ in range(3):
        scene.read(0.5)
    assert scene.turns == []


def test_a_request_close_to_the_last_starts_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.read(0.0)
    scene.read(0.25)
    assert len(scene.turns) == 1
    scene.turn(0.25)
    assert len(scene.turns) == 1, "the next one may still come"
    scene.read(0.125)
    assert len(scene.turns) == 1, "it polls already"
    scene.turn(0.25)
    assert len(scene.turns) == 1
    scene.turn(0.25)
    assert scene.turns == [], "nothing came for that long"


def test_polling_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.read(0.0)
    scene.read(0.25)
    scene.turn(0.5)
    assert scene.turns == []
    scene.read(0.0)
    scene.read(0.25)
    assert len(scene.turns) == 1


def test_polling_stops_for_a_while_when_another_process_takes_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.read(0.0)
    scene.read(0.01)
    scene.taken = 0.001
    scene.turn(0.01)
    assert scene.turns == []
    scene.read(0.01)
    scene.read(0.01)
    assert scene.turns == [], "it is too early"
    scene.taken = 0.0
    scene.read(0.1)
    assert len(scene.turns) == 1
    scene.turn(0.01)
    assert len(scene.turns) == 1


class Replies:
    """A `BusyWait`, a clock that each look moves on, and the time of the reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, distance: float) -> None:
        self.now = 100.0
        self.looks = 0
        self.taken = 0.0
        self.reply_at = 0.0
        monkeypatch.setattr("downrange.busy_poll.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("downrange.busy_poll._yield_core", self._pass_time)
        self._busy_wait = BusyWait(distance)

    def _pass_time(self) -> None:
        self.now += self.taken

    def _look(self) -> bool:
        self.looks += 1
        self.now += 0.01
        return self.now >= self.reply_at

    def arrive(self, after: float, within: float = 9.0) -> bool:
        self.looks = 0
        self.reply_at = self.now + after
        return self._busy_wait.poll(self._look, within)


def test_a_reply_is_polled_for_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    for _ in range(3):
        assert replies.arrive(0.095)
        assert replies.looks == 10


def test_after_a_slow_reply_the_next_ones_are_not_polled_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = Replies(monkeypatch, 0.5)
    assert not replies.arrive(1.0)
    assert not replies.arrive(0.0)
    assert replies.looks == 0
    replies.now += 0.2
    assert replies.arrive(0.0)


def test_polling_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    assert not replies.arrive(0.4, within=0.055)
    assert replies.looks == 6


def test_a_thread_sleeps_when_another_process_takes_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = Replies(monkeypatch, 0.5)
    replies.taken = 0.001
    assert not replies.arrive(0.1)
    assert replies.looks == 1
    assert not replies.arrive(0.0)
    assert replies.looks == 0


@pytest.mark.parametrize(
    ("cores", "quota", "is_spare"),
    [
        (1, None, False),
        (2, None, True),
        (8, "max 100000\n", True),
        (8, "150000 100000\n", False),
        (8, "200000 100000\n", True),
        (1, "400000 100000\n", False),
        (2, "something else", True),
    ],
)
def test_a_core_is_spare_when_another_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, quota: str | None, is_spare: bool
) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert has_core_to_spare(file) is is_spare
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert has_core_to_spare(file) is is_spare
