"""What a run of `benchmarks.server` found: kept as JSON, shown as a table, written into the docs.

A `Row` compares one thing, round by round. Its ratio always says how many times *better* ours is,
and is the median of the rounds' ratios: the two sides of a round saw the same machine.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

Unit: TypeAlias = Literal["messages/s", "µs", "s", "MB", "% of a core"]

_BEGIN: Final = "<!-- begin: python -m benchmarks.server -->\n"
_END: Final = "<!-- end -->\n"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured round on one side.

    Attributes:
        value: The figure, in the row's unit.
        server_us: CPU time of the server per message.
        client_us: CPU time of the client per message.
        latencies_us: Median and 99th percentile of a round trip.
    """

    value: float
    server_us: float | None = None
    client_us: float | None = None
    latencies_us: tuple[float, float] | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Attributes:
        name: For `--only`.
        title: For people.
        unit: Unit of the samples.
        target: The ratio we want, None where there is no demand.
        ours: Rounds of our server.
        apache: Rounds of Apache's, in the same order.
    """

    name: str
    title: str
    unit: Unit
    target: float | None = None
    ours: list[Sample]
    apache: list[Sample]

    @property
    def ratio(self) -> float:
        """How many times better ours is."""
        pairs = [(a.value, b.value) for a, b in zip(self.ours, self.apache, strict=False)]
        if self.unit != "messages/s":  # less is better
            pairs = [(apache, ours) for ours, apache in pairs]
        # An idle server may well take no tick of the clock at all.
        return median(better / worse if worse else float("inf") for better, worse in pairs)

    @property
    def is_met(self) -> bool:
        """Whether the target is reached."""
        return self.target is None or self.ratio >= self.target


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of a run, and where they come from."""

    is_quick: bool
    seconds: float
    machine: dict[str, str]
    rows: list[Row]


def machine(java: str) -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GB",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "java": java,
    }


def latency_rows(row: Row) -> list[Row]:
    """Return the round trips that were noted with a row's rates as rows of their own."""

    def samples(side: Sequence[Sample], index: int) -> list[Sample]:
        return [Sample(value=each.latencies_us[index]) for each in side if each.latencies_us]

    return [
        Row(
            name=f"{row.name}-{name}",
            title=f"{row.title}, {what}",
            unit="µs",
            ours=samples(row.ours, index),
            apache=samples(row.apache, index),
        )
        for index, name, what in ((0, "p50", "median"), (1, "p99", "99th percentile"))
    ]


def table(run: Run) -> Table:
    """Return the rows for the terminal, ratios first."""
    shown = Table(title=_TITLE, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in _HEADINGS:
        shown.add_column(heading, justify="left" if not heading else "right")
    for row in run.rows:
        shown.add_row(*_cells(row), style=None if row.is_met else "red")
    return shown


def markdown(run: Run) -> str:
    """Return the rows and the machine for the docs."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---" + "|---:" * (len(_HEADINGS) - 1) + "|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in run.rows]
    facts = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    kind = "A quick run" if run.is_quick else "A full run"
    told = f"{kind} of {run.seconds / 60:.0f} minutes: {facts}."
    return "\n".join([f"{_TITLE}.", "", *lines, "", told, ""])


def write_into(page: Path, run: Run) -> None:
    """Replace the figures on a page of the docs, which stand between two comments."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{page} has no place for figures"
    text = f"{before}{_BEGIN}\n{markdown(run)}\n{_END}{after}"
    page.write_text(text, encoding="utf-8")


_TITLE: Final = "1 KB messages; messages/s where no unit is named; CPU in µs per message"
_HEADINGS: Final = (
    "",
    "ratio",
    "target",
    "downrange",
    "Apache",
    "CPU",
    "Apache's",
    "client's",
)


def _cells(row: Row) -> list[str]:
    return [
        row.title if row.unit == "messages/s" else f"{row.title}, {row.unit}",
        f"{row.ratio:.1f}x",
        "" if row.target is None else f"{row.target:g}x",
        _spread([sample.value for sample in row.ours]),
        _spread([sample.value for sample in row.apache]),
        _middle([sample.server_us for sample in row.ours]),
        _middle([sample.server_us for sample in row.apache]),
        _middle([sample.client_us for sample in row.ours]),
    ]


def _spread(values: list[float]) -> str:
    """Return the median, and how far the rounds lie from it at most."""
    middle = median(values)
    away = max(max(values) - middle, middle - min(values))
    return f"{_number(middle)} ±{away / middle:.0%}" if away else _number(middle)


def _middle(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _number(median(known)) if known else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _first(path: str, label: str) -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(label))
    return next(found, "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
