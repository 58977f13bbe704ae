"""Ranges of the log that packed units name; the native twins are compared in tests/unit/native."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.store.unit_runs import (
    GAP_BYTES,
    GAPS_BYTES_MAX,
    UNIT,
    neighbours,
    pure_neighbours,
    pure_tagged,
    tagged,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def packed(*units: tuple[int, int, int]) -> bytes:
    return b"".join([UNIT.pack(*unit) for unit in units])


@pytest.mark.parametrize("find", [neighbours, pure_neighbours])
def test_neighbours_share_a_range(find: Callable[..., Any]) -> None:
    three = packed((100, 10, 0), (110, 20, 0), (130, 5, 0))
    assert find(three, 100, 135, 35) == (3, [(100, 135)])
    assert find(three, 100, 135, 34) == (2, [(100, 130)])
    assert find(three, 100, 135, 1) == (1, [(100, 110)])
    assert find(three, 100, 120, 99) == (2, [(100, 130)])
    assert find(three, 101, 135, 99) == (0, [])
    assert find(b"", 0, 1, 1) == (0, [])
    apart = packed((0, 10, 0), (15, 10, 0), (25, 10, 0))
    assert find(apart, 0, 99, 99) == (3, [(0, 10), (15, 35)])


@pytest.mark.parametrize("find", [neighbours, pure_neighbours])
def test_others_records_in_between_end_a_range_when_they_are_too_many(
    find: Callable[..., Any],
) -> None:
    count = GAPS_BYTES_MAX // GAP_BYTES
    units = packed(*[(number * (GAP_BYTES + 1), 1, 0) for number in range(count + 9)])
    found, ranges = find(units, 0, 1 << 40, 1 << 30)
    assert (found, len(ranges)) == (count + 1, count + 1)
    wide = packed(*[(number << 30, 1, 0) for number in range(count + 9)])
    assert find(wide, 0, 1 << 60, 1 << 30)[0] == count + 1


@pytest.mark.parametrize("select", [tagged, pure_tagged])
def test_units_with_tags_are_selected(select: Callable[..., Any]) -> None:
    units = packed((0, 10, 5), (10, 20, -6), (30, 40, 7), (70, 1, 5))
    assert select(units, frozenset({5, -6})) == (
        [0, 1, 3],
        packed((0, 10, 5), (10, 20, -6), (70, 1, 5)),
        31,
    )
    assert select(units, frozenset({1})) == ([], b"", 0)
    assert select(b"", frozenset({1})) == ([], b"", 0)
