"""Checks: the broker asks producers about half messages that are not ended in time.

Every `transaction_check_interval` the half queue is walked from its first open half to the first
young one, some halves per tick. An old half is stored again at the end of its queue, and its
producer is asked for the decision by request 39. A half whose producer requested a later check
(CHECK_IMMUNITY_TIME_IN_SECONDS) is stored again without asking. So no old half stays behind, and
the offset from which the queue must be read at the next start advances.

A half that was checked often enough, or is older than the retention of the log, moves to
TRANS_CHECK_MAX_TIME_TOPIC. Request 323 brings it back.

A check counts even if no producer was connected, as with Apache. Unlike Apache, a half does not
count as younger if its producer's clock is ahead, and a copy keeps the message's `flag`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from downrange.errors import MalformedRecord
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.redirect import TICK_BYTES_MAX, undo_redirect
from downrange.server.broker.tables.topic_table import READ_WRITE
from downrange.server.broker.transactions.half_records import (
    CHECKS,
    OP_PROPERTIES,
    checks_of,
    copy_to,
    first_offset,
    immunity_ms,
    op_record,
    queued_record_at,
    read_half,
)
from downrange.server.outputs import Note, Output, Push, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import CheckTransactionRequest
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import encode_record
from downrange.wire.send_runs import FIRST_OFFSET
from downrange.wire.system_names import CHECKED_OUT_TOPIC, HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.wire.command import Command
    from downrange.wire.records import Record

    #: Called when a half was moved, or with the reason why it was not.
    _OnMoved = Callable[[RocketMQError | None], Iterable[Output]]

#: The age at which a half moves to TRANS_CHECK_MAX_TIME_TOPIC (Java: fileReservedTime).
RETENTION_MS: Final = 72 * 3_600_000
#: How many open halves one tick examines: about 20 ms of work.
HALVES_PER_TICK_MAX: Final = 200


def check_half_messages(state: BrokerState, now_ms: int) -> Iterable[Output]:
    """Continue or begin a round of checks; most calls find that no round is due."""
    halves = state.halves
    halves.load(state.store, state.offsets, now_ms)
    halves.keep_progress(state.store, state.offsets)
    if halves.cursor is None:
        if not halves.is_due(now_ms, state.options.transaction_check_interval):
            return ()
        queue = state.store.queue(HALF_TOPIC, 0)
        halves.ended.drop_before(queue.min_offset)
        halves.cursor, halves.stop = halves.ended.first, queue.max_offset
    if state.unwritable is not None:
        return ()
    outputs = _check_some(state, halves.cursor, now_ms)
    halves.note_progress(state.store)
    return outputs


def _check_some(state: BrokerState, cursor: int, now_ms: int) -> list[Output]:
    """Process the next open halves that are old enough, and set the cursor."""
    halves = state.halves
    timeout_ms = state.options.transaction_timeout * 1000
    outputs: list[Output] = []
    size = 0
    for _ in range(HALVES_PER_TICK_MAX):
        offset = halves.ended.next_open(cursor)
        half = read_half(state.store, offset) if offset < halves.stop else None
        # All halves after a young one are young too. If the clock was set back, none is young.
        is_young = half is not None and 0 <= now_ms - half.store_ms < timeout_ms
        if is_young or offset >= halves.stop:
            halves.cursor = None
            return outputs
        cursor = offset + 1
        if half is None:
            halves.ended.skip(offset)
            text = f"half message {offset} cannot be read and is not checked any more"
            outputs.append(Note(text, is_warning=True))
            continue
        _process(state, half, now_ms)
        size += half.size
        if size > TICK_BYTES_MAX:
            break
    halves.cursor = cursor
    return outputs


def _process(state: BrokerState, half: Record, now_ms: int) -> None:
    """Copy an old half to the queue's end, with or without a check, or move it out of the queue."""
    properties = half.properties()
    checks = checks_of(properties)
    age_ms = now_ms - min(half.born_ms, half.store_ms)
    is_asked = age_ms < 0 or age_ms >= immunity_ms(state.options.transaction_timeout, properties)
    if is_asked:
        properties[CHECKS] = str(checks + 1)
    properties[FIRST_OFFSET] = str(first_offset(half, properties))
    is_over = checks >= state.options.transaction_checks_max or age_ms > RETENTION_MS
    if is_over or len(join_properties(properties)) > PROPERTIES_BYTES_MAX:
        _move_to_checked_out(state, half, now_ms)
    else:
        _copy(state, half, properties, now_ms, is_asked=is_asked)


def _copy(
    state: BrokerState, half: Record, properties: dict[str, str], now_ms: int, *, is_asked: bool
) -> None:
    copy = copy_to(state.host, half, HALF_TOPIC, properties)

    def on_moved(error: RocketMQError | None) -> Iterable[Output]:
        if error is not None:
            return ()
        state.halves.remember_copy(first_offset(half, properties), copy.queue_offset)
        return _ask_producer(state, half, copy) if is_asked else ()

    _move(state, half, copy, properties, now_ms, on_moved)


def _move_to_checked_out(state: BrokerState, half: Record, now_ms: int) -> None:
    properties = half.properties()
    first = first_offset(half, properties)

    def on_moved(error: RocketMQError | None) -> Iterable[Output]:
        if error is not None:
            return ()
        state.halves.forget_copies(first)
        text = f"half message {first} got no decision and was moved to {CHECKED_OUT_TOPIC}"
        return (Note(text),)

    state.topics.ensure(CHECKED_OUT_TOPIC, 1, READ_WRITE, now_ms)
    moved = copy_to(state.host, half, CHECKED_OUT_TOPIC, properties)
    _move(state, half, moved, properties, now_ms, on_moved)


def _move(
    state: BrokerState,
    half: Record,
    moved: Record,
    properties: dict[str, str],
    now_ms: int,
    on_moved: _OnMoved,
) -> None:
    """Store the new record of a half together with the op record that ends the old one."""
    ended, offset = state.halves.ended, half.queue_offset

    def stored(error: RocketMQError | None, _now_ms: int) -> Iterable[Output]:
        if error is None:
            ended.end((offset,))
        else:
            ended.cancel_end(offset)
        return on_moved(error)

    ended.begin_end(offset)
    op = op_record(state.host, offset, now_ms)
    state.write_queue.add([moved, op], [properties, OP_PROPERTIES], stored)


def _ask_producer(state: BrokerState, half: Record, copy: Record) -> Iterable[Output]:
    """Ask one connected producer of the half's group for the decision (Java: sendCheckMessage)."""
    properties = copy.properties()
    group = properties.get(PropertyKey.PRODUCER_GROUP, "")
    connections = state.clients.producer_connections(group)
    if not connections:
        return ()
    # The request has the message as committed, but with the store time of the old half, as in
    # Java.
    shown = replace(half, queue_offset=copy.queue_offset, log_offset=copy.log_offset)
    try:
        undo_redirect(state.host, shown, properties)
    except MalformedRecord:
        return ()
    del properties[FIRST_OFFSET]
    properties[PropertyKey.WAIT] = "false"
    shown.property_bytes = join_properties(properties)
    unique_key = properties.get(PropertyKey.UNIQUE_KEY)
    header = CheckTransactionRequest(
        tran_state_table_offset=copy.queue_offset,
        commit_log_offset=copy.log_offset,
        msg_id=unique_key,
        transaction_id=properties.get(PropertyKey.TRANSACTION_ID, unique_key),
        offset_msg_id=state.host.id_of(copy.log_offset),
        topic=shown.topic,  # Java sends the half topic; access rules need its own
        broker_name=state.options.name,
    )
    connection = connections[state.next_number() % len(connections)]
    return (Push(connection, request_command(header, encode_record(shown))),)


def resume_half(
    state: BrokerState, position: int, now_ms: int, on_stored: OnStored
) -> Command | None:
    """Reset the number of checks of a half, or return the refusal.

    A half that was moved out of the half queue comes back. So does one that was ended, as with
    Apache: the operator who asks for it decides that.

    Args:
        state: The broker.
        position: The log position of the half or of one of its copies.
        now_ms: The time.
        on_stored: Called with the result.
    """
    halves = state.halves
    halves.load(state.store, state.offsets, now_ms)
    if state.unwritable is not None:
        remark = f"no half message is stored: {state.unwritable}"
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    half = queued_record_at(state.store, position, HALF_TOPIC, CHECKED_OUT_TOPIC)
    if half is None:
        return refusal(ResponseCode.SYSTEM_ERROR, f"there is no half message at {position}")
    properties = half.properties()
    is_open = False
    if half.topic == HALF_TOPIC:
        half = read_half(state.store, halves.newest(half, properties)) or half
        properties = half.properties()
        is_open = halves.ended.is_open(half.queue_offset)
    properties[CHECKS] = "0"
    if not is_open:
        properties.pop(FIRST_OFFSET, None)
        copy = copy_to(state.host, half, HALF_TOPIC, properties)
        state.write_queue.add([copy], [properties], on_stored)
        return None
    first = first_offset(half, properties)
    properties[FIRST_OFFSET] = str(first)
    copy = copy_to(state.host, half, HALF_TOPIC, properties)

    def on_moved(error: RocketMQError | None) -> Iterable[Output]:
        if error is None:
            halves.remember_copy(first, copy.queue_offset)
        return on_stored(error, now_ms)

    _move(state, half, copy, properties, now_ms, on_moved)
    return None
