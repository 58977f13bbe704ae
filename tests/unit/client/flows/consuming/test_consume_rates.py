from __future__ import annotations

import pytest

from downrange.client.flows.consuming.consume_rates import TopicRates
from tests.support.clock import FakeClock


def test_a_new_topic_has_no_rates() -> None:
    rates = TopicRates(FakeClock()).snapshot()
    assert (rates.pull_rate, rates.pull_ms, rates.consume_ms) == (0, 0, 0)


def test_rates_are_means_of_the_last_minute() -> None:
    clock = FakeClock()
    rates = TopicRates(clock)
    for _ in range(12):  # two minutes
        rates.pulled(30, 0.1, clock.now())
        rates.pulled(0, 0.3, clock.now())
        rates.handled(15, 1.0, clock.now())
        rates.failed(5, 1.0, clock.now())
        clock.seconds += 10
    found = rates.snapshot()  # the slot that began a minute ago is over
    assert found.pull_rate == pytest.approx(150 / 60)
    assert found.pull_ms == pytest.approx(200)
    assert found.consume_ok_rate == pytest.approx(75 / 60)
    assert found.consume_failed_rate == pytest.approx(25 / 60)
    assert found.consume_ms == pytest.approx(100)
    assert found.consume_failed_msgs == 60


def test_the_first_minute_counts_the_time_that_has_passed() -> None:
    clock = FakeClock()
    rates = TopicRates(clock)
    rates.handled(20, 1.0, clock.now())
    clock.seconds += 5
    rates.handled(20, 1.0, clock.now())
    assert rates.snapshot().consume_ok_rate == pytest.approx(8)
    clock.seconds += 100
    assert rates.snapshot().consume_ok_rate == 0
