"""What a message may cost the client that sends it.

The figures are those of the day they were last written down. One that is passed by more than the
slack is a regression; one that is far below is a gain: write it down.
"""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Counts, counted_apart
from tests.guards.sends import BATCH, TOGETHER

#: Instructions differ from one release of Python to the next, so budgets hold for one.
PYTHON = (3, 11)
SLACK = 1.10

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)


@pytest.mark.parametrize(
    ("subject", "messages", "budget"),
    [
        pytest.param("sync", 1, Counts(98, 1_516, 68_361), id="sync"),
        pytest.param("oneway", 1, Counts(65, 952, 5_082), id="oneway"),
        pytest.param("batch", BATCH, Counts(1742, 33_393, 311_736), id="batch"),
        pytest.param("tasks", TOGETHER, Counts(9022, 153_847, 601_795), id="tasks"),
        pytest.param("tasks_batch", BATCH, Counts(1746, 33_674, 250_126), id="tasks-batch"),
        pytest.param(
            "tasks_gathered", TOGETHER, Counts(7874, 130_900, 574_375), id="tasks-gathered"
        ),
    ],
)
def test_a_send_stays_within_its_budget(subject: str, messages: int, budget: Counts) -> None:
    counts = counted_apart(f"tests.guards.sends:{subject}")
    told = f"{counts} for {messages} messages, where {budget} was usual"
    assert counts.calls <= budget.calls * SLACK, told
    assert counts.instructions <= budget.instructions * SLACK, told
    assert counts.held_bytes <= budget.held_bytes * SLACK, told
