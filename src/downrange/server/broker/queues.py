"""Looking into a topic's queues: where they begin and end, and when.

One rule: a queue is opened only if its topic has it. What a request names is a folder on the disk
otherwise, and one more entry in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.model import QueueId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.bodies import TopicConfig

#: How near to the log's end a message counts as still in memory (Apache: 40 % of the machine's).
_IN_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024


def queue_count(topic: TopicConfig) -> int:
    """Return how many queues a topic has, for readers or writers."""
    return max(topic.read_queue_nums, topic.write_queue_nums)


def find_queue(state: BrokerState, topic: str, queue_id: int) -> QueueIndex | None:
    """Return a queue, or None where the topic has no such queue."""
    config = state.topics.get(topic)
    if config is None or not 0 <= queue_id < queue_count(config):
        return None
    return state.store.queue(topic, queue_id)


def queues_of(state: BrokerState, topic: TopicConfig) -> Iterator[tuple[QueueId, QueueIndex]]:
    """Go over all queues of a topic."""
    for queue_id in range(queue_count(topic)):
        name = QueueId(topic.topic_name, state.options.name, queue_id)
        yield name, state.store.queue(topic.topic_name, queue_id)


def stored_ms(state: BrokerState, queue: QueueIndex, offset: int) -> int | None:
    """Return when a message was stored, or None where there is none."""
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    (unit,) = queue.units(offset, 1)
    record = state.store.log.record_at(unit.log_offset)
    return None if record is None else record.store_ms


def is_new(state: BrokerState, queue: QueueIndex) -> bool:
    """Whether a queue has all its messages since the first, and that one is young.

    A group that never read such a queue begins at 0, wherever it wants to begin: what was sent
    while it started is not lost on it (Java: ConsumerManageProcessor).
    """
    if queue.min_offset > 0 or queue.max_offset == 0:
        return False
    (unit,) = queue.units(0, 1)
    return state.store.log.end - unit.log_offset <= _IN_MEMORY_BYTES


def count_since(state: BrokerState, topic: TopicConfig, since_ms: int) -> int:
    """Return how many messages a topic got since a time."""
    count = 0
    for name, queue in queues_of(state, topic):
        last_ms = stored_ms(state, queue, queue.max_offset - 1)
        if last_ms is not None and last_ms >= since_ms:
            count += queue.max_offset - state.store.offset_at(name.topic, name.number, since_ms)
    return count
