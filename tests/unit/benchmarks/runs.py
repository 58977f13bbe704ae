"""Builders of runs for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.matrix.cells import Cell
from benchmarks.matrix.results import Probe, Run, Sample, Series

if TYPE_CHECKING:
    from collections.abc import Sequence

JAVA = Cell(client="java", server="apache", work="sync-1")
OURS = Cell(client="threads", server="apache", work="sync-1")


def sample(number: int, rate: float, *, p99_us: float | None = None, us: float = 10.0) -> Sample:
    return Sample(
        round=number,
        messages=round(rate * 2),
        seconds=2.0,
        client_us=us,
        server_us=2 * us,
        client_bytes=20_000_000,
        server_bytes=60_000_000,
        p50_us=None if p99_us is None else p99_us / 2,
        p99_us=p99_us,
    )


def series(cell: Cell, rates: Sequence[float]) -> Series:
    found = [sample(number, rate) for number, rate in enumerate(rates, 1)]
    return Series(cell=cell, samples=found)


def a_run(*found: Series, probes: Sequence[Probe] = (), is_complete: bool = True) -> Run:
    return Run(
        is_quick=False,
        is_complete=is_complete,
        seconds=120.0,
        rounds=3,
        round_seconds=1.5,
        machine={"cores": "2"},
        series=list(found),
        probes=list(probes),
    )
