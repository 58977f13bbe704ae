"""A run as rows of texts, which become tables on a terminal or in the docs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from rich import box
from rich.table import Table

from benchmarks.matrix.cells import CLIENT_TITLES, SERVER_TITLES, WORK_TITLES, size_title
from benchmarks.matrix.results import ratio, spread
from benchmarks.matrix.targets import verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import JustifyMethod

    from benchmarks.matrix.results import Probe, Run, Series

_MEGABYTE: Final = 1e6


class Rows(NamedTuple):
    """The content of a table.

    Attributes:
        title: Title of the table.
        headings: Headings of the columns.
        texts: The rows.
        styles: Style of each row on a terminal.
        words: Number of columns from the left that hold text, not figures.
    """

    title: str
    headings: Sequence[str]
    texts: list[list[str]]
    styles: list[str | None]
    words: int


def target_rows(run: Run) -> Rows:
    """Return all measured targets, and whether they are met."""
    found = verdicts(run)
    return Rows(
        title="Targets: how many times better, or µs; bodies of 1 KB, if not said otherwise",
        headings=("comparison", "", "ratio", "target", ""),
        texts=[
            [
                each.comparison,
                each.title,
                ratio_text(each.figure) if each.is_ratio else f"{number_text(each.figure)} µs",
                f"≥ {each.target:g}x" if each.is_ratio else f"≤ {each.target:g} µs",
                "met" if each.is_met else "missed",
            ]
            for each in found
        ],
        styles=["green" if each.is_met else "red" for each in found],
        words=2,
    )


def cell_rows(run: Run) -> list[Rows]:
    """Return the measured cells, a table for each body size and flush mode."""
    measured = [each for each in run.series if each.samples or each.failures]
    kinds = dict.fromkeys((each.cell.flush, each.cell.body_bytes) for each in measured)
    return [
        Rows(
            title=f"Bodies of {size_title(body)}{', sync flush' if flush == 'sync' else ''}",
            headings=(
                *("", "client → server", "ratio", "messages/s", "p50, µs", "p99, µs"),
                *("client µs", "server µs", "client MB", "server MB"),
            ),
            texts=[_texts(run, each) for each in rows],
            styles=["red" if each.failures else None for each in rows],
            words=2,
        )
        for flush, body in kinds
        if (
            rows := [
                each
                for each in measured
                if (each.cell.flush, each.cell.body_bytes) == (flush, body)
            ]
        )
    ]


def probe_rows(run: Run) -> Rows:
    """Return the other measurements of both servers."""
    return Rows(
        title="The servers before any load",
        headings=("", "ratio", "embedded", "Apache"),
        texts=[_probe_texts(each) for each in run.probes],
        styles=[None] * len(run.probes),
        words=1,
    )


def all_rows(run: Run) -> list[Rows]:
    """Return all tables of a run, ratios first."""
    found = [target_rows(run), *cell_rows(run)]
    return [*found, probe_rows(run)] if run.probes else found


def origin(run: Run) -> str:
    """Return a sentence about the run and its machine."""
    facts = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    kind = "quick" if run.is_quick else "full"
    ended = "" if run.is_complete else ", interrupted"
    return (
        f"A {kind} run of {run.seconds / 60:.0f} minutes{ended}, {run.rounds} rounds of"
        f" {run.round_seconds:g} s: {facts}."
    )


def terminal_table(rows: Rows) -> Table:
    """Return a table for a terminal."""
    table = Table(title=rows.title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for index, heading in enumerate(rows.headings):
        justify: JustifyMethod = "left" if index < rows.words else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for texts, style in zip(rows.texts, rows.styles, strict=True):
        table.add_row(*texts, style=style)
    return table


def markdown(rows: Rows) -> str:
    """Return a table for the docs, without its title."""
    count = len(rows.headings)
    rule = "|---" * rows.words + "|---:" * (count - rows.words) + "|"
    lines = ["| " + " | ".join(line) + " |" for line in (rows.headings, *rows.texts)]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def ratio_text(value: float) -> str:
    """Return a ratio as text."""
    return (
        f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 9.95 else f"{value:.2f}x"
    )


def number_text(value: float) -> str:
    """Return a figure as text."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _texts(run: Run, series: Series) -> list[str]:
    cell = series.cell
    pair = f"{CLIENT_TITLES[cell.client]} → {SERVER_TITLES[cell.server]}"
    title = WORK_TITLES[cell.work]
    if not series.samples:
        return [title, pair, "failed", *[""] * 7]
    base = run.find(msgspec.structs.replace(cell, client="java", server="apache"))
    compared = None if base is None else ratio(series, base, "rate")
    is_base = base is not None and base.cell == cell
    rates = series.figures("rate")
    return [
        title,
        pair,
        "" if compared is None or is_base else ratio_text(compared),
        f"{number_text(median(rates))} ±{spread(rates):.0%}",
        *(_middle(series.figures(name)) for name in ("p50_us", "p99_us")),
        *(_middle(series.figures(name)) for name in ("client_us", "server_us")),
        *(_middle([get(sample) / _MEGABYTE for sample in series.samples]) for get in _MEMORIES),
    ]


_MEMORIES: Final[tuple[Callable[..., int], ...]] = (
    lambda sample: sample.client_bytes,
    lambda sample: sample.server_bytes,
)


def _middle(values: Sequence[float]) -> str:
    return number_text(median(values)) if values else ""


def _probe_texts(probe: Probe) -> list[str]:
    sides = [
        f"{number_text(median(each))}" if each else "" for each in (probe.downrange, probe.apache)
    ]
    compared = probe.ratio
    return [
        f"{probe.title}, {probe.unit}",
        "" if compared is None else ratio_text(compared),
        *sides,
    ]
