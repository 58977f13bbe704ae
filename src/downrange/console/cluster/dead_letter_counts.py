"""How many messages of each group died, in all and in the last hour."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.pages.overview import DeadLetterCount
from downrange.errors import RocketMQError, TransportError
from downrange.wire.system_names import DEAD_LETTER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from downrange import AsyncAdmin, QueueState

_HOUR: Final = timedelta(hours=1)


async def count_dead_letters(
    admin: AsyncAdmin, topics: Iterable[str], now: datetime, old_brokers: Collection[str]
) -> list[DeadLetterCount]:
    """Return the dead letters of groups, most of the last hour first.

    Args:
        admin: Asks the cluster.
        topics: Dead-letter topics.
        now: The time.
        old_brokers: Names of brokers of 4.9.

    Raises:
        RocketMQError: A server did not answer.
    """
    gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)

    async def count(topic: str) -> DeadLetterCount:
        async with gate:
            return await count_of(admin, topic, now, old_brokers)

    found = await asyncio.gather(*map(count, topics))
    return sorted(found, key=lambda each: (-each.last_hour, each.group))


async def count_of(
    admin: AsyncAdmin, topic: str, now: datetime, old_brokers: Collection[str]
) -> DeadLetterCount:
    """Return the dead letters of one group; none where its topic is gone or cannot be read."""
    group = topic.removeprefix(DEAD_LETTER_PREFIX)
    try:
        queues = await admin.topic_stats(topic)
        recent = [
            await _died_since(admin, queue, now - _HOUR, queue.queue.broker in old_brokers)
            for queue in queues
        ]
    except TransportError:
        raise
    except RocketMQError:
        return DeadLetterCount(group=group, last_hour=0, total=0, last_at=None)
    return DeadLetterCount(
        group=group,
        last_hour=sum(recent),
        total=sum(queue.count for queue in queues),
        last_at=max((queue.stored_at for queue in queues if queue.stored_at), default=None),
    )


async def _died_since(admin: AsyncAdmin, state: QueueState, since: datetime, is_old: bool) -> int:
    if state.count == 0 or state.stored_at is None or state.stored_at < since:
        return 0
    offset: int = await admin.search_offset(state.queue, since)
    if is_old:
        # A 4.9 broker returns the message nearest in time, which may be older. Others are not
        # read: a broker counts each message that is read as one that was received.
        batch = await admin.read_queue(state.queue, offset, max_count=1, decode_body=False)
        if batch.messages and batch.messages[0].stored_at < since:
            offset += 1
    return max(state.max_offset - offset, 0)
