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

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedRecord
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.redirect import redirect, undo_redirect
from downrange.server.broker.store_message import store_message
from downrange.server.broker.transactions.half_records import (
    CHECKS,
    IMMUNITY,
    OP_PROPERTIES,
    first_offset,
    immunity_ms,
    op_record,
    queued_record_at,
)
from downrange.server.broker.transactions.plain_ends import add_end, is_plain_end
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode, TransactionFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.records import decode_record
from downrange.wire.send_runs import FIRST_OFFSET, half_place
from downrange.wire.system_names import HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.transactions.half_table import HalfMessages
    from downrange.server.broker.write_queue import OnStored
    from downrange.server.outputs import Output
    from downrange.wire.command import Command
    from downrange.wire.headers import EndTransactionRequest
    from downrange.wire.records import Record

_HALF: Final = HALF_TOPIC.encode()
_TRANSACTION_BITS: Final = int(TransactionFlag.ROLLBACK)
_COMMIT: Final = int(TransactionFlag.COMMIT)
_NOT_FOUND: Final = "Find prepared transaction message failed"
# Plain strings: members of an enum hash and compare more slowly.
_UNIQUE_KEY: Final = str(PropertyKey.UNIQUE_KEY)
_TRANSACTION_ID: Final = str(PropertyKey.TRANSACTION_ID)
_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_REAL_QUEUE_ID: Final = str(PropertyKey.REAL_QUEUE_ID)
#: Properties of a half that the committed message does not have.
_HALF_ONLY: Final = (_REAL_TOPIC, _REAL_QUEUE_ID, FIRST_OFFSET)
#: Properties that are set or removed when a message becomes a half.
_SET_KEYS: Final = frozenset({_TRANSACTION_ID, CHECKS, *_HALF_ONLY})


def prepare_half(
    state: BrokerState, record: Record, properties: dict[str, str], on_stored: OnStored
) -> OnStored:
    """Turn a message that is about to be stored into a half message.

    Args:
        state: The broker.
        record: The message; its `property_bytes` hold `properties`.
        properties: Are changed, too.
        on_stored: Called when the half is stored.

    Returns:
        What is to be called instead.
    """
    unique_key = properties.get(_UNIQUE_KEY)
    is_plain = _SET_KEYS.isdisjoint(properties)
    if not is_plain:  # a message that was received, and is sent again
        properties.pop(CHECKS, None)
        properties.pop(FIRST_OFFSET, None)
    added = ""
    if unique_key is not None:
        properties[_TRANSACTION_ID] = unique_key
        added = f"{_TRANSACTION_ID}\x01{unique_key}\x02"
    redirect(record, properties, _HALF, 0)
    record.sys_flag &= ~_TRANSACTION_BITS
    if is_plain:
        record.property_bytes += added.encode(errors="replace") + _real_place(properties)
    else:
        record.property_bytes = join_properties(properties)
    return partial(_half_stored, state.halves, record, properties, on_stored)


def _half_stored(
    halves: HalfMessages,
    half: Record,
    properties: dict[str, str],
    on_stored: OnStored,
    error: RocketMQError | None,
    now_ms: int,
) -> Iterable[Output]:
    if error is None:
        halves.recent.add(half, properties)
    return on_stored(error, now_ms)


def _real_place(properties: dict[str, str]) -> bytes:
    """Return the last properties of most halves: those that its message does not have."""
    place = half_place(properties[_REAL_TOPIC], properties[_REAL_QUEUE_ID])
    return place.encode(errors="replace")


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
    found = halves.recent.take(header.commit_log_offset)
    if found is None:
        read = queued_record_at(state.store, header.commit_log_offset, HALF_TOPIC)
        if read is None:
            return refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        half, properties = read, read.properties()
    elif len(found) == 2:
        half, properties = found
    elif is_plain_end(state, header, found):
        add_end(state, header, found, now_ms, on_stored)
        return None
    else:
        half = decode_record(found[-1])
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
    ending = _Ending(state, offset, half, properties, on_stored)
    if header.commit_or_rollback != _COMMIT:
        ending.store_op(now_ms)
        return None
    return ending.store_message(half, properties, now_ms)


def _is_too_late(state: BrokerState, half: Record, properties: dict[str, str], now_ms: int) -> bool:
    """Whether a half whose producer chose the time of its check is past that time (5.x)."""
    limit_ms = immunity_ms(state.options.transaction_timeout, properties)
    return IMMUNITY in properties and now_ms - half.born_ms > limit_ms


class _Ending:
    """Ends one half: stores the op record and, if committed, the message before it."""

    __slots__ = ("_born_ms", "_first", "_is_commit", "_offset", "_on_stored", "_state", "_topic")

    def __init__(
        self,
        state: BrokerState,
        offset: int,
        half: Record,
        properties: dict[str, str],
        on_stored: OnStored,
    ) -> None:
        self._state = state
        self._offset = offset
        self._first = first_offset(half, properties)
        self._topic = properties.get(PropertyKey.REAL_TOPIC, "")
        self._born_ms = half.born_ms
        self._is_commit = False
        self._on_stored = on_stored
        state.halves.ended.begin_end(offset)

    def store_message(
        self, half: Record, properties: dict[str, str], now_ms: int
    ) -> Command | None:
        position = half.log_offset
        self._is_commit = True
        try:
            undo_redirect(self._state.host, half, properties)
        except MalformedRecord:
            refused: Command | None = refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        else:
            place = _real_place(properties)
            is_plain = half.property_bytes.endswith(b"\x02" + place)
            for name in _HALF_ONLY:
                is_plain &= properties.pop(name, None) is None or name != FIRST_OFFSET
            half.sys_flag |= _COMMIT
            half.prepared_offset = position
            half.property_bytes = (
                half.property_bytes[: -len(place)] if is_plain else join_properties(properties)
            )
            op = op_record(self._state.host, self._offset, now_ms)
            refused = store_message(
                self._state,
                half,
                properties,
                now_ms,
                self._op_stored,
                is_flush_awaited=True,
                behind=(op, OP_PROPERTIES),
            )
        if refused is not None:
            self._state.halves.ended.cancel_end(self._offset)
        return refused

    def store_op(self, now_ms: int) -> None:
        op = op_record(self._state.host, self._offset, now_ms)
        self._state.write_queue.add([op], [OP_PROPERTIES], self._op_stored, is_flush_awaited=True)

    def _op_stored(self, error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        halves = self._state.halves
        if error is None:
            halves.ended.end((self._offset,))
            halves.forget_copies(self._first)
            self._state.statistics.events.transaction_ended(
                self._topic, is_commit=self._is_commit, open_ms=now_ms - self._born_ms
            )
        else:
            halves.ended.cancel_end(self._offset)
        return self._on_stored(error, now_ms)
