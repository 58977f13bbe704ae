"""The store as a whole: append, read, find, flush, delete.

One rule: when `append` returns, readers find the records in the log and in both indexes; after
`flush`, the records are durable. A crash at any moment leaves all flushed records, and of the
others a first part in the order of appending.

The files are those of an Apache broker's store folder. The file `abort` exists while the store is
open; finding it at the next start means that there was a crash.

Threads: a store belongs to one thread, its owner. Only the `run` of a flush may be called by
another thread. It uses nothing that the owner changes: `begin` gives it copies, and `finish` drops
them from the store's memory. At most one log flush and one full flush run at a time, and they do
not affect each other. A flush that failed need not be finished: the next flush of its kind does its
work, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from downrange.errors import CorruptStore, DiskFull, MalformedRecord
from downrange.store import log as commit_log
from downrange.store import queue_index
from downrange.store.checkpoint import Checkpoint, save_checkpoint
from downrange.store.indexed_run import index_run
from downrange.store.key_index import ENTRIES, MEMORY_ENTRIES, SLOTS, KeyIndex
from downrange.store.log import CommitLog, ScannedRun
from downrange.store.queue_index import QueueIndex, Unit
from downrange.store.recovery import ABORT, REBUILD, Indexed, recover
from downrange.store.unit_runs import neighbours
from downrange.wire.batches import add_key_entries
from downrange.wire.codes import TransactionFlag
from downrange.wire.hashes import tag_hash
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.properties import PropertyKey, index_properties
from downrange.wire.records import Record, decode_record
from downrange.wire.run_items import fill
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from downrange.store.files import Files, Write
    from downrange.store.indexed_run import IndexedRun
    from downrange.store.key_index import Found, KeyFlush
    from downrange.store.log import LogFlush
    from downrange.wire.batches import RecordRun
    from downrange.wire.records import IndexFields
    from downrange.wire.run_items import RunForm, RunItem

# Plain values: arithmetic and hashing of enum members cost more than the rest of a lookup.
#: Records with this bit, prepared and rolled-back ones, are in no queue.
_PREPARED: Final = int(TransactionFlag.PREPARED)
#: The topic of delayed messages, whose units have their delivery times.
_DELAY_TOPIC: Final = SCHEDULE_TOPIC.encode()
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_KEYS: Final = PropertyKey.KEYS.value
_TAGS: Final = PropertyKey.TAGS.value
#: Topic, queue id, store time and tag of a record -> the tag hash of its queue unit.
UnitTag: TypeAlias = "Callable[[bytes, int, int, str | None], int]"
#: How many queues a full flush searches for files that are no longer needed.
_QUEUES_SWEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Sizes of the store's files. A store must be opened with the sizes that it was created with.

    Attributes:
        log_segment_bytes: Size of a commit log file; the largest message is a little smaller.
        queue_segment_units: Messages per queue index file.
        key_slots: Hash slots per key index file.
        key_entries: Entries per key index file.
        queue_memory_units: Messages per queue whose index units wait in memory for a flush. More
            are written to the index file early, which does not make them durable.
        key_memory_entries: The same for entries of the key index.
        index_tags: Whether messages can be found by `T#tag` like by a key, as in release 5.5.
        recovery_records: After a crash, recovery writes a checkpoint each time it has read so many
            messages, and at its end. The default is about half a second of reading: a start that is
            interrupted again and again, by a supervisor with a time limit for example, gets further
            each time.
    """

    log_segment_bytes: int = commit_log.SEGMENT_BYTES
    queue_segment_units: int = queue_index.SEGMENT_UNITS
    key_slots: int = SLOTS
    key_entries: int = ENTRIES
    queue_memory_units: int = queue_index.MEMORY_UNITS
    key_memory_entries: int = MEMORY_ENTRIES
    index_tags: bool = False
    recovery_records: int = 100_000


class Fetched(NamedTuple):
    """Records that were read: their number, and their bytes in parts to be joined."""

    record_count: int
    parts: list[bytes | memoryview]


@dataclass(slots=True, eq=False)
class StoreFlush:
    """A full flush: the log, then the indexes, then the checkpoint.

    Attributes:
        files: The store's folder.
        log: The flush of the log.
        queues: Queues whose units are among the writes.
        writes: Units of queues, and the log's next segment.
        keys: The flush of the key index.
        last_ms: The store time of the newest record.
        dropped_topics: Topics whose queue indexes are removed before anything is written.
        unneeded: Index files that are removed then, too.
        segments: Files of the log that are removed after the checkpoint is written.
    """

    files: Files
    log: LogFlush
    queues: set[QueueIndex]
    writes: list[Write]
    keys: KeyFlush
    last_ms: int
    dropped_topics: set[str]
    unneeded: list[str]
    segments: list[str]

    def run(self) -> None:
        """Do all of it; any thread may call it.

        Raises:
            OSError: The disk fails, or has failed before; see `SyncGuard`.
        """
        self.log.run()
        try:
            self._save_indexes()
        except OSError as error:
            self.log.guard.note(error)
            raise

    def _save_indexes(self) -> None:
        for topic in self.dropped_topics:
            self.files.remove(f"{queue_index.FOLDER}/{topic}")
        for path in self.unneeded:
            self.files.remove(path)
        self.files.write_durably(self.writes)
        self.keys.run()
        times = (self.last_ms,) * 3
        save_checkpoint(self.files, Checkpoint(*times, covered_offset=self.log.end))
        for path in self.segments:
            self.files.remove(path)


class MessageStore:
    """An open store.

    Args:
        files: The folder; only this store may write to it.
        options: Sizes of its files.
        unit_tag: Returns the tag hash of a record's queue unit, given the record's topic, queue id,
            store time and tag. A delayed message (SCHEDULE_TOPIC_XXXX) has its delivery time
            there; all others must have the hash of the tag, which is the default.

    Raises:
        CorruptStore: A durable part of the store is damaged; names file and position.
        OSError: The disk fails.
    """

    def __init__(
        self,
        files: Files,
        options: StoreOptions,
        *,
        unit_tag: UnitTag | None = None,
    ) -> None:
        self._files = files
        self._options = options
        self._unit_tag = unit_tag
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        # The same by the topic's bytes, for `append`: queues whose front is that of the log.
        self._current: dict[tuple[bytes, int], QueueIndex] = {}
        self._dirty: set[QueueIndex] = set()
        self._dropped_topics: set[str] = set()
        self._unneeded: list[str] = []  # files that the next flush removes
        self._unswept: Iterator[tuple[str, int]] = iter(())
        self._log_flush: LogFlush | None = None  # the running flushes
        self._flush: StoreFlush | None = None
        self._last_ms = 0
        self.log = CommitLog(files, options.log_segment_bytes)
        self._keys = KeyIndex(
            files,
            options.key_slots,
            options.key_entries,
            options.key_memory_entries,
        )
        self.recovery = recover(
            files,
            self.log,
            self._cut_indexes,
            self._index_run,
            self._index_again,
            self._save_recovered,
            save_records=options.recovery_records,
        )
        self._last_ms = self.recovery.last_ms
        if self.recovery.was_clean:  # otherwise the file exists, and must never be missing
            files.replace(ABORT, b"")

    # ---- writing ----

    def append(
        self,
        records: Sequence[Record | RecordRun],
        now_ms: int,
        properties: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        """Store records together. After an error, none of them is stored.

        Args:
            records: Their `size`, `body_crc`, both offsets and `store_ms` are set. Runs of records
                have neither prepared ones nor delayed ones.
            now_ms: The time of the clock.
            properties: The records' properties, if they are parsed already. Runs have their own.

        Raises:
            DiskFull: There is no space.
            StoreError, Unencodable: A record cannot be stored.
        """
        if now_ms > self._last_ms:  # store times never go back
            self._last_ms = now_ms
        store_ms = self._last_ms
        queues: list[list[QueueIndex]] = []  # of each entry
        next_offsets: dict[QueueIndex, int] = {}
        for entry in records:
            if not isinstance(entry, Record):
                queues.append(self._begin_run(entry, store_ms, next_offsets))
                continue
            entry.store_ms = store_ms
            if entry.sys_flag & _PREPARED:
                entry.queue_offset = 0
                queues.append([])
                continue
            queue = self._current.get((entry.topic_bytes, entry.queue_id))
            if queue is None:
                queue = self._queue_of(entry.topic_bytes, entry.queue_id)
            entry.queue_offset = offset = next_offsets.get(queue, queue.max_offset)
            next_offsets[queue] = offset + 1
            queues.append([queue])
        self.log.append(records)
        keyed = bytearray()
        index_tags, unit_tag = self._options.index_tags, self._unit_tag
        for number, (entry, found) in enumerate(zip(records, queues, strict=True)):
            if not isinstance(entry, Record):
                for queue, units in zip(found, entry.queue_units(), strict=True):
                    queue.put_units(units)
                keyed += entry.key_entries([queue.key_front for queue in found], index_tags)
                continue
            if not found:
                continue
            (queue,) = found
            known = entry.properties() if properties is None else properties[number]
            tag = known.get(_TAGS)
            if unit_tag is None:
                tag_code = tag_hash(tag)
            else:
                tag_code = unit_tag(entry.topic_bytes, entry.queue_id, store_ms, tag)
            log_offset = entry.log_offset
            queue.put(log_offset, entry.size, tag_code)
            unique_key, keys = known.get(_UNIQUE_KEY), known.get(_KEYS)
            tag_key = tag if index_tags else None
            add_key_entries(keyed, queue.key_front, log_offset, unique_key, keys, tag_key)
        self._keys.put(keyed, store_ms)
        self._dirty.update(next_offsets)

    def _begin_run(
        self, run: RecordRun, store_ms: int, next_offsets: dict[QueueIndex, int]
    ) -> list[QueueIndex]:
        """Set the offsets of a run of records; return its queues."""
        queues: list[QueueIndex] = []
        offsets: list[int] = []
        for key, count in zip(run.queues, run.counts, strict=True):
            queue = self._current.get(key)
            if queue is None:
                queue = self._queue_of(*key)
            offset = next_offsets.get(queue, queue.max_offset)
            next_offsets[queue] = offset + count
            queues.append(queue)
            offsets.append(offset)
        run.begin(store_ms, offsets)
        return queues

    def append_run(self, form: RunForm, items: Sequence[RunItem], now_ms: int) -> int:
        """Store records of the broker together in one queue; return the offset of the first.

        Their keys are not indexed. (Recovery does so; nobody looks for them.)

        Args:
            form: What they have in common.
            items: The records, which are made now.
            now_ms: The time of the clock.

        Raises:
            DiskFull: There is no space; none of them is stored.
            StoreError, Unencodable: A record cannot be stored; none of them is.
        """
        if now_ms > self._last_ms:  # store times never go back
            self._last_ms = now_ms
        queue = self._current.get(form.queue)
        if queue is None:
            queue = self._queue_of(*form.queue)
        first = queue.max_offset
        units = self.log.append_run(form, items, first, now_ms, self._last_ms)
        if units is None:  # at the end of a segment
            records = [
                replace(
                    form.shared,
                    born_ms=now_ms,
                    body=fill(body, body_values),
                    property_bytes=fill(properties, values),
                )
                for body, body_values, properties, values, _ in items
            ]
            self.append(records, now_ms)
            return first
        queue.put_units(units)
        self._dirty.add(queue)
        return first

    def flush(self) -> None:
        """Make all records and indexes durable, and write the checkpoint."""
        flush = self.begin_flush()
        flush.run()
        self.finish_flush(flush)

    def begin_log_flush(self) -> LogFlush:
        """Return a flush of the log alone: run it in any thread, then `finish_log_flush` it.

        A synchronous acknowledgement waits for this; `log.flushed` is the durable position then.
        """
        self._log_flush = self.log.begin_flush()
        return self._log_flush

    def finish_log_flush(self, flush: LogFlush) -> None:
        """Note that a log flush has run."""
        self.log.finish_flush(flush)
        self._log_flush = None

    def begin_flush(self) -> StoreFlush:
        """Return a full flush: run it in any thread, then `finish_flush` it.

        It covers the records that are stored now, not those that are appended while it runs.
        """
        self._sweep()
        segments: list[str] = []
        if (failed := self._flush) is not None:
            self._dirty |= failed.queues & set(self._queues.values())
            self._dropped_topics |= failed.dropped_topics
            self._unneeded += failed.unneeded
            segments += failed.segments
        if self._log_flush is None:  # a log flush may use a segment that is to be removed
            segments += self.log.take_dropped()
        queues, self._dirty = self._dirty, set()
        dropped_topics, self._dropped_topics = self._dropped_topics, set()
        unneeded, self._unneeded = self._unneeded, []
        next_segment = self.log.next_segment()
        writes = [] if next_segment is None else [next_segment]
        for queue in queues:
            writes += queue.begin_flush()
        self._flush = StoreFlush(
            files=self._files,
            log=self.log.begin_flush(),
            queues=queues,
            writes=writes,
            keys=self._keys.begin_flush(),
            last_ms=self._last_ms,
            dropped_topics=dropped_topics,
            unneeded=unneeded,
            segments=segments,
        )
        return self._flush

    def finish_flush(self, flush: StoreFlush) -> None:
        """Note that a flush has run."""
        self.log.finish_flush(flush.log)
        self._keys.finish_flush(flush.keys)
        for queue in flush.queues:
            queue.finish_flush()
        if gone := flush.dropped_topics - self._dropped_topics:
            for queue in self._queues.values():
                if queue.topic in gone:
                    queue.allow_writes()
        self._flush = None

    def check_disk(self) -> None:
        """Check that no flush has lost data.

        Raises:
            OSError: One has: nothing may be saved that counts on it.
        """
        self.log.guard.check()

    def close(self) -> None:
        """Flush and mark the store as closed; no flush may be running."""
        self.flush()
        self._files.remove(REBUILD)  # it exists if the disk was full at the end of recovery
        self._files.remove(ABORT)

    # ---- reading ----

    def queue(self, topic: str, queue_id: int) -> QueueIndex:
        """Return the index of a queue; it is empty if nothing was stored yet.

        Call this each time and do not keep the index: its front moves with that of the log, and
        the topic may be dropped.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._open_queue(topic, queue_id)
        if queue.log_first != self.log.first:
            self._unneeded += queue.drop_before(self.log.first)
        return queue

    def queue_names(self) -> Iterator[tuple[str, int]]:
        """Return topic and id of all queues that have or had messages."""
        known = dict.fromkeys(key for key, queue in self._queues.items() if queue.max_offset)
        yield from known
        for topic in self._files.names(queue_index.FOLDER):
            if not self._is_dropped(topic):
                for name in self._files.names(f"{queue_index.FOLDER}/{topic}"):
                    if (topic, int(name)) not in known:
                        yield topic, int(name)

    def read(self, unit: Unit) -> bytes:
        """Return the bytes of the record that a queue unit names."""
        return self.log.read(unit.log_offset, unit.size)

    def read_record(self, unit: Unit) -> Record:
        """Return the record that a queue unit names, checked against its CRC.

        Raises:
            StoreError: It cannot be read.
            MalformedRecord: It is damaged.
        """
        record = decode_record(self.read(unit))
        if not record.is_intact:
            raise MalformedRecord(0, "the body does not match its CRC")
        return record

    def find_record(self, log_offset: int) -> Record | None:
        """Return the record at a position that a request named, or None where none begins.

        The CRC is not checked. Sizes above one frame are rejected: the position may point into a
        body, whose bytes may look like a record of gigabytes.
        """
        try:
            return self.log.record_at(log_offset, FRAME_BYTES_MAX)
        except CorruptStore:
            return None  # bytes of a body that only begin like a record

    def read_range(self, units: bytes, bytes_max: int) -> Fetched:
        """Return the records of units, with as few reads as possible.

        Args:
            units: Units of one queue, in its order; see `QueueIndex.packed`.
            bytes_max: The limit of all records together. The first one is returned in any case.

        Returns:
            The records up to the first one that was deleted, that exceeds the limit, or that has
            too many records of other queues before it.
        """
        log = self.log
        count, runs = neighbours(units, log.first, log.end, bytes_max)
        return Fetched(count, log.read_runs(runs))

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, found_max: int) -> Found:
        """Find messages by key. The index has only hashes, so callers must compare the keys."""
        return self._keys.find(topic, key, begin_ms=begin_ms, end_ms=end_ms, found_max=found_max)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the offset of the first message of a queue that was stored at a time or later."""

        def is_before(unit: Unit) -> bool:
            record = self.log.record_at(unit.log_offset)
            return record is not None and record.store_ms < store_ms

        return self.queue(topic, queue_id).find(is_before)

    # ---- deleting ----

    def drop_first_segment(self) -> None:
        """Drop the oldest log segment, if `log.can_drop_first`; a full flush removes its file.

        The front of a queue index moves when the queue is used next. Each full flush moves some of
        the others.
        """
        self.log.drop_first_segment()
        self._current.clear()
        self._unneeded += self._keys.drop_before(self.log.first)
        self._unswept = self.queue_names()

    @property
    def freed_soon_bytes(self) -> int:
        """How much space on the disk the next full flushes will free."""
        running = 0 if self._flush is None else len(self._flush.segments)
        return (self.log.dropped_count + running) * self.log.segment_bytes

    def drop_topic(self, topic: str) -> None:
        """Drop a topic's queues; the next full flush removes their files.

        The records stay in the log until their segments are deleted. After a crash before that
        flush, the queues are back. A caller that must be sure waits for the flush, or drops
        unknown topics when it opens a store.
        """
        for key in [key for key in self._queues if key[0] == topic]:
            self._dirty.discard(self._queues.pop(key))
        self._current.clear()
        self._dropped_topics.add(topic)

    def _is_dropped(self, topic: str) -> bool:
        """Whether the queue files of a dropped topic may still exist."""
        is_flushed_now = self._flush is not None and topic in self._flush.dropped_topics
        return is_flushed_now or topic in self._dropped_topics

    def _sweep(self) -> None:
        """Move the front of some unused queues to that of the log."""
        for topic, queue_id in islice(self._unswept, _QUEUES_SWEPT):
            self.queue(topic, queue_id)

    # ---- opening ----

    def _cut_indexes(self, log_offset: int) -> None:
        """Remove the units and keys of records from a position of the log on."""
        self._keys.cut_from(log_offset)
        for topic, queue_id in list(self.queue_names()):
            self._open_queue(topic, queue_id).cut_from(log_offset)

    def _index_run(self, data: bytes, at: int, log_offset: int) -> IndexedRun:
        """Read what the indexes need of records in the log."""
        topic = b"" if self._unit_tag is None else _DELAY_TOPIC
        keys_end, index_tags = self._keys.end_offset, self._options.index_tags
        return index_run(data, at, log_offset, keys_end, index_tags, topic)

    def _index_again(self, found: IndexFields | ScannedRun) -> Indexed:
        """Index records of the log during recovery, where an index does not have them already."""
        if not isinstance(found, ScannedRun):
            return self._index_each([found])
        count, size, newest_ms, queues, keys = found.run
        known = [self._queue_again(topic, queue_id) for topic, queue_id, _, _ in queues]
        for queue, (_, _, first, _) in zip(known, queues, strict=True):
            if queue.max_offset != first:  # its index has some of them, or begins with one
                return self._index_each(found.one_by_one())
        for queue, (_, _, _, units) in zip(known, queues, strict=True):
            queue.put_units(units)
        self._dirty.update(known)
        for store_ms, entries in keys:
            self._keys.put(entries, store_ms)
        return Indexed(count, found.place[2] + size, newest_ms)

    def _index_each(self, entries: Sequence[IndexFields]) -> Indexed:
        """Index records one by one."""
        keys, unit_tag = self._keys, self._unit_tag
        keys_end = keys.end_offset
        index_tags = self._options.index_tags
        count = end = newest_ms = 0
        for log_offset, size, queue_id, queue_offset, sys_flag, store_ms, topic, data in entries:
            if not sys_flag & _PREPARED:
                queue = self._queue_again(topic, queue_id)
                unique_key, user_keys, tag = index_properties(data)
                tag_code = (
                    tag_hash(tag) if unit_tag is None else unit_tag(topic, queue_id, store_ms, tag)
                )
                try:
                    queue.put_again(queue_offset, Unit(log_offset, size, tag_code))
                except CorruptStore as error:
                    return Indexed(count, end, newest_ms, error)
                self._dirty.add(queue)
                if log_offset > keys_end:
                    keyed = bytearray()
                    tag_key = tag if index_tags else None
                    add_key_entries(
                        keyed, queue.key_front, log_offset, unique_key, user_keys, tag_key
                    )
                    keys.put(keyed, store_ms)
            count += 1
            end, newest_ms = log_offset + size, max(newest_ms, store_ms)
        return Indexed(count, end, newest_ms)

    def _queue_again(self, topic: bytes, queue_id: int) -> QueueIndex:
        """Return the queue of a record during recovery."""
        queue = self._current.get((topic, queue_id))
        if queue is None:
            queue = self._queue_of(topic, queue_id)
            self._remove_unneeded()  # a queue that begins again may need the same files
        return queue

    def _save_recovered(self, last_ms: int) -> str | None:
        """Flush during recovery; return the problem if the disk is full.

        On a full disk, the store can still be read, and retention can free space. Other errors of
        the disk must end the start: after a failed sync, the kernel may drop records that were not
        written, and the next sync succeeds without them.
        """
        self._last_ms = last_ms
        try:
            self.flush()
        except DiskFull as error:
            return str(error)
        return None

    def _remove_unneeded(self) -> None:
        while self._unneeded:
            self._files.remove(self._unneeded.pop(0))

    # ---- details ----

    def _open_queue(self, topic: str, queue_id: int) -> QueueIndex:
        queue = QueueIndex(
            self._files,
            topic,
            queue_id,
            self._options.queue_segment_units,
            self._options.queue_memory_units,
            is_fresh=self._is_dropped(topic),
        )
        self._queues[topic, queue_id] = queue
        return queue

    def _queue_of(self, topic: bytes, queue_id: int) -> QueueIndex:
        """Return a record's queue, and cache it for the next record."""
        queue = self.queue(topic.decode(errors="replace"), queue_id)
        self._current[topic, queue_id] = queue
        return queue
