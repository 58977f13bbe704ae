"""Java's string hash, as used in queue indexes, key indexes and the choice of queues.

Murmur3 stands in the file of SQL92 filters only, where Apache expects it.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from operator import mul
from sys import byteorder
from typing import Final

from downrange.native import twin

_MASK: Final = 0xFFFFFFFF
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_MURMUR_1: Final = 0x87C37B91114253D5
_MURMUR_2: Final = 0x4CF5AD432745937F
#: 31 to the power of n, modulo 2^32, falling to 31^0: the end of the list fits a shorter string.
_POWERS: Final = [pow(31, exponent, 1 << 32) for exponent in reversed(range(256))]
#: For keys of usual length: the end of the list that fits, and 31 to the power of the length.
_SHORT_SIZE_MAX: Final = 64
_SHORT: Final[list[tuple[list[int], int]]] = [
    (_POWERS[256 - size :], pow(31, size, 1 << 32)) for size in range(_SHORT_SIZE_MAX + 1)
]
# A unique id consists of three parts that change at different rates, so their hashes are cached
# separately: the process; five digits of the clock, which change about once per millisecond; and
# three digits of the counter, which have 4,096 values.
_NUMBER_SIZE: Final = 3
_CLOCK_SIZE: Final = 5
_NUMBER_SCALE: Final = pow(31, _NUMBER_SIZE, 1 << 32)
#: Length of a unique id with an IPv4 or IPv6 address -> 31 to the power of that length without the
#: counter.
_MOMENT_SCALES: Final = {size: pow(31, size - _NUMBER_SIZE, 1 << 32) for size in (32, 56)}


def pure_java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31 h + unit over UTF-16 units, as a signed 32-bit number."""
    return _signed(_hash(text))


java_hash = twin(pure_java_hash)


@lru_cache(maxsize=1024)
def tag_hash(tag: str | None) -> int:
    """Return the hash of a tag in a queue index; brokers filter by it."""
    return java_hash(tag) if tag else 0


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in a key index: never negative, 0 where Java's `abs` overflows."""
    return key_hash_behind(key_front(topic), key)


def key_front(topic: str) -> int:
    """Return the state of the hash after the topic, which `key_hash_behind` continues."""
    return _hash(f"{topic}#")


def pure_key_hash_behind(front: int, key: str) -> int:
    """Return the same as `key_hash`, from the `key_front` of the topic."""
    size = len(key)
    if size > _SHORT_SIZE_MAX or not key.isascii():
        units = size if key.isascii() else len(key.encode("utf-16-le", "surrogatepass")) // 2
        value = front * pow(31, units, 1 << 32) + _hash(key)
    elif size in _MOMENT_SCALES:
        known = front * _MOMENT_SCALES[size] + _moment_hash(key[:-_NUMBER_SIZE])
        value = known * _NUMBER_SCALE + _number_hash(key[-_NUMBER_SIZE:])
    else:
        powers, scale = _SHORT[size]
        value = front * scale + sum(map(mul, key.encode(), powers))
    value &= _MASK
    # Java's `abs` overflows for the smallest number; a key index uses 0 for it.
    if value > 0x8000_0000:
        return 0x1_0000_0000 - value
    return 0 if value == 0x8000_0000 else value


key_hash_behind = twin(pure_key_hash_behind)


@lru_cache(maxsize=4096)
def _process_hash(process: str) -> int:
    return _hash(process)


@lru_cache(maxsize=4096)
def _moment_hash(moment: str) -> int:
    powers, scale = _SHORT[_CLOCK_SIZE]
    units = moment[-_CLOCK_SIZE:].encode()
    value: int = _process_hash(moment[:-_CLOCK_SIZE]) * scale + sum(map(mul, units, powers))
    return value & _MASK


@lru_cache(maxsize=4096)
def _number_hash(number: str) -> int:
    return _hash(number)


def _hash(text: str) -> int:
    """Return the hash as an unsigned number."""
    units: bytes | array[int] = (
        text.encode()
        if text.isascii()
        else array("H", text.encode(f"utf-16-{byteorder[0]}e", "surrogatepass"))
    )
    size = len(units)
    value = 0
    # Sums of products run in C; the string is cut into pieces as long as the list of powers.
    for start in range(0, size, len(_POWERS)):
        piece = units[start : start + len(_POWERS)]
        scale = pow(31, len(piece), 1 << 32)
        value = value * scale + sum(map(mul, piece, _POWERS[-len(piece) :]))
    return value & _MASK


def murmur3_low(data: bytes) -> int:
    """Return the low 64 bits of Murmur3 (x64, 128 bits, seed 0), as an unsigned number."""
    low = high = 0
    size = len(data)
    data += bytes(-size % 16)  # zeros change nothing in the last, incomplete block
    for start in range(0, len(data), 16):
        first = int.from_bytes(data[start : start + 8], "little")
        second = int.from_bytes(data[start + 8 : start + 16], "little")
        low ^= _rotated(first * _MURMUR_1 & _MASK_64, 31) * _MURMUR_2 & _MASK_64
        is_whole = start + 16 <= size
        if is_whole:
            low = (_rotated(low, 27) + high) * 5 + 0x52DCE729 & _MASK_64
        high ^= _rotated(second * _MURMUR_2 & _MASK_64, 33) * _MURMUR_1 & _MASK_64
        if is_whole:
            high = (_rotated(high, 31) + low) * 5 + 0x38495AB5 & _MASK_64
    low ^= size
    high ^= size
    low = low + high & _MASK_64
    high = high + low & _MASK_64
    return _mixed(low) + _mixed(high) & _MASK_64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK_64


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return value ^ value >> 33


def _signed(value: int) -> int:
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
