"""Half messages: sent by a producer that has not decided between commit and rollback yet.

A half message waits in a topic of the broker (`half_records`) and is ended by an op record that
lists it. A commit stores the message first and the op record after it, so a crash between the two
can deliver it twice but never lose it. A rollback stores only the op record. A half that is not
ended in time is checked (`half_checks`): it is stored again at the end of its queue, and its
producer is asked.

Differences from Apache (stores can still move both ways):

- Ending twice stores nothing: the second end is answered with ILLEGAL_OPERATION. Apache delivers a
  second message. The end of an old copy ends the newest one, so that a decision which a producer
  makes while it is being checked counts.
- A copy is stored together with an op record for the old half. Apache only advances its offset, and
  may continue with both after a crash.
- An op record lists one half, without a comma. Both releases read that; 4.9 reads nothing else.
- A half with a delay level is delayed when it is committed. Apache delays the half and loses its
  own topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedRecord
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.redirect import redirect, undo_redirect
from downrange.server.broker.store_message import store_message
from downrange.server.broker.transactions.half_records import (
    CHECKS,
    FIRST_OFFSET,
    IMMUNITY,
    OP_PROPERTIES,
    first_offset,
    immunity_ms,
    op_record,
    queued_record_at,
)
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode, TransactionFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.server.outputs import Output
    from downrange.wire.command import Command
    from downrange.wire.headers import EndTransactionRequest
    from downrange.wire.records import Record

_HALF: Final = HALF_TOPIC.encode()
_TRANSACTION_BITS: Final = int(TransactionFlag.ROLLBACK)
_COMMIT: Final = int(TransactionFlag.COMMIT)
_NOT_FOUND: Final = "Find prepared transaction message failed"
#: Properties of a half that the committed message does not have.
_HALF_ONLY: Final = (PropertyKey.REAL_TOPIC, PropertyKey.REAL_QUEUE_ID, FIRST_OFFSET)


def prepare_half(record: Record, properties: dict[str, str]) -> None:
    """Turn a message that is about to be stored into a half message."""
    properties.pop(CHECKS, None)
    properties.pop(FIRST_OFFSET, None)
    unique_key = properties.get(PropertyKey.UNIQUE_KEY)
    if unique_key is not None:
        properties[PropertyKey.TRANSACTION_ID] = unique_key
    redirect(record, properties, _HALF, 0)
    record.sys_flag &= ~_TRANSACTION_BITS
    record.property_bytes = join_properties(properties)


def end_half(
    state: BrokerState, header: EndTransactionRequest, now_ms: int, on_stored: OnStored
) -> Command | None:
    """Add the commit or rollback of a half message to the write queue, or return the refusal.

    Args:
        state: The broker.
        header: Identifies the half and the decision, COMMIT or ROLLBACK.
        now_ms: The time.
        on_stored: Called with the result.
    """
    halves = state.halves
    halves.load(state.store, state.offsets, now_ms)
    if state.unwritable is not None:
        remark = f"no transaction is ended: {state.unwritable}"
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    half = queued_record_at(state.store, header.commit_log_offset, HALF_TOPIC)
    if half is None:
        return refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    properties = half.properties()
    if properties.get(PropertyKey.PRODUCER_GROUP) != header.producer_group:
        return refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    # Access is granted by the topic in the request, so it must be the message's own. A
    # producer that was checked by an Apache broker names the half topic, which is never granted.
    if header.topic and header.topic not in (properties.get(PropertyKey.REAL_TOPIC), HALF_TOPIC):
        return refusal(ResponseCode.SYSTEM_ERROR, "The topic wrong")
    if half.queue_offset != header.tran_state_table_offset:
        return refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if not header.from_transaction_check and _is_too_late(state, half, properties, now_ms):
        return refusal(ResponseCode.ILLEGAL_OPERATION, "the producer is about to be asked")
    offset = halves.newest(half, properties)
    if not halves.ended.is_open(offset):
        return refusal(ResponseCode.ILLEGAL_OPERATION, "the transaction was ended before")
    ending = _Ending(state, offset, first_offset(half, properties), on_stored)
    if header.commit_or_rollback != _COMMIT:
        ending.store_op(now_ms)
        return None
    return ending.store_message(half, properties, now_ms)


def _is_too_late(state: BrokerState, half: Record, properties: dict[str, str], now_ms: int) -> bool:
    """Whether a half whose producer chose the time of its check is past that time (5.x)."""
    limit_ms = immunity_ms(state.options.transaction_timeout, properties)
    return IMMUNITY in properties and now_ms - half.born_ms > limit_ms


class _Ending:
    """Ends one half: stores the message, if committed, and the op record after it."""

    __slots__ = ("_first", "_offset", "_on_stored", "_state")

    def __init__(self, state: BrokerState, offset: int, first: int, on_stored: OnStored) -> None:
        self._state = state
        self._offset = offset
        self._first = first
        self._on_stored = on_stored
        state.halves.ended.begin_end(offset)

    def store_message(
        self, half: Record, properties: dict[str, str], now_ms: int
    ) -> Command | None:
        position = half.log_offset
        try:
            undo_redirect(self._state.host, half, properties)
        except MalformedRecord:
            refused: Command | None = refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        else:
            for name in _HALF_ONLY:
                properties.pop(name, None)
            half.sys_flag |= _COMMIT
            half.prepared_offset = position
            half.property_bytes = join_properties(properties)
            refused = store_message(
                self._state, half, properties, now_ms, self._message_stored, is_flush_awaited=True
            )
        if refused is not None:
            self._state.halves.ended.cancel_end(self._offset)
        return refused

    def store_op(self, now_ms: int) -> None:
        op = op_record(self._state.host, self._offset, now_ms)
        self._state.write_queue.add([op], [OP_PROPERTIES], self._op_stored, is_flush_awaited=True)

    def _message_stored(self, error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is not None:
            return self._op_stored(error, now_ms)
        self.store_op(now_ms)
        return ()

    def _op_stored(self, error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        halves = self._state.halves
        if error is None:
            halves.ended.end((self._offset,))
            halves.forget_copies(self._first)
        else:
            halves.ended.cancel_end(self._offset)
        return self._on_stored(error, now_ms)
