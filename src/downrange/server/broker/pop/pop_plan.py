"""From which queues a pop takes messages, and what the reply says about them.

The topic's own queues come first, from a queue that rotates; one pop in five begins with the retry
topics of the group instead (Java: popFromRetryProbability). What is left of the requested number
goes on to the other kind. A pop in order takes from the topic only, and skips blocked queues.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.server.broker.message_filter import EVERYTHING
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.pop.queue_reader import Taken, start_offset, take
from downrange.server.broker.record_scan import TAGS_EXAMINED_MAX
from downrange.server.broker.tables.topic_table import READ
from downrange.wire.pop_receipts import PLAIN, RETRY, RETRY_V2
from downrange.wire.system_names import pop_retry_topic, pop_retry_topic_v2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.message_filter import MessageFilter
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.bodies import TopicConfig

#: One pop in this many begins with the retry topics.
_RETRY_FIRST: Final = 5
#: How many queues one pop searches by SQL92.
_SQL_QUEUES_MAX: Final = 8


class PopOrder(NamedTuple):
    """What a consumer asks for.

    Attributes:
        topic: The topic.
        group: The group.
        queue_id: A queue, or `ALL_QUEUES`.
        count_max: The most messages.
        wanted: The filter.
        init_mode: Where a new group begins.
        is_ordered: Whether messages are popped in order.
        attempt_id: Identifies the request if it is repeated.
    """

    topic: str
    group: str
    queue_id: int
    count_max: int
    wanted: MessageFilter
    init_mode: int
    is_ordered: bool
    attempt_id: str | None


@lru_cache(maxsize=4096)
def retry_topics(topic: str, group: str) -> tuple[tuple[str, str], ...]:
    """Return kinds and names of the topics with messages that a group pops again."""
    return (RETRY, pop_retry_topic(group, topic)), (RETRY_V2, pop_retry_topic_v2(group, topic))


def take_messages(
    state: BrokerState, asked: PopOrder, turn: int, now_ms: int
) -> tuple[list[Taken], int]:
    """Take messages, and move the group on in the queues where none matched.

    Args:
        state: The broker.
        asked: What a consumer asks for.
        turn: A number that rises with each pop.
        now_ms: The time.

    Returns:
        What was taken from each queue, and how many messages are left in all of them. If nothing
        was taken although some are left, there is more to examine than one pop may.
    """
    found: list[Taken] = []
    rest, bytes_left = 0, state.options.pull_bytes_max
    count_left = asked.count_max
    examined_left = TAGS_EXAMINED_MAX
    for kind, topic, queue_id in _queues(state, asked, turn, now_ms):
        queue, start = _start(state, asked, topic, queue_id)
        wanted = asked.wanted if kind == PLAIN else EVERYTHING
        taken = take(
            state,
            queue,
            queue_id,
            start,
            wanted,
            kind=kind,
            count_max=count_left,
            bytes_max=bytes_left,
            examined_max=examined_left,
        )
        examined_left -= _examined(taken, wanted)
        rest += queue.max_offset - taken.next_offset
        if taken.offsets:
            found.append(taken)
            count_left -= len(taken.offsets)
            bytes_left -= taken.size
        elif taken.next_offset > start and not asked.is_ordered:
            state.checkpoints.hand_out(
                topic, asked.group, queue_id, taken.next_offset, is_checkpoint=False
            )
        elif taken.next_offset > start:
            state.offsets.commit(asked.group, topic, queue_id, taken.next_offset)
        if bytes_left <= 0 or examined_left <= 0:
            count_left = 0  # the other queues only count
    return found, rest


def _examined(taken: Taken, wanted: MessageFilter) -> int:
    """Return how much of `TAGS_EXAMINED_MAX` was used up in a queue."""
    if wanted.sql is not None:  # reads the log: some queues per pop
        return TAGS_EXAMINED_MAX // _SQL_QUEUES_MAX
    return 0 if wanted.is_all else taken.next_offset - taken.start


def has_message(state: BrokerState, asked: PopOrder, now_ms: int) -> bool:
    """Whether a pop would find a message."""
    for kind, topic, queue_id in _queues(state, asked, 1, now_ms):
        queue, start = _start(state, asked, topic, queue_id)
        wanted = asked.wanted if kind == PLAIN else EVERYTHING
        bytes_max = state.options.pull_bytes_max
        if take(
            state, queue, queue_id, start, wanted, kind=kind, count_max=1, bytes_max=bytes_max
        ).offsets:
            return True
    return False


def _start(
    state: BrokerState, asked: PopOrder, topic: str, queue_id: int
) -> tuple[QueueIndex, int]:
    """Return a queue and where the pop begins in it."""
    state.offsets.take_reset(asked.group, topic, queue_id)  # a reset is in force at once for pops
    queue = state.store.queue(topic, queue_id)
    return queue, start_offset(state, queue, asked.group, queue_id, asked.init_mode)


def _queues(
    state: BrokerState, asked: PopOrder, turn: int, now_ms: int
) -> list[tuple[str, str, int]]:
    """Return kind, topic and queue id of the queues to visit, in this order."""
    config = state.topics.get(asked.topic)
    if config is None:  # it existed when the request was held
        return []
    own = [(PLAIN, asked.topic, queue_id) for queue_id in _own_queues(config, asked, turn)]
    if asked.is_ordered:
        return [
            (kind, topic, queue_id)
            for kind, topic, queue_id in own
            if not state.orders.is_blocked((topic, asked.group, queue_id), asked.attempt_id, now_ms)
        ]
    again: list[tuple[str, str, int]] = []
    for kind, topic in retry_topics(asked.topic, asked.group):
        retry = state.topics.get(topic)
        if retry is not None and retry.perm & READ:
            again += [(kind, topic, queue_id) for queue_id in range(retry.read_queue_nums)]
    return again + own if turn % _RETRY_FIRST == 0 else own + again


def _own_queues(config: TopicConfig, asked: PopOrder, turn: int) -> Sequence[int]:
    count = config.read_queue_nums
    if asked.queue_id != ALL_QUEUES:
        return [asked.queue_id] if asked.queue_id < count else []  # it had more when it was held
    return [(turn + number) % count for number in range(count)]
