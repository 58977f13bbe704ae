"""Compressed bodies: Java's are read, ours are standard, and decompression is bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import TYPE_CHECKING

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody
from downrange.wire.codes import SysFlag
from downrange.wire.compression import (
    Compression,
    compress,
    compression_of,
    decompress,
    flags_named,
    flags_of,
)
from tests.unit.wire import vectors

if TYPE_CHECKING:
    from collections.abc import Callable

each_compression = pytest.mark.parametrize("compression", Compression, ids=lambda c: str(c.name))

#: How each library decompresses.
INDEPENDENT: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.ZLIB: zlib.decompress,
    Compression.LZ4: lz4.frame.decompress,
    Compression.ZSTD: lambda data: zstandard.ZstdDecompressor().decompress(data, 1 << 20),
}


@pytest.mark.parametrize(
    ("sys_flag", "packed"),
    vectors.COMPRESSED_BODIES.items(),
    ids=[hex(flag) for flag in vectors.COMPRESSED_BODIES],
)
def test_a_body_that_java_compressed_is_unpacked(sys_flag: int, packed: bytes) -> None:
    assert decompress(packed, sys_flag, 5000) == vectors.COMPRESSIBLE_BODY


@each_compression
@given(body=st.binary(max_size=300), level=st.integers(1, 9))
def test_a_body_survives_packing_and_unpacking(
    compression: Compression, body: bytes, level: int
) -> None:
    body = body + bytes(300)  # smaller when packed
    packed, sys_flag = compress(body, compression, level)
    assert sys_flag == compression | 1
    assert decompress(packed, sys_flag, max(len(body), 1)) == body
    assert INDEPENDENT[compression](packed) == body


@each_compression
@given(body=st.binary(max_size=300))
def test_a_body_that_packing_does_not_make_smaller_stays_as_it_is(
    compression: Compression, body: bytes
) -> None:
    """Issue 14: random bytes grew, and those near the limit of the broker were refused."""
    packed, sys_flag = compress(body, compression)
    assert len(packed) <= len(body)
    assert (sys_flag == 0) is (packed == body)
    assert decompress(packed, sys_flag, max(len(body), 1)) == body
    random = bytes(range(256))
    assert compress(random, compression) == (random, 0)


@each_compression
def test_our_packing_packs(compression: Compression) -> None:
    packed, _ = compress(vectors.COMPRESSIBLE_BODY, compression)
    assert len(packed) < 100


@pytest.mark.parametrize("sys_flag", [0, 0x300, 0x700, 0xFFFE])
def test_a_body_that_is_not_compressed_is_left_alone(sys_flag: int) -> None:
    assert decompress(b"as it is", sys_flag, 0) == b"as it is"
    assert compression_of(sys_flag) is None


def test_a_compressed_body_without_a_type_is_zlib() -> None:
    """Releases up to 4.9.3 had no other compression."""
    assert compression_of(int(SysFlag.COMPRESSED)) is Compression.ZLIB
    assert decompress(zlib.compress(b"old"), 1, 10) == b"old"


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_compression_type_is_refused(kind: int) -> None:
    with pytest.raises(MalformedBody, match=f"message sysFlag: unknown compression type {kind}$"):
        decompress(b"", kind << 8 | 1, 10)


@each_compression
@pytest.mark.parametrize("data", [b"", b"garbage", b"\x00" * 40, b"\xff" * 40])
def test_bytes_of_another_format_are_refused(compression: Compression, data: bytes) -> None:
    with pytest.raises(MalformedBody, match=f"{compression.name} body: cannot be decompressed"):
        decompress(data, compression | 1, 100)


@each_compression
def test_a_body_that_ends_too_early_is_refused(compression: Compression) -> None:
    packed, sys_flag = compress(vectors.COMPRESSIBLE_BODY, compression)
    for size in range(len(packed)):
        with pytest.raises(MalformedBody, match=f"{compression.name} body: "):
            decompress(packed[:size], sys_flag, 10_000)


@each_compression
def test_the_limit_of_unpacking_is_exact(compression: Compression) -> None:
    packed, sys_flag = compress(vectors.COMPRESSIBLE_BODY, compression)
    assert len(decompress(packed, sys_flag, 5000)) == 5000
    with pytest.raises(MalformedBody, match="cannot be decompressed to at most 4999 bytes"):
        decompress(packed, sys_flag, 4999)


#: Small bodies that decompress to 16 MB.
BOMBS: dict[str, Callable[[bytes], tuple[bytes, int]]] = {
    "ZLIB": lambda zeros: compress(zeros, Compression.ZLIB),
    "LZ4": lambda zeros: compress(zeros, Compression.LZ4),
    "LZ4 with its size": lambda zeros: (lz4.frame.compress(zeros), Compression.LZ4 | 1),
    "ZSTD": lambda zeros: compress(zeros, Compression.ZSTD),
    "ZSTD without its size": lambda zeros: (
        zstandard.ZstdCompressor(write_content_size=False).compress(zeros),
        Compression.ZSTD | 1,
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused_within_the_limit(name: str) -> None:
    packed, sys_flag = BOMBS[name](bytes(16_000_000))
    assert len(packed) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBody, match="cannot be decompressed to at most 100000 bytes"):
            decompress(packed, sys_flag, 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_compression_is_known_by_its_name() -> None:
    assert flags_named(None) == 0
    assert flags_named("zlib") == flags_of(Compression.ZLIB)
    assert flags_named("zstd") == flags_of(Compression.ZSTD)
