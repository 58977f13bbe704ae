"""Half messages: what a producer sent but has not decided on yet.

A half message waits in a topic of the broker (`half_records`). It is ended by an op record that
names it. A commit stores the message first and the op record after it, so a crash between the two
can deliver it twice but never lose it; a rollback stores the op record alone. A half that nobody
ends is checked (`half_checks`): stored anew at the end of its queue, while its producer is asked.

Where ours differs from Apache; stores move both ways all the same:

- Ending twice stores nothing: the second end is answered with ILLEGAL_OPERATION. Apache delivers a
  second message. Who ends an old copy of a half ends its newest one, so that a producer is heard
  that decides while it is being asked.
- A copy is stored together with an op record for the old half. Apache only moves its offset on, and
  after a crash may go on with both.
- An op record names one half, without a comma: both releases read that, 4.9 nothing else.
- A half with a delay level is delayed when it is committed. Apache delays the half, and forgets
  where it belongs.

How far both queues are done is kept as offsets of CID_RMQ_SYS_TRANS, as Apache does, and only when
the log is durable up to what they promise. The rest is read again at the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import MalformedRecord
from downrange.server.broker.scheduled.redirect import redirect, undo_redirect
from downrange.server.broker.store_message import join_properties, store_message
from downrange.server.broker.transactions.ended_halves import EndedHalves
from downrange.server.broker.transactions.half_records import (
    CHECKS,
    FIRST_OFFSET,
    IMMUNITY,
    OP_PROPERTIES,
    first_offset,
    immunity_ms,
    op_record,
    queued_record_at,
    read_half,
    read_ops,
)
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode, TransactionFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC, TRANSACTION_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.server.outputs import Output
    from downrange.wire.command import Command
    from downrange.wire.headers import EndTransactionRequest
    from downrange.wire.records import Record

#: How many halves that were copied are remembered by the number they had first. The end of one that
#: is forgotten is refused; its producer is asked again.
COPIES_MAX: Final = 200_000

_HALF: Final = HALF_TOPIC.encode()
_TRANSACTION_BITS: Final = int(TransactionFlag.ROLLBACK)
_COMMIT: Final = int(TransactionFlag.COMMIT)
_NOT_FOUND: Final = "Find prepared transaction message failed"
_HELD_BACK: Final = (PropertyKey.REAL_TOPIC, PropertyKey.REAL_QUEUE_ID, FIRST_OFFSET)


class _Progress(NamedTuple):
    """How far the queues are done, and up to where the log must be durable before it counts."""

    log_position: int
    first: int
    first_op: int


class HalfMessages:
    """The halves of a broker.

    Attributes:
        ended: Which are ended.
        cursor: The next half of the round of checks that is under way, or None.
        stop: Where that round ends: copies that it makes are for the next one.
    """

    def __init__(self) -> None:
        self.ended = EndedHalves()
        self.cursor: int | None = None
        self.stop = 0
        self._copies: dict[int, int] = {}  # the first number of a half -> that of its newest copy
        self._checked_ms: int | None = None
        self._progress: _Progress | None = None

    def load(self, state: BrokerState, now_ms: int) -> None:
        """Read what both queues say, unless that was done; the first round is an interval away."""
        if self._checked_ms is not None:
            return
        self._checked_ms = now_ms
        halves, ops = state.store.queue(HALF_TOPIC, 0), state.store.queue(HALF_DONE_TOPIC, 0)
        # A crash may have cut queues whose offsets had been kept.
        first = state.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
        first_op = state.offsets.get(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0) or 0
        first = min(max(first, halves.min_offset), halves.max_offset)
        first_op = min(max(first_op, ops.min_offset), ops.max_offset)
        self.ended = EndedHalves(first, first_op)
        for named in read_ops(state, first_op):
            self.ended.end([offset for offset in named if offset < halves.max_offset])
        offset = self.ended.next_open(first)
        while offset < halves.max_offset:
            half = read_half(state, offset)
            if half is not None and FIRST_OFFSET in (properties := half.properties()):
                self.remember_copy(first_offset(half, properties), offset)
            offset = self.ended.next_open(offset + 1)

    def is_due(self, now_ms: int, interval: float) -> bool:
        """Whether a round of checks shall begin; if so, the next one is an interval away."""
        assert self._checked_ms is not None
        if 0 <= now_ms - self._checked_ms < interval * 1000:
            return False
        self._checked_ms = now_ms
        return True

    def newest(self, half: Record, properties: dict[str, str]) -> int:
        """Return the number of the newest copy of a half."""
        return self._copies.get(first_offset(half, properties), half.queue_offset)

    def remember_copy(self, first: int, offset: int) -> None:
        """Note the newest copy of a half."""
        if first in self._copies or len(self._copies) < COPIES_MAX:
            self._copies[first] = offset

    def forget_copies(self, first: int) -> None:
        """Note that a half has no open copy any more."""
        self._copies.pop(first, None)

    def note_progress(self, state: BrokerState) -> None:
        """Pass what is ended, and have that kept as soon as it is durable."""
        self.ended.advance()
        if self._progress is None:
            end = state.store.log.end
            self._progress = _Progress(end, self.ended.first, self.ended.first_op)

    def keep_progress(self, state: BrokerState) -> None:
        """Keep the offsets of a round whose records are durable by now."""
        progress = self._progress
        if progress is not None and state.store.log.flushed >= progress.log_position:
            offsets = state.offsets
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, progress.first)
            offsets.commit(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0, progress.first_op)
            self._progress = None


# ---- beginning and ending ----------------------------------------------------------------------


def prepare_half(state: BrokerState, record: Record, properties: dict[str, str]) -> None:
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
    """Commit a half message or roll it back at the end of this turn, or return the refusal.

    Args:
        state: The broker.
        header: Names the half and the outcome, COMMIT or ROLLBACK.
        now_ms: The time.
        on_stored: Told how it went.
    """
    halves = state.halves
    halves.load(state, now_ms)
    if state.unwritable is not None:
        remark = f"no transaction is ended: {state.unwritable}"
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    half = queued_record_at(state, header.commit_log_offset, HALF_TOPIC)
    if half is None:
        return refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    properties = half.properties()
    if properties.get(PropertyKey.PRODUCER_GROUP) != header.producer_group:
        return refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    # Access is granted by the topic that the request names, so it must be the message's own. A
    # producer that an Apache broker asked names the half topic, which is granted to nobody.
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
    """Whether a half whose producer chose when to be asked is past that time (5.x)."""
    return IMMUNITY in properties and now_ms - half.born_ms > immunity_ms(state, properties)


class _Ending:
    """Ends one half: stores the message, if there is one, and the op record after it."""

    __slots__ = ("_first", "_offset", "_on_stored", "_state")

    def __init__(self, state: BrokerState, offset: int, first: int, on_stored: OnStored) -> None:
        self._state = state
        self._offset = offset
        self._first = first
        self._on_stored = on_stored
        state.halves.ended.hold(offset)

    def store_message(
        self, half: Record, properties: dict[str, str], now_ms: int
    ) -> Command | None:
        position = half.log_offset
        try:
            undo_redirect(self._state, half, properties)
        except MalformedRecord:
            refused: Command | None = refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        else:
            for name in _HELD_BACK:
                properties.pop(name, None)
            half.sys_flag |= _COMMIT
            half.prepared_offset = position
            half.property_bytes = join_properties(properties)
            refused = store_message(
                self._state, half, properties, now_ms, self._message_stored, is_flush_awaited=True
            )
        if refused is not None:
            self._state.halves.ended.release(self._offset)
        return refused

    def store_op(self, now_ms: int) -> None:
        op = op_record(self._state, self._offset, now_ms)
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
            halves.ended.release(self._offset)
        return self._on_stored(error, now_ms)
