"""Draws curves of a figure over something that grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from benchmarks.plots.style import Draw, Look


class Point(NamedTuple):
    """One point of a curve: median, minimum and maximum of the rounds."""

    x: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve.

    Attributes:
        label: Text in the legend.
        points: From left to right.
        colour: Index of the look's colours.
    """

    label: str
    points: Sequence[Point]
    colour: int


def _plain(value: float) -> str:
    return f"{value:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves on common axes.

    Attributes:
        title: Title of the plot.
        x_label: What grows.
        y_label: The figure and its unit; its axis begins at 0.
        lines: The curves.
        is_log: Whether the x axis is logarithmic.
        is_log_up: Whether the y axis is logarithmic; it then does not begin at 0.
        limit: A figure that should not be exceeded.
        limit_label: Text of the limit.
        tick: Returns the label of a position on the x axis.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_log: bool = False
    is_log_up: bool = False
    limit: float | None = None
    limit_label: str = "target"
    tick: Callable[[float], str] = _plain


def curves(chart: Chart) -> Draw:
    """Return the plot of a chart: medians, with a band over all rounds."""

    def draw(axes: Axes, look: Look) -> None:
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        if chart.is_log:
            axes.set_xscale("log")
        if chart.is_log_up:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(y)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        for line in chart.lines:
            _draw_line(axes, line, look.series[line.colour])
        if chart.limit is not None:
            axes.axhline(
                chart.limit,
                color=look.limit,
                linewidth=1.0,
                linestyle=(0, (4, 3)),
                label=chart.limit_label,
            )
        _label_points(axes, chart)
        if not chart.is_log_up:
            axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 0.98), borderaxespad=0)
        axes.set_title(chart.title, pad=24)

    return draw


def _draw_line(axes: Axes, line: Line, colour: str) -> None:
    xs = [point.x for point in line.points]
    low, high = [point.low for point in line.points], [point.high for point in line.points]
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(xs, [point.middle for point in line.points], "o-", color=colour, label=line.label)


def _label_points(axes: Axes, chart: Chart) -> None:
    """Label the x axis only where there are points."""
    places = sorted({point.x for line in chart.lines for point in line.points})
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: chart.tick(x)))
