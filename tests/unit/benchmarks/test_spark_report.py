from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import spark_report
from benchmarks.spark_report import GOALS, Goal, Run, Sample, Series, compare

ROOT = Path(__file__).parents[3]
STORED = ROOT / "benchmarks" / "results" / "spark.json"
PAGE = ROOT / "docs" / "benchmarks.md"


def stored_run() -> Run:
    return msgspec.json.decode(STORED.read_bytes(), type=Run)


def series(side: str, values: list[float], *, broker_us: float = 0.0) -> Series:
    samples = [
        Sample(value=value, broker_us=broker_us, jvm_us=3.0, python_us=1.0, worker_peak_mb=100)
        for value in values
    ]
    return Series(job="write", side=side, title=side, unit="rows/s", samples=samples)


def goal(target: float, *, is_broker_excluded: bool = False) -> Goal:
    return Goal(
        title="write",
        ours=("write", "downrange"),
        other=("write", "kafka"),
        target=target,
        is_broker_excluded=is_broker_excluded,
    )


@pytest.mark.parametrize(("target", "is_met"), [(1.3, True), (1.31, False)])
def test_ratio_is_the_median_of_the_ratios_of_rounds(target: float, is_met: bool) -> None:
    sides = [series("downrange", [130, 300, 10]), series("kafka", [100, 100, 100])]
    (result,) = compare(sides, [goal(target)])
    assert (result.figure, result.is_met) == (1.3, is_met)


def test_cpu_of_the_broker_can_be_excluded() -> None:
    sides = [series("downrange", [100], broker_us=2.0), series("kafka", [100])]
    (result,) = compare(sides, [goal(1.5, is_broker_excluded=True)])
    assert result.figure == pytest.approx(1.5)


def test_goal_that_was_not_measured_has_no_result() -> None:
    assert compare([series("downrange", [1])], [goal(1.0)]) == []


def test_writing_and_reading_have_targets() -> None:
    targets = {goal.title: goal.target for goal in GOALS}
    assert targets["write, relative to Kafka"] == 1.3
    assert targets["read, relative to prebuilt Arrow"] == 0.7


def test_figures_on_the_page_are_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    run = msgspec.structs.replace(stored_run(), rows=77)
    spark_report.write_into(page, run)
    text = page.read_text(encoding="utf-8")
    assert "77 rows" in text
    before = PAGE.read_text(encoding="utf-8")
    rows = f"{stored_run().rows:,} rows"
    assert text == before.replace(rows, "77 rows")


def test_page_shows_the_stored_run() -> None:
    run = stored_run()
    assert spark_report.markdown(run) in PAGE.read_text(encoding="utf-8")
    assert run.results == compare(run.series)
