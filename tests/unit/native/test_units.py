"""Units of queue indexes, native and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.store.unit_runs import UNIT, pure_neighbours, pure_tagged
from tests.unit.native.pairs import assert_same, native

_INT64 = st.integers(-(2**62), 2**62)
#: Records one behind the other, with and without gaps; and any numbers.
_STORED = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 500, 9_000]), st.integers(1, 5_000), st.integers(-3, 3)),
    max_size=80,
)
_HOSTILE = st.lists(st.tuples(_INT64, st.integers(-(2**31), 2**31 - 1), _INT64), max_size=9)


def _packed(made: list[tuple[int, int, int]], start: int) -> bytes:
    units: list[bytes] = []
    for gap, size, tag_hash in made:
        start += gap
        units.append(UNIT.pack(start, size, tag_hash))
        start += size
    return b"".join(units)


@given(_STORED, st.integers(0, 99_999), st.integers(0, 200_000), st.integers(0, 99_999))
def test_neighbours(made: list[tuple[int, int, int]], first: int, end: int, most: int) -> None:
    assert_same(pure_neighbours, native.neighbours, _packed(made, 1000), first, end, most)
    assert_same(pure_neighbours, native.neighbours, _packed(made, 1000), 0, 1 << 40, most)


@given(_HOSTILE, _INT64, _INT64, _INT64)
def test_hostile_units(made: list[tuple[int, int, int]], first: int, end: int, most: int) -> None:
    units = b"".join([UNIT.pack(*unit) for unit in made])
    assert_same(pure_neighbours, native.neighbours, units, first, end, most)
    assert_same(pure_tagged, native.tagged, units, frozenset([tag for _, _, tag in made[::2]]))


@given(_STORED, st.frozensets(st.integers(-4, 4)))
def test_tags(made: list[tuple[int, int, int]], hashes: frozenset[int]) -> None:
    assert_same(pure_tagged, native.tagged, _packed(made, 0), hashes)


@given(_STORED, st.integers(0, 40), st.integers(-2, 40))
def test_many_tags(made: list[tuple[int, int, int]], count: int, first: int) -> None:
    units = _packed(made, 0)
    assert_same(pure_tagged, native.tagged, units, frozenset(range(first, first + count)))
    others = frozenset([2**80, -(2**63) - 1, 2**63, *range(first, first + count)])
    assert_same(pure_tagged, native.tagged, units, others)


def test_many_units() -> None:
    units = _packed([(number % 3, 100 + number % 7, number % 50) for number in range(20_000)], 0)
    for hashes in (frozenset({3}), frozenset(range(16)), frozenset(range(17)), frozenset({99})):
        assert_same(pure_tagged, native.tagged, units, hashes)
    assert_same(pure_neighbours, native.neighbours, units, 0, 1 << 40, 1 << 40)
    assert_same(pure_neighbours, native.neighbours, units, 500, 1 << 40, 10_000)


@pytest.mark.parametrize("tagged", [pure_tagged, native.tagged])
def test_the_time_of_a_search_does_not_grow_with_the_number_of_tags(tagged: Any) -> None:
    """Counts comparisons, not time: hashes that compare themselves."""
    compared = 0

    class Hash(int):
        def __hash__(self) -> int:
            return int.__hash__(self)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int.__eq__(self, other)

        def __index__(self) -> int:
            nonlocal compared
            compared += 1
            return int(self)

    units = _packed([(0, 100, number % 50) for number in range(256)], 0)
    hashes = frozenset(map(Hash, range(100_000)))
    compared = 0
    positions, _, _ = tagged(units, hashes)
    assert len(positions) == 256
    assert compared <= 2 * 256
