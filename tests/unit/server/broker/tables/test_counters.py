"""Counters that are sampled: sums and rates of a minute, an hour and a day, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.tables.counters import Counter, Counters, due_spans

if TYPE_CHECKING:
    from downrange.wire.bodies import CountsBody

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
MINUTELY = (0,)


def sums(counts: CountsBody) -> tuple[int, int, int]:
    return counts.stats_minute.sum, counts.stats_hour.sum, counts.stats_day.sum


def count(counter: Counter, messages: int, size: int = 0) -> None:
    counter.times += 1
    counter.messages += messages
    counter.size += size


def pass_time(counters: Counters[tuple[str, str]], begin_ms: int, until_ms: int) -> None:
    """Sample every ten seconds, up to and including a time."""
    for now_ms in range(begin_ms + 10 * SECOND, until_ms + 1, 10 * SECOND):
        period = now_ms // (10 * SECOND)
        counters.sample(due_spans(period - 1, period), now_ms)


def test_figures_are_zero_before_the_first_sample() -> None:
    counter = Counter()
    count(counter, 5)
    assert sums(counter.counts()) == (0, 0, 0)
    assert counter.rate() == 0.0


def test_the_first_sample_counts_from_ten_seconds_before() -> None:
    counter = Counter()
    count(counter, 3, 300)
    count(counter, 5, 200)
    counter.sample(MINUTELY, 60 * MINUTE)
    minute = counter.counts().stats_minute
    assert (minute.sum, minute.tps, minute.avgpt) == (8, 0.8, 4.0)
    size = counter.counts(is_of_size=True).stats_minute
    assert (size.sum, size.tps, size.avgpt) == (500, 50.0, 250.0)
    assert counter.rate() == 0.8


def test_a_message_leaves_the_minute_the_hour_and_the_day() -> None:
    counters: Counters[tuple[str, str]] = Counters()
    counter = counters.add(("T", "G"))
    count(counter, 6)
    seen = {}
    now_ms = 0
    for until_ms in (20 * SECOND, 60 * SECOND, 70 * SECOND, HOUR, 2 * HOUR, 24 * HOUR, 25 * HOUR):
        pass_time(counters, now_ms, until_ms)
        now_ms = until_ms
        seen[until_ms] = sums(counter.counts())
    assert seen == {
        20 * SECOND: (6, 0, 0),
        60 * SECOND: (6, 0, 0),
        70 * SECOND: (0, 0, 0),
        HOUR: (0, 6, 6),
        2 * HOUR: (0, 0, 6),
        24 * HOUR: (0, 0, 6),
        25 * HOUR: (0, 0, 0),
    }


def test_a_clock_that_is_set_back_gives_no_rate() -> None:
    counter = Counter()
    count(counter, 1)
    counter.sample(MINUTELY, HOUR)
    counter.sample(MINUTELY, HOUR - 20 * SECOND)
    assert counter.rate() == 0.0


def test_a_counter_without_requests_has_no_average() -> None:
    counter = Counter()
    counter.messages = 7
    counter.sample(MINUTELY, HOUR)
    assert counter.counts().stats_minute.avgpt == 0.0


def test_a_counter_that_is_not_used_for_a_day_is_removed() -> None:
    counters: Counters[tuple[str, str]] = Counters()
    count(counters.add(("T", "idle")), 1)
    busy = counters.add(("T", "busy"))
    for hour in range(1, 28):
        count(busy, 1)
        counters.sample((0, 1, 2), hour * HOUR)
    assert counters.get(("T", "idle")) is None
    assert counters.get(("T", "busy")) is busy


def test_a_full_table_loses_the_counters_that_were_unused_for_longest() -> None:
    counters: Counters[tuple[str, str]] = Counters(limit=20)
    for number in range(20):
        counter = counters.add(("T", f"g{number}"))
        count(counter, 1)
        counters.sample(MINUTELY, (number + 1) * 10 * SECOND)
    first = counters.get(("T", "g0"))
    assert first is not None
    count(first, 1)
    counters.sample(MINUTELY, 210 * SECOND)
    for number in range(20, 1000):
        counters.add(("T", f"g{number}"))
        assert len(counters) <= 20
        if number == 20:
            assert counters.get(("T", "g0")) is first
            assert counters.get(("T", "g1")) is None
            assert counters.get(("T", "g3")) is not None


def test_counters_are_dropped_by_key() -> None:
    counters: Counters[tuple[str, str]] = Counters()
    for key in (("A", "g"), ("A", "h"), ("B", "g")):
        counters.add(key)
    counters.drop(lambda key: key[0] == "A")
    assert len(counters) == 1
    assert counters.get(("B", "g")) is not None


@pytest.mark.parametrize(
    ("before", "period", "spans"),
    [
        (0, 1, (0,)),
        (59, 60, (0, 1)),
        (60, 61, (0,)),
        (359, 360, (0, 1, 2)),
        (50, 75, (0, 1)),
        (300, 400, (0, 1, 2)),
    ],
)
def test_samples_that_were_due_while_a_broker_was_suspended_are_taken(
    before: int, period: int, spans: tuple[int, ...]
) -> None:
    assert due_spans(before, period) == spans
