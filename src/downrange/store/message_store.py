"""The store as a whole: append, read, find, flush, recover, forget.

One rule: what `append` returned is in the log and in both indexes for every reader, and after
`flush` it is durable. A crash at any moment leaves a front part of what was appended, and all of
what was flushed.

The files are those of an Apache broker's store folder. While the store is open, a file `abort`
says so; finding it at the next start means that there was a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import CorruptStore
from downrange.store import log as commit_log
from downrange.store import queue_index
from downrange.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from downrange.store.key_index import ENTRIES, SLOTS, KeyIndex
from downrange.store.log import CommitLog
from downrange.store.queue_index import QueueIndex, Unit
from downrange.wire.codes import TransactionFlag
from downrange.wire.hashing import tag_hash
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from downrange.store.files import File, Files
    from downrange.store.key_index import Found, KeyFlush
    from downrange.store.log import LogFlush
    from downrange.wire.records import Record

ABORT: Final = "abort"
_PREPARED: Final = int(TransactionFlag.PREPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Sizes of the store's files. A store must be opened with the sizes it was made with.

    Attributes:
        log_segment_bytes: Commit log files; the largest message is a little smaller.
        queue_segment_units: Messages per queue index file.
        key_slots: Hash slots per key index file.
        key_entries: Entries per key index file.
    """

    log_segment_bytes: int = commit_log.SEGMENT_BYTES
    queue_segment_units: int = queue_index.SEGMENT_UNITS
    key_slots: int = SLOTS
    key_entries: int = ENTRIES


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening the store found.

    Attributes:
        was_clean: Whether the store had been closed.
        scanned_from: Where the walk over the log began.
        scanned_records: How many records it read.
        cut_at: Where the log was cut, and None where it ended whole.
        cut_reason: What was wrong there.
    """

    was_clean: bool
    scanned_from: int
    scanned_records: int
    cut_at: int | None = None
    cut_reason: str | None = None


class StoreFlush(NamedTuple):
    """What one flush makes durable: the log, then the indexes, then the checkpoint."""

    files: Files
    log: LogFlush
    queues: list[File]
    keys: KeyFlush
    last_ms: int

    def run(self) -> None:
        """Return when it is durable."""
        self.log.run()
        for file in self.queues:
            file.sync()
        self.keys.run()
        times = (self.last_ms,) * 3
        save_checkpoint(self.files, Checkpoint(*times, covered_offset=self.log.end))


class MessageStore:
    """An open store.

    Args:
        files: The folder; nobody else may write to it.
        options: Sizes of its files.
        unit_tag: Returns what a record's queue unit holds as tag hash; the hash of its tag unless
            it is a delayed message.

    Raises:
        CorruptStore: A durable part of the store is damaged; it names file and position.
    """

    def __init__(
        self,
        files: Files,
        options: StoreOptions,
        *,
        unit_tag: Callable[[Record, str | None], int] | None = None,
    ) -> None:
        self._files = files
        self._options = options
        self._unit_tag = unit_tag
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        self._dirty: set[tuple[str, int]] = set()
        self._last_ms = 0
        self.log = CommitLog(files, options.log_segment_bytes)
        self._keys = KeyIndex(files, options.key_slots, options.key_entries)
        self.recovery = self._recover()
        files.replace(ABORT, b"")
        files.remove(f"{ABORT}.bak")

    # ---- writing ----

    def append(self, records: Sequence[Record], now_ms: int) -> None:
        """Store records that arrived together; each is given its offsets and store time.

        Raises:
            DiskFull: There is no space; nothing was stored.
            StoreError, Unencodable: A record cannot be stored; nothing was.
        """
        self._last_ms = max(self._last_ms, now_ms)  # times in the log never go back
        next_offsets: dict[tuple[str, int], int] = {}
        for record in records:
            record.store_ms = self._last_ms
            if _is_queued(record):
                key = (record.topic, record.queue_id)
                offset = next_offsets.get(key)
                if offset is None:
                    offset = self.queue(*key).max_offset
                record.queue_offset = offset
                next_offsets[key] = offset + 1
            else:
                record.queue_offset = 0
        self.log.append(records)
        for record in records:
            self._index(record)
        for key in next_offsets:
            self._queues[key].write()
        self._keys.write()

    def flush(self) -> None:
        """Make everything durable, and note in the checkpoint that it is."""
        flush = self.begin_flush()
        flush.run()
        self.finish_flush(flush)

    def begin_flush(self) -> StoreFlush:
        """Return what must be made durable now: run it in any thread, then `finish_flush` it.

        Only one flush may be under way. What is appended meanwhile is for the next one.
        """
        dirty, self._dirty = self._dirty, set()
        return StoreFlush(
            files=self._files,
            log=self.log.begin_flush(),
            queues=[file for key in dirty for file in self._queues[key].begin_flush()],
            keys=self._keys.begin_flush(),
            last_ms=self._last_ms,
        )

    def finish_flush(self, flush: StoreFlush) -> None:
        """Note that a flush has run."""
        self.log.finish_flush(flush.log)
        self._keys.finish_flush(flush.keys)

    def close(self) -> None:
        """Flush and mark the store as closed."""
        self.flush()
        self._keys.forget_journal()
        self._files.remove(ABORT)

    # ---- reading ----

    def queue(self, topic: str, queue_id: int) -> QueueIndex:
        """Return the index of a queue, an empty one where nothing was stored yet."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            units = self._options.queue_segment_units
            queue = self._queues[key] = QueueIndex(self._files, topic, queue_id, units)
            if self.log.first:  # its first file may reach back to messages that are gone
                queue.drop_before(self.log.first)
        return queue

    def queue_names(self) -> Iterator[tuple[str, int]]:
        """Name all queues that have files."""
        for topic in self._files.names(queue_index.FOLDER):
            for name in self._files.names(f"{queue_index.FOLDER}/{topic}"):
                yield topic, int(name)

    def read(self, unit: Unit) -> bytes:
        """Return the bytes of the record that a queue unit names."""
        return self.log.read(unit.log_offset, unit.size)

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, found_max: int) -> Found:
        """Look messages up by key; compare what is found, as the index knows only hashes."""
        return self._keys.find(topic, key, begin_ms=begin_ms, end_ms=end_ms, found_max=found_max)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the number of the first message of a queue that was stored at a time or later."""

        def is_before(unit: Unit) -> bool:
            record = self.log.record_at(unit.log_offset)
            return record is not None and record.store_ms < store_ms

        return self.queue(topic, queue_id).find(is_before)

    # ---- forgetting ----

    def drop_first_segment(self) -> None:
        """Remove the oldest log segment and what the indexes know of it."""
        self.log.drop_first_segment()
        for topic, queue_id in list(self.queue_names()):
            self.queue(topic, queue_id).drop_before(self.log.first)
        self._keys.drop_before(self.log.first)

    def drop_topic(self, topic: str) -> None:
        """Remove a topic's queue indexes; its records stay in the log until that is removed."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
            self._dirty.discard(key)
        self._files.remove(f"{queue_index.FOLDER}/{topic}")

    # ---- opening ----

    def _recover(self) -> Recovery:
        checkpoint = load_checkpoint(self._files)
        was_clean = self._files.read_all(ABORT) is None
        if not was_clean:
            self._keys.restore()
        start = self._recovery_start(checkpoint)
        if not was_clean:
            # What the indexes hold behind the start is as uncertain as the log itself there.
            self._keys.cut_from(start)
            for topic, queue_id in self.queue_names():
                self.queue(topic, queue_id).cut_from(start)
        position, records = start, 0
        damage: CorruptStore | None = None
        try:
            for record in self.log.walk(start):
                if not was_clean and self.log.is_torn(record):
                    raise self.log.corrupt(record.log_offset, "its end was not written")
                self._index(record)
                self._last_ms = max(self._last_ms, record.store_ms)
                position = record.log_offset + record.size
                records += 1
        except CorruptStore as error:
            if was_clean or position < checkpoint.covered_offset:
                raise  # this was durable: cutting it off would lose what was acknowledged
            damage = error
        self.log.cut(position)
        for queue in self._queues.values():
            queue.write()
        self._last_ms = max(self._last_ms, checkpoint.log_ms)
        if damage is None:
            return Recovery(was_clean, start, records)
        return Recovery(was_clean, start, records, position, str(damage))

    def _recovery_start(self, checkpoint: Checkpoint) -> int:
        """Return a position before which log and indexes are durable and whole."""
        first = self.log.first
        if not self._files.names(queue_index.FOLDER):
            return first  # the indexes are gone: everything is read again
        covered = checkpoint.covered_offset
        if covered and first <= covered <= first + self._log_bytes():
            return covered
        for start in reversed(self.log.segment_starts):
            record = self.log.first_record_of(start)
            if record is not None and record.store_ms <= checkpoint.safe_ms:
                return start
        return first

    def _log_bytes(self) -> int:
        return len(self.log.segment_starts) * self.log.segment_bytes

    def _index(self, record: Record) -> None:
        if not _is_queued(record):
            return
        properties = record.properties()
        tag = properties.get(PropertyKey.TAGS)
        tag_code = tag_hash(tag) if self._unit_tag is None else self._unit_tag(record, tag)
        key = (record.topic, record.queue_id)
        queue = self.queue(*key)
        queue.put(record.queue_offset, Unit(record.log_offset, record.size, tag_code))
        self._dirty.add(key)
        if record.log_offset > self._keys.end_offset:
            self._keys.put(record, properties)


def _is_queued(record: Record) -> bool:
    """Whether consumers can see a record: prepared and rolled-back ones are in no queue."""
    return not record.sys_flag & _PREPARED  # ROLLBACK has this bit, too
