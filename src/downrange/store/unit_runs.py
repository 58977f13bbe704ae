"""Units of a queue index as they are in its files: which records they name, and where to read them.

    unit, 20 bytes   i64 commit-log offset, i32 record size, i64 tag hash

Pulls and pops read thousands of units per second and use two numbers of each, so these functions
take the bytes of many units at once.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from downrange.native import twin
from downrange.wire.batches import QUEUE_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable

UNIT: Final = QUEUE_UNIT
UNIT_BYTES: Final = UNIT.size
#: Ranges of the log with a smaller gap between them are read with one call, gap included: a call of
#: its own takes as long as copying this many bytes.
GAP_BYTES: Final = 8 * 1024
#: The gaps between the records of one read together, so that it never takes long. A gap counts as
#: `GAP_BYTES` at most, because larger ones are not read.
GAPS_BYTES_MAX: Final = 4 * 1024 * 1024
_LOG_OFFSET: Final = Struct(">q").unpack_from


@lru_cache(maxsize=64)
def _sizes(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that reads the sizes of so many units."""
    return Struct(">" + "8xi8x" * count).unpack


def pure_neighbours(
    units: bytes, log_first: int, log_end: int, bytes_max: int
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many records may be read, and the ranges of the log that hold them.

    Args:
        units: Units of one queue, in its order.
        log_first: The first position of the log.
        log_end: The position behind its last record.
        bytes_max: The limit of all records together. The first one is taken in any case.

    Returns:
        The number of records up to the first one that was deleted, that exceeds the limit, or that
        has too many records of other queues before it; and the first and last positions of the
        ranges.
    """
    if not units:
        return 0, []
    count = len(units) // UNIT_BYTES
    sizes = _sizes(count)(units)
    (begin,), (end,) = _LOG_OFFSET(units), _LOG_OFFSET(units, len(units) - UNIT_BYTES)
    end += sizes[-1]
    if log_first <= begin and end <= log_end and sum(sizes) == end - begin <= bytes_max:
        # The usual case: units are in the order of the log, and nothing is between these.
        return count, [(begin, end)]
    runs: list[tuple[int, int]] = []
    begin = end = count = total = gaps = 0
    for log_offset, size, _ in UNIT.iter_unpack(units):
        total += size
        if not log_first <= log_offset < log_end or (total > bytes_max and count):
            break
        if log_offset != end or not count:
            if count:
                gaps += min(log_offset - end, GAP_BYTES)
                if gaps > GAPS_BYTES_MAX:
                    break
                runs.append((begin, end))
            begin = log_offset
        end = log_offset + size
        count += 1
    if count:
        runs.append((begin, end))
    return count, runs


def pure_tagged(units: bytes, hashes: frozenset[int]) -> tuple[list[int], bytes, int]:
    """Return positions and units of those with one of some tags, and the size of their records.

    Args:
        units: The units; positions count from the first one.
        hashes: The hashes of the tags.
    """
    found = [
        (position, unit)
        for position, unit in enumerate(UNIT.iter_unpack(units))
        if unit[2] in hashes
    ]
    packed = b"".join([UNIT.pack(*unit) for _, unit in found])
    return [position for position, _ in found], packed, sum([unit[1] for _, unit in found])


neighbours = twin(pure_neighbours)
tagged = twin(pure_tagged)
