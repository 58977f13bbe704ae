"""Values of SQL92 filters as Java has them: numbers of three types, their texts, their order.

Properties are texts. A comparison converts a text to the type of the other side, as Java's
`Integer.valueOf`, `Long.valueOf`, `Double.valueOf` and `Boolean.valueOf` do. What they refuse is a
`ValueError` here; it means that the expression has no result.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, TypeAlias

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
#: Java reads UTF-16 units one by one, so it knows no digit outside the first plane.
_DIGITS: Final = re.compile(r"[+-]?\d+")
_FIRST_PLANE_MAX: Final = "\uffff"
#: Digits that surely fit into an Integer or a Long.
_INT_DIGITS: Final = 9
_LONG_DIGITS: Final = 18
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
#: A longer text is converted once for many comparisons: its time grows with its length.
_SHORT: Final = 32
#: How many conversions of long texts are kept.
_KEPT: Final = 64
#: Java trims what is not above a blank.
_TRIMMED: Final = "".join(map(chr, range(33)))


class Long(int):
    """An integer of Java's type Long; a plain int is an Integer."""


#: A value of an expression; None is Java's null.
Value: TypeAlias = str | bool | int | float | None


def to_integer(text: str) -> int:
    """Read a text as Java's `Integer.valueOf`.

    Raises:
        ValueError: Java refuses the text.
    """
    if len(text) <= _INT_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return _in_range(text, _INT_MAX)


def to_long(text: str) -> int:
    """Read a text as Java's `Long.valueOf`.

    Raises:
        ValueError: Java refuses the text.
    """
    if len(text) <= _LONG_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return _in_range(text, _LONG_MAX)


def _in_range(text: str, largest: int) -> int:
    value = _whole(text) if len(text) <= _SHORT else _whole_of_long(text)
    if value is None or not -largest - 1 <= value <= largest:
        raise ValueError("not a whole number, or too large")
    return value


def _whole(text: str) -> int | None:
    """Return a whole number; None if it is none, or too large for a Long."""
    if _DIGITS.fullmatch(text) is None or max(text) > _FIRST_PLANE_MAX:
        return None
    # Leading zeros do not count; what is longer than a Long is not even converted.
    digits = text.lstrip("+-0")
    if len(digits) > _LONG_DIGITS + 1:
        return None
    value = int(digits or "0")
    return -value if text[0] == "-" else value


_whole_of_long: Final = lru_cache(_KEPT)(_whole)


def to_double(text: str) -> float:
    """Read a text as Java's `Double.valueOf`.

    Raises:
        ValueError: Java refuses the text.
    """
    value = _double(text) if len(text) <= _SHORT else _double_of_long(text)
    if value is None:
        raise ValueError("not a number")
    return value


def _double(text: str) -> float | None:
    trimmed = text.strip(_TRIMMED)
    if _DOUBLE.fullmatch(trimmed) is not None:
        return float(trimmed if trimmed.endswith(("N", "y")) else trimmed.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(trimmed) is None:
        return None
    try:
        return float.fromhex(trimmed.rstrip("fFdD"))
    except OverflowError:
        return float("-inf" if trimmed.startswith("-") else "inf")


_double_of_long: Final = lru_cache(_KEPT)(_double)


def to_boolean(text: str) -> bool:
    """Read a text as Java's `Boolean.valueOf`: whatever is not "true" is false."""
    return len(text) == len("true") and text.lower() == "true"


def order_doubles(left: float, right: float) -> int:
    """Compare as Java's `Double.compareTo`: -0.0 is below 0.0, and NaN is equal to NaN, on top."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left or str(left) == str(right) else (-1 if str(left) == "-0.0" else 1)
    return int(left != left) - int(right != right)


def order(left: str | bool | int | float, right: str | bool | int | float) -> int:
    """Compare two values, neither of them null, as Apache's parser does.

    Returns:
        A number below zero, zero or above. Types that it does not compare give -1, so they are
        never equal and always "less".

    Raises:
        ValueError: A text is not a number, or a Boolean on the left meets a text: Apache casts the
            wrong side there.
    """
    if isinstance(left, str) or isinstance(right, str):
        return _order_with_text(left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        both = isinstance(left, bool) and isinstance(right, bool)
        return int(left) - int(right) if both else -1
    if isinstance(left, float) or isinstance(right, float):
        return order_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _order_with_text(left: str | bool | int | float, right: str | bool | int | float) -> int:
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, str):
        return order(_like(left, right), right)
    assert isinstance(right, str)
    if isinstance(left, bool):
        raise ValueError("a Boolean is not compared with a text")
    return order(left, _like(right, left))


def _like(text: str, other: str | bool | int | float) -> bool | int | float:
    """Convert a text to the type of the other side."""
    if isinstance(other, bool):
        return to_boolean(text)
    if isinstance(other, float):
        return to_double(text)
    return to_long(text) if isinstance(other, Long) else to_integer(text)
