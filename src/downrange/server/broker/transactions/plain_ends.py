"""Ends of plain halves: those of one turn are stored as one run.

Most transactions are like this: the half came with other plain sends (`wire/send_runs.py`), its
record is still in memory, and its producer ends it at once. Everything else is for `half_messages`,
which stores the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.server.broker.write_queue import PendingWrite
from downrange.wire.codes import TransactionFlag
from downrange.wire.ended_runs import ended_run
from downrange.wire.system_names import HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.server.outputs import Output
    from downrange.wire.headers import EndTransactionRequest
    from downrange.wire.send_runs import HalfRecord

    #: The offset of the half that is ended, the half, whether it is committed, the time of its end,
    #: and what is called when that is stored. A plain tuple: one per end.
    _End: TypeAlias = tuple[int, HalfRecord, bool, int, OnStored]

#: How many ends are stored as one run.
ENDS_MAX: Final = 128
_COMMIT: Final = int(TransactionFlag.COMMIT)


def is_plain_end(state: BrokerState, header: EndTransactionRequest, half: HalfRecord) -> bool:
    """Whether nothing speaks against ending a plain half as its producer wants it."""
    offset, _, group, topic, _, record = half
    halves = state.halves
    return (
        group == header.producer_group
        and offset == header.tran_state_table_offset
        and (header.topic == topic or not header.topic or header.topic == HALF_TOPIC)
        and len(record) <= state.options.message_bytes_max
        and halves.ended.is_open(halves.newest_of(offset))
    )


def add_end(
    state: BrokerState,
    header: EndTransactionRequest,
    half: HalfRecord,
    now_ms: int,
    on_stored: OnStored,
) -> None:
    """Add the commit or rollback of a plain half to the write queue."""
    offset = state.halves.newest_of(half[0])
    state.halves.ended.begin_end(offset)
    last = state.write_queue.last if len(state.write_queue) else None
    ends = None if last is None else last.on_stored
    if not isinstance(ends, _Ends) or len(ends.ends) == ENDS_MAX:
        ends = _Ends(state)
        state.write_queue.add([ends.run], [{}], ends, is_flush_awaited=True, apart=ends.apart)
    ends.add((offset, half, header.commit_or_rollback == _COMMIT, now_ms, on_stored))


class _Ends:
    """Ends halves when the run of their records is stored."""

    __slots__ = ("_state", "ends", "run")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.ends: list[_End] = []
        self.run = ended_run((state.host.ip, state.host.port))

    def add(self, end: _End) -> None:
        offset, half, is_commit, now_ms, _ = end
        _, _, _, topic, queue_id, record = half
        self.run.add_end(record if is_commit else None, topic, queue_id, offset, now_ms)
        self.ends.append(end)

    def __call__(self, error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        halves, events = self._state.halves, self._state.statistics.events
        outputs: list[Output] = []
        for offset, (first, born_ms, _, topic, _, _), is_commit, _, on_stored in self.ends:
            if error is None:
                halves.ended.end((offset,))
                halves.forget_copies(first)
                events.transaction_ended(topic, is_commit=is_commit, open_ms=now_ms - born_ms)
            else:
                halves.ended.cancel_end(offset)
            outputs += on_stored(error, now_ms)
        return outputs

    def apart(self) -> list[PendingWrite]:
        """Return each end as a write of its own."""
        writes: list[PendingWrite] = []
        for end in self.ends:
            alone = _Ends(self._state)
            alone.add(end)
            writes.append(PendingWrite([alone.run], [{}], alone, is_flush_awaited=True))
        return writes
