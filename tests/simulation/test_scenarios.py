"""A broker keeps its promises through kills, power losses, full disks and cut connections.

Each seed is one run of about half a simulated minute; `make campaign` tries new seeds. To repeat a
failed run with all its lines: `python -m tests.simulation --seconds 0 --whole --world pull --seed
SEED`.
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
def finished_run(seed: int) -> World:
    world = World(seed)
    world.run()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    assert finished_run(seed).ledger.delivery


@pytest.mark.parametrize(
    "line",
    [
        "kill",
        "stop",
        "power is lost",
        "power is lost during the start",
        "no answer came",
        "the connection was cut",
        "14 no message is stored: the disk is full",
        "log: sends are accepted again: the disk has space",
        " 310: 10 ",  # FLUSH_DISK_TIMEOUT
        "is checked for",
        "the log was cut",
        "old log segment(s) removed",
        "the change is in force, but it could not be saved",
    ],
)
def test_every_kind_of_fault_happens_in_some_run(line: str) -> None:
    assert any(line in each for seed in SEEDS for each in finished_run(seed).lines)


def test_the_same_seed_gives_the_same_run_in_any_process() -> None:
    """Not even the order of a set may matter, so that every run can be repeated."""
    again = World(7)
    again.run()
    assert again.lines == finished_run(7).lines
    assert again.lines != finished_run(8).lines
    command = [sys.executable, "-m", "tests.simulation", "--seconds", "0", "--seed", "7"]
    command += ["--world", "pull"]
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert finished_run(7).fingerprint() in other.stdout


def _run_all() -> None:
    for seed in SEEDS:
        World(seed).run()


def test_a_flush_that_does_nothing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFlush, "run", lambda _flush: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()


def test_tables_that_are_not_written_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedTables, "write", lambda _tables, _contents: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()
