"""Results of `benchmarks.growth`: stored as JSON, printed as a table, written into the docs.

An `Axis` is one thing that grows. Each figure is stored with the figure of the first point, or of a
store that stays small, from the same round. The ratio of a point is the median of the ratios of the
rounds, because both figures of a round were measured under the same conditions.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from rich import box
from rich.table import Table

from benchmarks.growth.servers import Side

if TYPE_CHECKING:
    from pathlib import Path

Name: TypeAlias = Literal["topics", "stored", "connections", "latency", "restart"]

BEGIN: Final = "<!-- begin: python -m benchmarks.growth -->\n"
END: Final = "<!-- end: growth -->\n"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one point.

    Attributes:
        value: The figure, in the axis's unit.
        base: The figure of the first point in the same round.
        rate: Messages per second, if there was a load.
    """

    value: float
    base: float
    rate: float | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of one size."""

    size: float
    samples: list[Sample]

    @property
    def middle(self) -> float:
        """The median of the rounds."""
        return median(sample.value for sample in self.samples)

    @property
    def spread(self) -> float:
        """Distance of the farthest round from the median, as a share of it."""
        return max(abs(sample.value / self.middle - 1) for sample in self.samples)

    @property
    def ratios(self) -> list[float]:
        """The ratio to the first point in each round."""
        return [sample.value / sample.base for sample in self.samples]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The points of one server, by size."""

    side: Side
    points: list[Point]

    def at(self, size: float) -> Point | None:
        """Return the point of a size, if it was measured."""
        return next((point for point in self.points if point.size == size), None)


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that grows, and a figure that depends on it.

    Attributes:
        name: Name for `--only` and for files.
        figure: What is measured.
        unit: Unit of the figure.
        grows: What grows, and in which unit.
        target: Largest allowed ratio of our last point to the first.
        curves: The curves; ours is the first.
    """

    name: Name
    figure: str
    unit: str
    grows: str
    target: float | None = None
    curves: list[Curve]

    @property
    def sizes(self) -> list[float]:
        """All measured sizes."""
        return sorted({point.size for curve in self.curves for point in curve.points})

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.curves[0].points[-1].ratio <= self.target

    def curve(self, side: Side) -> Curve | None:
        """Return the curve of a server, if it was measured."""
        return next((curve for curve in self.curves if curve.side == side), None)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All axes of a run, with the machine and the versions."""

    is_quick: bool
    seconds: float
    machine: dict[str, str]
    left_out: list[str]
    axes: list[Axis]


def table(run: Run) -> Table:
    """Return the table for the terminal, ratios first."""
    shown = Table(title=_TITLE, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for number, heading in enumerate(_HEADINGS):
        shown.add_column(heading, justify="right" if number else "left")
    for axis in run.axes:
        style = "red" if axis.is_met is False else None
        for cells in _rows(axis):
            shown.add_row(*cells, style=style if cells[2] else None)
        shown.add_section()
    return shown


def markdown(run: Run) -> str:
    """Return the table and the machine, for the docs."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---" + "|---:" * (len(_HEADINGS) - 1) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for axis in run.axes for cells in _rows(axis)]
    facts = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    kind = "A quick run" if run.is_quick else "A full run"
    origin = f"{kind} of {run.seconds / 60:.1f} minutes: {facts}."
    if run.left_out:
        origin += f" Left out: {'; '.join(run.left_out)}."
    return "\n".join([*lines, "", origin, ""])


def write_into(page: Path, text: str) -> None:
    """Replace the figures on a page of the docs, between two comments.

    Raises:
        ValueError: The page lacks these comments.
    """
    before, begin_mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end_mark, after = rest.partition(END)
    if not (begin_mark and end_mark):
        raise ValueError(f"{page} lacks the comments that mark the figures")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def size_text(axis: Name, size: float) -> str:
    """Return a size as text."""
    if axis in ("stored", "restart"):
        return f"{size:g} GB"
    return f"{size:,.0f}"


_TITLE: Final = "Values that must not grow; ratios are relative to the first point of each part"
_HEADINGS: Final = ("", "ratio", "target", "downrange", "Apache: ratio", "Apache")
_SIZES: Final[dict[Name, str]] = {
    "topics": "{} topics",
    "stored": "{} stored",
    "connections": "{} connections",
    "latency": "{} connections",
    "restart": "log of {}",
}


def _rows(axis: Axis) -> list[list[str]]:
    rows: list[list[str]] = []
    for size in axis.sizes:
        is_last = size == axis.sizes[-1]
        points = [_point(axis, side, size) for side in ("downrange", "apache")]
        ours, apache = ([_ratio(point), _figure(point)] for point in points)
        target = f"≤ {axis.target:g}x" if is_last and axis.target is not None else ""
        title = _SIZES[axis.name].format(size_text(axis.name, size))
        title = title.removesuffix("s") if size == 1 else title
        title = f"{title}: {axis.figure}, {axis.unit}"
        rows.append([title, ours[0], target, ours[1], *apache])
    return rows


def _point(axis: Axis, side: Side, size: float) -> Point | None:
    curve = axis.curve(side)
    return None if curve is None else curve.at(size)


def _ratio(point: Point | None) -> str:
    return "" if point is None else f"{point.ratio:.2f}x"


def _figure(point: Point | None) -> str:
    if point is None:
        return ""
    value = point.middle
    text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return f"{text} ±{point.spread:.0%}" if len(point.samples) > 1 else text
