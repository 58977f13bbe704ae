"""From which queues a pop takes messages, and what the reply says about them.

The topic's own queues come first, from a queue that changes; one pop in five begins with the retry
topics of the group instead (Java: popFromRetryProbability). What is left of the requested number
goes on to the other kind. A pop in order takes from the topic only, and skips blocked queues.

All groups share the number of a pop, so it is spread first: of two groups that pop in turn, each
would otherwise see only even or only odd numbers, and begin with half of the queues at best.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.server.broker.message_filter import EVERYTHING, MessageFilter
from downrange.server.broker.pop.dead_letters_in_order import is_blocked
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.pop.queue_reader import Taken, start_offset, take
from downrange.server.broker.pop.shared_retries import retry_filter
from downrange.server.broker.record_scan import TAGS_EXAMINED_MAX, examined_max
from downrange.server.broker.tables.topic_table import READ
from downrange.wire.pop_receipts import PLAIN, RETRY, RETRY_V2
from downrange.wire.system_names import pop_retry_topic, pop_retry_topic_v2

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex

#: One pop in this many begins with the retry topics.
_RETRY_FIRST: Final = 5
#: How many queues one pop searches by SQL92.
_SQL_QUEUES_MAX: Final = 8
#: How many messages a search by tags examines in the time of one comparison by SQL92.
_TAGS_PER_COMPARISON: Final = 16
#: 2**64 divided by the golden ratio, an odd number whose bits follow no pattern.
_SPREAD: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1


class PopOrder(msgspec.Struct, frozen=True, gc=False):  # made per pop, and part of no cycle
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
        queue, start = _start(state, topic, asked.group, queue_id, asked.init_mode)
        left = queue.max_offset - start
        rest += left
        if left <= 0 or not count_left:
            continue
        wanted = asked.wanted if kind == PLAIN else _again(state, asked, kind)
        taken = take(
            state, queue, queue_id, start, wanted, kind, count_left, bytes_left, examined_left
        )
        rest -= taken.next_offset - start
        if wanted is not EVERYTHING:
            examined_left -= _examined(taken.next_offset - start, wanted)
            _count_comparisons(state, taken, wanted)
        if taken.offsets:
            found.append(taken)
            count_left -= len(taken.offsets)
            bytes_left -= taken.size
        elif taken.next_offset > start and not asked.is_ordered:
            state.checkpoints.skip(topic, asked.group, queue_id, taken.next_offset)
        elif taken.next_offset > start:
            state.offsets.commit(asked.group, topic, queue_id, taken.next_offset)
        if bytes_left <= 0 or examined_left <= 0:
            count_left = 0  # the other queues only count
    return found, rest


def plain_start(
    state: BrokerState, topic: str, group: str, queue_id: int, init_mode: int
) -> tuple[QueueIndex, int] | None:
    """Return a queue and where the pop begins in it, for a group that has no retry topic.

    Returns:
        None if other queues are to be read, too, or the topic has changed since a pop was held.
    """
    get_topic = state.topics.get
    config = get_topic(topic)
    if config is None or queue_id >= config.read_queue_nums:
        return None
    (_, retry), (_, retry_v2) = retry_topics(topic, group)
    if get_topic(retry) is not None or get_topic(retry_v2) is not None:
        return None
    return _start(state, topic, group, queue_id, init_mode)


def _again(state: BrokerState, asked: PopOrder, kind: str) -> MessageFilter:
    """Return which messages of a retry topic are popped; the filter matched them before."""
    return retry_filter(state, asked.topic, asked.group, kind)


def _examined(examined: int, wanted: MessageFilter) -> int:
    """Return how much of `TAGS_EXAMINED_MAX` a number of messages of one queue uses up.

    A search by SQL92 reads the log: in all queues together it examines as many messages as in one.
    """
    if wanted.sql is None or not examined:
        return 0 if wanted.is_all else examined
    share = examined * TAGS_EXAMINED_MAX // examined_max(wanted.sql)
    return max(share, TAGS_EXAMINED_MAX // _SQL_QUEUES_MAX)


def _count_comparisons(state: BrokerState, taken: Taken, wanted: MessageFilter) -> None:
    """Count what a search in a queue has cost; see `HeldPops.comparisons_left`."""
    examined = taken.next_offset - taken.start
    if wanted.sql is None:
        state.held_pops.comparisons_left -= examined // _TAGS_PER_COMPARISON
    else:
        state.held_pops.comparisons_left -= examined * max(wanted.sql.terms, 1)


def has_message(state: BrokerState, asked: PopOrder, now_ms: int) -> bool:
    """Whether a pop may find a message.

    If the filter matches none of those that one pop may examine, and there are more, the answer is
    yes: only a pop moves the group on, and then the next one goes on behind them. So after a no,
    all messages have been examined, and the next search begins with the new ones.
    """
    examined_left = TAGS_EXAMINED_MAX
    bytes_max = state.options.pull_bytes_max
    for kind, topic, queue_id in _queues(state, asked, 1, now_ms):
        queue, start = _start(state, topic, asked.group, queue_id, asked.init_mode)
        wanted = asked.wanted if kind == PLAIN else _again(state, asked, kind)
        is_noted = kind == PLAIN and not wanted.is_all
        begin = state.unmatched.end(queue, wanted, start) if is_noted else start
        taken = take(
            state, queue, queue_id, begin, wanted, kind, 1, bytes_max, examined_left - begin + start
        )
        if wanted is not EVERYTHING:
            _count_comparisons(state, taken, wanted)
        if is_noted:
            end = taken.offsets[0] if taken.offsets else taken.next_offset
            state.unmatched.add(queue, wanted, start, end)
        if taken.offsets:
            return True
        if wanted is not EVERYTHING:
            examined_left -= _examined(taken.next_offset - start, wanted)
            if examined_left <= 0 or taken.next_offset < queue.max_offset:
                return True
    return False


def has_rest(state: BrokerState, asked: PopOrder, now_ms: int) -> bool:
    """Whether messages are left that a pop with a filter has not examined."""
    if not asked.count_max:
        return False
    for _, topic, queue_id in _queues(state, asked, 1, now_ms):
        queue, start = _start(state, topic, asked.group, queue_id, asked.init_mode)
        if start < queue.max_offset:
            return True
    return False


def _start(
    state: BrokerState, topic: str, group: str, queue_id: int, init_mode: int
) -> tuple[QueueIndex, int]:
    """Return a queue and where the pop begins in it."""
    state.offsets.take_reset(group, topic, queue_id)  # a reset is in force at once for pops
    queue = state.store.queue(topic, queue_id)
    return queue, start_offset(state, queue, group, queue_id, init_mode)


def _spread(turn: int) -> int:
    """Return 32 bits that depend on a number, with no pattern among those of its multiples."""
    mixed = turn * _SPREAD & _WORD
    return ((mixed ^ mixed >> 32) * _SPREAD & _WORD) >> 32


def _queues(
    state: BrokerState, asked: PopOrder, turn: int, now_ms: int
) -> list[tuple[str, str, int]]:
    """Return kind, topic and queue id of the queues to visit, in this order."""
    config = state.topics.get(asked.topic)
    if config is None:  # it existed when the request was held
        return []
    spread = _spread(turn)
    if asked.queue_id == ALL_QUEUES:
        count = config.read_queue_nums
        own = [(PLAIN, asked.topic, (spread + number) % count) for number in range(count)]
    elif asked.queue_id < config.read_queue_nums:
        own = [(PLAIN, asked.topic, asked.queue_id)]
    else:  # it had more queues when the request was held
        own = []
    if asked.is_ordered:
        return [
            (kind, topic, queue_id)
            for kind, topic, queue_id in own
            if not is_blocked(state, (topic, asked.group, queue_id), asked.attempt_id, now_ms)
        ]
    again: list[tuple[str, str, int]] = []
    for kind, topic in retry_topics(asked.topic, asked.group):
        retry = state.topics.get(topic)
        if retry is not None and retry.perm & READ:
            again += [(kind, topic, queue_id) for queue_id in range(retry.read_queue_nums)]
    if not again:
        return own
    return again + own if (spread >> 16) % _RETRY_FIRST == 0 else own + again
