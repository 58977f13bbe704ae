"""The text format of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.broker.tables.histogram import Histogram
from downrange.server.metrics.exposition import (
    Family,
    bucket_lines,
    labels,
    write_dropped,
    write_families,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(name: str) -> Iterator[str]:
    for number in range(3):
        yield ""
        yield f'm{{source="{name}",number="{number}"}} {number}\n'


def test_a_family_has_one_head_over_all_sources() -> None:
    family = Family("m", "gauge", "Text.", lines)
    dropped: dict[str, int] = {}
    text = "".join(write_families([family], ["a", "b"], 10, dropped))
    assert text.count("# TYPE m gauge\n") == text.count("# HELP m Text.\n") == 1
    assert text.count("\nm{") == 6
    assert dropped == {}


def test_a_family_without_samples_is_left_out() -> None:
    empty: Family[str] = Family("m", "gauge", "Text.", lambda source: ("", ""))
    assert "".join(write_families([empty], ["a"], 10, {})) == ""


def test_series_above_the_limit_are_counted() -> None:
    dropped: dict[str, int] = {}
    family = Family("m", "gauge", "Text.", lines)
    text = "".join(write_families([family], ["a", "b"], 4, dropped))
    assert text.count("\nm{") == 4
    assert dropped == {"m": 2}
    told = "".join(write_dropped(dropped))
    assert 'downrange_metrics_dropped_series{metric=""} 2\n' in told
    assert 'downrange_metrics_dropped_series{metric="m"} 2\n' in told


def test_label_values_are_escaped() -> None:
    assert labels(a='x"y', b="c\\d\ne") == 'a="x\\"y",b="c\\\\d\\ne"'


def test_buckets_are_cumulative() -> None:
    histogram = Histogram((1, 10))
    for value in (0.5, 1, 5, 100):
        histogram.add(value)
    histogram.add(10, times=2)
    assert bucket_lines("h", 'a="b"', histogram).splitlines() == [
        'h_bucket{a="b",le="1.0"} 2',
        'h_bucket{a="b",le="10.0"} 5',
        'h_bucket{a="b",le="+Inf"} 6',
        'h_count{a="b"} 6',
        'h_sum{a="b"} 126.5',
    ]
