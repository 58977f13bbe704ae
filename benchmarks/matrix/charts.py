"""The plot of a run: the ratios as bars, with a mark at each target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.matrix.results import STORED, load
from benchmarks.matrix.tables import ratio_text
from benchmarks.matrix.targets import verdicts
from benchmarks.plots import style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.matrix.results import Run
    from benchmarks.matrix.targets import Verdict

NAME: Final = "matrix-ratios"
_TICKS: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50)
_BAR: Final = 0.62
_GAP: Final = 0.9
_LINE_INCHES: Final = 0.24
_MARGIN_INCHES: Final = 1.0


def draw(results: Path = STORED, folder: Path = style.IMAGES) -> None:
    """Draw the ratios of a stored run.

    Args:
        results: The stored run.
        folder: Folder of the files.
    """
    shown = [each for each in verdicts(load(results)) if each.is_ratio]
    height = _MARGIN_INCHES + _LINE_INCHES * (-bar_positions(shown)[-1] if shown else 0)
    style.write(NAME, bars(shown), folder=folder, width=7.6, height=height)


def picture(run: Run) -> str:
    """Return the markdown that shows the ratios of a run."""
    met = sum(each.is_met for each in verdicts(run))
    return style.picture(
        NAME, f"Ratios and their targets, {met} targets met; the table below has all values"
    )


def bar_positions(shown: Sequence[Verdict]) -> list[float]:
    """Return the position of each bar, from 0 downwards, with a gap before each comparison."""
    found: list[float] = []
    at, before = 0.0, None
    for each in shown:
        at -= 1.0 if each.comparison == before else 1.0 + _GAP
        found.append(at)
        before = each.comparison
    return found


def bars(shown: Sequence[Verdict]) -> style.Draw:
    """Return the plot of the verdicts; met targets have the first colour of a look."""

    def draw_on(axes: Axes, look: style.Look) -> None:
        start, before = _start(shown), None
        for each, place in zip(shown, bar_positions(shown), strict=True):
            colour = look.series[0] if each.is_met else look.series[1]
            axes.barh(place, each.figure - start, _BAR, left=start, color=colour)
            axes.vlines(
                each.target, place - _BAR * 0.7, place + _BAR * 0.7, color=look.limit, lw=2.2
            )
            axes.annotate(
                ratio_text(each.figure),
                (_label_place(each.figure, each.target), place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.0,
            )
            if each.comparison != before:
                axes.annotate(
                    each.comparison,
                    (start, place + 0.95),
                    va="center",
                    fontsize=8.5,
                    fontweight="bold",
                )
                before = each.comparison
        _scale(axes, shown)

    return draw_on


def _label_place(ratio: float, at_least: float) -> float:
    """Return the position of a ratio's text: after its bar, or after a mark in the same place."""
    return at_least if at_least / 1.5 < ratio < at_least else ratio


def _start(shown: Sequence[Verdict]) -> float:
    """Return the start of the axis, so that the shortest bar is visible."""
    least = min([0.5, *(each.figure for each in shown)])
    return max([tick for tick in _TICKS if tick < least], default=_TICKS[0])


def _scale(axes: Axes, shown: Sequence[Verdict]) -> None:
    axes.set_title("How many times better; the mark is the target")
    axes.set_xscale("log")
    most = max([2.0, *(max(each.figure, each.target) for each in shown)])
    axes.set_xlim(_start(shown), most * 1.6)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if tick <= most * 1.6]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}x"))
    axes.set_yticks(bar_positions(shown), [each.title for each in shown])
    axes.grid(axis="y", visible=False)
