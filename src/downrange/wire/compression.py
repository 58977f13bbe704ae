"""Compressed message bodies.

Three bits of `sysFlag` hold the type; 0 means zlib, from senders that had no other. LZ4 and zstd
are the frame formats. A small body can decompress to any size, so decompression has a limit.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import lz4.frame
import zstandard

from downrange.errors import MalformedBody
from downrange.wire.codes import SysFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.model import CompressionName

#: Java's default level; LZ4 ignores it.
LEVEL: Final = 5
_TYPE_MASK: Final = 0x700
_COMPRESSED: Final = int(SysFlag.COMPRESSED)


class Compression(IntEnum):
    """Types of compression; the values are bits of `sysFlag`."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compress(body: bytes, compression: Compression, level: int = LEVEL) -> tuple[bytes, int]:
    """Return the compressed body and its `sysFlag` bits.

    A body that compression does not make smaller, such as random bytes or an image, is returned
    unchanged, with no bits.
    """
    packed = _PACK[compression](body, level)
    if len(packed) >= len(body):
        return body, 0
    return packed, flags_of(compression)


def flags_of(compression: Compression) -> int:
    """Return the `sysFlag` bits of a compressed body."""
    return compression | _COMPRESSED


def flags_named(name: CompressionName | None) -> int:
    """Return the `sysFlag` bits of a body by the name of its compression; 0 if it has none."""
    return 0 if name is None else flags_of(Compression[name.upper()])


def compression_of(sys_flag: int) -> Compression | None:
    """Return the compression of a body with this `sysFlag`, or None.

    Raises:
        MalformedBody: The type bits are unknown.
    """
    if not sys_flag & _COMPRESSED:
        return None
    try:
        return Compression(sys_flag & _TYPE_MASK or Compression.ZLIB)
    except ValueError as error:
        problem = f"unknown compression type {(sys_flag & _TYPE_MASK) >> 8}"
        raise MalformedBody("message sysFlag", problem) from error


def decompress(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """Return the decompressed body; an uncompressed one is returned unchanged.

    Raises:
        MalformedBody: The bytes are not of the type in `sys_flag`, or decompress to more than
            `bytes_max`.
    """
    compression = compression_of(sys_flag)
    if compression is None:
        return body
    try:
        return _UNPACK[compression](body, bytes_max)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        problem = f"cannot be decompressed to at most {bytes_max} bytes: {error}"
        raise MalformedBody(f"{compression.name} body", problem) from error


def _unpack_zlib(body: bytes, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(body, bytes_max + 1)
    return _checked(unpacked, bytes_max, is_whole=unpacker.eof)


def _unpack_lz4(body: bytes, bytes_max: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    unpacked: bytes = unpacker.decompress(body, max_length=bytes_max + 1)
    return _checked(unpacked, bytes_max, is_whole=bool(unpacker.eof))


def _unpack_zstd(body: bytes, bytes_max: int) -> bytes:
    # The library allocates the size that the frame declares, even above the given limit.
    if zstandard.frame_content_size(body) > bytes_max:
        raise EOFError("the frame declares more")
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=bytes_max)


def _checked(unpacked: bytes, bytes_max: int, *, is_whole: bool) -> bytes:
    if len(unpacked) > bytes_max:
        raise EOFError("there is more")
    if not is_whole:
        raise EOFError("the data ends too early")
    return unpacked


_PACK: Final[dict[Compression, Callable[[bytes, int], bytes]]] = {
    Compression.ZLIB: zlib.compress,
    Compression.LZ4: lambda body, _: lz4.frame.compress(body, block_linked=False, store_size=False),
    Compression.ZSTD: lambda body, level: zstandard.ZstdCompressor(level).compress(body),
}
_UNPACK: Final = {
    Compression.ZLIB: _unpack_zlib,
    Compression.LZ4: _unpack_lz4,
    Compression.ZSTD: _unpack_zstd,
}
