"""The cost of an SQL92 filter per message; see `test_sends`.

The figures stand for about one microsecond; two are allowed.
"""

from __future__ import annotations

import sys

import pytest

from tests.guards.count import Counts, counted_apart
from tests.guards.test_sends import PYTHON, check


@pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"budgets were counted on Python {PYTHON[0]}.{PYTHON[1]}",
)
def test_three_comparisons_stay_within_their_budget() -> None:
    counts = counted_apart("tests.guards.filters:three_comparisons", "native")
    check(counts, Counts(13, 135, 76), "a message")
