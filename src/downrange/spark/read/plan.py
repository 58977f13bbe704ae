"""From two positions to tasks. Pure, so that a repeated batch gets the same plan.

The plan depends on the two positions and the options only, not on the current route: a repeated
batch with other tasks would give other ids to the rows that it writes.

1. Each queue gives a range; empty ranges are dropped.
2. Long ranges are split, and ranges are split further until there are `minPartitions`.
3. Short ranges are packed together, because a task costs some 50 ms before it reads anything.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.model import QueueId
    from downrange.spark.read.read_options import ReadOptions


class Range(NamedTuple):
    """Messages of one queue from `begin` up to, but not including, `end`."""

    queue: QueueId
    begin: int
    end: int

    @property
    def length(self) -> int:
        """The number of offsets; with filters or gaps there are fewer messages."""
        return self.end - self.begin


class ReadPartition(InputPartition):
    """The ranges that one task reads.

    Args:
        ranges: The ranges, ordered by queue and offset.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges = tuple(ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadPartition) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"ReadPartition({self.ranges!r})"


def plan(
    start: Mapping[QueueId, int], end: Mapping[QueueId, int], options: ReadOptions
) -> list[ReadPartition]:
    """Return the tasks that read the messages between two positions.

    A queue whose end is not behind its start gives no range. The caller must check for lost
    messages before.
    """
    ranges = [
        Range(queue, begin, last)
        for queue, last in sorted(end.items())
        if (begin := start[queue]) < last
    ]
    if options.is_split:
        ranges = _split(ranges, options)
    return [ReadPartition(packed) for packed in _pack(ranges, options)]


def _split(ranges: list[Range], options: ReadOptions) -> list[Range]:
    total = sum(each.length for each in ranges)
    target = min(options.partitions_min or 0, total)
    pieces: list[Range] = []
    for each in ranges:
        parts = -(-each.length // options.partition_records_max)
        if len(ranges) < target:
            # Tasks in proportion to messages.
            parts = max(parts, -(-each.length * target // total))
        pieces += _cut(each, min(parts, each.length))
    return pieces


def _cut(whole: Range, parts: int) -> list[Range]:
    """Cut a range into parts whose lengths differ by at most one."""
    borders = [whole.begin + whole.length * part // parts for part in range(parts + 1)]
    return [Range(whole.queue, begin, end) for begin, end in pairwise(borders)]


def _pack(ranges: list[Range], options: ReadOptions) -> list[list[Range]]:
    """Pack neighbouring ranges, so that the packs have about the same size."""
    total = sum(each.length for each in ranges)
    count = -(-total // min(options.partition_records_min, options.partition_records_max))
    count = min(len(ranges), max(count, options.partitions_min or 1))
    if options.partitions_max is not None:
        count = min(count, options.partitions_max)
    packs = _distribute(ranges, count, options.partition_records_max)
    if options.partitions_max is not None and len(packs) > options.partitions_max:
        return _distribute(
            ranges, count, total
        )  # maxPartitions is stronger than maxRecordsPerPartition
    return packs


def _distribute(ranges: list[Range], count: int, length_max: int) -> list[list[Range]]:
    """Distribute ranges over `count` packs, or more if a pack would exceed `length_max`."""
    packs: list[list[Range]] = []
    left = sum(each.length for each in ranges)
    length = room = 0
    for number, each in enumerate(ranges):
        missing = count - len(packs)
        must_open = len(ranges) - number == missing  # each remaining range needs its own pack
        is_full = missing > 0 and room < each.length / 2
        if not packs or must_open or is_full or length + each.length > length_max:
            room = left // max(missing, 1)
            length = 0
            packs.append([])
        packs[-1].append(each)
        length += each.length
        room -= each.length
        left -= each.length
    return packs
