"""Which queue the next message goes to, when the caller chooses none.

Queues take turns, separately for each thread and topic. The first turn is random, so that producers
that start together use different queues. One rule: a pick never waits and never fails; when all
brokers are avoided it takes one of them.

    off   the next queue; after a failure the next one on another broker, if there is one.
    4.x   the next queue whose broker is available. If there is none, a queue of one of the better
          brokers. The broker that just failed is unavailable by then and needs no rule.
    5.x   after a failure the turns start again at random. Then the next queue whose broker is
          available, else the next whose broker is reachable, both on another broker than the one
          that failed; else the next queue.

This is Java's `MQFaultStrategy.selectOneMessageQueue` of 4.9 and 5.x, with one difference: 4.9
writes the better broker into its own list of queues, where it stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.model import QueueId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from downrange.client.flows.effects import Randomness
    from downrange.client.flows.routing.health import BrokerHealth

_INDEX_MASK: Final = 0x7FFFFFFF


class RoundRobin:
    """The turns of one thread: the last index of each topic. Drivers keep one per thread."""

    __slots__ = ("indexes",)

    def __init__(self) -> None:
        self.indexes: dict[str, int] = {}


class QueuePicker:
    """Picks queues in turn, and avoids brokers as their health says.

    Args:
        health: The health of the brokers, and the style.
        randomness: For the first turn.
    """

    __slots__ = ("_health", "_is_plain", "_is_ranking", "_randomness")

    def __init__(self, health: BrokerHealth, randomness: Randomness) -> None:
        self._health = health
        self._randomness = randomness
        self._is_plain = not health.is_on
        self._is_ranking = health.style == "4.x"

    def pick(
        self,
        round_robin: RoundRobin,
        topic: str,
        writable: Sequence[QueueId],
        write_counts: Mapping[str, int],
        failed_broker: str | None,
        now: float,
    ) -> QueueId:
        """Return the queue for the next attempt.

        Args:
            round_robin: The turns of the calling thread.
            topic: The topic.
            writable: Its queues that can be written to, at least one.
            write_counts: Broker -> how many of these queues it has.
            failed_broker: The broker of the attempt before; None for a first attempt.
            now: The time.
        """
        if self._is_plain:
            if failed_broker is None:
                # The common case: `_next` written out, to save a call per message.
                indexes = round_robin.indexes
                try:
                    index = (indexes[topic] + 1) & _INDEX_MASK
                except KeyError:
                    index = self._randomness.below(_INDEX_MASK)
                indexes[topic] = index
                return writable[index % len(writable)]
            return self._pick_elsewhere(round_robin, topic, writable, failed_broker)
        if self._is_ranking:
            return self._pick_ranked(round_robin, topic, writable, write_counts, now)
        return self._pick_reachable(round_robin, topic, writable, failed_broker, now)

    def _next(self, round_robin: RoundRobin, topic: str) -> int:
        """Return the next index; the first one is random."""
        index = round_robin.indexes.get(topic)
        index = self._randomness.below(_INDEX_MASK) if index is None else (index + 1) & _INDEX_MASK
        round_robin.indexes[topic] = index
        return index

    def _pick_elsewhere(
        self, round_robin: RoundRobin, topic: str, writable: Sequence[QueueId], failed_broker: str
    ) -> QueueId:
        count = len(writable)
        for _ in range(count):
            queue = writable[self._next(round_robin, topic) % count]
            if queue.broker != failed_broker:
                return queue
        return writable[self._next(round_robin, topic) % count]

    def _pick_ranked(
        self,
        round_robin: RoundRobin,
        topic: str,
        writable: Sequence[QueueId],
        write_counts: Mapping[str, int],
        now: float,
    ) -> QueueId:
        health, count = self._health, len(writable)
        first = self._next(round_robin, topic)
        # The search counts as one turn, however many queues it skips.
        for index in range(first, first + count):
            queue = writable[index % count]
            if health.is_available(queue.broker, now):
                return queue
        broker = health.best_of_all(now)
        assert broker is not None, "an avoided broker has a record"
        queue_count = write_counts.get(broker, 0)
        queue = writable[self._next(round_robin, topic) % count]
        if queue_count > 0:
            return QueueId(queue.topic, broker, self._next(round_robin, topic) % queue_count)
        health.forget(broker)  # it has no queue of this topic, or has left
        return queue

    def _pick_reachable(
        self,
        round_robin: RoundRobin,
        topic: str,
        writable: Sequence[QueueId],
        failed_broker: str | None,
        now: float,
    ) -> QueueId:
        health, count = self._health, len(writable)
        if failed_broker is not None:
            round_robin.indexes[topic] = self._randomness.below(_INDEX_MASK)
        for _ in range(count):
            queue = writable[self._next(round_robin, topic) % count]
            if queue.broker != failed_broker and health.is_available(queue.broker, now):
                return queue
        for _ in range(count):
            queue = writable[self._next(round_robin, topic) % count]
            if queue.broker != failed_broker and health.is_reachable(queue.broker):
                return queue
        return writable[self._next(round_robin, topic) % count]
