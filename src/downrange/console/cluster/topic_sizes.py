"""How large the messages of a topic are: brokers do not tell the bytes of a topic.

They count the bytes that were sent, with samples of the last minute, hour and day, since their
start. So a topic that was quiet for a while, or since its broker started, has no mean. Then some of
its newest messages are read, once, and the result is kept until the counters know better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange import AsyncAdmin, QueueState, ReceivedMessage, Traffic

#: How many of the newest messages are read.
_READ_MAX: Final = 8
#: What a record of the log has beside topic, body and properties.
_FIXED_BYTES: Final = 91
#: How many topics are remembered.
_TOPICS_MAX: Final = 20_000


class TopicSizes:
    """The mean size of the messages of each topic."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    async def mean(
        self, admin: AsyncAdmin, queues: Sequence[QueueState], sent: Traffic
    ) -> float | None:
        """Return the mean bytes of a message of a topic in the log; None if it cannot be known.

        Args:
            admin: Asks the cluster.
            queues: The queues of the topic.
            sent: What was sent to the topic.
        """
        if sent.mean_bytes is not None:
            self._remember(sent.topic, sent.mean_bytes)
        elif sent.topic not in self._means:
            fullest = max(queues, key=lambda queue: queue.count, default=None)
            if fullest is not None and fullest.count > 0:
                await self._read(admin, sent.topic, fullest)
        return self._means.get(sent.topic)

    async def _read(self, admin: AsyncAdmin, topic: str, queue: QueueState) -> None:
        offset = max(queue.max_offset - _READ_MAX, queue.min_offset)
        try:
            batch = await admin.read_queue(
                queue.queue, offset, max_count=_READ_MAX, decode_body=False
            )
        except RocketMQError:
            return  # an account that may not read it, or a queue that was just emptied
        if batch.messages:
            self._remember(topic, sum(map(_size, batch.messages)) / len(batch.messages))

    def _remember(self, topic: str, mean: float) -> None:
        self._means[topic] = mean
        if len(self._means) > _TOPICS_MAX:
            del self._means[next(iter(self._means))]


def _size(message: ReceivedMessage) -> int:
    """Return about how many bytes a message has in the log."""
    pairs = message.properties.items()
    properties = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs)
    return _FIXED_BYTES + len(message.topic.encode()) + properties + len(message.body)
