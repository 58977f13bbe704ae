"""From two positions to tasks; pure, so that a batch that is repeated is planned alike.

What is not in the two positions plays no part, above all not the route of today: a repeated batch
with other tasks would give other keys to what it writes.

1. Each queue gives a range; empty ones are dropped.
2. Long ranges are split, and all of them until there are as many as the user wants at least.
3. Short ranges are packed together: a task costs some 50 ms before it has read anything.
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
    """Messages of one queue, from an offset up to another one, which is not among them."""

    queue: QueueId
    begin: int
    end: int

    @property
    def length(self) -> int:
        """How many offsets it has; filters and gaps may leave fewer messages."""
        return self.end - self.begin


class ReadPartition(InputPartition):
    """What one task reads.

    Args:
        ranges: In order of queues and offsets.
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
    """Return the tasks that read what lies between two positions.

    A queue whose end is not behind its start gives nothing; that messages are lost then is for the
    caller to notice, before it asks for a plan.
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
    wanted = min(options.partitions_min or 0, total)
    pieces: list[Range] = []
    for each in ranges:
        parts = -(-each.length // options.partition_records_max)
        if len(ranges) < wanted:
            # Its share of the tasks, by its share of the messages.
            parts = max(parts, -(-each.length * wanted // total))
        pieces += _cut(each, min(parts, each.length))
    return pieces


def _cut(whole: Range, parts: int) -> list[Range]:
    """Cut a range into parts that differ by one message at most."""
    borders = [whole.begin + whole.length * part // parts for part in range(parts + 1)]
    return [Range(whole.queue, begin, end) for begin, end in pairwise(borders)]


def _pack(ranges: list[Range], options: ReadOptions) -> list[list[Range]]:
    """Put neighbours together, each pack about as large as the others."""
    total = sum(each.length for each in ranges)
    wanted = -(-total // min(options.partition_records_min, options.partition_records_max))
    wanted = min(len(ranges), max(wanted, options.partitions_min or 1))
    if options.partitions_max is not None:
        wanted = min(wanted, options.partitions_max)
    packs = _share_out(ranges, wanted, options.partition_records_max)
    if options.partitions_max is not None and len(packs) > options.partitions_max:
        return _share_out(ranges, wanted, total)  # fewer tasks go before smaller ones
    return packs


def _share_out(ranges: list[Range], count: int, length_max: int) -> list[list[Range]]:
    """Share ranges out to so many packs, or to more where they would be longer than allowed."""
    packs: list[list[Range]] = []
    left = sum(each.length for each in ranges)
    length = room = 0
    for number, each in enumerate(ranges):
        missing = count - len(packs)
        must_open = len(ranges) - number == missing  # each that is left needs a pack of its own
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
