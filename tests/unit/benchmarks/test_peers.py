"""The comparison with other Python clients: its table, its window, its reasons."""

from __future__ import annotations

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.__main__ import Result, table
from benchmarks.peers.processes import _last_line
from benchmarks.peers.window import Window


def _result(name: str, one: list[float], many: list[float]) -> Result:
    costs = {"one": [100.0], "many": [20.0]}
    return Result(name, {"one": one, "many": many}, costs)


def test_table_has_medians_and_ratios_to_the_first_client() -> None:
    ours = _result("ours", [1000.0, 3000.0, 2000.0], [20_000.0])
    other = _result("other", [500.0, 600.0, 500.0], [2000.0])
    missing = Result("missing", reason="cannot be run: no library")
    lines = table([ours, other, missing]).splitlines()
    assert lines[2] == "| ours | 2,000 (1.00x) | 100 | 20,000 (1.00x) | 20 |"
    assert lines[3] == "| other | 500 (0.25x) | 100 | 2,000 (0.10x) | 20 |"
    assert lines[-1] == "- missing cannot be run: no library"


def test_every_client_is_named_once() -> None:
    names = [each.name for each in command.CANDIDATES]
    assert len(set(names)) == len(names)
    assert not command.CANDIDATES[0].packages  # ours is the reference of the ratios


def test_window_counts_answers() -> None:
    window = Window(2)
    for _ in range(2):
        window.enter()
        window.leave(None)
    assert window.close() == 2


def test_window_raises_the_error_of_an_answer() -> None:
    window = Window(2)
    window.enter()
    window.leave(ValueError("not stored"))
    with pytest.raises(ValueError, match="not stored"):
        window.close()


def test_reason_is_the_last_line_without_our_folder() -> None:
    root = command.ROOT
    assert (
        _last_line(f"Traceback\n  x\nError: {root}/lib is missing\n\n") == "Error: …/lib is missing"
    )
    assert _last_line("") == "it said nothing"
