"""Queue indexes: for each queue of a topic, where its messages lie in the commit log.

    unit, 20 bytes   i64 commit-log offset, i32 record size, i64 tag hash

Unit n is at byte 20 n of the chain of files in `consumequeue/<topic>/<queue id>/`. For delayed
messages the tag hash is the time of delivery. A size of zero ends the index. An index whose first
message is not number 0, because older ones are gone, is padded at its front with units of the
largest size.

One rule: the newest units are in memory, all others in files, and readers see them as one. A flush
takes a copy of what is in memory; only when that copy is durable does the memory let go of it. What
is in memory when the process ends is built again from the log.
"""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from downrange.errors import CorruptStore, DiskFull, StoreError
from downrange.store.files import Write
from downrange.store.segments import SegmentChain
from downrange.wire.hashing import key_front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from downrange.store.files import Files

FOLDER: Final = "consumequeue"
SEGMENT_UNITS: Final = 300_000
MEMORY_UNITS: Final = 1024

_UNIT: Final = Struct(">qiq")
_UNIT_BYTES: Final = _UNIT.size
_PADDING_SIZE: Final = 0x7FFFFFFF
_PADDING: Final = _UNIT.pack(0, _PADDING_SIZE, 0)
_NO_LIMIT: Final = 1 << 62

#: A unit as plain numbers: log offset, size, tag hash.
Numbers: TypeAlias = tuple[int, int, int]


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
        memory_units: How many are kept in memory; they are written when there are more, without
            waiting for a flush.
        is_fresh: Whether files that are there belong to a topic that was dropped. They will be
            removed by a flush, so nothing is written before `settle` says that they are gone.

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
            files, self._folder, segment_units * _UNIT_BYTES, is_fresh=is_fresh
        )
        self._memory = bytearray()
        self._memory_bytes = memory_units * _UNIT_BYTES
        self._memory_bytes_max = _NO_LIMIT if is_fresh else self._memory_bytes
        self.topic = topic
        #: What the key index begins the hash of each of the topic's keys with.
        self.key_front = key_front(topic)
        #: Where the log began when the front of this index was last compared with it.
        self.log_first = 0
        #: The number of the first message that is kept, and the number behind the last one.
        self.min_offset = self._chain.first // _UNIT_BYTES
        self.max_offset = self._memory_from = self._chain.end // _UNIT_BYTES
        self.max_offset = self.find(lambda unit: unit.size > 0)
        self.min_offset = self.find(lambda unit: unit.size == _PADDING_SIZE)
        self._memory_from = self.max_offset  # the number of the first unit in memory
        self._durable_to = self.max_offset
        self._flush_to = self.max_offset  # where the flush that is under way ends

    # ---- writing ----

    def put(self, log_offset: int, size: int, tag_hash: int) -> None:
        """Note where the next message lies."""
        memory = self._memory
        memory += _UNIT.pack(log_offset, size, tag_hash)
        self.max_offset += 1
        if len(memory) >= self._memory_bytes_max:
            self._relieve()

    def put_all(
        self, log_offsets: Iterable[int], sizes: Iterable[int], tag_hashes: Iterable[int]
    ) -> None:
        """Note where the next messages lie."""
        data = b"".join(map(_UNIT.pack, log_offsets, sizes, tag_hashes))
        self._memory += data
        self.max_offset += len(data) // _UNIT_BYTES
        if len(self._memory) >= self._memory_bytes_max:
            self._relieve()

    def put_again(self, offset: int, unit: Unit) -> None:
        """Note where message number `offset` lies, as the log tells it when a store is opened.

        The index may know it already. Numbers rise, but the first one may be any. They fall only
        where the topic was dropped between two messages: then the index begins anew.

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
                raise CorruptStore(self._folder, self.max_offset * _UNIT_BYTES, problem)
            self._begin_at(offset)
        self.put(*unit)

    def write(self) -> None:
        """Write what is in memory; it becomes durable by the next flush.

        A flush that is under way may write the same bytes again, which does no harm.
        """
        for start, at, data in self._pieces():
            self._chain.write(start + at, [data])
        self._memory = bytearray()
        self._memory_from = self.max_offset

    # ---- reading ----

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return the units of up to `count` messages from a number on; none of one that is gone."""
        return list(map(Unit._make, self.numbers(offset, count)))

    def numbers(self, offset: int, count: int) -> Iterator[Numbers]:
        """Give the same one by one and without names: for those who look at thousands."""
        end = min(offset + count, self.max_offset)
        pieces: list[bytes | bytearray] = []
        if offset >= self.min_offset:
            while offset < end:
                pieces.append(self._read(offset, end))
                offset += len(pieces[-1]) // _UNIT_BYTES
        return chain.from_iterable(map(_UNIT.iter_unpack, pieces))

    def walk(self, offset: int) -> Iterator[Unit]:
        """Read all units from a number on."""
        while units := self.units(offset, 1024):
            yield from units
            offset += len(units)

    def find(self, is_before: Callable[[Unit], bool]) -> int:
        """Return the first number whose unit is not before what is looked for.

        `is_before` must be true for a front part of the index and false for the rest.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if is_before(Unit._make(_UNIT.unpack(self._read(middle, middle + 1)))):
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, offset: int, end: int) -> bytes | bytearray:
        """Return the bytes of at least one unit from a number on, and of none from `end` on."""
        in_memory = offset - self._memory_from
        if in_memory >= 0:
            stop = (end - self._memory_from) * _UNIT_BYTES
            return self._memory[in_memory * _UNIT_BYTES : stop]
        in_files = min(end, self._memory_from) - offset
        return self._chain.read(offset * _UNIT_BYTES, in_files * _UNIT_BYTES)

    # ---- forgetting ----

    def cut_from(self, log_offset: int) -> None:
        """Forget all messages that lie at a log offset or behind it.

        After a crash there may be gaps among them; what lies before the offset must be whole.
        """
        self.cut(self.find(lambda unit: 0 < unit.size < _PADDING_SIZE and unit[0] < log_offset))

    def cut(self, offset: int) -> None:
        """Forget messages from a number on."""
        self.write()
        self._chain.cut(offset * _UNIT_BYTES)
        self.max_offset = self._memory_from = max(offset, self.min_offset)
        self._durable_to = min(self._durable_to, self.max_offset)

    def drop_before(self, log_offset: int) -> list[str]:
        """Let the index begin at the first message that is still in the log.

        Returns:
            Paths of files that are not needed any more. A flush that is under way may still write
            to them, so they may only be removed behind it.
        """
        self.log_first = log_offset
        self.min_offset = self.find(
            lambda unit: unit.log_offset < log_offset or unit.size == _PADDING_SIZE
        )
        needed_from = min(self.min_offset, self._memory_from) * _UNIT_BYTES
        dropped: list[str] = []
        while len(self._chain.starts) > 1 and self._chain.starts[1] <= needed_from:
            dropped.append(self._chain.drop_first())
        return dropped

    # ---- flushing ----

    def begin_flush(self) -> list[Write]:
        """Return what must be written and made durable now, then call `finish_flush`."""
        self._flush_to = self.max_offset
        chain, size = self._chain, self._chain.segment_bytes
        writes: list[Write] = []
        if self._durable_to < self._memory_from:
            # These files were written without waiting for a flush; they only need to be synced.
            begin = chain.start_of(max(self._durable_to * _UNIT_BYTES, chain.first))
            for start in range(begin, self._memory_from * _UNIT_BYTES, size):
                writes.append(Write(chain.path(start), size, 0, b""))  # noqa: PERF401
        for start, at, data in self._pieces():
            chain.extend(start)
            writes.append(Write(chain.path(start), size, at, data))
        return writes

    def finish_flush(self) -> None:
        """Let go of what the flush has made durable."""
        self._durable_to = self._flush_to
        flushed = self._flush_to - self._memory_from
        if flushed > 0:
            del self._memory[: flushed * _UNIT_BYTES]
            self._memory_from = self._flush_to

    def settle(self) -> None:
        """Know that the files of the dropped topic are gone."""
        self._memory_bytes_max = self._memory_bytes

    # ---- details ----

    def _relieve(self) -> None:
        """Write what is in memory; where that fails it stays there, for a flush to complain."""
        try:
            self.write()
        except (DiskFull, OSError):
            self._memory_bytes_max = 2 * len(self._memory)
        else:
            self._memory_bytes_max = self._memory_bytes

    def _begin_at(self, offset: int) -> None:
        """Begin anew at a number: the first file is padded up to there."""
        self._memory = bytearray()
        self._chain.cut(0)
        start = self._chain.start_of(offset * _UNIT_BYTES) // _UNIT_BYTES
        self._memory_from = self._durable_to = start
        self._memory = bytearray(_PADDING * (offset - start))
        self.min_offset = self.max_offset = offset

    def _pieces(self) -> list[tuple[int, int, bytes]]:
        """Copy what is in memory, by file: its first position, the position in it, the bytes."""
        data, position = bytes(self._memory), self._memory_from * _UNIT_BYTES
        segment_bytes = self._chain.segment_bytes
        pieces: list[tuple[int, int, bytes]] = []
        while data:
            at = position % segment_bytes
            room = segment_bytes - at
            pieces.append((position - at, at, data[:room]))
            position += room
            data = data[room:]
        return pieces
