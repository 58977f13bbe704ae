"""The cost of a message for the client that receives it; see `test_sends`."""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Counts, counted_apart
from tests.guards.replies import PULLED
from tests.guards.test_sends import PYTHON, check

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)


@pytest.mark.parametrize(
    ("subject", "budget"),
    [
        pytest.param("bodies", Counts(167, 4_753, 48_199), id="bodies"),
        pytest.param("bodies_ids_and_tags", Counts(583, 8_913, 52_382), id="ids-and-tags"),
        pytest.param("everything", Counts(3_374, 52_770, 145_808), id="everything"),
    ],
)
def test_a_reply_stays_within_its_budget(subject: str, budget: Counts) -> None:
    check(counted_apart(f"tests.guards.replies:{subject}"), budget, f"{PULLED} messages")


def test_a_handled_message_stays_within_its_budget() -> None:
    budget = Counts(407, 8_100, 48_007)
    check(counted_apart("tests.guards.handled:pulled"), budget, f"{PULLED} messages")
