"""The cost of a message for the client that receives it; see `test_sends`."""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Budget, Counts, Twins, counted_apart
from tests.guards.replies import PULLED
from tests.guards.test_sends import PYTHON, check

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)


@pytest.mark.parametrize(
    ("subject", "budget"),
    [
        pytest.param(
            "bodies", Budget(Counts(269, 4_849, 49_147), Counts(12, 175, 49_147)), id="bodies"
        ),
        pytest.param(
            "bodies_ids_and_tags",
            Budget(Counts(685, 9_009, 52_406), Counts(428, 4_335, 52_406)),
            id="ids-and-tags",
        ),
        pytest.param(
            "everything",
            Budget(Counts(3_578, 52_962, 145_888), Counts(3_064, 43_614, 145_888)),
            id="everything",
        ),
    ],
)
def test_a_reply_stays_within_its_budget(subject: str, budget: Budget, twins: Twins) -> None:
    counts = counted_apart(f"tests.guards.replies:{subject}", twins)
    check(counts, budget.of(twins), f"{PULLED} messages")


def test_a_handled_message_stays_within_its_budget(twins: Twins) -> None:
    budget = Budget(Counts(509, 8_229, 48_039), Counts(252, 3_555, 48_039))
    counts = counted_apart("tests.guards.handled:pulled", twins)
    check(counts, budget.of(twins), f"{PULLED} messages")
