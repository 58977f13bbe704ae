"""Records that the broker makes itself, native and in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.wire.codes import SysFlag
from downrange.wire.pop_receipts import PoppedOffsets, pure_offsets_texts
from downrange.wire.records import Record
from downrange.wire.run_items import RunForm, RunItem, pure_encode_items
from tests.unit.native.pairs import assert_same, native

_INT63 = st.integers(0, 2**62)
_NUMBERS = st.integers(-(2**70), 2**70)
_LISTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5) | st.builds(
    range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)
)
_ITEMS = st.lists(
    st.tuples(
        st.just(b"[%b] %% %d %b"),
        st.tuples(_LISTS, _NUMBERS, st.binary(max_size=50)),
        st.just(b"%b;%d"),
        st.tuples(st.binary(max_size=50), _NUMBERS),
        st.integers(0, 9),
    ),
    max_size=5,
)


def _form(hosts: int) -> RunForm:
    shared = Record(sys_flag=8, queue_id=3, flag=7, topic_bytes=b"timer", born_port=1, store_port=2)
    if hosts & 1:
        shared.sys_flag |= int(SysFlag.BORN_HOST_V6)
        shared.born_ip = bytes(range(16))
    if hosts & 2:
        shared.sys_flag |= int(SysFlag.STORE_HOST_V6)
        shared.store_ip = bytes(range(16))
    return RunForm(shared)


@given(st.integers(0, 3), _ITEMS, _INT63, _INT63, _INT63, _INT63)
def test_items(
    hosts: int,
    items: list[RunItem],
    queue_offset: int,
    log_offset: int,
    born_ms: int,
    store_ms: int,
) -> None:
    form = _form(hosts)
    numbers = (queue_offset, log_offset, born_ms, store_ms)
    assert_same(pure_encode_items, native.encode_items, form, items, *numbers)


def test_properties_that_are_too_long() -> None:
    form, items = _form(0), [(b"", (), b"", (), 0), (b"", (), b"x" * 32_768, (), 0)]
    assert_same(pure_encode_items, native.encode_items, form, items, 0, 0, 0, 0)


def test_wrong_number_of_values() -> None:
    for values in ((), (1, 2)):
        with pytest.raises((TypeError, IndexError)):
            native.encode_items(_form(0), [(b"%d", values, b"", (), 0)], 0, 0, 0, 0)
    with pytest.raises(ValueError, match="another form"):
        native.encode_items(_form(0), [(b"%x", (1,), b"", (), 0)], 0, 0, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("012"), st.integers(0, 9), _INT63, _LISTS), max_size=4))
def test_offsets_of_a_pop(popped: list[PoppedOffsets]) -> None:
    assert_same(pure_offsets_texts, native.offsets_texts, popped)
