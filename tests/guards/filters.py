"""Filters whose cost per message is counted."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from downrange.filters.match import Expression

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.guards.count import Operation


@contextmanager
def three_comparisons() -> Generator[Operation]:
    """A message is compared with an SQL92 expression; no comparison is left out."""
    matches = Expression("amount > 100 AND color = 'red' AND region IN ('EU', 'US')").matches
    properties = {"amount": "150", "color": "red", "region": "EU", "KEYS": "k"}
    assert matches(properties)
    yield lambda: matches(properties)
