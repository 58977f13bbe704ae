"""How the C library treats the memory of large frames."""

from __future__ import annotations

from typing import Final

#: As large as a frame gets.
_LARGE_BLOCK_BYTES: Final = 16 * 1024 * 1024


def keep_freed_memory() -> None:
    """Have the C library keep the memory of large frames, and not give it back after each.

    Glibc takes blocks over 128 KiB from the system and returns them as soon as they are freed,
    until it has seen a larger one go: then it keeps blocks of that size, and twice as much memory
    in all (see mallopt, M_MMAP_THRESHOLD). Without this, having empty pages filled in again and
    again costs three times as much as all the rest of answering a bulk pull, and as much as all the
    rest of sending batches from a background thread. The block itself is never touched, so it takes
    no memory. Other C libraries do not care.
    """
    bytes(_LARGE_BLOCK_BYTES)
