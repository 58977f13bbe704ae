"""Slots of a key index, native and in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.store.key_slots import PureKeySlots
from downrange.wire.batches import KEY_ENTRY
from tests.unit.native.pairs import native

ENTRIES = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1)), max_size=30
)


@given(st.integers(1, 5_000), st.lists(ENTRIES, max_size=4), st.integers(0, 2**31 - 1))
def test_entries_get_the_same_places(
    count: int, rounds: list[list[tuple[int, int]]], seconds: int
) -> None:
    pure, fast = PureKeySlots(count), native.KeySlots(count)
    number = 1
    for entries in rounds:
        data = b"".join(KEY_ENTRY.pack(*entry) for entry in entries)
        assert tuple(fast.put(data, number, seconds)) == tuple(pure.put(data, number, seconds))
        number += len(entries)
        pure.set(count - 1, number)
        fast.set(count - 1, number)
        assert fast.get(count // 2) == pure.get(count // 2)
        assert fast.part(0, count) == pure.part(0, count)
        assert fast.part(count // 3, count // 2) == pure.part(count // 3, count // 2)
        again = native.KeySlots.load(fast.part(0, count))
        assert again.part(0, count) == PureKeySlots.load(pure.part(0, count)).part(0, count)


def test_wrong_use_is_an_error_and_not_a_panic() -> None:
    for count in (0, 2**31):
        with pytest.raises(ValueError, match="slots"):
            native.KeySlots(count)
    slots = native.KeySlots(3)
    for wrong in (lambda: slots.get(3), lambda: slots.set(3, 1), lambda: slots.part(2, 4)):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError, match="31 bits"):
        slots.put(bytes(24), 2**31 - 2, 0)
