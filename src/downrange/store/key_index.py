"""Key indexes: which messages have a key.

    header, 40 bytes   i64 first and i64 last store time, i64 first and i64 last log offset,
                       i32 slots in use, i32 number of the next entry
    slots              i32 each: the number of the newest entry of this slot, 0 for none
    entries, 20 bytes  i32 key hash, i64 log offset, i32 seconds since the first store time,
                       i32 number of the entry before it in the same slot

A key's slot is its hash modulo the number of slots. Entries are numbered from 1. A file that is
full is followed by a new one, named by the time it was made.

Entries only ever grow, so a crash can at most leave some behind the last that counts. Slots change
in place: a slot on the disk that names an entry which never got there would hide all older ones.
Therefore changed slots stay in memory until `sync`, which writes the entries, then the slots to a
journal beside the index, and only then the slots themselves. `restore` repeats the journal after a
crash.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.wire.hashing import key_hash
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.store.files import File, Files
    from downrange.wire.records import Record

FOLDER: Final = "index"
JOURNAL: Final = "index.journal"
SLOTS: Final = 5_000_000
ENTRIES: Final = 20_000_000
#: How many messages one query finds at most.
FOUND_MAX: Final = 64

_HEADER: Final = Struct(">qqqqii")
_ENTRY: Final = Struct(">iqii")
_SLOT: Final = Struct(">i")
#: A journal is a CRC and sections: the name of an index file, the length of its changes, these.
_SECTION: Final = Struct(">17si")
_JOURNAL_SLOT: Final = Struct(">ii")


class Found(NamedTuple):
    """What a query found, newest first."""

    log_offsets: list[int]
    last_store_ms: int
    last_log_offset: int


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """Return the keys that a record is indexed by: its unique id and the user's keys."""
    unique = properties.get(PropertyKey.UNIQUE_KEY)
    keys = properties.get(PropertyKey.KEYS, "").split(" ")
    return [key for key in (unique, *keys) if key]


class KeyIndexFile:
    """One file of the index."""

    __slots__ = (
        "_dirty_slots",
        "_entries_at",
        "_file",
        "_flushing_slots",
        "_pending",
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

    def __init__(self, files: Files, name: str, slots: int, entries_max: int) -> None:
        size = _HEADER.size + slots * _SLOT.size + entries_max * _ENTRY.size
        self._file: File = files.open(f"{FOLDER}/{name}", size=size)
        self._slots = slots
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self._dirty_slots: dict[int, int] = {}  # changed since the last flush began
        self._flushing_slots: dict[int, int] = {}  # being written by a flush
        self._pending: list[bytes] = []
        self.name = name
        self.entries_max = entries_max
        self.load()

    def load(self) -> None:
        """Read the header."""
        (
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            count,
        ) = _HEADER.unpack(self._file.read(0, _HEADER.size))
        self.count: int = max(count, 1)

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.count >= self.entries_max

    def put(self, hash_value: int, log_offset: int, store_ms: int) -> None:
        """Add an entry."""
        if self.count == 1:
            self.begin_ms, self.begin_offset = store_ms, log_offset
        slot = hash_value % self._slots
        previous = self._newest(slot)
        if previous == 0:
            self.slots_used += 1
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), 0x7FFFFFFF)
        self._pending.append(_ENTRY.pack(hash_value, log_offset, seconds, previous))
        self._dirty_slots[slot] = self.count
        self.count += 1
        self.end_ms, self.end_offset = store_ms, log_offset

    def find(self, hash_value: int, begin_ms: int, end_ms: int, found_max: int) -> list[int]:
        """Return log offsets of entries with a hash, stored within a time span, newest first."""
        self.write()
        found: list[int] = []
        number = self._newest(hash_value % self._slots)
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
        """Undo the entries of records at a log offset or behind it, the newest first."""
        self.write()
        while self.count > 1:
            hash_value, entry_offset, _, previous = self._entry(self.count - 1)
            if entry_offset < log_offset:
                break
            self._dirty_slots[hash_value % self._slots] = previous
            self.slots_used -= previous == 0
            self.count -= 1
        if self.count > 1:
            _, self.end_offset, seconds, _ = self._entry(self.count - 1)
            self.end_ms = self.begin_ms + seconds * 1000

    def write(self) -> None:
        """Write new entries."""
        if self._pending:
            parts, self._pending = self._pending, []
            first = self.count - len(parts)
            self._file.write(self._entries_at + first * _ENTRY.size, parts)

    def begin_flush(self) -> bytes | None:
        """Return header and changed slots as a journal holds them, or None without changes."""
        self.write()
        assert not self._flushing_slots, "the flush before has not finished"
        if not self._dirty_slots:
            return None
        self._flushing_slots, self._dirty_slots = self._dirty_slots, {}
        header = _HEADER.pack(
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        )
        return header + b"".join(
            [_JOURNAL_SLOT.pack(slot, number) for slot, number in self._flushing_slots.items()]
        )

    def sync(self) -> None:
        """Make the file's bytes durable, as they are."""
        self._file.sync()

    def finish_flush(self) -> None:
        """Note that the flush has run."""
        self._flushing_slots = {}

    def apply(self, changes: bytes) -> None:
        """Write header and slots as a journal holds them."""
        self._file.write(0, [changes[: _HEADER.size]])
        for slot, number in _JOURNAL_SLOT.iter_unpack(changes[_HEADER.size :]):
            self._file.write(_HEADER.size + slot * _SLOT.size, [_SLOT.pack(number)])
        self._file.sync()

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Return an entry's hash, log offset, seconds, and the number of the one before it."""
        data = self._file.read(self._entries_at + number * _ENTRY.size, _ENTRY.size)
        hash_value, log_offset, seconds, previous = _ENTRY.unpack(data)
        return hash_value, log_offset, seconds, previous

    def _newest(self, slot: int) -> int:
        number = self._dirty_slots.get(slot)
        if number is None:
            number = self._flushing_slots.get(slot)
        if number is None:
            data = self._file.read(_HEADER.size + slot * _SLOT.size, _SLOT.size)
            (number,) = _SLOT.unpack(data)
            if not 0 < number < self.count:
                return 0
        return number


class KeyFlush(NamedTuple):
    """What a flush makes durable: entries first, then a journal of the slots, then the slots."""

    files: Files
    changes: list[tuple[KeyIndexFile, bytes]]

    def run(self) -> None:
        """Return when it is durable."""
        for file, _ in self.changes:
            file.sync()
        sections = b"".join(
            _SECTION.pack(file.name.encode(), len(data)) + data for file, data in self.changes
        )
        if sections:
            self.files.replace(JOURNAL, zlib.crc32(sections).to_bytes(4, "big") + sections)
        for file, data in self.changes:
            file.apply(data)


class KeyIndex:
    """All files of the index, oldest first.

    Args:
        files: The store's folder.
        slots: Slots per file.
        entries: Entries per file, the unused number 0 included.
    """

    def __init__(self, files: Files, slots: int = SLOTS, entries: int = ENTRIES) -> None:
        self._files = files
        self._slots = slots
        self._entries = entries
        self._chain = [self._open(name) for name in files.names(FOLDER)]

    @property
    def end_offset(self) -> int:
        """The log offset of the newest record that is indexed, or -1."""
        return next((file.end_offset for file in reversed(self._chain) if file.count > 1), -1)

    def restore(self) -> None:
        """Repeat the last journal: the disk may have been left in the middle of it."""
        journal = self._files.read_all(JOURNAL) or b""
        if zlib.crc32(journal[4:]) != int.from_bytes(journal[:4], "big"):
            return  # never: a journal is replaced whole; but a stranger may have touched it
        by_name = {file.name: file for file in self._chain}
        at = 4
        while at < len(journal):
            name, size = _SECTION.unpack_from(journal, at)
            at += _SECTION.size
            changes = journal[at : at + size]
            at += size
            file = by_name.get(name.decode())
            # A file that counts more was written on by a broker that does not know the journal.
            if file is not None and _HEADER.unpack_from(changes)[-1] >= file.count:
                file.apply(changes)
                file.load()

    def put(self, record: Record, properties: Mapping[str, str]) -> None:
        """Index a record by its keys."""
        topic = record.topic
        for key in keys_of(properties):
            if not self._chain or self._chain[-1].is_full:
                self._begin_file(record.store_ms)
            hash_value = key_hash(topic, key)
            self._chain[-1].put(hash_value, record.log_offset, record.store_ms)

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

    def write(self) -> None:
        """Write new entries."""
        if self._chain:
            self._chain[-1].write()

    def begin_flush(self) -> KeyFlush:
        """Return what must be made durable now: run it in any thread, then `finish_flush` it."""
        changed = [(file, file.begin_flush()) for file in self._chain]
        return KeyFlush(self._files, [(file, data) for file, data in changed if data is not None])

    def finish_flush(self, flush: KeyFlush) -> None:
        """Note that a flush has run."""
        for file, _ in flush.changes:
            file.finish_flush()

    def forget_journal(self) -> None:
        """Remove the journal after a clean stop, when nothing is left for it to mend."""
        self._files.remove(JOURNAL)

    def cut_from(self, log_offset: int) -> None:
        """Forget records at a log offset or behind it, and make that durable."""
        for file in reversed(self._chain):
            file.cut_from(log_offset)
            if file.count > 1:
                break
        while self._chain and self._chain[-1].count == 1:
            self._files.remove(f"{FOLDER}/{self._chain.pop().name}")
        # New entries take the numbers of undone ones: no slot on the disk may still mean those.
        flush = self.begin_flush()
        flush.run()
        self.finish_flush(flush)

    def drop_before(self, log_offset: int) -> None:
        """Remove files whose records are no longer in the log."""
        while len(self._chain) > 1 and self._chain[0].end_offset < log_offset:
            self._files.remove(f"{FOLDER}/{self._chain.pop(0).name}")

    def _begin_file(self, now_ms: int) -> None:
        """Begin a file, named by the local time down to the millisecond, as Java does."""
        now = datetime.fromtimestamp(now_ms / 1000)
        name = f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03}"
        if self._chain:
            name = max(name, f"{int(self._chain[-1].name) + 1:017}")  # two in one millisecond
        self._chain.append(self._open(name))

    def _open(self, name: str) -> KeyIndexFile:
        return KeyIndexFile(self._files, name, self._slots, self._entries)
