"""Timed messages: redirected to the timer's queue, and delivered at the requested time.

`timed_messages` reads the queue and keeps the progress. Delivery stores the message in its own
topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError, StoreError
from downrange.server.broker.scheduled.redirect import (
    TICK_BYTES_MAX,
    TICK_RECORDS_MAX,
    redirect,
    undo_redirect,
)
from downrange.server.broker.scheduled.timed_messages import (
    OUT_KEY,
    RECALLED_KEY,
    ROLLS_KEY,
    SLOT_MS,
    requested_ms,
    timer_queue,
    undelivered,
)
from downrange.server.outputs import Output, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.recall_handles import RecallHandle
from downrange.wire.system_names import TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.server.broker.scheduled.timed_messages import Waiting
    from downrange.server.broker.state import BrokerState
    from downrange.wire.command import Command
    from downrange.wire.records import Record

_TOPIC: Final = TIMER_TOPIC.encode()
_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_UNIQUE_KEY: Final = str(PropertyKey.UNIQUE_KEY)


def time_message(
    state: BrokerState, record: Record, properties: dict[str, str], now_ms: int
) -> Command | None:
    """Redirect a message that has a delivery time, or return the refusal.

    A time in the past is ignored, and so is the time of a message that was timed before.
    """
    if OUT_KEY in properties:
        return None
    try:
        asked_ms = requested_ms(properties, now_ms)
    except ValueError:
        return _illegal(state)
    if asked_ms is None or (asked_ms <= now_ms and RECALLED_KEY not in properties):
        return None
    if not 0 < asked_ms - now_ms <= state.options.timer_delay_max * 1_000:
        return _illegal(state)
    limit = state.options.timer_messages_max
    if state.timers.count(state.store) >= limit:
        remark = f"timer message is under flow control: {limit} messages wait for their time"
        return refusal(ResponseCode.SYSTEM_ERROR, remark)
    properties.pop(ROLLS_KEY, None)  # reserved to Apache's timer
    properties[OUT_KEY] = str((asked_ms - 1) // SLOT_MS * SLOT_MS)
    redirect(record, properties, _TOPIC, 0)
    return None


def _illegal(state: BrokerState) -> Command:
    limit_ms = int(state.options.timer_delay_max * 1_000)
    remark = (
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{limit_ms}ms; or if set del msg, the delay time should be bigger than the current time"
    )
    return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)


def recall_handle_of(record: Record, broker_name: str) -> str:
    """Return the handle with which a producer can recall a timed message.

    Args:
        record: As stored in the timer's topic.
        broker_name: This broker's name.
    """
    properties = record.properties()
    deliver_ms = int(properties[OUT_KEY]) + 1
    handle = RecallHandle(
        properties[_REAL_TOPIC], broker_name, deliver_ms, properties.get(_UNIQUE_KEY, "")
    )
    return str(handle)


def fire_due(state: BrokerState, now_ms: int) -> list[Output]:
    """Add messages that are due to the write queue.

    Their number is limited; `TimedMessages.next_due_ms` shows whether there are more.
    """
    timers = state.timers
    outputs = timers.read_new(state.store)
    if timers.is_behind(state.store) or state.unwritable is not None:
        return outputs
    size = 0
    for _ in range(TICK_RECORDS_MAX):
        taken = timers.take_due(now_ms)
        if taken is None:
            break
        try:
            size += _fire(state, taken, now_ms)
        except RocketMQError as error:
            timers.finish(taken, None, now_ms)
            outputs.append(undelivered(taken[1], error))
        if size > TICK_BYTES_MAX:
            break
    timers.note_time(now_ms)
    return outputs


def _fire(state: BrokerState, taken: Waiting, now_ms: int) -> int:
    """Store one message in its own topic and return its size; 0 if it was recalled."""
    offset, queue = taken[1], timer_queue(state.store)
    if offset < queue.min_offset:
        raise StoreError("retention has removed it")
    (unit,) = queue.units(offset, 1)
    record = state.store.read_record(unit)
    properties = record.properties()
    if state.timers.is_recalled(offset, properties, now_ms):
        state.timers.finish(taken, None, now_ms)
        return 0

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        is_permanent = error is not None and not isinstance(error, StoreError)
        if error is None:
            state.timers.events.timer_ended(taken[2])
        state.timers.finish(taken, None if is_permanent else error, now_ms)
        return [undelivered(offset, error)] if is_permanent and error is not None else ()

    enqueued_ms = record.store_ms // SLOT_MS * SLOT_MS
    _add_properties(record, TIMER_ENQUEUE_MS=enqueued_ms, TIMER_DEQUEUE_MS=now_ms)
    undo_redirect(state.host, record, properties)
    state.write_queue.add([record], [properties], on_stored)
    return unit.size


def _add_properties(record: Record, **added: int) -> None:
    """Append properties if there is room; the message's own ones have precedence."""
    old = record.property_bytes
    text = "".join([f"{name}\x01{value}\x02" for name, value in added.items()])
    between = b"" if not old or old.endswith(b"\x02") else b"\x02"
    new = b"".join((old, between, text.encode()))
    if len(new) <= PROPERTIES_BYTES_MAX:
        record.property_bytes = new
