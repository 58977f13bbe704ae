"""The key index: finds messages by their keys.

    header, 40 bytes   i64 first and i64 last store time, i64 first and i64 last log offset,
                       i32 slots in use, i32 number of the next entry
    slots              i32 each: the number of the newest entry of this slot, 0 for none
    entries, 20 bytes  i32 key hash, i64 log offset, i32 seconds since the first store time,
                       i32 number of the entry before it in the same slot

A key's slot is its hash modulo the number of slots. Entries are numbered from 1. When a file is
full, a new one begins, named by its creation time.

Entries are only appended, while slots change in place. If a slot on the disk named an entry that
was never written, all older entries of the slot would be lost. One rule prevents this: the header
on the disk never counts an entry that is not durable, and no slot on the disk names an entry that
the header does not count. So a flush makes the entries durable, then the header, then the slots.

After a crash, the entries of records behind the checkpoint are undone, newest first. That restores
every slot that they changed, whether it was written or not. Then the slots are made durable, and
the header after them.

The newest file keeps its slots in memory, and the entries since the last flush.
"""

from __future__ import annotations

from array import array
from datetime import datetime
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import DiskFull
from downrange.store.files import Write
from downrange.store.key_slots import ENTRY, PAGE_SLOTS_LOG2, SLOT_BYTES, KeySlots
from downrange.wire.batches import KEY_ENTRY
from downrange.wire.hashes import key_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.store.files import File, Files
    from downrange.store.key_slots import PureKeySlots

FOLDER: Final = "index"
SLOTS: Final = 5_000_000
ENTRIES: Final = 20_000_000
MEMORY_ENTRIES: Final = 8192
#: The most messages that one query finds.
FOUND_MAX: Final = 64

_HEADER: Final = Struct(">qqqqii")
_ENTRY_BYTES: Final = ENTRY.size


class Found(NamedTuple):
    """The result of a query, newest first."""

    log_offsets: list[int]
    last_store_ms: int
    last_log_offset: int


class FileFlush(NamedTuple):
    """The writes that make one file of the index durable, in this order."""

    file: KeyIndexFile
    entries: Write
    header: Write
    slots: list[Write]  # in native byte order; `run` swaps them, as that takes time


class KeyIndexFile:
    """One file of the index.

    Args:
        files: The store's folder.
        name: The file's name in the index folder.
        slot_count: Slots of the file.
        entries_max: Entries of the file, including the unused number 0.
        memory_entries: Entries that are kept in memory. More are written to the file without
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
        self._entries_at = _HEADER.size + slot_count * SLOT_BYTES
        size = self._entries_at + entries_max * _ENTRY_BYTES
        self._file: File = files.open(f"{FOLDER}/{name}", size=size)
        self._slot_count = slot_count
        self._slots: PureKeySlots | None = None  # read when the first one changes
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

    def put(self, entries: bytes, store_ms: int) -> None:
        """Add entries in the form of `KEY_ENTRY`; the file must have room for them."""
        slots = self._slots
        if slots is None:
            slots = self._load_slots()
        number = self.count
        if number == 1:
            self.begin_ms, self.begin_offset = store_ms, KEY_ENTRY.unpack_from(entries)[1]
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), 0x7FFFFFFF)
        data, pages, slots_taken = slots.put(entries, number, seconds)
        self._memory += data
        self._changed_pages.update(pages)
        self.slots_used += slots_taken
        self.count = number + len(entries) // KEY_ENTRY.size
        self.end_ms = store_ms
        self.end_offset = KEY_ENTRY.unpack_from(entries, len(entries) - KEY_ENTRY.size)[1]
        if len(self._memory) >= self._memory_bytes_max:
            self._spill()

    def find(self, hash_value: int, begin_ms: int, end_ms: int, found_max: int) -> list[int]:
        """Return the log offsets of entries with a hash, stored in a time range, newest first."""
        found: list[int] = []
        number = self._newest(hash_value % self._slot_count)
        while number > 0 and len(found) < found_max:
            entry_hash, log_offset, seconds, previous = self._entry(number)
            stored_ms = self.begin_ms + seconds * 1000
            # Entries have whole seconds, so one that seems up to 1 s too old may be in the range.
            if entry_hash == hash_value and begin_ms - 1000 < stored_ms <= end_ms:
                found.append(log_offset)
            if not 0 <= previous < number:
                break
            number = previous
        return found

    def cut_from(self, log_offset: int) -> None:
        """Undo the entries of records from a log offset on, and make that durable."""
        before = self.count
        while self.count > 1:
            hash_value, entry_offset, seconds, previous = self._entry(self.count - 1)
            if entry_offset < log_offset:
                self.end_offset = entry_offset
                self.end_ms = self.begin_ms + seconds * 1000
                break
            slot = hash_value % self._slot_count
            self._load_slots().set(slot, previous)
            self._changed_pages.add(slot >> PAGE_SLOTS_LOG2)
            self.slots_used -= previous == 0
            self.count -= 1
        if self.count == before:
            return
        self._memory = bytearray()
        self._memory_from = self.count
        _, _, header, pages = self.begin_flush()
        # New entries will get the numbers of undone ones, so no slot may name those any more.
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
        """Return the writes that make the file durable; call `finish_flush` after them."""
        self._flushing_pages |= self._changed_pages  # those of a failed flush are still there
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
        """Drop the flushed entries from memory."""
        self._flushing_pages = set()
        flushed = self._flush_count - self._memory_from
        if flushed > 0:
            del self._memory[: flushed * _ENTRY_BYTES]
            self._memory_from = self._flush_count
        if not self.room and not self._changed_pages:
            self._slots = None  # the file is full, so they do not change any more

    def write(self) -> None:
        """Write the entries in memory to the file; the next flush makes them durable."""
        self._file.write(self._entries_at + self._memory_from * _ENTRY_BYTES, [self._memory])
        self._memory = bytearray()
        self._memory_from = self.count

    def _spill(self) -> None:
        """Write the entries in memory. If that fails, they stay, and the next flush reports it."""
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
        """Copy changed pages of slots, neighbours joined: position in the file, bytes."""
        runs: list[tuple[int, bytes]] = []
        slots = self._load_slots()
        pages = sorted(self._flushing_pages)
        first = 0
        for index, page in enumerate(pages):
            if index + 1 == len(pages) or pages[index + 1] != page + 1:
                begin = pages[first] << PAGE_SLOTS_LOG2
                end = min((page + 1) << PAGE_SLOTS_LOG2, self._slot_count)
                runs.append((_HEADER.size + begin * SLOT_BYTES, slots.part(begin, end)))
                first = index + 1
        return runs

    # ---- entries and slots ----

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Return an entry's hash, log offset, seconds, and the number of the one before it."""
        if number >= self._memory_from:
            at = (number - self._memory_from) * _ENTRY_BYTES
            hash_value, log_offset, seconds, previous = ENTRY.unpack_from(self._memory, at)
        else:
            data = self._file.read(self._entries_at + number * _ENTRY_BYTES, _ENTRY_BYTES)
            hash_value, log_offset, seconds, previous = ENTRY.unpack(data)
        return hash_value, log_offset, seconds, previous

    def _newest(self, slot: int) -> int:
        """Return the number of a slot's newest entry, or 0."""
        if self._slots is None:
            data = self._file.read(_HEADER.size + slot * SLOT_BYTES, SLOT_BYTES)
            number = int.from_bytes(data, "big", signed=True)
        else:
            number = self._slots.get(slot)
        return number if 0 < number < self.count else 0

    def _load_slots(self) -> PureKeySlots:
        """Return all slots, in memory."""
        if self._slots is None:
            if self.count == 1:
                self._slots = KeySlots(self._slot_count)
            else:
                size = self._slot_count * SLOT_BYTES
                self._slots = KeySlots.load(_swapped(self._file.read(_HEADER.size, size)))
        return self._slots


_swap: Callable[[array[int]], object] = array.byteswap if byteorder == "little" else len


def _swapped(data: bytes | bytearray) -> bytes:
    """Convert slots between the byte order of the file and the native one."""
    numbers = array("i", data)
    _swap(numbers)
    return numbers.tobytes()


class KeyFlush(NamedTuple):
    """A flush of the key index: entries, then headers, then slots."""

    files: Files
    parts: list[FileFlush]

    def run(self) -> None:
        """Make them durable; any thread may call it."""
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
        entries: Entries per file, including the unused number 0.
        memory_entries: Entries that are kept in memory.
    """

    def __init__(
        self,
        files: Files,
        slots: int = SLOTS,
        entries: int = ENTRIES,
        memory_entries: int = MEMORY_ENTRIES,
    ) -> None:
        self._files = files
        self._slots = slots
        self._entries = entries
        self._memory_entries = memory_entries
        self._chain = [self._open(name) for name in files.names(FOLDER)]

    @property
    def end_offset(self) -> int:
        """The log offset of the newest indexed record, or -1."""
        return next((file.end_offset for file in reversed(self._chain) if file.count > 1), -1)

    def put(self, entries: bytes | bytearray, store_ms: int) -> None:
        """Add entries, in the form of `KEY_ENTRY`, of records with one store time."""
        entries = bytes(entries)
        while entries:
            if not self._chain or not self._chain[-1].room:
                self._begin_file(store_ms)
            newest = self._chain[-1]
            room = newest.room * KEY_ENTRY.size
            newest.put(entries if len(entries) <= room else entries[:room], store_ms)
            entries = entries[room:]

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, found_max: int) -> Found:
        """Look up a key. The index has only hashes, so callers must compare the keys found."""
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
        """Return a flush of all entries so far: run it in any thread, then `finish_flush` it."""
        return KeyFlush(
            self._files, [file.begin_flush() for file in self._chain if file.is_changed]
        )

    def finish_flush(self, flush: KeyFlush) -> None:
        """Note that a flush has run."""
        for part in flush.parts:
            part.file.finish_flush()

    def cut_from(self, log_offset: int) -> None:
        """Remove the entries of records from a log offset on, and make that durable."""
        while self._chain:
            self._chain[-1].cut_from(log_offset)
            if self._chain[-1].count > 1:
                break
            self._files.remove(f"{FOLDER}/{self._chain.pop().name}")

    def drop_before(self, log_offset: int) -> list[str]:
        """Drop files whose records are no longer in the log.

        Returns:
            Their paths. A running flush may still write to them, so they must be removed after it.
        """
        dropped: list[str] = []
        while len(self._chain) > 1 and self._chain[0].end_offset < log_offset:
            dropped.append(f"{FOLDER}/{self._chain.pop(0).name}")
        return dropped

    def _begin_file(self, now_ms: int) -> None:
        """Begin a file, named by the local time in milliseconds, as in Java."""
        now = datetime.fromtimestamp(now_ms / 1000)
        name = f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03}"
        if self._chain:
            name = max(name, f"{int(self._chain[-1].name) + 1:017}")  # two in one millisecond
        self._chain.append(self._open(name))

    def _open(self, name: str) -> KeyIndexFile:
        return KeyIndexFile(self._files, name, self._slots, self._entries, self._memory_entries)
