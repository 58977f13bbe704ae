"""Counters and rates."""

from __future__ import annotations

from datetime import datetime

from downrange.server.broker.tables.statistics import Statistics


def test_rates_are_the_growth_per_second_over_each_span() -> None:
    statistics = Statistics(0)
    for second in range(1, 101):
        statistics.stored(2 if second > 90 else 1, 10)
        statistics.sample(second * 1000)
    assert statistics.rates("messages_stored") == [2.0, 70 / 60, 110 / 100]
    assert statistics.rates("bytes_stored")[0] == 10.0


def test_rates_are_zero_before_the_first_sample() -> None:
    statistics = Statistics(500)
    statistics.pulled(3, 30)
    statistics.sample(600)
    assert statistics.rates("messages_pulled") == [0.0, 0.0, 0.0]
    assert (statistics.messages_pulled, statistics.bytes_pulled) == (3, 30)


def test_totals_of_midnight_move_on_each_day() -> None:
    noon = int(datetime(2030, 1, 1, 12).timestamp() * 1000)
    day_ms = 86_400_000
    statistics = Statistics(noon)
    for day in range(3):
        statistics.stored(10, 1)
        statistics.sample(noon + 1000 + day * day_ms)
    assert statistics.yesterday.messages_stored == 20
    assert statistics.today.messages_stored == 30
