"""Unique ids and offset ids."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedId
from downrange.model import LogOffset
from downrange.wire.ids import (
    OffsetId,
    UniqueId,
    UniqueIdMaker,
    offset_id,
    parse_offset_id,
    parse_unique_id,
)
from tests.unit.wire import vectors
from tests.unit.wire.strategies import int32s, int64s

if TYPE_CHECKING:
    from collections.abc import Callable

MONTH_START, MONTH_END = 1_700_000_000_000, 1_702_000_000_000


def month_around(now_ms: int) -> tuple[int, int]:
    """Have months of equal length."""
    month = MONTH_END - MONTH_START
    start = MONTH_START + (now_ms - MONTH_START) // month * month
    return start, start + month


def maker(ip: bytes = b"\x7f\x00\x00\x01", process_id: int = 1, salt: int = 0) -> UniqueIdMaker:
    return UniqueIdMaker(ip, process_id, salt, month_around)


def test_an_offset_id_of_java_is_read_and_written() -> None:
    parts = OffsetId("10.0.0.2", 10911, LogOffset(1024))
    assert parse_offset_id(vectors.RECORD_OFFSET_ID) == parts
    assert str(parts) == vectors.RECORD_OFFSET_ID
    assert offset_id(bytes([10, 0, 0, 2]), 10911, 1024) == vectors.RECORD_OFFSET_ID


@given(
    st.sampled_from((4, 16)).flatmap(lambda n: st.binary(min_size=n, max_size=n)), int32s, int64s
)
def test_an_offset_id_survives_writing_and_reading(ip: bytes, port: int, log_offset: int) -> None:
    text = offset_id(ip, port, log_offset)
    parts = parse_offset_id(text)
    assert parts == (str(ip_address(ip)), port, log_offset)
    assert str(parts) == text
    assert len(text) == (32 if len(ip) == 4 else 56)


def test_a_unique_id_of_java_is_read_in_its_parts() -> None:
    parts = parse_unique_id("FD000000000000000000000000000002248930946E094C85971F0000")
    assert parts == UniqueId("fd00::2", 0x2489, 0x30946E09, 0x4C85971F, 0)


@given(
    st.sampled_from((4, 16)).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
    st.integers(0, 2**22),
    int32s,
    st.integers(MONTH_START, MONTH_END - 1),
)
def test_a_unique_id_holds_what_it_was_made_of(
    ip: bytes, process_id: int, salt: int, now_ms: int
) -> None:
    text = maker(ip, process_id, salt).make(now_ms)
    assert parse_unique_id(text) == UniqueId(
        str(ip_address(ip)), process_id & 0xFFFF, salt, now_ms - MONTH_START, 1
    )
    assert text == text.upper()


def test_ids_made_in_one_millisecond_differ() -> None:
    ids = maker()
    made = {ids.make(MONTH_START) for _ in range(0x10000)}
    assert len(made) == 0x10000


def test_the_counter_of_ids_wraps() -> None:
    ids = maker()
    ids._counter = count(0xFFFF)
    assert [parse_unique_id(ids.make(MONTH_START)).counter for _ in range(3)] == [0xFFFF, 0, 1]


def test_time_in_an_id_starts_anew_with_the_month() -> None:
    asked: list[int] = []

    def around(now_ms: int) -> tuple[int, int]:
        asked.append(now_ms)
        return month_around(now_ms)

    ids = UniqueIdMaker(bytes(4), 1, 1, around)
    times = [MONTH_START, MONTH_END - 1, MONTH_END, MONTH_END + 5]
    since = [parse_unique_id(ids.make(now_ms)).month_ms for now_ms in times]
    assert since == [0, MONTH_END - 1 - MONTH_START, 0, 5]
    assert asked == [MONTH_START, MONTH_END]


def test_a_clock_that_was_set_back_over_the_month_stays_at_its_start() -> None:
    ids = maker()
    ids.make(MONTH_START)
    assert parse_unique_id(ids.make(MONTH_START - 1)).month_ms == 0


@pytest.mark.parametrize("parse", [parse_offset_id, parse_unique_id])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has 0 characters, not 32 or 56"),
        ("00" * 15, "has 30 characters, not 32 or 56"),
        ("00" * 17, "has 34 characters, not 32 or 56"),
        ("00" * 20, "has 40 characters, not 32 or 56"),
        ("0" * 31, "is not a hexadecimal number"),
        ("0G" * 16, "is not a hexadecimal number"),
        ("\uff10\uff10" * 16, "is not a hexadecimal number"),
        ("00 " * 16, "has 48 characters, not 32 or 56"),
        ("my own id", "is not a hexadecimal number"),
    ],
)
def test_a_text_that_is_not_an_id_is_refused_with_the_reason(
    parse: Callable[[str], object], text: str, problem: str
) -> None:
    with pytest.raises(MalformedId) as caught:
        parse(text)
    assert caught.value.where in (f"offset id {text!r}", f"unique id {text!r}")
    assert caught.value.problem == problem


def test_a_very_long_text_is_not_repeated_in_its_error() -> None:
    with pytest.raises(MalformedId) as caught:
        parse_offset_id("0" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_several_ids_are_those_that_would_be_made_one_by_one() -> None:
    one, other = (UniqueIdMaker(b"\x0a\x00\x00\x01", 7, 1, lambda _: (0, 1 << 60)) for _ in "12")
    expected = [one.make(now_ms) for now_ms in (5, 5, 5, 9)]
    assert [*other.make_several(5, 3), other.make(9)] == expected
    assert other.make_several(9, 0) == []
    assert other.make(9) == one.make(9)
