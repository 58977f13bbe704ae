"""Queue indexes: the positions of a queue's messages in the commit log.

    unit, 20 bytes   i64 commit-log offset, i32 record size, i64 tag hash

Unit n is at byte 20 n of the chain of files in `consumequeue/<topic>/<queue id>/`. For delayed
messages, the tag hash is the delivery time. A size of zero ends the index. If the first message of
an index is not number 0, because older ones were deleted, its first file begins with padding: units
of the largest size.

One rule: the newest units are in memory, all others in files, and readers see them as one sequence.
A flush copies the units in memory; these are dropped from memory when the copy is durable. After a
crash, recovery builds units that were only in memory again from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import CorruptStore, DiskFull, StoreError
from downrange.store.files import Write
from downrange.store.segments import SegmentChain
from downrange.store.unit_runs import UNIT, UNIT_BYTES
from downrange.wire.hashes import key_front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.store.files import Files

FOLDER: Final = "consumequeue"
SEGMENT_UNITS: Final = 300_000
MEMORY_UNITS: Final = 1024

_PADDING_SIZE: Final = 0x7FFFFFFF
_PADDING: Final = UNIT.pack(0, _PADDING_SIZE, 0)
_NO_LIMIT: Final = 1 << 62


class Unit(NamedTuple):
    """The position of a message in the log, and the hash that consumers filter by."""

    log_offset: int
    size: int
    tag_hash: int


class QueueIndex:
    """The index of one queue.

    Args:
        files: The store's folder.
        topic: The topic, which is the folder's name.
        queue_id: The queue's number.
        segment_units: Units per file.
        memory_units: Units that are kept in memory. More are written to the file without waiting
            for a flush.
        is_fresh: Whether existing files belong to a topic that was dropped. A flush will remove
            them, so no unit is written before `allow_writes` is called.

    Raises:
        StoreError: The topic cannot be the name of a folder.
    """

    __slots__ = (
        "_chain",
        "_durable_to",
        "_flush_to",
        "_folder",
        "_memory",
        "_memory_bytes",
        "_memory_bytes_max",
        "_memory_from",
        "key_front",
        "log_first",
        "max_offset",
        "min_offset",
        "topic",
    )

    def __init__(
        self,
        files: Files,
        topic: str,
        queue_id: int,
        segment_units: int = SEGMENT_UNITS,
        memory_units: int = MEMORY_UNITS,
        *,
        is_fresh: bool = False,
    ) -> None:
        if topic in {"", ".", ".."} or "/" in topic or "\x00" in topic:
            raise StoreError(f"topic {topic!r} cannot be the name of a folder")
        self._folder = f"{FOLDER}/{topic}/{queue_id}"
        self._chain = SegmentChain(
            files, self._folder, segment_units * UNIT_BYTES, is_fresh=is_fresh
        )
        self._memory = bytearray()
        self._memory_bytes = memory_units * UNIT_BYTES
        self._memory_bytes_max = _NO_LIMIT if is_fresh else self._memory_bytes
        self.topic = topic
        #: The state of the hash after the topic; the key index continues it with each key.
        self.key_front = key_front(topic)
        #: The log's first position when `drop_before` was last called.
        self.log_first = 0
        #: The number of the first message, and the number behind the last one.
        self.min_offset = self._chain.first // UNIT_BYTES
        self.max_offset = self._memory_from = self._chain.end // UNIT_BYTES
        self.max_offset = self.find(lambda unit: unit.size > 0)
        self.min_offset = self.find(lambda unit: unit.size == _PADDING_SIZE)
        self._memory_from = self.max_offset  # the number of the first unit in memory
        self._durable_to = self.max_offset
        self._flush_to = self.max_offset  # the end of the running flush

    # ---- writing ----

    def put(self, log_offset: int, size: int, tag_hash: int) -> None:
        """Add the unit of the next message."""
        memory = self._memory
        memory += UNIT.pack(log_offset, size, tag_hash)
        self.max_offset += 1
        if len(memory) >= self._memory_bytes_max:
            self._spill()

    def put_units(self, data: bytes) -> None:
        """Add the units of the next messages, as the file has them."""
        self._memory += data
        self.max_offset += len(data) // UNIT_BYTES
        if len(self._memory) >= self._memory_bytes_max:
            self._spill()

    def put_again(self, offset: int, unit: Unit) -> None:
        """Add the unit of message number `offset` during recovery, unless it is there already.

        Numbers rise; the first one may be any. A lower number means that the topic was dropped
        between two messages: then the index begins again with it.

        Raises:
            CorruptStore: A number was left out.
        """
        if offset < self.max_offset:
            if [known.log_offset for known in self.units(offset, 1)] == [unit.log_offset]:
                return
            self._begin_at(offset)
        elif offset > self.max_offset:
            if self.max_offset > self.min_offset:
                problem = f"messages {self.max_offset} to {offset - 1} are missing"
                raise CorruptStore(self._folder, self.max_offset * UNIT_BYTES, problem)
            self._begin_at(offset)
        self.put(*unit)

    def write(self) -> None:
        """Write the units in memory to the file; the next flush makes them durable.

        A running flush may write the same bytes again, which is harmless.
        """
        for start, at, data in self._pieces():
            self._chain.write(start + at, [data])
        self._memory = bytearray()
        self._memory_from = self.max_offset

    # ---- reading ----

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return up to `count` units from a number on; none if that message was deleted."""
        return list(map(Unit._make, UNIT.iter_unpack(self.packed(offset, count))))

    def packed(self, offset: int, count: int) -> bytes:
        """Return the bytes of the same units; `unit_runs` has functions that read them."""
        end = min(offset + count, self.max_offset)
        if not self.min_offset <= offset < end:
            return b""
        data = self._read(offset, end)
        while len(data) < (end - offset) * UNIT_BYTES:  # at the end of a file, or of all files
            data += self._read(offset + len(data) // UNIT_BYTES, end)
        return bytes(data)

    def walk(self, offset: int) -> Iterator[Unit]:
        """Read all units from a number on."""
        while units := self.units(offset, 1024):
            yield from units
            offset += len(units)

    def find(self, is_before: Callable[[Unit], bool]) -> int:
        """Return the first number whose unit is not `is_before`, by binary search.

        `is_before` must be true for the first units and false for all that follow.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if is_before(Unit._make(UNIT.unpack(self._read(middle, middle + 1)))):
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, offset: int, end: int) -> bytes | bytearray:
        """Return the bytes of one or more units from a number on, but none from `end` on."""
        in_memory = offset - self._memory_from
        if in_memory >= 0:
            stop = (end - self._memory_from) * UNIT_BYTES
            return self._memory[in_memory * UNIT_BYTES : stop]
        in_files = min(end, self._memory_from) - offset
        return self._chain.read(offset * UNIT_BYTES, in_files * UNIT_BYTES)

    # ---- removing ----

    def cut_from(self, log_offset: int) -> None:
        """Remove the units of all records from a log offset on.

        After a crash there may be gaps among them; the units before the offset must be whole.
        """
        self.cut(self.find(lambda unit: 0 < unit.size < _PADDING_SIZE and unit[0] < log_offset))

    def cut(self, offset: int) -> None:
        """Remove units from a number on."""
        self.write()
        self._chain.cut(offset * UNIT_BYTES)
        self.max_offset = self._memory_from = max(offset, self.min_offset)
        self._durable_to = min(self._durable_to, self.max_offset)

    def drop_before(self, log_offset: int) -> list[str]:
        """Move the front of the index to the first message that is still in the log.

        Returns:
            Paths of files that are no longer needed. A running flush may still write to them, so
            they must be removed after it.
        """
        self.log_first = log_offset
        self.min_offset = self.find(
            lambda unit: unit.log_offset < log_offset or unit.size == _PADDING_SIZE
        )
        needed_from = min(self.min_offset, self._memory_from) * UNIT_BYTES
        dropped: list[str] = []
        while len(self._chain.starts) > 1 and self._chain.starts[1] <= needed_from:
            dropped.append(self._chain.drop_first())
        return dropped

    # ---- flushing ----

    def begin_flush(self) -> list[Write]:
        """Return the writes that make the index durable; call `finish_flush` after them."""
        self._flush_to = self.max_offset
        chain, size = self._chain, self._chain.segment_bytes
        writes: list[Write] = []
        if self._durable_to < self._memory_from:
            # These files were written before the flush; they only need to be synced.
            begin = chain.start_of(max(self._durable_to * UNIT_BYTES, chain.first))
            for start in range(begin, self._memory_from * UNIT_BYTES, size):
                writes.append(Write(chain.path(start), size, 0, b""))  # noqa: PERF401
        for start, at, data in self._pieces():
            chain.extend(start)
            writes.append(Write(chain.path(start), size, at, data))
        return writes

    def finish_flush(self) -> None:
        """Drop the flushed units from memory."""
        self._durable_to = self._flush_to
        flushed = self._flush_to - self._memory_from
        if flushed > 0:
            del self._memory[: flushed * UNIT_BYTES]
            self._memory_from = self._flush_to

    def allow_writes(self) -> None:
        """Note that the files of the dropped topic are removed."""
        self._memory_bytes_max = self._memory_bytes

    # ---- details ----

    def _spill(self) -> None:
        """Write the units in memory. If that fails, they stay, and the next flush reports it."""
        try:
            self.write()
        except (DiskFull, OSError):
            self._memory_bytes_max = 2 * len(self._memory)
        else:
            self._memory_bytes_max = self._memory_bytes

    def _begin_at(self, offset: int) -> None:
        """Begin again with a number; the first file is padded up to it."""
        self._memory = bytearray()
        self._chain.cut(0)
        start = self._chain.start_of(offset * UNIT_BYTES) // UNIT_BYTES
        self._memory_from = self._durable_to = start
        self._memory = bytearray(_PADDING * (offset - start))
        self.min_offset = self.max_offset = offset

    def _pieces(self) -> list[tuple[int, int, bytes]]:
        """Copy the units in memory, by file: its first position, the position in it, the bytes."""
        data, position = bytes(self._memory), self._memory_from * UNIT_BYTES
        segment_bytes = self._chain.segment_bytes
        pieces: list[tuple[int, int, bytes]] = []
        while data:
            at = position % segment_bytes
            room = segment_bytes - at
            pieces.append((position - at, at, data[:room]))
            position += room
            data = data[room:]
        return pieces
