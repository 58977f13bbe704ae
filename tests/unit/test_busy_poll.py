"""Staying awake while requests follow each other closely."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from downrange.busy_poll import Lookout, Vigil, has_core_to_spare

if TYPE_CHECKING:
    from pathlib import Path


class Scene:
    """A vigil, a clock that is set by hand, and how often the loop is to come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, distance: float) -> None:
        self.now = 100.0
        self.turns: list[object] = []
        self.taken = 0.0
        monkeypatch.setattr("downrange.busy_poll.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("downrange.busy_poll._offer_core", self._let_go)
        loop = asyncio.new_event_loop()
        monkeypatch.setattr(loop, "call_soon", self.turns.append)
        loop.close()
        self.vigil = Vigil(loop, distance)

    def _let_go(self) -> None:
        self.now += self.taken

    def notice(self, after: float) -> None:
        self.now += after
        self.vigil.notice()

    def turn(self, after: float) -> None:
        self.now += after
        turn = self.turns.pop()
        assert callable(turn)
        turn()


def test_the_first_request_keeps_nobody_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.notice(0.0)
    assert scene.turns == []


def test_requests_far_from_each_other_keep_nobody_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    for _ in range(3):
        scene.notice(0.5)
    assert scene.turns == []


def test_a_request_close_to_the_last_keeps_the_loop_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.notice(0.0)
    scene.notice(0.25)
    assert len(scene.turns) == 1
    scene.turn(0.25)
    assert len(scene.turns) == 1, "the next one may still come"
    scene.notice(0.125)
    assert len(scene.turns) == 1, "it is awake already"
    scene.turn(0.25)
    assert len(scene.turns) == 1
    scene.turn(0.25)
    assert scene.turns == [], "nothing came for so long"


def test_it_can_be_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.notice(0.0)
    scene.notice(0.25)
    scene.turn(0.5)
    assert scene.turns == []
    scene.notice(0.0)
    scene.notice(0.25)
    assert len(scene.turns) == 1


def test_a_core_that_somebody_else_wants_is_left_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, 0.5)
    scene.notice(0.0)
    scene.notice(0.01)
    scene.taken = 0.001
    scene.turn(0.01)
    assert scene.turns == []
    scene.notice(0.01)
    scene.notice(0.01)
    assert scene.turns == [], "it is too early"
    scene.taken = 0.0
    scene.notice(0.1)
    assert len(scene.turns) == 1
    scene.turn(0.01)
    assert len(scene.turns) == 1


class Replies:
    """A lookout, a clock that a look moves on, and when a reply is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, distance: float) -> None:
        self.now = 100.0
        self.looks = 0
        self.taken = 0.0
        self.reply_at = 0.0
        monkeypatch.setattr("downrange.busy_poll.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("downrange.busy_poll._offer_core", self._let_go)
        self._lookout = Lookout(distance)

    def _let_go(self) -> None:
        self.now += self.taken

    def _look(self) -> bool:
        self.looks += 1
        self.now += 0.01
        return self.now >= self.reply_at

    def are_seen(self, after: float, within: float = 9.0) -> bool:
        self.looks = 0
        self.reply_at = self.now + after
        return self._lookout.sees(self._look, within)


def test_a_reply_is_looked_for_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    for _ in range(3):
        assert replies.are_seen(0.095)
        assert replies.looks == 10


def test_after_a_slow_reply_nobody_looks_for_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    assert not replies.are_seen(1.0)
    assert not replies.are_seen(0.0)
    assert replies.looks == 0
    replies.now += 0.2
    assert replies.are_seen(0.0)


def test_nobody_looks_longer_than_a_reply_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    assert not replies.are_seen(0.4, within=0.055)
    assert replies.looks == 6


def test_a_thread_sleeps_when_somebody_else_wants_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(monkeypatch, 0.5)
    replies.taken = 0.001
    assert not replies.are_seen(0.1)
    assert replies.looks == 1
    assert not replies.are_seen(0.0)
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
