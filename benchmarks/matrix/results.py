"""The results of a run, as stored in a file: every round of every cell, and the machine.

A ratio is the median of the ratios of the rounds, because both cells of a round were measured under
the same conditions.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from benchmarks.matrix.cells import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

STORED: Final = Path(__file__).parents[1] / "results" / "matrix.json"

Figure: TypeAlias = Literal["rate", "p50_us", "p99_us", "client_us", "server_us"]
"""A figure of a sample. For a rate more is better, for all others less."""
ProbeName: TypeAlias = Literal["start", "idle-memory", "idle-cpu"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a cell.

    Attributes:
        round: Number of the round.
        messages: Messages acknowledged or read.
        seconds: Duration.
        client_us: CPU time of the client per message.
        server_us: CPU time of the server per message, of all its processes.
        client_bytes: Memory of the client at the end, without pages of files.
        server_bytes: Memory of the server, likewise.
        p50_us: Median duration of a call, if the work waits for calls.
        p99_us: 99th percentile of the duration.
    """

    round: int
    messages: int
    seconds: float
    client_us: float
    server_us: float
    client_bytes: int
    server_bytes: int
    p50_us: float | None = None
    p99_us: float | None = None

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Series(msgspec.Struct, kw_only=True):
    """All rounds of a cell, and the errors of those that failed."""

    cell: Cell
    samples: list[Sample] = []
    failures: list[str] = []

    def figures(self, figure: Figure) -> list[float]:
        """Return a figure of all rounds that have it."""
        return list(self.by_round(figure).values())

    def by_round(self, figure: Figure) -> dict[int, float]:
        """Return a figure by number of the round."""
        found = {sample.round: getattr(sample, figure) for sample in self.samples}
        return {number: value for number, value in found.items() if value is not None}


class Probe(msgspec.Struct, kw_only=True):
    """Another measurement of both servers; less is better."""

    name: ProbeName
    title: str
    unit: str
    downrange: list[float] = []
    apache: list[float] = []

    @property
    def ratio(self) -> float | None:
        """Apache's figure divided by ours; None without both figures."""
        pairs = list(zip(self.downrange, self.apache, strict=False))
        # An idle server may use less than one clock tick of CPU.
        found = [apache / ours if ours else float("inf") for ours, apache in pairs]
        return median(found) if found else None


class Run(msgspec.Struct, kw_only=True):
    """A run.

    Attributes:
        is_quick: Whether it was the quick plan.
        is_complete: False if the run was interrupted.
        seconds: Duration of the run.
        rounds: Planned rounds per cell.
        round_seconds: Planned duration of a round.
        machine: The machine and the versions.
        series: The cells, in the order of the tables.
        probes: Other measurements.
        left_out: Parts of the matrix that the plan did not contain.
    """

    is_quick: bool
    is_complete: bool
    seconds: float
    rounds: int
    round_seconds: float
    machine: dict[str, str]
    series: list[Series]
    probes: list[Probe]
    left_out: list[str] = []

    def find(self, cell: Cell) -> Series | None:
        """Return the rounds of a cell; None if there are none."""
        found = (each for each in self.series if each.cell == cell and each.samples)
        return next(found, None)

    def probe(self, name: ProbeName) -> Probe | None:
        """Return the probe of this name; None if it was not measured."""
        return next((each for each in self.probes if each.name == name), None)

    @property
    def failures(self) -> list[str]:
        """All errors, each with the name of its cell."""
        return [f"{each.cell.name}: {why}" for each in self.series for why in each.failures]


def ratio(ours: Series, base: Series, figure: Figure) -> float | None:
    """Return how many times *better* one cell is than another, as a median.

    Only rounds that both cells have are compared; the result is None without such a round.
    """
    theirs = base.by_round(figure)
    pairs = [
        (value, theirs[number])
        for number, value in ours.by_round(figure).items()
        if number in theirs
    ]
    if figure != "rate":
        pairs = [(other, value) for value, other in pairs]
    found = [better / worse if worse else float("inf") for better, worse in pairs]
    return median(found) if found else None


def spread(values: Sequence[float]) -> float:
    """Return the distance of the farthest round from the median, as a share of it."""
    middle = median(values)
    return max(max(values) - middle, middle - min(values)) / middle if middle else 0.0


def load(path: Path = STORED) -> Run:
    """Read a stored run.

    Raises:
        OSError: The file cannot be read.
        msgspec.DecodeError: The file has another format.
    """
    return msgspec.json.decode(path.read_bytes(), type=Run)


def store(run: Run, path: Path) -> None:
    """Write a run to a file, one value per line, so that versions can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
