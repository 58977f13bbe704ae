"""Delayed messages: redirected to the queue of their delay level, and delivered when due.

`delay_levels` keeps the progress. Delivery stores the message in its own topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError, StoreError
from downrange.server.broker.scheduled.delay_levels import queue_of
from downrange.server.broker.scheduled.redirect import read_number, redirect, undo_redirect
from downrange.server.outputs import Note, Output, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.server.broker.scheduled.delay_levels import DelayLevel
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import Unit
    from downrange.wire.command import Command
    from downrange.wire.records import Record

_TOPIC: Final = SCHEDULE_TOPIC.encode()
_DELAY: Final = str(PropertyKey.DELAY)
_TIMER_KEYS: Final = tuple(
    map(
        str,
        (PropertyKey.TIMER_DELAY_SEC, PropertyKey.TIMER_DELAY_MS, PropertyKey.TIMER_DELIVER_MS),
    )
)


def delay_message(state: BrokerState, record: Record, properties: dict[str, str]) -> Command | None:
    """Redirect a message that has a delay level, or return the refusal.

    A level below 1 means no delay; a level above the last one is the last one. Timer properties of
    a message with a level are removed.
    """
    text = properties.get(_DELAY)
    if text is None:
        return None
    level = read_number(text)
    if level is None:
        remark = f"the delay level {text[:40]!r} is not a number"
        return refusal(ResponseCode.SYSTEM_ERROR, remark)
    if level <= 0:
        return None
    last = len(state.delays.levels)
    if level > last:
        level = last
        properties[_DELAY] = str(last)
    for key in _TIMER_KEYS:
        properties.pop(key, None)
    redirect(record, properties, _TOPIC, level - 1)
    return None


def deliver_due(state: BrokerState, now_ms: int) -> list[Output]:
    """Add messages that are due to the write queue.

    Their number is limited; `DelayedMessages.next_due_ms` shows whether there are more.
    """
    outputs: list[Output] = []
    if state.unwritable is None:
        for level in state.delays.levels:
            for offset, unit in level.take_due(queue_of(state.store, level), now_ms):
                outputs += _deliver(state, level, offset, unit, now_ms)
    return outputs


def _deliver(
    state: BrokerState, level: DelayLevel, offset: int, unit: Unit, now_ms: int
) -> Iterable[Output]:
    """Store one message in its own topic; report one that can never be delivered."""

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is not None and not isinstance(error, StoreError):
            return skip(error, now_ms)
        level.finish(offset, error, now_ms)
        state.delays.note_change(now_ms)
        return ()

    def skip(error: RocketMQError, now_ms: int) -> Iterable[Output]:
        level.finish(offset, None, now_ms)
        state.delays.note_change(now_ms)
        text = f"message {offset} of delay level {level.queue_id + 1} is not delivered: {error}"
        return [Note(text, is_warning=True)]

    try:
        record = state.store.read_record(unit)
        properties = record.properties()
        undo_redirect(state.host, record, properties)
    except RocketMQError as error:
        return skip(error, now_ms)
    state.write_queue.add([record], [properties], on_stored)
    return ()
