from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.matrix.results import Probe, Series, load, ratio, spread, store
from tests.unit.benchmarks.runs import JAVA, OURS, a_run, sample, series

if TYPE_CHECKING:
    from pathlib import Path


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert ratio(series(OURS, [40, 100, 30]), series(JAVA, [10, 10, 15]), "rate") == 4


def test_ratio_compares_only_rounds_that_both_have() -> None:
    ours = Series(cell=OURS, samples=[sample(2, 30), sample(3, 500)])
    base = Series(cell=JAVA, samples=[sample(1, 1), sample(2, 10)])
    assert ratio(ours, base, "rate") == 3
    assert ratio(ours, Series(cell=JAVA, samples=[sample(1, 1)]), "rate") is None


def test_ratio_turns_round_where_less_is_better() -> None:
    ours = Series(cell=OURS, samples=[sample(1, 1, p99_us=20, us=5)])
    base = Series(cell=JAVA, samples=[sample(1, 1, p99_us=60, us=20)])
    assert ratio(ours, base, "p99_us") == 3
    assert ratio(ours, base, "client_us") == 4


def test_ratio_is_absent_where_a_figure_is() -> None:
    ours = Series(cell=OURS, samples=[sample(1, 1)])
    base = Series(cell=JAVA, samples=[sample(1, 1, p99_us=60)])
    assert ratio(ours, base, "p99_us") is None


def test_probe_says_how_many_times_less_ours_takes() -> None:
    probe = Probe(name="start", title="start", unit="s", downrange=[0.5, 0.5], apache=[5, 15])
    assert probe.ratio == 20
    assert Probe(name="start", title="", unit="s", downrange=[0], apache=[1]).ratio == float("inf")
    assert Probe(name="start", title="", unit="s").ratio is None


def test_spread_is_that_of_the_round_farthest_from_the_median() -> None:
    assert spread([100, 90, 130]) == pytest.approx(0.3)
    assert spread([5.0]) == 0


def test_run_is_read_as_it_was_stored(tmp_path: Path) -> None:
    run = a_run(series(JAVA, [10, 12]), Series(cell=OURS, failures=["lost"]))
    store(run, tmp_path / "results" / "run.json")
    assert load(tmp_path / "results" / "run.json") == run


def test_run_finds_cells_that_have_rounds() -> None:
    run = a_run(series(JAVA, [10]), Series(cell=OURS, failures=["lost"]))
    assert run.find(JAVA) is run.series[0]
    assert run.find(OURS) is None
    assert run.failures == [f"{OURS.name}: lost"]
