"""The queues of a topic: their ends and store times.

One rule: a queue is opened only if its topic has it. Otherwise each queue id in a request would
create a folder on the disk and an entry in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.model import QueueId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.bodies import TopicConfig

#: A message closer to the log's end counts as still in memory (Apache: 40 % of the machine's).
_IN_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024


def queue_count(topic: TopicConfig) -> int:
    """Return the number of queues of a topic, for readers or writers, whichever is larger."""
    return max(topic.read_queue_nums, topic.write_queue_nums)


def find_queue(state: BrokerState, topic: str, queue_id: int) -> QueueIndex | None:
    """Return a queue, or None if the topic does not have it."""
    config = state.topics.get(topic)
    if config is None or not 0 <= queue_id < queue_count(config):
        return None
    return state.store.queue(topic, queue_id)


def queues_of(state: BrokerState, topic: TopicConfig) -> Iterator[tuple[QueueId, QueueIndex]]:
    """Yield all queues of a topic with their names."""
    for queue_id in range(queue_count(topic)):
        name = QueueId(topic.topic_name, state.options.name, queue_id)
        yield name, state.store.queue(topic.topic_name, queue_id)


def stored_ms(state: BrokerState, queue: QueueIndex, offset: int) -> int | None:
    """Return when a message was stored, or None if it does not exist."""
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    (unit,) = queue.units(offset, 1)
    record = state.store.log.record_at(unit.log_offset)
    return None if record is None else record.store_ms


def is_new(state: BrokerState, queue: QueueIndex) -> bool:
    """Whether a queue still has its first message, and that one is recent.

    A new group begins to read such a queue at 0, whatever its start option is, so that it gets the
    messages that were sent while it started (Java: ConsumerManageProcessor).
    """
    if queue.min_offset > 0 or queue.max_offset == 0:
        return False
    (unit,) = queue.units(0, 1)
    return state.store.log.end - unit.log_offset <= _IN_MEMORY_BYTES
