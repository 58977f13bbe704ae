"""How far one trigger reads: to the end, or up to a number of messages. Pure.

A limit is divided in proportion to the backlogs, as in the Kafka source, so that a queue with many
messages does not fall behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.model import QueueId


def backlog(start: Mapping[QueueId, int], end: Mapping[QueueId, int]) -> int:
    """Return the number of messages between two positions."""
    return sum(max(0, last - start[queue]) for queue, last in end.items())


def limited(
    start: Mapping[QueueId, int], end: Mapping[QueueId, int], count_max: int
) -> dict[QueueId, int]:
    """Return an end with at most `count_max` messages, and progress in at least one queue.

    Every queue gets its share of the backlog, rounded down; the remainder goes to the first queues
    that have more.
    """
    gaps = {queue: max(0, last - start[queue]) for queue, last in end.items()}
    total = sum(gaps.values())
    if total <= count_max:
        return dict(end)
    shares = {queue: count_max * gap // total for queue, gap in gaps.items()}
    left = count_max - sum(shares.values())
    for queue, gap in gaps.items():
        extra = min(1, gap - shares[queue], left)
        shares[queue] += extra
        left -= extra
    return {queue: start[queue] + shares[queue] for queue in end}
