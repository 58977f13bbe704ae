"""Reads the end of a topic: the newest messages of all queues, within limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.message_search import by_time

if TYPE_CHECKING:
    from downrange import AsyncAdmin, QueueState, ReceivedMessage
    from downrange.console.cluster.message_search import Budget

_PULL_COUNT: Final = 32


async def read_end(
    admin: AsyncAdmin, states: list[QueueState], count: int, budget: Budget
) -> tuple[list[ReceivedMessage], str]:
    """Return the newest messages of queues in the order of storing, and why the scan ended.

    Bodies stay compressed: `bodies.listed_body` decompresses one that is used.

    Args:
        admin: Asks the cluster.
        states: The queues and what they hold.
        count: The most messages of each queue.
        budget: How much may be read.

    Raises:
        RocketMQError: A server did not answer.
    """
    gate = asyncio.Semaphore(limits.QUEUES_AT_ONCE)

    async def read(state: QueueState) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        offset = max(state.max_offset - count, state.min_offset)
        while offset < state.max_offset:
            wanted = min(state.max_offset - offset, _PULL_COUNT)
            async with gate:
                if budget.stop is not None:
                    break
                batch = await admin.read_queue(
                    state.queue, offset, max_count=wanted, decode_body=False
                )
                budget.take(batch.messages)
            found += batch.messages
            offset = max(batch.next, offset + 1)
        return found

    parts = await asyncio.gather(*(read(state) for state in states if state.count))
    messages = sorted((m for part in parts for m in part), key=by_time)
    is_all = all(state.count <= count for state in states)
    return messages, budget.stop or ("complete" if is_all else "rows")
