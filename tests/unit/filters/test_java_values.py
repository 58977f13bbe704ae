"""Texts as numbers, and the order of values, as in Java."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest

from downrange.filters.java_values import (
    Long,
    order,
    order_doubles,
    to_boolean,
    to_double,
    to_integer,
    to_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("-0", 0), ("+5", 5), ("00000000000000000000005", 5)),
        *(("0" * 9_999 + "7", 7), ("-" + "0" * 9_999 + "7", -7)),
        *(("2147483647", 2**31 - 1), ("-2147483648", -(2**31)), ("\u0665", 5)),
    ],
)
def test_a_text_is_an_integer(text: str, value: int) -> None:
    assert to_integer(text) == to_long(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", " 5", "5 ", "5.0", "5L", "1e3", "5_0", "--5", "\U0001d7d3", "x", "9" * 99],
)
def test_a_text_is_not_an_integer(text: str) -> None:
    for read in (to_integer, to_long):
        with pytest.raises(ValueError, match=r"not a whole number|too large"):
            read(text)


def test_integers_have_limits() -> None:
    assert to_long("2147483648") == 2**31
    assert (to_long(str(2**63 - 1)), to_long(str(-(2**63)))) == (2**63 - 1, -(2**63))
    for read, text in ((to_integer, "2147483648"), (to_long, str(2**63)), (to_long, "1" * 20)):
        with pytest.raises(ValueError, match="too large"):
            read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("5", 5.0), ("5.", 5.0), (".5", 0.5), ("-5.5e1", -55.0), ("+1E-1", 0.1), (" 5\t", 5.0)),
        *(("5d", 5.0), ("5F", 5.0), ("1e400", math.inf), ("-1e400", -math.inf), ("1e-400", 0.0)),
        *(("Infinity", math.inf), ("-Infinity", -math.inf), ("0x1p3", 8.0), ("-0X.8P1d", -1.0)),
        *(("0x1p99999", math.inf), ("-0x1p99999", -math.inf), ("\x005\x00", 5.0)),
    ],
)
def test_a_text_is_a_decimal_number(text: str, value: float) -> None:
    assert to_double(text) == value


@pytest.mark.parametrize(
    "text",
    ["", ".", "e5", "5e", "inf", "nan", "infinity", "0x1", "0xp1", "5_0", "5L", "\u0665", "x"],
)
def test_a_text_is_not_a_decimal_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        to_double(text)


def test_nan_is_a_number() -> None:
    assert math.isnan(to_double("NaN"))
    assert math.isnan(to_double("-NaN"))


def test_a_text_is_a_truth_value() -> None:
    assert [to_boolean(text) for text in ("true", "TrUe", "1", "", " true")] == [
        *(True, True, False, False, False)
    ]


def test_doubles_have_an_order_without_gaps() -> None:
    values = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for first, left in enumerate(values):
        for second, right in enumerate(values):
            assert order_doubles(left, right) == (first > second) - (first < second)


def test_values_are_compared_by_the_type_of_the_other_side() -> None:
    assert [order("5", 5), order("5", Long(5)), order("5", 5.0), order("true", True)] == [0] * 4
    assert [order(5, "5"), order(Long(5), "5"), order(5.0, "5")] == [0] * 3
    assert [order(5, Long(6)), order(7, 6), order(5, 5.5), order(5.5, 5)] == [-1, 1, -1, 1]
    assert [order("a", "b"), order("b", "a"), order("a", "a")] == [-1, 1, 0]
    assert [order(True, False), order(False, True), order(True, True)] == [1, -1, 0]
    assert [order(True, 5), order(5, True)] == [-1, -1]  # never equal
    # A Long becomes a Double, which is less exact.
    assert order(Long(2**53 + 1), float(2**53)) == 0
    with pytest.raises(ValueError, match="Boolean"):
        order(True, "true")


@pytest.mark.parametrize("read", [to_integer, to_long, to_double])
@pytest.mark.parametrize(
    "text", ["1" * 32_000 + "x", "1e" + "1" * 32_000 + "x", "0x" + "1" * 32_000 + "z"]
)
def test_a_long_text_that_is_no_number_takes_little_time(
    read: Callable[[str], float], text: str
) -> None:
    # Some milliseconds. It was almost a minute when the time grew with the square of the length.
    begun = time.process_time()
    for _ in range(1_000):  # as often as one expression may compare it
        with pytest.raises(ValueError, match="not a"):
            read(text)
    assert time.process_time() - begun < 5


def test_a_long_text_is_converted_as_a_short_one() -> None:
    assert to_double("0" * 99 + "1.5") == to_double("1.5")
    assert to_double(" " * 99 + "-1.5f") == -1.5
    assert to_double("0x" + "0" * 99 + "1p1") == 2.0
    assert to_long("0" * 99 + "99999999999") == 99_999_999_999
    with pytest.raises(ValueError, match="too large"):
        to_integer("0" * 99 + "99999999999")
