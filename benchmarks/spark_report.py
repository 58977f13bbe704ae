"""What a run of `benchmarks.spark` found: kept as JSON, shown as tables, written into the docs.

A `Series` is one job on one side, round by round. A `Goal` compares two of them: its ratio is the
median of the rounds' ratios, since the two sides of a round saw the same machine.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Unit: TypeAlias = Literal["rows/s", "ms"]

_BEGIN: Final = "<!-- begin: python -m benchmarks.spark -->\n"
_END: Final = "<!-- end: spark -->\n"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured round.

    Attributes:
        value: The figure, in the unit of its series.
        broker_us: CPU time of the broker per row.
        jvm_us: CPU time of Spark's JVM per row.
        python_us: CPU time of the Python workers per row.
        worker_peak_mb: The most memory that one Python worker had.
    """

    value: float
    broker_us: float
    jvm_us: float
    python_us: float
    worker_peak_mb: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one side.

    Attributes:
        job: What was done, such as "read".
        side: With what: "downrange", "apache", "kafka", or a ceiling's name.
        title: Both for people.
        unit: Unit of the samples.
        samples: One per round.
    """

    job: str
    side: str
    title: str
    unit: Unit
    samples: list[Sample]

    @property
    def value(self) -> float:
        """The figure of the middle round."""
        return median(sample.value for sample in self.samples)

    @property
    def spread(self) -> float:
        """How far the farthest round is from the middle, as a share of it."""
        return max(abs(sample.value / self.value - 1) for sample in self.samples)

    def middle(self, name: str) -> float:
        """Return another figure of the middle round, by the name of the sample's attribute."""
        return median(float(getattr(sample, name)) for sample in self.samples)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that we want to come out in a certain way.

    Attributes:
        title: For people.
        ours: Job and side of ours.
        other: Job and side of the other; None where `target` is a bound of ours in its own unit.
        target: The ratio we want at least, or the figure we want at most.
        is_broker_apart: Whether the broker's share of the CPU is taken out: how it would be if the
            broker ran on a machine of its own, all of Spark's cores being busy.
    """

    title: str
    ours: tuple[str, str]
    other: tuple[str, str] | None
    target: float | None
    is_broker_apart: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a goal came to; `target` and whether it `is_met`, where there is one."""

    title: str
    figure: float
    target: float | None
    is_ratio: bool
    is_met: bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All series of a run, and where they come from."""

    is_quick: bool
    seconds: float
    rows: int
    facts: dict[str, str]
    series: list[Series]
    results: list[Result]
    left_out: list[str]


GOALS: Final = (
    Goal(
        title="read, to Kafka's",
        ours=("read", "downrange"),
        other=("read", "kafka"),
        target=1.3,
    ),
    Goal(
        title="read, to prebuilt Arrow",
        ours=("read", "downrange"),
        other=("read", "prebuilt Arrow"),
        target=0.7,
    ),
    Goal(
        title="read, to prebuilt Arrow, broker's CPU apart",
        ours=("read", "downrange"),
        other=("read", "prebuilt Arrow"),
        target=0.7,
        is_broker_apart=True,
    ),
    Goal(
        title="read from Apache RocketMQ, to Kafka's",
        ours=("read", "apache"),
        other=("read", "kafka"),
        target=None,
    ),
    Goal(
        title="read all columns, to Kafka's",
        ours=("all", "downrange"),
        other=("all", "kafka"),
        target=1.3,
    ),
    Goal(
        title="read all columns, to prebuilt Arrow",
        ours=("all", "downrange"),
        other=("all", "prebuilt Arrow"),
        target=0.7,
    ),
    Goal(
        title="read all columns, to prebuilt Arrow, broker's CPU apart",
        ours=("all", "downrange"),
        other=("all", "prebuilt Arrow"),
        target=0.7,
        is_broker_apart=True,
    ),
    Goal(
        title="to Parquet, to Kafka's",
        ours=("parquet", "downrange"),
        other=("parquet", "kafka"),
        target=1.2,
    ),
    Goal(
        title="to Parquet, all columns, to Kafka's",
        ours=("parquet-all", "downrange"),
        other=("parquet-all", "kafka"),
        target=1.2,
    ),
    Goal(
        title="to Parquet, all columns, to prebuilt Arrow",
        ours=("parquet-all", "downrange"),
        other=("parquet-all", "prebuilt Arrow"),
        target=None,
    ),
    Goal(
        title="write, to Kafka's",
        ours=("write", "downrange"),
        other=("write", "kafka"),
        target=1.0,
    ),
    Goal(
        title="write to Apache RocketMQ, to Kafka's",
        ours=("write", "apache"),
        other=("write", "kafka"),
        target=None,
    ),
    Goal(
        title="small trigger, ms",
        ours=("trigger", "downrange"),
        other=None,
        target=250.0,
    ),
)


def compare(series: Sequence[Series], goals: Iterable[Goal] = GOALS) -> list[Result]:
    """Return what the goals came to, those of them that were measured."""
    by_name = {(each.job, each.side): each for each in series}
    results: list[Result] = []
    for goal in goals:
        ours = by_name.get(goal.ours)
        if ours is None:
            continue
        if goal.other is None:
            figure = ours.value
            is_met = goal.target is None or figure <= goal.target
        else:
            other = by_name.get(goal.other)
            if other is None:
                continue
            pairs = zip(ours.samples, other.samples, strict=False)
            figure = median(_ratio(mine, its, goal.is_broker_apart) for mine, its in pairs)
            is_met = goal.target is None or figure >= goal.target
        results.append(
            Result(
                title=goal.title,
                figure=figure,
                target=goal.target,
                is_ratio=goal.other is not None,
                is_met=is_met,
            )
        )
    return results


def _ratio(ours: Sample, other: Sample, is_broker_apart: bool) -> float:
    ratio = ours.value / other.value
    if not is_broker_apart:
        return ratio
    spark = ours.jvm_us + ours.python_us
    return ratio * (spark + ours.broker_us) / spark


def tables(run: Run) -> list[Table]:
    """Return what was wanted and what was measured, for the terminal."""
    wanted = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in _RESULT_HEADINGS:
        wanted.add_column(heading, justify="right" if heading else "left")
    for result in run.results:
        wanted.add_row(*_result_cells(result), style=None if result.is_met else "red")
    measured = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=_CAPTION)
    for heading in _SERIES_HEADINGS:
        measured.add_column(heading, justify="right" if heading else "left")
    for series in run.series:
        measured.add_row(*_series_cells(series))
    return [wanted, measured]


def markdown(run: Run) -> str:
    """Return the tables and the machine for the docs."""
    lines = _markdown_table(_RESULT_HEADINGS, map(_result_cells, run.results))
    lines += ["", f"{_CAPTION}.", ""]
    lines += _markdown_table(_SERIES_HEADINGS, map(_series_cells, run.series))
    facts = ", ".join(f"{name} {value}" for name, value in run.facts.items())
    kind = "A quick run" if run.is_quick else "A full run"
    lines += ["", f"{kind} of {run.seconds / 60:.0f} minutes, {run.rows:,} rows: {facts}."]
    if run.left_out:
        lines += ["", f"Left out: {'; '.join(run.left_out)}."]
    return "\n".join([*lines, ""])


def write_into(page: Path, run: Run) -> None:
    """Replace the figures on a page of the docs, which stand between two comments."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{page} has no place for figures"
    text = f"{before}{_BEGIN}\n{markdown(run)}\n{_END}{after}"
    page.write_text(text, encoding="utf-8")


_RESULT_HEADINGS: Final = ("", "figure", "target")
_SERIES_HEADINGS: Final = ("", "figure", "broker", "JVM", "Python", "worker, MB")
_CAPTION: Final = (
    "1 KB bodies; rows/s, or ms per trigger; CPU of broker, JVM and Python workers in µs per row; "
    "the most memory of one Python worker"
)


def _result_cells(result: Result) -> list[str]:
    if result.is_ratio:
        target = "" if result.target is None else f"≥ {result.target:g}x"
        return [result.title, f"{result.figure:.2f}x", target]
    return [result.title, f"{result.figure:,.0f}", f"≤ {result.target:g}"]


def _series_cells(series: Series) -> list[str]:
    figure = f"{series.value:,.0f} ±{series.spread:.0%}"
    cells = [series.title, figure if series.unit == "rows/s" else f"{figure} ms"]
    for name in ("broker_us", "jvm_us", "python_us"):
        used = series.middle(name)
        cells.append(f"{used:.1f}" if series.unit == "rows/s" and used else "")
    peak = series.middle("worker_peak_mb")
    return [*cells, f"{peak:.0f}" if peak and series.middle("python_us") > _NOISE_US else ""]


#: Python workers that only wait take less than this per row.
_NOISE_US: Final = 0.02


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
