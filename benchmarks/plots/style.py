"""The style of all plots, and how they are written to files.

A plot is a function that draws on matplotlib's axes with the colours of a `Look`. It is drawn
twice, for light and for dark pages, without a background; with `picture` the browser of the reader
selects one. The same plot always gives the same bytes: no dates, no random ids. Text stays text.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"

WIDTH: Final = 6.4
HEIGHT: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colours for one kind of page.

    Attributes:
        suffix: Suffix of the file names.
        ink: Titles and figures.
        soft: Axis labels.
        line: Grid and axes.
        limit: Targets.
        series: One for each series; ours comes first.
    """

    suffix: str
    ink: str
    soft: str
    line: str
    limit: str
    series: tuple[str, ...]


LIGHT: Final = Look(
    suffix="",
    ink="#1b2430",
    soft="#5b6675",
    line="#d5dbe2",
    limit="#b3261e",
    series=("#0072b2", "#d55e00", "#009e73", "#b8578f", "#c98a00"),
)
DARK: Final = Look(
    suffix="-dark",
    ink="#e6eaf0",
    soft="#a3aebc",
    line="#3a4654",
    limit="#ff9a91",
    series=("#4fa8e0", "#f28a45", "#3cc79d", "#dd8fbd", "#e8b23f"),
)

Draw: TypeAlias = Callable[[Axes, Look], None]
"""Draws on empty axes, and sets their title and labels."""


def render(draw: Draw, look: Look, *, width: float = WIDTH, height: float = HEIGHT) -> str:
    """Return a plot as SVG.

    Args:
        draw: The plot.
        look: The colours.
        width: In inches of 72 points.
        height: In inches of 72 points.
    """
    with mpl.rc_context(_settings(look)):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.subplots(), look)
        data = io.BytesIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(data, format="svg", transparent=True, metadata=nothing)
    lines = (line.rstrip() for line in data.getvalue().decode().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def write(
    name: str,
    draw: Draw,
    *,
    folder: Path = IMAGES,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> None:
    """Write a plot for light and for dark pages.

    Args:
        name: Name of the files, without suffix.
        draw: The plot.
        folder: Folder of the files.
        width: In inches.
        height: In inches.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for look in (LIGHT, DARK):
        text = render(draw, look, width=width, height=height)
        (folder / f"{name}{look.suffix}.svg").write_text(text, encoding="utf-8")


def picture(name: str, alt: str) -> str:
    """Return the markdown that shows a plot on a page of `docs/`.

    Args:
        name: Name of the plot.
        alt: Text for readers who cannot see the plot.
    """
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="images/{name}{DARK.suffix}.svg">'
    return f'<picture>{dark}<img src="images/{name}{LIGHT.suffix}.svg" alt="{alt}"></picture>'


def _settings(look: Look) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "downrange",
        "font.size": 9.0,
        # The first font is included in matplotlib and used to measure text.
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
        "text.color": look.ink,
        "axes.titlesize": 10.0,
        "axes.titlelocation": "left",
        "axes.titlepad": 10.0,
        "axes.labelcolor": look.soft,
        "axes.edgecolor": look.line,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": look.line,
        "grid.linewidth": 0.6,
        "xtick.color": look.line,
        "xtick.labelcolor": look.soft,
        "ytick.color": look.line,
        "ytick.labelcolor": look.soft,
        "ytick.left": False,
        "xtick.minor.visible": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.0,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
