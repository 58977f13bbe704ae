"""The cost of a message for the client that sends it.

The figures were counted when they were last updated. A count above its figure by more than the
slack is a regression. If a count is far below, lower the figure. A budget has one figure for both
paths, or a second one for the native path.
"""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Budget, Counts, Twins, counted_apart
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
        pytest.param(
            "sync", 1, Budget(Counts(98, 1_545, 68_377), Counts(77, 1_185, 68_377)), id="sync"
        ),
        pytest.param(
            "traced", 1, Budget(Counts(128, 2_123, 71_159), Counts(100, 1_634, 71_159)), id="traced"
        ),
        pytest.param("oneway", 1, Budget(Counts(66, 954, 4_428)), id="oneway"),
        pytest.param(
            "batch",
            BATCH,
            Budget(Counts(1_344, 30_389, 311_090), Counts(221, 10_146, 311_090)),
            id="batch",
        ),
        pytest.param(
            "tasks",
            TOGETHER,
            Budget(Counts(7_639, 137_666, 473_407), Counts(5_636, 103_913, 473_407)),
            id="tasks",
        ),
        pytest.param(
            "tasks_batch",
            BATCH,
            Budget(Counts(1_347, 30_659, 249_528), Counts(224, 10_416, 249_528)),
            id="tasks-batch",
        ),
        pytest.param(
            "tasks_gathered",
            TOGETHER,
            Budget(Counts(4_555, 89_701, 392_972), Counts(3_574, 77_016, 389_937)),
            id="tasks-gathered",
        ),
    ],
)
def test_a_send_stays_within_its_budget(
    subject: str, messages: int, budget: Budget, twins: Twins
) -> None:
    counts = counted_apart(f"tests.guards.sends:{subject}", twins)
    check(counts, budget.of(twins), f"{messages} messages")


@pytest.mark.parametrize(
    ("subject", "budget"),
    [
        pytest.param("flow", Budget(Counts(32, 740, 1_482), Counts(31, 671, 1_482)), id="flow"),
        pytest.param(
            "request", Budget(Counts(15, 192, 2_346), Counts(10, 124, 1_500)), id="request"
        ),
        pytest.param(
            "exchange", Budget(Counts(39, 612, 3_298), Counts(34, 544, 3_298)), id="exchange"
        ),
    ],
)
def test_a_part_of_a_send_stays_within_its_budget(
    subject: str, budget: Budget, twins: Twins
) -> None:
    counts = counted_apart(f"tests.guards.exchange:{subject}", twins)
    check(counts, budget.of(twins), "one message")


def check(counts: Counts, budget: Counts, what: str) -> None:
    failure = f"{counts} for {what}, the budget is {budget}"
    assert counts.calls <= budget.calls * SLACK, failure
    assert counts.instructions <= budget.instructions * SLACK, failure
    assert counts.held_bytes <= budget.held_bytes * SLACK, failure
