"""Address patterns of access files.

The forms are those of Apache's `plain_acl.yml`: one address, or a pattern in which each part is a
number, a range, a list or `*`:

    10.0.0.7        10.0.0.*        10.0.0.1-100        10.0.0.{1,2}        *
    fe80::7         fe80::*         fe80::1-ff          fe80::{1,2}

One text may hold several patterns, separated by commas. An IPv4-mapped IPv6 address counts as the
IPv4 address.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

from downrange.errors import OptionError

_COMMA_OUTSIDE_BRACES: Final = re.compile(r",(?![^{]*\})")

#: The allowed numbers of one part of an address.
_Part: TypeAlias = Container[int]


class AddressSet:
    """A set of addresses, given by patterns; supports `"10.0.0.7" in addresses`.

    Args:
        texts: Patterns; each text may hold several, separated by commas. Blank ones are ignored.

    Raises:
        OptionError: A text is not an address pattern.
    """

    __slots__ = ("_has_all", "_patterns")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        named = [
            text.strip()
            for several in texts
            for text in _COMMA_OUTSIDE_BRACES.split(several)
            if text.strip()
        ]
        self._has_all = "*" in named
        self._patterns = [_parse(text) for text in named if text != "*"]

    def __bool__(self) -> bool:
        return self._has_all or bool(self._patterns)

    def __contains__(self, host: str) -> bool:
        if self._has_all or not self._patterns:
            return self._has_all
        numbers = _numbers_of(host)
        return any(_matches(pattern, numbers) for pattern in self._patterns)


def host_of(address: str) -> str:
    """Return the host of "host:port"; for IPv6, without brackets and zone."""
    return address.rpartition(":")[0].strip("[]").partition("%")[0]


def _numbers_of(host: str) -> list[int]:
    """Return 4 numbers for an IPv4 address, 8 for IPv6, and an empty list for anything else."""
    try:
        address = ip_address(host)
    except ValueError:
        return []
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return [int(group, 16) for group in address.exploded.split(":")]
        address = address.ipv4_mapped
    return list(address.packed)


def _matches(pattern: list[_Part], numbers: list[int]) -> bool:
    return len(pattern) == len(numbers) and all(
        number in part for part, number in zip(pattern, numbers, strict=True)
    )


def _parse(text: str) -> list[_Part]:
    try:
        if ":" in text:
            return [_part(part, 16, 0xFFFF) for part in _ipv6_parts(text)]
        parts = text.split(".")
        if len(parts) != 4:
            raise ValueError("an IPv4 address has four parts")
        return [_part(part, 10, 0xFF) for part in parts]
    except ValueError as error:
        raise OptionError(f"{text!r} is not an address pattern: {error}") from error


def _ipv6_parts(text: str) -> list[str]:
    """Return the eight parts of an IPv6 pattern, with `::` expanded to zeros."""
    head, gap, tail = text.partition("::")
    parts = head.split(":") if head else []
    if gap:
        after = tail.split(":") if tail else []
        parts += ["0"] * (8 - len(parts) - len(after)) + after
    if len(parts) != 8:
        raise ValueError("an IPv6 address has eight parts")
    return parts


def _part(text: str, base: int, highest: int) -> _Part:
    if text == "*":
        return range(highest + 1)
    if text.startswith("{") and text.endswith("}"):
        return frozenset(_number(one.strip(), base, highest) for one in text[1:-1].split(","))
    first, dash, last = text.partition("-")
    low = _number(first, base, highest)
    high = _number(last, base, highest) if dash else low
    if high < low:
        raise ValueError(f"the range {text} is empty")
    return range(low, high + 1)


def _number(text: str, base: int, highest: int) -> int:
    if not text.isalnum():  # `int` accepts signs, blanks and underscores
        raise ValueError(f"{text!r} is not a number")
    number = int(text, base)
    if number > highest:
        raise ValueError(f"{text} is above {highest}")
    return number
