"""Key indexes: which messages have a key.

    header, 40 bytes   i64 first and i64 last store time, i64 first and i64 last log offset,
                       i32 slots in use, i32 number of the next entry
    slots              i32 each: the number of the newest entry of this slot, 0 for none
    entries, 20 bytes  i32 key hash, i64 log offset, i32 seconds since the first store time,
                       i32 number of the entry before it in the same slot

A key's slot is its hash modulo the number of slots. Entries are numbered from 1. A file that is
full is followed by a new one, named by the time it was made.

Entries only ever grow, while slots change in place: a slot on the disk that names an entry which
never got there would hide all older ones. One rule keeps that from happening: the header on the
disk never counts an entry that is not durable, and no slot on the disk names an entry that the
header does not count. So a flush makes the entries durable, then the header, then the slots. After
a crash, the entries of records behind the checkpoint are undone, newest first, which brings every
slot that they touched back to what it was, written or not; then the slots are made durable before
the header.

The newest file has its slots in memory, and the entries that were added since the last flush.
"""

from __future__ import annotations

from array import array
from datetime import datetime
from functools import lru_cache
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import DiskFull
from downrange.store.files import Write
from downrange.wire.hashing import key_hash, key_hash_behind
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange.store.files import File, Files

FOLDER: Final = "index"
SLOTS: Final = 5_000_000
ENTRIES: Final = 20_000_000
MEMORY_ENTRIES: Final = 8192
#: How many messages one query finds at most.
FOUND_MAX: Final = 64

_HEADER: Final = Struct(">qqqqii")
_ENTRY: Final = Struct(">iqii")
_ENTRY_BYTES: Final = _ENTRY.size
_SLOT_BYTES: Final = 4
#: Slots are written in pages of 4 KiB.
_PAGE_SLOTS_LOG2: Final = 10
# Plain texts: an enum's hashing costs more than a lookup.
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_KEYS: Final = PropertyKey.KEYS.value
_TAGS: Final = PropertyKey.TAGS.value


class Found(NamedTuple):
    """What a query found, newest first."""

    log_offsets: list[int]
    last_store_ms: int
    last_log_offset: int


class FileFlush(NamedTuple):
    """What one file of the index needs to have written, in this order."""

    file: KeyIndexFile
    entries: Write
    header: Write
    slots: list[Write]  # numbers of this machine still, since turning them takes time


class KeyIndexFile:
    """One file of the index.

    Args:
        files: The store's folder.
        name: The file's name in the index folder.
        slot_count: How many slots it has.
        entries_max: How many entries, the unused number 0 included.
        memory_entries: How many are kept in memory; they are written when there are more, without
            waiting for a flush.
    """

    __slots__ = (
        "_changed_pages",
        "_entries_at",
        "_file",
        "_flush_count",
        "_flushing_pages",
        "_memory",
        "_memory_bytes",
        "_memory_bytes_max",
        "_memory_from",
        "_slot_count",
        "_slots",
        "begin_ms",
        "begin_offset",
        "count",
        "end_ms",
        "end_offset",
        "entries_max",
        "name",
        "slots_used",
    )

    def __init__(
        self, files: Files, name: str, slot_count: int, entries_max: int, memory_entries: int
    ) -> None:
        self._entries_at = _HEADER.size + slot_count * _SLOT_BYTES
        size = self._entries_at + entries_max * _ENTRY_BYTES
        self._file: File = files.open(f"{FOLDER}/{name}", size=size)
        self._slot_count = slot_count
        self._slots: memoryview[int] | None = None  # read when the first one changes
        self._changed_pages: set[int] = set()  # since the last flush began
        self._flushing_pages: set[int] = set()  # being written by a flush
        self._memory = bytearray()
        self._memory_bytes = self._memory_bytes_max = memory_entries * _ENTRY_BYTES
        self.name = name
        self.entries_max = entries_max
        (
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            count,
        ) = _HEADER.unpack(self._file.read(0, _HEADER.size))
        self.count: int = max(count, 1)
        self._memory_from = self._flush_count = self.count  # the first entry in memory

    @property
    def room(self) -> int:
        """How many entries still fit."""
        return max(self.entries_max - self.count, 0)

    def put(self, entries: Sequence[tuple[int, int]], store_ms: int) -> None:
        """Add entries, key hashes with log offsets; they must fit."""
        slots = self._slots
        if slots is None:
            slots = self._load_slots()
        number = self.count
        if number == 1:
            self.begin_ms, self.begin_offset = store_ms, entries[0][1]
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), 0x7FFFFFFF)
        memory, slot_count, note_page = self._memory, self._slot_count, self._changed_pages.add
        for hash_value, log_offset in entries:
            slot = hash_value % slot_count
            previous = slots[slot]
            if not 0 < previous < number:
                previous = 0
                self.slots_used += 1
            memory += _ENTRY.pack(hash_value, log_offset, seconds, previous)
            slots[slot] = number
            note_page(slot >> _PAGE_SLOTS_LOG2)
            number += 1
        self.count = number
        self.end_ms, self.end_offset = store_ms, entries[-1][1]
        if len(memory) >= self._memory_bytes_max:
            self._relieve()

    def find(self, hash_value: int, begin_ms: int, end_ms: int, found_max: int) -> list[int]:
        """Return log offsets of entries with a hash, stored within a time span, newest first."""
        found: list[int] = []
        number = self._newest(hash_value % self._slot_count)
        while number > 0 and len(found) < found_max:
            entry_hash, log_offset, seconds, previous = self._entry(number)
            stored_ms = self.begin_ms + seconds * 1000
            # Entries know whole seconds only, so the one before the span may still be in it.
            if entry_hash == hash_value and begin_ms - 1000 < stored_ms <= end_ms:
                found.append(log_offset)
            if not 0 <= previous < number:
                break
            number = previous
        return found

    def cut_from(self, log_offset: int) -> None:
        """Undo the entries of records at a log offset or behind it, and make that durable."""
        before = self.count
        while self.count > 1:
            hash_value, entry_offset, seconds, previous = self._entry(self.count - 1)
            if entry_offset < log_offset:
                self.end_offset = entry_offset
                self.end_ms = self.begin_ms + seconds * 1000
                break
            slot = hash_value % self._slot_count
            self._load_slots()[slot] = previous
            self._changed_pages.add(slot >> _PAGE_SLOTS_LOG2)
            self.slots_used -= previous == 0
            self.count -= 1
        if self.count == before:
            return
        self._memory = bytearray()
        self._memory_from = self.count
        _, _, header, pages = self.begin_flush()
        # New entries will take the numbers of undone ones: no slot may mean those any more.
        for write in pages:
            self._file.write(write.at, [_swapped(write.data)])
        self._file.sync()
        self._file.write(header.at, [header.data])
        self._file.sync()
        self.finish_flush()

    # ---- flushing ----

    @property
    def is_changed(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._changed_pages or self._flushing_pages)

    def begin_flush(self) -> FileFlush:
        """Return what must be written and made durable now, then call `finish_flush`."""
        self._flushing_pages |= self._changed_pages  # there are some already if a flush failed
        self._changed_pages = set()
        self._flush_count = self.count
        path, size = self._file.path, self._file.size
        entries_at = self._entries_at + self._memory_from * _ENTRY_BYTES
        return FileFlush(
            self,
            Write(path, size, entries_at, bytes(self._memory)),
            Write(path, size, 0, self._header()),
            [Write(path, size, at, data) for at, data in self._page_runs()],
        )

    def finish_flush(self) -> None:
        """Let go of what the flush has made durable."""
        self._flushing_pages = set()
        flushed = self._flush_count - self._memory_from
        if flushed > 0:
            del self._memory[: flushed * _ENTRY_BYTES]
            self._memory_from = self._flush_count
        if not self.room and not self._changed_pages:
            self._slots = None  # it is only read from now on

    def write(self) -> None:
        """Write the entries that are in memory; they become durable by the next flush."""
        self._file.write(self._entries_at + self._memory_from * _ENTRY_BYTES, [self._memory])
        self._memory = bytearray()
        self._memory_from = self.count

    def _relieve(self) -> None:
        """Write what is in memory; where that fails it stays there, for a flush to complain."""
        try:
            self.write()
        except (DiskFull, OSError):
            self._memory_bytes_max = 2 * len(self._memory)
        else:
            self._memory_bytes_max = self._memory_bytes

    def _header(self) -> bytes:
        times, offsets = (self.begin_ms, self.end_ms), (self.begin_offset, self.end_offset)
        return _HEADER.pack(*times, *offsets, self.slots_used, self.count)

    def _page_runs(self) -> list[tuple[int, bytes]]:
        """Copy pages of slots that changed, neighbours in one: position in the file, bytes."""
        runs: list[tuple[int, bytes]] = []
        slots = self._load_slots()
        pages = sorted(self._flushing_pages)
        first = 0
        for index, page in enumerate(pages):
            if index + 1 == len(pages) or pages[index + 1] != page + 1:
                begin = pages[first] << _PAGE_SLOTS_LOG2
                end = min((page + 1) << _PAGE_SLOTS_LOG2, self._slot_count)
                runs.append((_HEADER.size + begin * _SLOT_BYTES, slots[begin:end].tobytes()))
                first = index + 1
        return runs

    # ---- entries and slots ----

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Return an entry's hash, log offset, seconds, and the number of the one before it."""
        if number >= self._memory_from:
            at = (number - self._memory_from) * _ENTRY_BYTES
            hash_value, log_offset, seconds, previous = _ENTRY.unpack_from(self._memory, at)
        else:
            data = self._file.read(self._entries_at + number * _ENTRY_BYTES, _ENTRY_BYTES)
            hash_value, log_offset, seconds, previous = _ENTRY.unpack(data)
        return hash_value, log_offset, seconds, previous

    def _newest(self, slot: int) -> int:
        """Return the number of a slot's newest entry, or 0."""
        if self._slots is None:
            data = self._file.read(_HEADER.size + slot * _SLOT_BYTES, _SLOT_BYTES)
            number = int.from_bytes(data, "big", signed=True)
        else:
            number = self._slots[slot]
        return number if 0 < number < self.count else 0

    def _load_slots(self) -> memoryview[int]:
        """Return all slots, in memory."""
        if self._slots is None:
            size = self._slot_count * _SLOT_BYTES
            if self.count == 1:
                data = bytearray(size)  # takes memory only where it is touched
            else:
                data = bytearray(_swapped(self._file.read(_HEADER.size, size)))
            self._slots = memoryview(data).cast("i")
        return self._slots


_swap: Callable[[array[int]], object] = array.byteswap if byteorder == "little" else len


def _swapped(data: bytes | bytearray) -> bytes:
    """Turn slots as the file has them into numbers of this machine, or back."""
    numbers = array("i", data)
    _swap(numbers)
    return numbers.tobytes()


class KeyFlush(NamedTuple):
    """What a flush makes durable: entries, then headers, then slots."""

    files: Files
    parts: list[FileFlush]

    def run(self) -> None:
        """Return when it is durable; any thread may wait for that."""
        self.files.write_durably([part.entries for part in self.parts])
        self.files.write_durably([part.header for part in self.parts])
        self.files.write_durably(
            [
                write._replace(data=_swapped(write.data))
                for part in self.parts
                for write in part.slots
            ]
        )


class KeyIndex:
    """All files of the index, oldest first.

    Args:
        files: The store's folder.
        slots: Slots per file.
        entries: Entries per file, the unused number 0 included.
        memory_entries: How many entries are kept in memory.
        index_tags: Whether a tag is indexed like a key, as `T#tag`.
    """

    def __init__(
        self,
        files: Files,
        slots: int = SLOTS,
        entries: int = ENTRIES,
        memory_entries: int = MEMORY_ENTRIES,
        *,
        index_tags: bool = False,
    ) -> None:
        self._files = files
        self._slots = slots
        self._entries = entries
        self._memory_entries = memory_entries
        self._index_tags = index_tags
        self._chain = [self._open(name) for name in files.names(FOLDER)]

    @property
    def end_offset(self) -> int:
        """The log offset of the newest record that is indexed, or -1."""
        return next((file.end_offset for file in reversed(self._chain) if file.count > 1), -1)

    def collect(
        self,
        entries: list[tuple[int, int]],
        front: int,
        properties: Mapping[str, str],
        log_offset: int,
    ) -> None:
        """Add to entries what a record is found by: its unique id and the user's keys.

        Args:
            entries: Hashes of keys with log offsets, for `put`.
            front: The `key_front` of the record's topic.
            properties: Its properties.
            log_offset: Where it lies.
        """
        unique = properties.get(_UNIQUE_KEY)
        if unique:
            entries.append((key_hash_behind(front, unique), log_offset))
        keys = properties.get(_KEYS)
        if keys:
            for key in keys.split(" "):
                if key:
                    entries.append((key_hash_behind(front, key), log_offset))  # noqa: PERF401
        if self._index_tags and (tag := properties.get(_TAGS)):
            entries.append((_tag_key_hash(front, tag), log_offset))

    def put(self, entries: Sequence[tuple[int, int]], store_ms: int) -> None:
        """Index records that were stored at a time: hashes of keys with log offsets."""
        while entries:
            if not self._chain or not self._chain[-1].room:
                self._begin_file(store_ms)
            newest = self._chain[-1]
            room = newest.room
            newest.put(entries if len(entries) <= room else entries[:room], store_ms)
            entries = entries[room:]

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, found_max: int) -> Found:
        """Look a key up; what is found must be compared with the key, as only hashes are kept."""
        hash_value = key_hash(topic, key)
        offsets: list[int] = []
        found_max = min(found_max, FOUND_MAX)
        for file in reversed(self._chain):
            if file.begin_ms <= end_ms and file.end_ms >= begin_ms:
                left = found_max - len(offsets)
                offsets += file.find(hash_value, begin_ms, end_ms, left)
            if len(offsets) >= found_max or file.begin_ms < begin_ms:
                break
        if not self._chain:
            return Found([], 0, 0)
        return Found(offsets, self._chain[-1].end_ms, self._chain[-1].end_offset)

    def begin_flush(self) -> KeyFlush:
        """Return what must be made durable now: run it in any thread, then `finish_flush` it."""
        return KeyFlush(
            self._files, [file.begin_flush() for file in self._chain if file.is_changed]
        )

    def finish_flush(self, flush: KeyFlush) -> None:
        """Note that a flush has run."""
        for part in flush.parts:
            part.file.finish_flush()

    def cut_from(self, log_offset: int) -> None:
        """Forget records at a log offset or behind it, and make that durable."""
        while self._chain:
            self._chain[-1].cut_from(log_offset)
            if self._chain[-1].count > 1:
                break
            self._files.remove(f"{FOLDER}/{self._chain.pop().name}")

    def drop_before(self, log_offset: int) -> list[str]:
        """Forget files whose records are no longer in the log.

        Returns:
            Their paths, to be removed when no flush is under way that may write to them.
        """
        dropped: list[str] = []
        while len(self._chain) > 1 and self._chain[0].end_offset < log_offset:
            dropped.append(f"{FOLDER}/{self._chain.pop(0).name}")
        return dropped

    def _begin_file(self, now_ms: int) -> None:
        """Begin a file, named by the local time down to the millisecond, as Java does."""
        now = datetime.fromtimestamp(now_ms / 1000)
        name = f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03}"
        if self._chain:
            name = max(name, f"{int(self._chain[-1].name) + 1:017}")  # two in one millisecond
        self._chain.append(self._open(name))

    def _open(self, name: str) -> KeyIndexFile:
        return KeyIndexFile(self._files, name, self._slots, self._entries, self._memory_entries)


@lru_cache(maxsize=4096)
def _tag_key_hash(front: int, tag: str) -> int:
    return key_hash_behind(front, f"T#{tag}")
