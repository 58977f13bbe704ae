"""Units of queue indexes, native and in Python."""

from __future__ import annotations

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
