"""Java's hash of a text, and the two places where it ends up in store files and queue choices."""

from __future__ import annotations

from array import array
from sys import byteorder


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31 h + unit over UTF-16 units, as a signed 32-bit number."""
    units = array("H", text.encode(f"utf-16-{byteorder[0]}e", "surrogatepass"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tag_hash(tag: str | None) -> int:
    """Return what a queue index holds for a tag; brokers filter by it."""
    return java_hash(tag) if tag else 0


def key_hash(topic: str, key: str) -> int:
    """Return what a key index holds for a key: never negative, 0 where Java's `abs` overflows."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 0x8000_0000 else value
