"""Whatever goes wrong: what a broker promised holds.

Each seed is one story of half a minute or so. A story that ends badly is told again, line by line,
by `python -m tests.simulation --seconds 0 --whole --seed SEED`; `make campaign` looks for new ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from downrange.server.run.saved_tables import SavedTables
from downrange.store.log import LogFlush
from tests.simulation.world import World

SEEDS = range(50)


@cache
def told(seed: int) -> World:
    world = World(seed)
    world.run()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_holds(seed: int) -> None:
    assert told(seed).ledger.delivery


@pytest.mark.parametrize(
    "line",
    [
        "kill",
        "stop",
        "power is lost",
        "power is lost while it starts",
        "no answer came",
        "the connection was cut",
        "14 no message is stored: the disk is full",
        "log: sends are accepted again: the disk has space",
        " 310: 10 ",  # FLUSH_DISK_TIMEOUT
        "is asked about",
        "the log was cut",
        "old log segment(s) removed",
        "the change is in force, but it could not be saved",
    ],
)
def test_the_stories_tell_of_everything_that_can_go_wrong(line: str) -> None:
    assert any(line in each for seed in SEEDS for each in told(seed).lines)


def test_the_same_seed_tells_the_same_story_in_any_process() -> None:
    """Not even the order of a set may matter, so that a story can be told again."""
    again = World(7)
    again.run()
    assert again.lines == told(7).lines
    assert again.lines != told(8).lines
    command = [sys.executable, "-m", "tests.simulation", "--seconds", "0", "--seed", "7"]
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told(7).fingerprint() in other.stdout


def _run_all() -> None:
    for seed in SEEDS:
        World(seed).run()


def test_a_flush_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFlush, "run", lambda _flush: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()


def test_tables_that_are_not_written_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedTables, "write", lambda _tables, _contents: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()
