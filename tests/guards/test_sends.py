"""The cost of a message for the client that sends it.

The figures were counted when they were last updated. A count above its figure by more than the
slack is a regression. If a count is far below, lower the figure.
"""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Counts, counted_apart
from tests.guards.sends import BATCH, TOGETHER

#: Instructions differ between releases of Python, so the budgets apply to one.
PYTHON = (3, 11)
SLACK = 1.10

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)


@pytest.mark.parametrize(
    ("subject", "messages", "budget"),
    [
        pytest.param("sync", 1, Counts(96, 1_498, 68_377), id="sync"),
        pytest.param("oneway", 1, Counts(66, 954, 4_428), id="oneway"),
        pytest.param("batch", BATCH, Counts(1_740, 33_181, 311_090), id="batch"),
        pytest.param("tasks", TOGETHER, Counts(8_420, 146_312, 549_159), id="tasks"),
        pytest.param("tasks_batch", BATCH, Counts(1_740, 33_414, 249_528), id="tasks-batch"),
        pytest.param(
            "tasks_gathered", TOGETHER, Counts(7_587, 125_570, 457_777), id="tasks-gathered"
        ),
    ],
)
def test_a_send_stays_within_its_budget(subject: str, messages: int, budget: Counts) -> None:
    counts = counted_apart(f"tests.guards.sends:{subject}")
    check(counts, budget, f"{messages} messages")


@pytest.mark.parametrize(
    ("subject", "budget"),
    [
        pytest.param("flow", Counts(34, 703, 1_402), id="flow"),
        pytest.param("request", Counts(14, 179, 2_346), id="request"),
        pytest.param("exchange", Counts(38, 594, 3_298), id="exchange"),
    ],
)
def test_a_part_of_a_send_stays_within_its_budget(subject: str, budget: Counts) -> None:
    check(counted_apart(f"tests.guards.exchange:{subject}"), budget, "one message")


def check(counts: Counts, budget: Counts, what: str) -> None:
    failure = f"{counts} for {what}, the budget is {budget}"
    assert counts.calls <= budget.calls * SLACK, failure
    assert counts.instructions <= budget.instructions * SLACK, failure
    assert counts.held_bytes <= budget.held_bytes * SLACK, failure
