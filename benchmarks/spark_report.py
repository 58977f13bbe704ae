"""Results of `benchmarks.spark`: stored as JSON, printed as tables, written into the docs.

A `Series` is one job on one side, with its rounds. A `Goal` compares two series: its ratio is the
median of the ratios of the rounds, because both sides of a round ran under the same conditions.
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
        worker_peak_mb: Largest memory of one Python worker.
    """

    value: float
    broker_us: float
    jvm_us: float
    python_us: float
    worker_peak_mb: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one side.

    Attributes:
        job: Name of the job, such as "read".
        side: "downrange", "apache", "kafka", or the name of a ceiling.
        title: Job and side, for tables.
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
        """The median of the rounds."""
        return median(sample.value for sample in self.samples)

    @property
    def spread(self) -> float:
        """Distance of the farthest round from the median, as a share of it."""
        return max(abs(sample.value / self.value - 1) for sample in self.samples)

    def middle(self, name: str) -> float:
        """Return the median of another attribute of the samples."""
        return median(float(getattr(sample, name)) for sample in self.samples)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison, with a target for some.

    Attributes:
        title: Title of the row.
        ours: Our job and side.
        other: The other job and side; None if `target` is a limit in the unit of the series.
        target: The smallest ratio, or the largest figure, that meets the goal.
        is_broker_excluded: Whether the broker's CPU is subtracted. This estimates the ratio with
            the broker on another machine, if all of Spark's cores are busy.
    """

    title: str
    ours: tuple[str, str]
    other: tuple[str, str] | None
    target: float | None
    is_broker_excluded: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a goal, with its target if it has one."""

    title: str
    figure: float
    target: float | None
    is_ratio: bool
    is_met: bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All series of a run, with the machine and the versions."""

    is_quick: bool
    seconds: float
    rows: int
    facts: dict[str, str]
    series: list[Series]
    results: list[Result]
    left_out: list[str]


GOALS: Final = (
    Goal(
        title="read, relative to Kafka",
        ours=("read", "downrange"),
        other=("read", "kafka"),
        target=1.3,
    ),
    Goal(
        title="read, relative to prebuilt Arrow",
        ours=("read", "downrange"),
        other=("read", "prebuilt Arrow"),
        target=0.7,
    ),
    Goal(
        title="read, relative to prebuilt Arrow, broker's CPU excluded",
        ours=("read", "downrange"),
        other=("read", "prebuilt Arrow"),
        target=0.7,
        is_broker_excluded=True,
    ),
    Goal(
        title="read from Apache RocketMQ, relative to Kafka",
        ours=("read", "apache"),
        other=("read", "kafka"),
        target=None,
    ),
    Goal(
        title="read all columns, relative to Kafka",
        ours=("all", "downrange"),
        other=("all", "kafka"),
        target=1.3,
    ),
    Goal(
        title="read all columns, relative to prebuilt Arrow",
        ours=("all", "downrange"),
        other=("all", "prebuilt Arrow"),
        target=0.7,
    ),
    Goal(
        title="read all columns, relative to prebuilt Arrow, broker's CPU excluded",
        ours=("all", "downrange"),
        other=("all", "prebuilt Arrow"),
        target=0.7,
        is_broker_excluded=True,
    ),
    Goal(
        title="to Parquet, relative to Kafka",
        ours=("parquet", "downrange"),
        other=("parquet", "kafka"),
        target=1.2,
    ),
    Goal(
        title="to Parquet, all columns, relative to Kafka",
        ours=("parquet-all", "downrange"),
        other=("parquet-all", "kafka"),
        target=1.2,
    ),
    Goal(
        title="to Parquet, all columns, relative to prebuilt Arrow",
        ours=("parquet-all", "downrange"),
        other=("parquet-all", "prebuilt Arrow"),
        target=None,
    ),
    Goal(
        title="write, relative to Kafka",
        ours=("write", "downrange"),
        other=("write", "kafka"),
        target=1.3,
    ),
    Goal(
        title="write to Apache RocketMQ, relative to Kafka",
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
    """Return the results of all goals that were measured."""
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
            figure = median(_ratio(mine, its, goal.is_broker_excluded) for mine, its in pairs)
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


def _ratio(ours: Sample, other: Sample, is_broker_excluded: bool) -> float:
    ratio = ours.value / other.value
    if not is_broker_excluded:
        return ratio
    spark = ours.jvm_us + ours.python_us
    return ratio * (spark + ours.broker_us) / spark


def tables(run: Run) -> list[Table]:
    """Return the tables of goals and of series, for the terminal."""
    goals = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in _RESULT_HEADINGS:
        goals.add_column(heading, justify="right" if heading else "left")
    for result in run.results:
        goals.add_row(*_result_cells(result), style=None if result.is_met else "red")
    measured = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=_CAPTION)
    for heading in _SERIES_HEADINGS:
        measured.add_column(heading, justify="right" if heading else "left")
    for series in run.series:
        measured.add_row(*_series_cells(series))
    return [goals, measured]


def markdown(run: Run) -> str:
    """Return the tables and the machine, for the docs."""
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
    """Replace the figures on a page of the docs, between two comments."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{page} lacks the comments that mark the figures"
    text = f"{before}{_BEGIN}\n{markdown(run)}\n{_END}{after}"
    page.write_text(text, encoding="utf-8")


_RESULT_HEADINGS: Final = ("", "figure", "target")
_SERIES_HEADINGS: Final = ("", "figure", "broker", "JVM", "Python", "worker, MB")
_CAPTION: Final = (
    "1 KB bodies; rows/s, or ms per trigger; CPU of broker, JVM and Python workers in µs per row; "
    "largest memory of one Python worker"
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


#: Idle Python workers use less than this per row.
_NOISE_US: Final = 0.02


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
