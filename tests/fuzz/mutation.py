"""Damages bytes in the ways that break readers: lengths, counts, numbers, brackets, cut ends."""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

#: Larger inputs are cut to this size; damaging bytes does not find bugs that need more.
BYTES_MAX: Final = 8192

_NUMBERS: Final = (0, 1, -1, 2, 7, 8, 127, 128, -128, 255, 32767, 32768, -32768, 65535, 1 << 24)
_EDGES: Final = (2**31 - 1, -(2**31), 2**31 - 8, 16 * 1024 * 1024, 0x01000000, 0x7F000000)
_TEXTS: Final = (
    *(b"", b"0", b"-1", b"+5", b" 5", b"5_0", b"2147483648", b"-9223372036854775809", b"1e999"),
    *(b"9" * 30, b"9" * 5000, b"1.5", b"NaN", b"true", b"null", b"\xef\xbc\x91", b"00"),
)
_TOKENS: Final = (
    *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"'", b"\\", b"\\u", b"\\ud83d", b"\\x4", b"/*"),
    *(b"*/", b"//", b"\n", b"null", b"true", b'{"$ref":"$"}', b'{"$ref":"$.a[0]"}', b'"$ref":'),
    *(b"{{", b"}:", b"{0:", b"[" * 120, b"{{" * 60, b"\x00", b"\x01", b"\x02", b"\xff", b"\xc3"),
    *(b"\xed\xa0\x80", b" ", b"\xe3\x80\x80", b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"),
)
_DIGITS: Final = re.compile(rb"\d+")
_WORDS: Final = (Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q"))


def mutate(source: Random, data: bytes, other: bytes) -> bytes:
    """Return the data, damaged in one to four ways; parts may come from `other`."""
    for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
        data = source.choice(_WAYS)(source, data, other)
    return data[:BYTES_MAX]


def _flip_bit(source: Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    at = source.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << source.randrange(8)]) + data[at + 1 :]


def _set_bytes(source: Random, data: bytes, _: bytes) -> bytes:
    at = source.randrange(len(data) + 1)
    new = source.randbytes(source.randrange(1, 9))
    return data[:at] + new + data[at + len(new) :]


def _set_number(source: Random, data: bytes, _: bytes) -> bytes:
    """Overwrite a binary number, on a likely boundary or anywhere."""
    form = source.choice(_WORDS)
    if len(data) < form.size:
        return data
    at = source.randrange(min(len(data) - form.size + 1, source.choice((48, 128, BYTES_MAX))))
    number = source.choice((*_NUMBERS, *_EDGES, len(data), len(data) - 4, source.getrandbits(31)))
    bits = 8 * form.size
    wrapped = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    return data[:at] + form.pack(wrapped) + data[at + form.size :]


def _add_to_byte(source: Random, data: bytes, _: bytes) -> bytes:
    """Make a length a little larger or smaller."""
    if not data:
        return data
    at = source.randrange(len(data))
    return data[:at] + bytes([(data[at] + source.randint(-4, 4)) % 256]) + data[at + 1 :]


def _set_digits(source: Random, data: bytes, _: bytes) -> bytes:
    """Replace a number that is written as text."""
    found = list(_DIGITS.finditer(data))
    if not found:
        return data
    start, end = source.choice(found).span()
    return data[:start] + source.choice(_TEXTS) + data[end:]


def _insert_token(source: Random, data: bytes, _: bytes) -> bytes:
    at = source.randrange(len(data) + 1)
    return data[:at] + source.choice(_TOKENS) + data[at + source.randrange(3) :]


def _cut_end(source: Random, data: bytes, _: bytes) -> bytes:
    return data[: source.randrange(len(data) + 1)]


def _delete(source: Random, data: bytes, _: bytes) -> bytes:
    start = source.randrange(len(data) + 1)
    return data[:start] + data[start + source.choice((1, 2, 4, 8, 40)) :]


def _repeat(source: Random, data: bytes, _: bytes) -> bytes:
    start = source.randrange(len(data) + 1)
    end = start + source.choice((1, 2, 4, 20, 200))
    return data[:end] + data[start:end] * source.choice((1, 2, 60)) + data[end:]


def _splice(source: Random, data: bytes, other: bytes) -> bytes:
    start, end = sorted(source.randrange(len(other) + 1) for _ in range(2))
    at = source.randrange(len(data) + 1)
    return data[:at] + other[start:end] + data[at + source.choice((0, end - start)) :]


def _append(source: Random, data: bytes, other: bytes) -> bytes:
    return data + source.choice((other, other[:7], source.randbytes(source.randrange(40))))


_WAYS: Final[tuple[Callable[[Random, bytes, bytes], bytes], ...]] = (
    _flip_bit,
    _set_bytes,
    _set_number,
    _add_to_byte,
    _set_digits,
    _insert_token,
    _cut_end,
    _delete,
    _repeat,
    _splice,
    _append,
)
