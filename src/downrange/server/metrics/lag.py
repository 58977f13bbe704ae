"""How far consumer groups are behind, by topic.

    committed   all before it is done
    next        all before it was handed out
    end         the end of the queue

    lag        end - committed          the time since the message at `committed` was stored
    in flight  next - committed
    ready      end - next               the time since the message at `next` was stored

For a group that pops, messages in flight are those of open checkpoints, and the lag is their number
and that of the ready ones: what was acknowledged out of order is not behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.server.broker.queues import find_queue
from downrange.server.broker.tables.group_table import is_system_group
from downrange.wire.records import RECORD_BYTES_MIN, decode_fixed
from downrange.wire.system_names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_broker_system_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex

#: More than the fixed part of a record, which has the time.
_FIXED_BYTES: Final = RECORD_BYTES_MIN + 24
_CHECKPOINTS_STEP: Final = 500


class Lag(NamedTuple):
    """How far a group is behind in a topic.

    Attributes:
        group: The group.
        topic: The topic, which may be a retry topic of the group.
        is_retry: Whether it is.
        is_system: Whether the topic or the group is the broker's own.
        messages: How many messages are not done.
        in_flight: Those of them that were handed out.
        ready: Those that were not.
        latency_ms: The age of the oldest that is not done, 0 if none.
        queueing_ms: The age of the oldest that was not handed out, 0 if none.
    """

    group: str
    topic: str
    is_retry: bool
    is_system: bool
    messages: int
    in_flight: int
    ready: int
    latency_ms: int
    queueing_ms: int


def lags_of(state: BrokerState, now_ms: int) -> Iterator[Lag | None]:
    """Yield the lag of each group in each topic; None where nothing is to be shown."""
    popped: dict[tuple[str, str], int] = {}
    for number, checkpoint in enumerate(list(state.checkpoints)):
        place = (checkpoint.topic, checkpoint.group)
        popped[place] = popped.get(place, 0) + checkpoint.open_bits.bit_count()
        if number % _CHECKPOINTS_STEP == 0:
            yield None
    for group in list(state.groups):
        name = group.group_name
        for topic in state.offsets.topics_of(name):
            config = state.topics.get(topic)
            if config is not None and not topic.startswith(DEAD_LETTER_PREFIX):
                yield _lag(state, name, topic, popped.get((topic, name)), now_ms)
        yield None


def _lag(state: BrokerState, group: str, topic: str, popped: int | None, now_ms: int) -> Lag:
    messages = in_flight = ready = 0
    oldest_ms = queued_ms = now_ms
    for queue_id, committed in list(state.offsets.of_group(group).get(topic, {}).items()):
        queue = find_queue(state, topic, queue_id)
        if queue is None:
            continue
        end = queue.max_offset
        done = min(max(committed, queue.min_offset), end)
        handed_out = state.statistics.next_offset(group, topic, queue_id)
        popped_to = state.checkpoints.next_offset(topic, group, queue_id) or 0
        following = min(max(done, handed_out, popped_to), end)
        messages += end - done
        in_flight += following - done
        ready += end - following
        if done < end:
            oldest_ms = min(oldest_ms, _stored_ms(state, queue, done, now_ms))
        if following < end:
            queued_ms = min(queued_ms, _stored_ms(state, queue, following, now_ms))
    if popped is not None:
        in_flight, messages = popped, popped + ready
    return Lag(
        group,
        topic,
        topic.startswith(RETRY_PREFIX),
        is_broker_system_topic(topic) or is_system_group(group),
        messages,
        in_flight,
        ready,
        now_ms - oldest_ms,
        now_ms - queued_ms,
    )


def _stored_ms(state: BrokerState, queue: QueueIndex, offset: int, now_ms: int) -> int:
    """Return when a message was stored, reading no more than its fixed part."""
    units = queue.units(offset, 1)
    if not units:
        return now_ms
    data = state.store.log.read(units[0].log_offset, min(units[0].size, _FIXED_BYTES))
    return decode_fixed(bytes(data)).store_ms
