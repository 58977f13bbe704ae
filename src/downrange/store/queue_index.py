"""Queue indexes: for each queue of a topic, where its messages lie in the commit log.

    unit, 20 bytes   i64 commit-log offset, i32 record size, i64 tag hash

Unit n is at byte 20 n of the chain of files in `consumequeue/<topic>/<queue id>/`. For delayed
messages the tag hash is the time of delivery. A size of zero ends the index. An index whose first
message is not number 0, because older ones are gone, is padded at its front with units of the
largest size.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import CorruptStore
from downrange.store.segments import SegmentChain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.store.files import File, Files

FOLDER: Final = "consumequeue"
SEGMENT_UNITS: Final = 300_000

_UNIT: Final = Struct(">qiq")
_PADDING_SIZE: Final = 0x7FFFFFFF
_PADDING: Final = _UNIT.pack(0, _PADDING_SIZE, 0)


class Unit(NamedTuple):
    """Where one message lies, and what it can be filtered by."""

    log_offset: int
    size: int
    tag_hash: int


class QueueIndex:
    """The index of one queue.

    Args:
        files: The store's folder.
        topic: The topic, as folder name.
        queue_id: The queue's number.
        segment_units: How many units a file holds.
    """

    __slots__ = (
        "_chain",
        "_dirty_from",
        "_folder",
        "_pending",
        "_pending_from",
        "max_offset",
        "min_offset",
    )

    def __init__(
        self, files: Files, topic: str, queue_id: int, segment_units: int = SEGMENT_UNITS
    ) -> None:
        self._folder = f"{FOLDER}/{topic}/{queue_id}"
        self._chain = SegmentChain(files, self._folder, segment_units * _UNIT.size)
        self._pending: list[bytes] = []
        self._pending_from = 0
        self._dirty_from: int | None = None  # the first number that is not durable
        #: The number of the first message that is kept, and the number behind the last one.
        self.min_offset = self._chain.first // _UNIT.size
        self.max_offset = self._chain.end // _UNIT.size
        self.max_offset = self.find(lambda unit: unit.size > 0)
        self.min_offset = self.find(lambda unit: unit.size == _PADDING_SIZE)

    def put(self, offset: int, unit: Unit) -> None:
        """Note where message number `offset` lies; `write` brings what was noted to the file.

        Numbers follow each other, but the first one may be any.

        Raises:
            CorruptStore: A number was left out.
        """
        if offset != self.max_offset:
            self.write()
            if offset < self.max_offset:  # recovery says again what is known already
                self._write_at(offset, [_UNIT.pack(*unit)])
                return
            if self.max_offset > self.min_offset:
                problem = f"messages {self.max_offset} to {offset - 1} are missing"
                raise CorruptStore(self._folder, self.max_offset * _UNIT.size, problem)
            self._begin_at(offset)
        if not self._pending:
            self._pending_from = offset
        self._pending.append(_UNIT.pack(*unit))
        self.max_offset = offset + 1

    def write(self) -> None:
        """Write what was noted; reads do it by themselves."""
        if self._pending:
            parts, self._pending = self._pending, []
            self._write_at(self._pending_from, parts)

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return the units of up to `count` messages from a number on."""
        self.write()
        count = min(count, self.max_offset - offset)
        found: list[Unit] = []
        while count > 0:
            data = self._chain.read(offset * _UNIT.size, count * _UNIT.size)
            units = [Unit(*values) for values in _UNIT.iter_unpack(data)]
            found += units
            offset += len(units)
            count -= len(units)
        return found

    def walk(self, offset: int) -> Iterator[Unit]:
        """Read all units from a number on."""
        while units := self.units(offset, 1024):
            yield from units
            offset += len(units)

    def find(self, is_before: Callable[[Unit], bool]) -> int:
        """Return the first number whose unit is not before what is looked for.

        `is_before` must be true for a front part of the index and false for the rest.
        """
        self.write()
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            data = self._chain.read(middle * _UNIT.size, _UNIT.size)
            if is_before(Unit(*_UNIT.unpack(data))):
                low = middle + 1
            else:
                high = middle
        return low

    def cut_from(self, log_offset: int) -> None:
        """Forget all messages that lie at a log offset or behind it.

        After a crash there may be gaps among them; what lies before the offset must be whole.
        """
        self.cut(self.find(lambda unit: unit.size > 0 and unit.log_offset < log_offset))

    def cut(self, offset: int) -> None:
        """Forget messages from a number on."""
        self.write()
        self._chain.cut(offset * _UNIT.size)
        self.max_offset = max(offset, self.min_offset)

    def drop_before(self, log_offset: int) -> None:
        """Let the index begin at the first message that is still in the log."""
        self.min_offset = self.find(
            lambda unit: unit.log_offset < log_offset or unit.size == _PADDING_SIZE
        )
        segment_bytes = self._chain.segment_bytes
        while len(self._chain.starts) > 1 and (
            self._chain.first + segment_bytes <= self.min_offset * _UNIT.size
        ):
            self._chain.drop_first()

    def begin_flush(self) -> list[File]:
        """Return the files that must be made durable now; what comes later is not in them."""
        self.write()
        begin, self._dirty_from = self._dirty_from, None
        if begin is None:
            return []
        return self._chain.files_between(begin * _UNIT.size, self.max_offset * _UNIT.size)

    def _begin_at(self, offset: int) -> None:
        """Let an empty index begin at a number: its first file is padded up to there."""
        start = self._chain.start_of(offset * _UNIT.size)
        while self._chain.starts:
            self._chain.drop_first()
        self._chain.file(start)
        self.min_offset = self.max_offset = offset
        self._write_at(start // _UNIT.size, [_PADDING] * (offset - start // _UNIT.size))

    def _write_at(self, offset: int, parts: list[bytes]) -> None:
        """Write units from a number on, in as many files as they reach into."""
        if self._dirty_from is None or offset < self._dirty_from:
            self._dirty_from = offset
        per_segment = self._chain.segment_bytes // _UNIT.size
        while parts:
            room = per_segment - offset % per_segment
            self._chain.write(offset * _UNIT.size, parts[:room])
            parts = parts[room:]
            offset += room
