"""CPU of the kernel for the writes of the log: new, preallocated and recycled segments.

The log creates a segment as a file with a hole and writes into it ("new"). "preallocated" has its
blocks reserved before (`posix_fallocate`), which is not measured. "recycled" overwrites a segment
that was filled and synced before, and whose pages are still in the page cache; "recycled, cold"
drops them first, as they would be for a segment that retention gives back. All kinds take turns;
each figure is the median of the rounds. Nothing is synced while it is measured.

    python benchmarks/segments.py [--megabytes 256] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

KINDS: Final = ("new", "preallocated", "recycled", "recycled, cold")
WRITE_BYTES: Final = (1_200, 16 * 1024, 128 * 1024, 1024 * 1024)
_MEGABYTE: Final = 1024 * 1024


def cost_us(path: Path, kind: str, size: int, write_bytes: int) -> float:
    """Return the CPU time of filling a segment, in µs per KiB."""
    _prepare(path, kind, size)
    data = os.urandom(write_bytes)
    handle = os.open(path, os.O_RDWR)
    started = process_time()
    for at in range(0, size - write_bytes + 1, write_bytes):
        os.pwrite(handle, data, at)
    used = process_time() - started
    os.close(handle)
    path.unlink()
    return used / (size / 1024) * 1e6


def _prepare(path: Path, kind: str, size: int) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    if kind == "new":
        os.ftruncate(handle, size)
    elif kind == "preallocated":
        os.posix_fallocate(handle, 0, size)
    else:
        for at in range(0, size, _MEGABYTE):
            os.pwrite(handle, bytes(_MEGABYTE), at)
    os.fsync(handle)
    if kind == "recycled, cold":
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of a segment")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    costs: dict[tuple[int, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="downrange-segments-") as folder:
        for number in range(asked.rounds):
            for write_bytes in WRITE_BYTES:
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    path = Path(folder) / "segment"
                    cost = cost_us(path, kind, asked.megabytes * _MEGABYTE, write_bytes)
                    costs.setdefault((write_bytes, kind), []).append(cost)
    print("µs of CPU per KiB; median of the rounds, and the smallest\n")
    print(f"{'write':>10}" + "".join(f"{kind:>18}" for kind in KINDS))
    for write_bytes in WRITE_BYTES:
        found = [costs[write_bytes, kind] for kind in KINDS]
        texts = [f"{median(each):.2f} ({min(each):.2f})" for each in found]
        print(f"{write_bytes:>10,}" + "".join(f"{text:>18}" for text in texts))


if __name__ == "__main__":
    main()
