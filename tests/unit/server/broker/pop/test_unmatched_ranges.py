"""Ranges of messages that a filter is known not to match."""

from __future__ import annotations

import pytest

from downrange.server.broker.message_filter import MessageFilter
from downrange.server.broker.pop import unmatched_ranges
from downrange.server.broker.pop.unmatched_ranges import UnmatchedRanges
from tests.unit.server.broker.broker_stage import a_state

A, B = MessageFilter(frozenset([1])), MessageFilter(frozenset([2]))
STORE = a_state().store
QUEUE, OTHER = STORE.queue("T", 0), STORE.queue("T", 1)


def test_search_begins_behind_the_messages_that_do_not_match() -> None:
    ranges = UnmatchedRanges()
    assert ranges.end(QUEUE, A, 5) == 5
    ranges.add(QUEUE, A, 5, 9)
    assert [ranges.end(QUEUE, A, start) for start in (4, 5, 8, 9, 10)] == [4, 9, 9, 9, 10]
    assert ranges.end(QUEUE, MessageFilter(frozenset([1])), 5) == 9  # an equal filter
    assert ranges.end(QUEUE, B, 5) == ranges.end(OTHER, A, 5) == 5


@pytest.mark.parametrize(
    ("start", "end", "low", "high"),
    [
        (10, 12, 5, 12),
        (7, 12, 5, 12),
        (6, 8, 5, 10),
        (2, 5, 2, 10),
        (2, 7, 2, 10),
        (2, 20, 2, 20),
        (2, 4, 5, 10),  # apart: the later one is kept
        (11, 13, 11, 13),
        (8, 8, 5, 10),  # empty
        (20, 20, 5, 10),
    ],
)
def test_ranges_that_touch_become_one(start: int, end: int, low: int, high: int) -> None:
    ranges = UnmatchedRanges()
    ranges.add(QUEUE, A, 5, 10)
    ranges.add(QUEUE, A, start, end)
    assert [ranges.end(QUEUE, A, offset) for offset in (low, high - 1)] == [high, high]
    assert ranges.end(QUEUE, A, low - 1) == low - 1
    assert len(ranges) == 1


def test_ranges_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmatched_ranges, "_RANGES_MAX", 2)
    ranges = UnmatchedRanges()
    ranges.add(QUEUE, A, 0, 3)
    ranges.add(QUEUE, B, 0, 3)
    ranges.add(QUEUE, A, 0, 4)
    ranges.add(OTHER, A, 0, 5)
    assert len(ranges) == 2
    assert [ranges.end(QUEUE, A, 0), ranges.end(OTHER, A, 0)] == [4, 5]
    assert ranges.end(QUEUE, B, 0) == 0
    ranges.clear()
    assert len(ranges) == 0
