"""The half messages of a broker: which are open, their newest copies, the progress of checks.

How far both queues are done is kept as offsets of the group CID_RMQ_SYS_TRANS, as Apache does, and
only once the log is durable up to the records that they count on. All later records are read again
at the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.server.broker.transactions.ended_halves import EndedHalves
from downrange.server.broker.transactions.half_records import first_offset, read_half, read_ops
from downrange.wire.send_runs import FIRST_OFFSET
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC, TRANSACTION_GROUP

if TYPE_CHECKING:
    from downrange.server.broker.tables.group_offsets import GroupOffsets
    from downrange.store.message_store import MessageStore
    from downrange.wire.records import Record
    from downrange.wire.send_runs import HalfRecord

#: How many copied halves are remembered by their first offset. The end of a forgotten one is
#: refused; its producer is checked again.
COPIES_MAX: Final = 200_000
#: How many halves are kept in memory, and their bytes: those of a producer that ends them at once.
RECENT_MAX: Final = 1_024
RECENT_BYTES_MAX: Final = 4 * 1024 * 1024


class _Progress(NamedTuple):
    """Offsets to keep, and the log position that must be durable first."""

    log_position: int
    first: int
    first_op: int


class RecentHalves:
    """The halves that were stored last, so that most are ended without reading them again."""

    __slots__ = ("_bytes", "_halves")

    def __init__(self) -> None:
        #: By log offset: plain ones, and others with their properties.
        self._halves: dict[int, HalfRecord | tuple[Record, dict[str, str]]] = {}
        self._bytes = 0

    def add(self, half: Record, properties: dict[str, str]) -> None:
        """Keep a half that was just stored, and forget the oldest ones beyond the limit."""
        self._halves[half.log_offset] = (half, properties)
        self._bytes += half.size
        self._forget_oldest()

    def add_plain(self, halves: list[tuple[int, HalfRecord]]) -> None:
        """Keep plain halves that were just stored, given by their log offsets."""
        self._halves.update(halves)
        self._bytes += sum([len(half[-1]) for _, half in halves])
        self._forget_oldest()

    def take(self, log_offset: int) -> HalfRecord | tuple[Record, dict[str, str]] | None:
        """Return the half at a position of the log and forget it; None if it is not kept."""
        found = self._halves.pop(log_offset, None)
        if found is not None:
            self._bytes -= found[0].size if len(found) == 2 else len(found[-1])
        return found

    def _forget_oldest(self) -> None:
        while self._bytes > RECENT_BYTES_MAX or len(self._halves) > RECENT_MAX:
            self.take(next(iter(self._halves)))


class HalfMessages:
    """All half messages.

    Attributes:
        recent: Those that were stored last.
        ended: Which of them are ended.
        cursor: Offset of the next half in the current round of checks, or None between rounds.
        stop: Where that round ends; the copies that it makes are left to the next one.
    """

    def __init__(self) -> None:
        self.recent = RecentHalves()
        self.ended = EndedHalves()
        self.cursor: int | None = None
        self.stop = 0
        self._copies: dict[int, int] = {}  # first offset of a half -> offset of its newest copy
        self._checked_ms: int | None = None
        self._progress: _Progress | None = None

    def load(self, store: MessageStore, offsets: GroupOffsets, now_ms: int) -> None:
        """Read both queues, once; the first round of checks begins one interval later."""
        if self._checked_ms is not None:
            return
        self._checked_ms = now_ms
        halves, ops = store.queue(HALF_TOPIC, 0), store.queue(HALF_DONE_TOPIC, 0)
        # A crash may have cut the queues to less than the offsets that were kept.
        first = offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
        first_op = offsets.get(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0) or 0
        first = min(max(first, halves.min_offset), halves.max_offset)
        first_op = min(max(first_op, ops.min_offset), ops.max_offset)
        self.ended = EndedHalves(first, first_op)
        for listed in read_ops(store, first_op):
            self.ended.end([offset for offset in listed if offset < halves.max_offset])
        offset = self.ended.next_open(first)
        while offset < halves.max_offset:
            half = read_half(store, offset)
            if half is not None and FIRST_OFFSET in (properties := half.properties()):
                self.remember_copy(first_offset(half, properties), offset)
            offset = self.ended.next_open(offset + 1)

    def is_due(self, now_ms: int, interval: float) -> bool:
        """Whether a round of checks begins now; if so, the next one is due an interval later."""
        assert self._checked_ms is not None
        if 0 <= now_ms - self._checked_ms < interval * 1000:
            return False
        self._checked_ms = now_ms
        return True

    def newest(self, half: Record, properties: dict[str, str]) -> int:
        """Return the offset of the newest copy of a half."""
        return self._copies.get(first_offset(half, properties), half.queue_offset)

    def newest_of(self, first: int) -> int:
        """Return the offset of the newest copy of a half that is not a copy itself."""
        return self._copies.get(first, first)

    def remember_copy(self, first: int, offset: int) -> None:
        """Note the newest copy of a half."""
        if first in self._copies or len(self._copies) < COPIES_MAX:
            self._copies[first] = offset

    def forget_copies(self, first: int) -> None:
        """Note that a half has no open copy any more."""
        self._copies.pop(first, None)

    def note_progress(self, store: MessageStore) -> None:
        """Pass all ended halves; `keep_progress` keeps the new offsets once they are durable."""
        self.ended.advance()
        if self._progress is None:
            self._progress = _Progress(store.log.end, self.ended.first, self.ended.first_op)

    def keep_progress(self, store: MessageStore, offsets: GroupOffsets) -> None:
        """Keep the offsets of an earlier round if its records are durable now."""
        progress = self._progress
        if progress is not None and store.log.flushed >= progress.log_position:
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, progress.first)
            offsets.commit(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0, progress.first_op)
            self._progress = None
