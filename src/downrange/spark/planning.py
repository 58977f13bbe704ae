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
    from downrange.spark.read_options import ReadOptions


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
    if not ranges:
        return []
    total = sum(each.length for each in ranges)
    count = min(len(ranges), max(1, -(-total // options.partition_records_min)))
    if options.partitions_min is not None:
        count = max(count, min(len(ranges), options.partitions_min))
    if options.partitions_max is not None:
        count = min(count, options.partitions_max)
    packs: list[list[Range]] = []
    left, room = total, 0.0
    for number, each in enumerate(ranges):
        missing = count - len(packs)
        must_open = len(ranges) - number == missing  # each that is left needs a pack of its own
        if not packs or (missing > 0 and (must_open or room < each.length / 2)):
            room = left / missing if missing else 0.0
            packs.append([])
        packs[-1].append(each)
        room -= each.length
        left -= each.length
    return packs
