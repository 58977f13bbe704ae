"""Slots of a key index, native and in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.store.key_slots import PureKeySlots
from downrange.wire.batches import KEY_ENTRY
from tests.unit.native.pairs import Outcome, assert_same, native, outcome

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
        slots.put(bytes(24), 2**31 - 1, 0)


@given(st.integers(1, 9), st.integers(0, 3), st.integers(-2, 2))
def test_numbers_end_at_31_bits(count: int, entries: int, more: int) -> None:
    data = bytes(12 * entries)
    for number in (2**31 - 1 + more, more, 2**63 - 1 + more, -(2**63)):
        if number < 2**63:
            put_both(count, data, number)


def test_the_last_number_of_31_bits_is_put() -> None:
    put = put_both(7, bytes(12), 2**31 - 1)
    assert put.error is None
    assert put_both(7, bytes(24), 2**31 - 1).error is ValueError


@given(
    st.integers(1, 5_000),
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)), max_size=9
    ),
)
def test_a_negative_hash_has_the_same_slot(count: int, entries: list[tuple[int, int]]) -> None:
    put_both(count, b"".join(KEY_ENTRY.pack(*entry) for entry in entries), 1)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(1, 2**31 - 1))
def test_any_bytes_are_loaded_and_put_or_refused(slots: bytes, data: bytes, number: int) -> None:
    assert_same(
        lambda: PureKeySlots.load(slots).part(0, len(slots) // 4),
        lambda: native.KeySlots.load(slots).part(0, len(slots) // 4),
    )
    put_both(5, data, number)


@pytest.mark.parametrize("count", [-1, 0, 2**31, 2**40])
def test_a_file_without_slots_or_with_too_many_is_refused(count: int) -> None:
    assert_same(PureKeySlots, native.KeySlots, count)


def put_both(count: int, data: bytes, number: int) -> Outcome:
    """Compare what is put and what the slots have then; return the outcome."""
    pure, fast = PureKeySlots(count), native.KeySlots(count)
    put = outcome(lambda: tuple(pure.put(data, number, 9)))
    assert outcome(lambda: tuple(fast.put(data, number, 9))) == put
    assert fast.part(0, count) == pure.part(0, count)
    return put
