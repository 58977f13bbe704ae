"""What a run found, as it is kept in a file: every round of every cell, and where it ran.

Ratios are medians of the rounds' ratios: the two sides of a round met the same machine.
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
"""What of a sample is looked at. Of a rate, more is better, of all others less."""
ProbeName: TypeAlias = Literal["start", "idle-memory", "idle-cpu"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a cell.

    Attributes:
        round: Its number.
        messages: Acknowledged, or read.
        seconds: How long that took.
        client_us: CPU time of the client per message.
        server_us: CPU time of the server per message, of all its processes.
        client_bytes: The client's own memory at the end: without pages of files.
        server_bytes: The same of the server.
        p50_us: Median of how long a call took, where somebody waits for one.
        p99_us: 99th percentile of it.
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
    """All rounds of a cell, and what went wrong in those that failed."""

    cell: Cell
    samples: list[Sample] = []
    failures: list[str] = []

    def figures(self, figure: Figure) -> list[float]:
        """Return one figure of all rounds that have it."""
        return list(self.by_round(figure).values())

    def by_round(self, figure: Figure) -> dict[int, float]:
        """Return one figure by the number of the round."""
        found = {sample.round: getattr(sample, figure) for sample in self.samples}
        return {number: value for number, value in found.items() if value is not None}


class Probe(msgspec.Struct, kw_only=True):
    """Something else than a cell that both servers were asked; less is better."""

    name: ProbeName
    title: str
    unit: str
    downrange: list[float] = []
    apache: list[float] = []

    @property
    def ratio(self) -> float | None:
        """How many times less ours takes; None as long as there is nothing to compare."""
        pairs = list(zip(self.downrange, self.apache, strict=False))
        # An idle server may well take no tick of the clock at all.
        found = [apache / ours if ours else float("inf") for ours, apache in pairs]
        return median(found) if found else None


class Run(msgspec.Struct, kw_only=True):
    """A run.

    Attributes:
        is_quick: Whether it was the short plan.
        is_complete: Whether it was left to end.
        seconds: How long it took.
        rounds: How many there should be of each cell.
        round_seconds: How long each should be.
        machine: What the figures depend on, versions included.
        series: The cells, in the order in which they are shown.
        probes: What else was asked.
        left_out: What of the whole matrix was not to be measured.
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
        """Return the rounds of a cell, None when there are none."""
        found = (each for each in self.series if each.cell == cell and each.samples)
        return next(found, None)

    def probe(self, name: ProbeName) -> Probe | None:
        """Return what was asked for under this name."""
        return next((each for each in self.probes if each.name == name), None)

    @property
    def failures(self) -> list[str]:
        """All that went wrong, each with the name of its cell."""
        return [f"{each.cell.name}: {why}" for each in self.series for why in each.failures]


def ratio(ours: Series, base: Series, figure: Figure) -> float | None:
    """Return how many times *better* one cell is than another in the middle.

    Only rounds that both have are compared; without one the result is None.
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
    """Return how far the round farthest from the median lies from it, as a part of it."""
    middle = median(values)
    return max(max(values) - middle, middle - min(values)) / middle if middle else 0.0


def load(path: Path = STORED) -> Run:
    """Read a run that was stored.

    Raises:
        OSError: There is no such file.
        msgspec.DecodeError: It is not of this form.
    """
    return msgspec.json.decode(path.read_bytes(), type=Run)


def store(run: Run, path: Path) -> None:
    """Write a run to a file, one fact per line, so that versions of it can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
