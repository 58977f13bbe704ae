"""What is known of each topic: read for a page, or by the sweep that goes over all topics.

Brokers tell the figures of one topic per request, so an order by rate over 10,000 topics cannot be
read for a page. The sweep reads some topics per poll. A page reads the topics that it shows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from downrange.console.cluster import limits
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from downrange import AsyncAdmin, QueueState


class TopicFigure(NamedTuple):
    """What the sweep knows of a topic.

    Attributes:
        at: When it was read, in Unix seconds.
        messages: Messages that it holds.
        end: The sum of the ends of its queues: grows by one with each message.
        rate: Messages per second between the last two readings; None after the first.
        last_stored_at: When its newest message was stored.
    """

    at: float
    messages: int
    end: int
    rate: float | None
    last_stored_at: datetime | None


class TopicFigures:
    """The figures of topics, by name."""

    def __init__(self) -> None:
        self._known: dict[str, TopicFigure] = {}
        self._next = 0

    def get(self, topic: str) -> TopicFigure | None:
        """Return what is known of a topic."""
        return self._known.get(topic)

    def oldest(self, topics: Sequence[str]) -> float | None:
        """Return when the oldest figure of these topics was read; None if one is missing."""
        times = [self._known[name].at for name in topics if name in self._known]
        return min(times) if times and len(times) == len(topics) else None

    def note(self, topic: str, queues: Sequence[QueueState], at: float) -> None:
        """Take the queues of a topic as they were at a time."""
        end = sum(queue.max_offset for queue in queues)
        before = self._known.get(topic)
        rate = None
        if before is not None:
            if at - before.at < limits.ROW_SECONDS:
                return  # readings for several viewers may follow each other at once
            rate = max(end - before.end, 0) / (at - before.at)
        self._known[topic] = TopicFigure(
            at=at,
            messages=sum(queue.count for queue in queues),
            end=end,
            rate=rate,
            last_stored_at=max((each.stored_at for each in queues if each.stored_at), default=None),
        )

    async def sweep(self, admin: AsyncAdmin, topics: Sequence[str], count: int, now: float) -> None:
        """Read the next topics, in turn; forget those that are gone."""
        for name in self._known.keys() - set(topics):
            del self._known[name]
        if not topics:
            return
        begin = self._next if self._next < len(topics) else 0
        self._next = begin + count
        chosen = [*topics[begin : begin + count]]
        gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)

        async def read(topic: str) -> None:
            async with gate:
                try:
                    self.note(topic, await admin.topic_stats(topic), now)
                except RocketMQError:
                    return  # deleted, or its broker is down: the page of the topic says why

        await asyncio.gather(*map(read, chosen))
