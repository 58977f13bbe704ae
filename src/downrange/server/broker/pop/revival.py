"""Revival: messages that were not acknowledged in time are stored in a retry topic of their group.

The record of a revived message and the acknowledgement of the old delivery are stored together, so
that a restart does not revive it again; `torn_writes` completes what a loss of power tore. A
message that was delivered as often as its group allows becomes a dead letter, in %DLQ% and the
group. (Apache's broker delivers it for ever.) A delivery that its consumer suspended does not count
(Java: PopReviveService.reviveRetry).

One rule, as for timed messages: nothing is revived before the whole queue of the timer was read,
since its last record may be an acknowledgement. The same holds for the revive topic: an Apache
broker that had the store before us may have left checkpoints there (`PopRecords.read_left`). They
are stored in the timer's queue again, before the first pop is answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from downrange.errors import RocketMQError, StoreError
from downrange.server.broker.pop.handover import store_open_again
from downrange.server.broker.pop.torn_writes import torn_writes
from downrange.server.broker.record_fields import join_properties, make_room
from downrange.server.broker.scheduled.redirect import RETRY_MS, TICK_BYTES_MAX, TICK_RECORDS_MAX
from downrange.server.broker.tables.topic_table import READ_WRITE
from downrange.server.outputs import Note
from downrange.wire.codes import CLIENT_FLAGS
from downrange.wire.limits import INT32_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import MAGIC_V1, MAGIC_V2
from downrange.wire.system_names import (
    RETRY_PREFIX,
    REVIVE_GROUP,
    dead_letter_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
    revive_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.server.broker.pop.checkpoints import Checkpoint
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output
    from downrange.wire.records import Record

#: The pause after a failure that another attempt will probably not mend.
_LONG_RETRY_MS: Final = 60_000
#: What a pop adds to the properties of a revived message in its reply, at most.
_RECEIPT_BYTES: Final = 512


# ---- loading -----------------------------------------------------------------------------------


def is_loaded(state: BrokerState, now_ms: int) -> bool:
    """Whether all checkpoints are known; pops wait until they are."""
    if not state.is_pop_loaded and not state.timers.is_behind(state.store):
        state.is_pop_loaded = not state.pop_records.left_ends  # else the next tick adopts them
        if state.is_pop_loaded:
            drop_checkpoints(state, partial(_was_dropped, state), now_ms)
            _close(state, list(torn_writes(state, _copy_topics)), now_ms)
            state.held_pops.wake_all(now_ms)
    return state.is_pop_loaded


def _was_dropped(state: BrokerState, checkpoint: Checkpoint) -> bool:
    place, start = checkpoint.name[:3], checkpoint.start
    return state.rewinds.is_dropped(place, start, checkpoint.timer_offset)


def _close(
    state: BrokerState, closed: Sequence[tuple[Checkpoint, Sequence[int]]], now_ms: int
) -> None:
    """Acknowledge messages of checkpoints, also if that cannot be stored now."""
    records: list[Record] = []
    properties: list[dict[str, str]] = []
    for checkpoint, offsets in closed:
        ack, parsed = state.pop_records.acknowledgement(checkpoint, offsets, now_ms, is_batch=True)
        state.checkpoints.close(checkpoint, checkpoint.bits_of(offsets))
        records.append(ack)
        properties.append(parsed)

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is None:
            for ack in records:
                state.timers.pass_over(ack.queue_offset)
        return ()

    if records:
        state.write_queue.add(records, properties, on_stored)


def _copy_topics(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the topics that may have copies of the messages of a checkpoint."""
    dead = dead_letter_topic(checkpoint.group)
    if checkpoint.topic.startswith(RETRY_PREFIX):
        return checkpoint.topic, dead
    topic, group = checkpoint.topic, checkpoint.group
    return pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic), dead


def _adopt(state: BrokerState, now_ms: int) -> Sequence[Output]:
    """Take over the checkpoints that an Apache broker left in the revive topic."""
    topic = revive_topic(state.options.cluster)
    ends = state.pop_records.take_left_ends()
    failure = store_open_again(state, now_ms)
    if failure is not None:
        return (failure,)
    for queue_id, end in ends.items():
        state.offsets.commit(REVIVE_GROUP, topic, queue_id, end)
    return ()


def drop_checkpoints(
    state: BrokerState, is_dropped: Callable[[Checkpoint], bool], now_ms: int
) -> bool:
    """Close the checkpoints of a deleted group, or of messages that a group will read again.

    Without records of that, a start after a crash would bring the checkpoints back.

    Returns:
        Whether records are in the write queue.
    """
    dropped = [
        (checkpoint, checkpoint.open_offsets())
        for checkpoint in state.checkpoints
        if is_dropped(checkpoint)
    ]
    _close(state, dropped, now_ms)
    return bool(dropped)


# ---- reviving ----------------------------------------------------------------------------------


def revive_due(state: BrokerState, now_ms: int) -> list[Output]:
    """Store the messages of checkpoints that are due in retry topics.

    Their number is limited; `next_due_ms` shows whether there are more.
    """
    outputs: list[Output] = []
    if state.timers.is_behind(state.store):
        return outputs
    if state.pop_records.left_ends:
        outputs += _adopt(state, now_ms)
    if not is_loaded(state, now_ms) or state.unwritable is not None:
        return outputs
    count = size = 0
    while count < TICK_RECORDS_MAX and size < TICK_BYTES_MAX:
        checkpoint = state.checkpoints.take_due(now_ms)
        if checkpoint is None:
            break
        try:
            added_count, added_size = _revive(state, checkpoint, now_ms, outputs)
        except Exception:  # such as a failure of the disk; without this it would wait for ever
            state.checkpoints.put_back(checkpoint, now_ms + RETRY_MS)
            raise
        count += added_count
        size += added_size
    return outputs


def next_due_ms(state: BrokerState, now_ms: int) -> int | None:
    """Return when `revive_due` has something to do, or None."""
    if not state.is_pop_loaded:
        return now_ms
    return None if state.unwritable is not None else state.checkpoints.next_due_ms()


def _revive(
    state: BrokerState, checkpoint: Checkpoint, now_ms: int, outputs: list[Output]
) -> tuple[int, int]:
    """Store open messages of a checkpoint again; return their number and size."""
    # A group that its first pop created may be lost in a crash, but its checkpoint is not.
    group = state.groups.get_or_create(checkpoint.group, state.options, now_ms)
    if state.topics.get(checkpoint.topic) is None or group is None:
        state.checkpoints.close(checkpoint, checkpoint.open_bits)
        return 0, 0
    records: list[Record] = []
    properties: list[dict[str, str]] = []
    done: list[int] = []
    size = 0
    for offset in checkpoint.open_offsets():
        if size >= TICK_BYTES_MAX:
            break
        done.append(offset)
        try:
            message = read_message(state, checkpoint, offset)
        except RocketMQError as error:
            text = f"message {offset} of {checkpoint.topic} cannot be delivered again: {error}"
            outputs.append(Note(text, is_warning=True))
            continue
        again, parsed = _again(state, checkpoint, message, now_ms)
        records.append(again)
        properties.append(parsed)
        size += len(again.body)
    bits = checkpoint.bits_of(done)
    ack, ack_properties = state.pop_records.acknowledgement(checkpoint, done, now_ms, is_batch=True)

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is None:
            _count_revived(state, checkpoint, records)
            state.timers.pass_over(ack.queue_offset)
            state.checkpoints.close(checkpoint, bits & checkpoint.open_bits)
            if checkpoint.open_bits:
                state.checkpoints.put_back(checkpoint, now_ms)
            return ()
        pause_ms = RETRY_MS if isinstance(error, StoreError) else _LONG_RETRY_MS
        state.checkpoints.put_back(checkpoint, now_ms + pause_ms)
        return (Note(f"messages cannot be delivered again: {error}", is_warning=True),)

    state.write_queue.add([*records, ack], [*properties, ack_properties], on_stored)
    return len(records) + 1, size


def _count_revived(state: BrokerState, checkpoint: Checkpoint, records: list[Record]) -> None:
    events, topic, group = state.statistics.events, _own_topic(checkpoint), checkpoint.group
    dead = dead_letter_topic(group).encode()
    dead_count = sum(record.topic_bytes == dead for record in records)
    for _ in range(dead_count):
        events.dead_letter(topic, group)
    if len(records) > dead_count:
        events.messages_revived(topic, group, len(records) - dead_count)


def read_message(state: BrokerState, checkpoint: Checkpoint, offset: int) -> Record:
    """Read a message of a checkpoint.

    Raises:
        RocketMQError: It was removed or is damaged.
        OSError: The disk fails.
    """
    queue = state.store.queue(checkpoint.topic, checkpoint.queue_id)
    units = queue.units(offset, 1)
    if not units:
        raise StoreError("retention has removed it")
    return state.store.read_record(units[0])


def _again(
    state: BrokerState, checkpoint: Checkpoint, message: Record, now_ms: int
) -> tuple[Record, dict[str, str]]:
    """Return the record of the next delivery, or of the dead letter, and its properties."""
    group = state.groups.get(checkpoint.group)
    is_dead = (
        group is not None
        and not checkpoint.is_suspended
        and message.reconsume_times >= group.retry_max_times
    )
    return delivery_record(state, checkpoint, message, now_ms, is_dead=is_dead)


def delivery_record(
    state: BrokerState, checkpoint: Checkpoint, message: Record, now_ms: int, *, is_dead: bool
) -> tuple[Record, dict[str, str]]:
    """Return the record of a message for the retry topic or the dead letters, and its properties.

    Args:
        state: The broker.
        checkpoint: The delivery that has ended.
        message: As it was delivered.
        now_ms: The time.
        is_dead: Whether it becomes a dead letter. It does, too, if its properties have no room.
    """
    properties = message.properties()
    if not is_dead:
        properties.setdefault(PropertyKey.FIRST_POP_TIME, str(checkpoint.pop_ms))
        properties[PropertyKey.ORIGIN_GROUP] = checkpoint.group  # a producer may have set it
        is_dead = not make_room(properties, _RECEIPT_BYTES)
    if is_dead:
        topic = dead_letter_topic(checkpoint.group)
        properties.setdefault(PropertyKey.RETRY_TOPIC, _own_topic(checkpoint))
        properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_id)
        if not make_room(properties, _RECEIPT_BYTES):
            properties = message.properties()
    else:
        topic = _retry_topic(state, checkpoint)
    properties[PropertyKey.POP_CHECKPOINT] = checkpoint.receipt(message.queue_offset)
    if len(join_properties(properties)) > PROPERTIES_BYTES_MAX:
        del properties[PropertyKey.POP_CHECKPOINT]
    state.topics.ensure(topic, 1, READ_WRITE, now_ms)
    host = state.host
    counted = 0 if checkpoint.is_suspended else 1
    record = replace(
        message,
        magic=MAGIC_V2 if len(topic.encode()) > TOPIC_BYTES_MAX else MAGIC_V1,
        queue_id=0,
        sys_flag=message.sys_flag & CLIENT_FLAGS | host.sys_flag | host.born_flag,
        born_ip=host.ip,
        born_port=host.port,
        store_ip=host.ip,
        store_port=host.port,
        reconsume_times=min(message.reconsume_times + counted, INT32_MAX),
        prepared_offset=0,
        topic_bytes=topic.encode(),
        property_bytes=join_properties(properties),
    )
    return record, properties


def _retry_topic(state: BrokerState, checkpoint: Checkpoint) -> str:
    """Return the topic of the next delivery; a message of a retry topic stays there."""
    if checkpoint.topic.startswith(RETRY_PREFIX):
        return checkpoint.topic
    if state.options.is_retry_topic_v2:
        return pop_retry_topic_v2(checkpoint.group, checkpoint.topic)
    return pop_retry_topic(checkpoint.group, checkpoint.topic)


def _own_topic(checkpoint: Checkpoint) -> str:
    """Return the topic that a message was sent to."""
    for form in (pop_retry_topic, pop_retry_topic_v2):
        prefix = form(checkpoint.group, "")
        if checkpoint.topic.startswith(prefix):
            return checkpoint.topic.removeprefix(prefix)
    return checkpoint.topic
