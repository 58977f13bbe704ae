"""The cost of a message for the server, which must not grow with topics and stored messages.

The figures were counted when they were last updated; see `test_sends`.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks.sends import BATCH
from tests.guards.answers import POPS, PULLED, TOGETHER
from tests.guards.count import Counts, counted_apart

#: Instructions differ between releases of Python, so the budgets apply to one.
PYTHON = (3, 11)
SLACK = 1.10
#: For tables that are resized and caches that are filled; neither may grow with the numbers.
GROWTH_MAX = 1.02


@pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)
@pytest.mark.parametrize(
    ("subject", "messages", "budget"),
    [
        pytest.param("one", 1, Counts(179, 2670, 5_753), id="one"),
        pytest.param("together", TOGETHER, Counts(12_260, 183_975, 541_233), id="together"),
        pytest.param("batch", BATCH, Counts(3882, 56_830, 341_531), id="batch"),
        pytest.param("pull", PULLED, Counts(135, 3086, 81_997), id="pull"),
        pytest.param("pop_and_acknowledge", PULLED, Counts(411, 7769, 82_631), id="pop"),
        pytest.param("pops_together", POPS * PULLED, Counts(1282, 25_823, 408_023), id="pops"),
    ],
)
def test_an_answer_stays_within_its_budget(subject: str, messages: int, budget: Counts) -> None:
    counts = counted_apart(f"tests.guards.answers:{subject}")
    failure = f"{counts} for {messages} messages, the budget is {budget}"
    assert counts.calls <= budget.calls * SLACK, failure
    assert counts.instructions <= budget.instructions * SLACK, failure
    assert counts.held_bytes <= budget.held_bytes * SLACK, failure


@pytest.mark.parametrize("subject", ["together_among_many_topics", "together_behind_many_messages"])
def test_a_send_costs_the_same_among_many(subject: str) -> None:
    few = counted_apart("tests.guards.answers:together")
    many = counted_apart(f"tests.guards.answers:{subject}")
    failure = f"{many} where it is {few} among few"
    assert many.calls <= few.calls * GROWTH_MAX, failure
    assert many.instructions <= few.instructions * GROWTH_MAX, failure
    assert many.held_bytes <= few.held_bytes * GROWTH_MAX, failure
