"""How the C library handles the memory of large frames."""

from __future__ import annotations

from downrange.wire.limits import FRAME_BYTES_MAX


def keep_freed_memory() -> None:
    """Make the C library keep the memory of large frames instead of returning it after each one.

    Glibc takes blocks over 128 KiB from the system and returns them when they are freed. Once a
    larger block was freed, it keeps blocks up to that size, and twice as much memory in all (see
    mallopt, M_MMAP_THRESHOLD). So this frees one block of the size of the largest frame.

    Without it, the system fills in empty pages again and again. That costs three times as much as
    the rest of answering a bulk pull, and as much as the rest of sending batches from a background
    thread. The block itself is never touched, so it takes no memory. On other C libraries this has
    no effect.
    """
    bytes(FRAME_BYTES_MAX)
