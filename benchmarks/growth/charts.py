"""The plots of a run: one for each axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks.growth.report import Name, Run, size_text
from benchmarks.plots import style
from benchmarks.plots.lines import Chart, Line, Point, curves

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.growth import report
    from benchmarks.growth.servers import Side

_LABELS: Final[dict[Side, str]] = {"downrange": "Downrange", "apache": "Apache 5.5.0"}
_COLOURS: Final[dict[Side, int]] = {"downrange": 0, "apache": 1}
_TITLES: Final[dict[Name, str]] = {
    "topics": "Cost of a send by number of topics",
    "stored": "Cost of a send by amount of stored data",
    "connections": "Cost of a send by number of connections",
    "latency": "Round trip of a send by number of connections",
    "restart": "Start after a crash by size of the log",
}


def draw(results: Path, folder: Path = style.IMAGES) -> None:
    """Draw all plots of a stored run.

    Args:
        results: The stored run.
        folder: Folder of the files.
    """
    run = msgspec.json.decode(results.read_bytes(), type=Run)
    for axis in run.axes:
        style.write(file_name(axis.name), curves(chart_of(axis)), folder=folder)


def pictures(run: Run) -> str:
    """Return the markdown that shows the plots of a run."""
    shown = (
        style.picture(file_name(axis.name), f"{_TITLES[axis.name]}: {axis.figure}, {axis.unit}")
        for axis in run.axes
    )
    return "\n\n".join(shown) + "\n"


def file_name(axis: Name) -> str:
    """Return the name of an axis's plot."""
    return f"growth-{axis}"


def chart_of(axis: report.Axis) -> Chart:
    """Return the chart of an axis: ratios if it has a target, otherwise the values."""
    is_ratio = axis.name in ("topics", "stored")
    lines = [
        Line(
            label=_LABELS[curve.side],
            colour=_COLOURS[curve.side],
            points=[_chart_point(point, is_ratio=is_ratio) for point in curve.points],
        )
        for curve in axis.curves
    ]
    return Chart(
        title=_TITLES[axis.name],
        x_label=axis.grows,
        y_label=f"{axis.figure}, {'ratio' if is_ratio else axis.unit}",
        lines=lines,
        is_log=axis.name in ("topics", "connections", "latency"),
        is_log_up=axis.name == "latency",
        limit=axis.target if is_ratio else None,
        limit_label="" if axis.target is None else f"target: {axis.target:g} at most",
        tick=lambda size: size_text(axis.name, size),
    )


def _chart_point(point: report.Point, *, is_ratio: bool) -> Point:
    values = point.ratios if is_ratio else [sample.value for sample in point.samples]
    middle = point.ratio if is_ratio else point.middle
    return Point(point.size, middle, min(values), max(values))
