"""Java's hash of a text, and the two places where it ends up in store files and queue choices."""

from __future__ import annotations

from array import array
from functools import lru_cache
from operator import mul
from sys import byteorder
from typing import Final

_MASK: Final = 0xFFFFFFFF
#: 31 to the power of n, modulo 2^32; the last is 31^0, so a tail of the list fits a text.
_POWERS: Final = [pow(31, exponent, 1 << 32) for exponent in reversed(range(256))]


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31 h + unit over UTF-16 units, as a signed 32-bit number."""
    return _signed(_hash(text))


@lru_cache(maxsize=1024)
def tag_hash(tag: str | None) -> int:
    """Return what a queue index holds for a tag; brokers filter by it."""
    return java_hash(tag) if tag else 0


def key_hash(topic: str, key: str) -> int:
    """Return what a key index holds for a key: never negative, 0 where Java's `abs` overflows."""
    # The hash of `topic#key`, of which the front part is nearly always known.
    units = len(key) if key.isascii() else len(key.encode("utf-16-le", "surrogatepass")) // 2
    value = abs(_signed((_front_hash(topic) * pow(31, units, 1 << 32) + _hash(key)) & _MASK))
    return 0 if value == 0x8000_0000 else value


@lru_cache(maxsize=4096)
def _front_hash(topic: str) -> int:
    return _hash(f"{topic}#")


def _hash(text: str) -> int:
    """Return the hash as an unsigned number."""
    units: bytes | array[int] = (
        text.encode()
        if text.isascii()
        else array("H", text.encode(f"utf-16-{byteorder[0]}e", "surrogatepass"))
    )
    size = len(units)
    value = 0
    # Sums of products run in C; the text is taken in pieces as long as the list of powers.
    for start in range(0, size, len(_POWERS)):
        piece = units[start : start + len(_POWERS)]
        scale = pow(31, len(piece), 1 << 32)
        value = value * scale + sum(map(mul, piece, _POWERS[-len(piece) :]))
    return value & _MASK


def _signed(value: int) -> int:
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
