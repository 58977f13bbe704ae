"""The cost of a message for the server, which must not grow with topics and stored messages.

The figures were counted when they were last updated; see `test_sends`.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks.sends import BATCH
from tests.guards.answers import POPS, PULLED, TOGETHER, TRANSACTIONS
from tests.guards.count import Budget, Counts, Twins, counted_apart
from tests.guards.test_sends import check

#: Instructions differ between releases of Python, so the budgets apply to one.
PYTHON = (3, 11)
#: For tables that are resized and caches that are filled; neither may grow with the numbers.
GROWTH_MAX = 1.02


@pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)
@pytest.mark.parametrize(
    ("subject", "messages", "budget"),
    [
        pytest.param(
            "one", 1, Budget(Counts(204, 2961, 4_795), Counts(130, 1865, 3_298)), id="one"
        ),
        pytest.param(
            "together",
            TOGETHER,
            Budget(Counts(8720, 125_322, 288_550), Counts(178, 2518, 260_034)),
            id="together",
        ),
        pytest.param(
            "batch",
            BATCH,
            Budget(Counts(3921, 58_063, 262_126), Counts(173, 2592, 228_269)),
            id="batch",
        ),
        pytest.param(
            "pull", PULLED, Budget(Counts(134, 1921, 82_005), Counts(128, 1848, 82_005)), id="pull"
        ),
        pytest.param(
            "pop_and_acknowledge",
            PULLED,
            Budget(Counts(349, 5330, 83_004), Counts(305, 4674, 82_789)),
            id="pop",
        ),
        pytest.param(
            "pops_together",
            POPS * PULLED,
            Budget(Counts(1266, 19_552, 323_527), Counts(1078, 16_526, 322_475)),
            id="pops",
        ),
        pytest.param(
            "transactions_together",
            TRANSACTIONS,
            Budget(Counts(2992, 43_232, 39_616), Counts(1129, 16_485, 33_516)),
            id="transactions",
        ),
    ],
)
def test_an_answer_stays_within_its_budget(
    subject: str, messages: int, budget: Budget, twins: Twins
) -> None:
    counts = counted_apart(f"tests.guards.answers:{subject}", twins)
    check(counts, budget.of(twins), f"{messages} messages")


@pytest.mark.parametrize("subject", ["together_among_many_topics", "together_behind_many_messages"])
def test_a_send_costs_the_same_among_many(subject: str, twins: Twins) -> None:
    few = counted_apart("tests.guards.answers:together", twins)
    many = counted_apart(f"tests.guards.answers:{subject}", twins)
    failure = f"{many} where it is {few} among few"
    assert many.calls <= few.calls * GROWTH_MAX, failure
    assert many.instructions <= few.instructions * GROWTH_MAX, failure
    assert many.held_bytes <= few.held_bytes * GROWTH_MAX, failure


@pytest.mark.parametrize(
    ("pulls", "pops", "most"),
    [("pull_and_commit", "pop_and_acknowledge", 1.60), ("pulls_together", "pops_together", 1.70)],
)
def test_a_pop_costs_little_more_than_a_pull(
    pulls: str, pops: str, most: float, twins: Twins
) -> None:
    """In steps of the interpreter; copies of bodies and system calls cost both sides the same."""
    pulled = counted_apart(f"tests.guards.answers:{pulls}", twins)
    popped = counted_apart(f"tests.guards.answers:{pops}", twins)
    assert popped.instructions <= pulled.instructions * most, f"{popped} beside {pulled}"
