"""The commit log: the messages of all topics, one record behind the other.

A record never spans two segments. If one does not fit, a blank record fills the segment, and the
next segment begins. Records that are appended together are written together, with one system call
per segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from downrange.errors import CorruptStore, MalformedRecord, StoreError
from downrange.store.files import SECTOR_BYTES, SyncGuard, Write
from downrange.store.segments import SegmentChain
from downrange.store.unit_runs import GAP_BYTES
from downrange.wire.limits import INT32_MAX
from downrange.wire.records import (
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    LOG_OFFSET_AT,
    RECORD_BYTES_MIN,
    Record,
    blank_record,
    decode_record,
    encode_parts,
    index_fields,
    intact_run,
)
from downrange.wire.run_items import encode_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from downrange.store.files import Buffer, File, Files
    from downrange.store.indexed_run import IndexedRun
    from downrange.wire.batches import RecordRun
    from downrange.wire.records import IndexFields
    from downrange.wire.run_items import RunForm, RunItem

#: Bytes of the log, a position in them and its log offset -> what the indexes need of the records.
IndexRun: TypeAlias = "Callable[[bytes, int, int], IndexedRun]"

FOLDER: Final = "commitlog"
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
#: Bytes per read when the log is walked.
_READ_BYTES: Final = 1024 * 1024
_NUL: Final = "a property has a NUL byte, which recovery would take for a torn write; remove it"


class LogFlush(NamedTuple):
    """A flush of the log up to a position."""

    end: int
    files: list[File]
    guard: SyncGuard

    def run(self) -> None:
        """Sync the files; any thread may call it.

        Raises:
            OSError: The disk fails, or has failed before; see `SyncGuard`.
        """
        with self.guard.lock:
            self.guard.check()
            try:
                for file in self.files:
                    file.sync()
            except OSError as error:
                self.guard.note(error)
                raise


class _Layout:
    """The positions of records that are appended together.

    Attributes:
        position: The position of the next record.
        runs: Positions and buffers to write there, one run per segment.
    """

    __slots__ = ("_left", "_parts", "_segment_bytes", "position", "runs")

    def __init__(self, position: int, segment_bytes: int) -> None:
        self.position = position
        self._segment_bytes = segment_bytes
        self._left = segment_bytes - position % segment_bytes - BLANK_BYTES_MIN
        self._parts: list[Buffer] = []
        self.runs = [(position, self._parts)]

    def add(self, record: Record) -> None:
        if 0 in record.property_bytes:
            raise StoreError(_NUL)
        record.log_offset = self.position
        encoded = encode_parts(record)
        size = record.size
        if size > self._left:
            self._begin_segment(size)
            record.log_offset = self.position
            encoded = encode_parts(record)
        self._parts += encoded
        self.position += size
        self._left -= size

    def add_run(self, run: RecordRun) -> None:
        if run.has_nul:
            raise StoreError(_NUL)
        while True:
            parts, unfit_size = run.encode(self.position, self._left)
            self._parts += parts
            size = sum(map(len, parts))
            self.position += size
            self._left -= size
            if not unfit_size:
                break
            self._begin_segment(unfit_size)

    def _begin_segment(self, size: int) -> None:
        """Fill the segment with a blank record and continue in the next one."""
        room = self._segment_bytes - BLANK_BYTES_MIN
        if size > room:
            raise StoreError(f"a record of {size} bytes is larger than a segment of {room} bytes")
        blank_bytes = self._left + BLANK_BYTES_MIN
        self._parts.append(blank_record(blank_bytes))
        self.position += blank_bytes
        self._left, self._parts = room, []
        self.runs.append((self.position, self._parts))


class ScannedRun(NamedTuple):
    """Records that were read together.

    Attributes:
        run: What the indexes need of them.
        place: Where they are: bytes of the log, the position in them, the log offset.
    """

    run: IndexedRun
    place: tuple[bytes, int, int]

    def one_by_one(self) -> list[IndexFields]:
        """Return what the indexes need of each record."""
        return intact_run(*self.place)[: self.run[0]]


class _Reader:
    """Reads the records of a log one after the other, through a buffer.

    Args:
        log: Names positions in errors.
        chain: The files of the log.
        position: Where the first record begins.
    """

    __slots__ = ("_begun", "_buffer", "_chain", "_log", "position")

    def __init__(self, log: CommitLog, chain: SegmentChain, position: int) -> None:
        self._log = log
        self._chain = chain
        self._buffer = b""
        self._begun = position  # the position of the buffer's first byte
        self.position = position

    def next_record(self) -> Record | None:
        """Return the next record, or None behind the last one.

        Raises:
            CorruptStore: It is damaged.
        """
        chain = self._chain
        while self.position < chain.end:
            position = self.position
            left = chain.segment_bytes - position % chain.segment_bytes
            if left < BLANK_BYTES_MIN:
                problem = f"{left} bytes at the end are not a blank record"
                raise self._log.corrupt(position, problem)
            if len(self._buffer) - (position - self._begun) < min(RECORD_BYTES_MIN, left):
                self._fill(_READ_BYTES)
            at = position - self._begun
            size = int.from_bytes(self._buffer[at : at + 4], "big", signed=True)
            magic = int.from_bytes(self._buffer[at + 4 : at + 8], "big", signed=True)
            if magic == BLANK_MAGIC:
                self.position += left
                self._buffer, self._begun = b"", self.position
                continue
            if size == 0 and magic == 0:
                return None
            if len(self._buffer) - at < size <= left:
                self._fill(max(size, _READ_BYTES))
            return self._decode(position)
        return None

    def next_run(self, index_run: IndexRun) -> ScannedRun | None:
        """Return what the indexes need of the next records in the buffer, as far as they are usual.

        `next_record` reads the record behind them.
        """
        place = (self._buffer, self.position - self._begun, self.position)
        run = index_run(*place)
        count, size, *_ = run
        if not count:
            return None
        self.position += size
        return ScannedRun(run, place)

    def _fill(self, size: int) -> None:
        self._buffer, self._begun = self._chain.read(self.position, size), self.position

    def _decode(self, position: int) -> Record:
        log = self._log
        try:
            record = decode_record(self._buffer, position - self._begun)
        except MalformedRecord as error:
            raise log.corrupt(position, error.problem) from error
        if not record.is_intact:
            raise log.corrupt(position, "the body does not match its CRC")
        if record.log_offset != position:
            raise log.corrupt(position, f"the record is of position {record.log_offset}")
        self.position = position + record.size
        return record


def is_torn(record: Record) -> bool:
    """Whether a sector that holds the end of a record was never written.

    The CRC covers only the body. Topic and properties follow it, and after a power loss whole
    sectors of them may be zeros. No valid record has zeros there: `CommitLog.append` refuses them.
    """
    end = record.log_offset + record.size
    properties_at = end - len(record.property_bytes)
    first = -(-properties_at // SECTOR_BYTES) * SECTOR_BYTES
    return any(
        not any(record.property_bytes[at - properties_at : at - properties_at + SECTOR_BYTES])
        for at in range(first, end, SECTOR_BYTES)
    )


class CommitLog:
    """The records of the log. Recovery sets its end with `cut`.

    Args:
        files: The store's folder.
        segment_bytes: The size of a segment; a record must fit into one.
    """

    __slots__ = ("_chain", "_dropped", "_room", "end", "flushed", "guard", "segment_bytes")

    def __init__(self, files: Files, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._chain = SegmentChain(files, FOLDER, segment_bytes)
        self._dropped: list[str] = []  # paths of files to be removed
        self._room = segment_bytes - BLANK_BYTES_MIN  # for records in a segment
        #: Knows whether a flush has lost data; shared with full flushes.
        self.guard = SyncGuard()
        #: The size of a segment.
        self.segment_bytes = segment_bytes
        #: The position behind the last record, where the next one is written.
        self.end = self._chain.first
        #: Everything before this position is durable.
        self.flushed = self.end

    @property
    def first(self) -> int:
        """The position of the oldest segment."""
        return self._chain.first

    @property
    def segment_starts(self) -> list[int]:
        """The first positions of all segments."""
        return list(self._chain.starts)

    def append(self, records: Sequence[Record | RecordRun]) -> None:
        """Write records behind the last one, and set their log offsets, sizes and CRCs.

        After an error, the log is unchanged.

        Raises:
            DiskFull: There is no space.
            StoreError: A record is larger than a segment, or a property has a NUL byte.
            Unencodable: A record cannot be encoded.
        """
        layout = _Layout(self.end, self.segment_bytes)
        for record in records:
            if isinstance(record, Record):
                layout.add(record)
            else:
                layout.add_run(record)
        try:
            for position, parts in layout.runs:
                if parts:
                    self._chain.write(position, parts)
        except Exception:
            self._chain.cut(self.end)  # so that a part of a record is never found there
            raise
        self.end = layout.position

    def append_run(
        self,
        form: RunForm,
        items: Sequence[RunItem],
        queue_offset: int,
        born_ms: int,
        store_ms: int,
    ) -> bytes | None:
        """Write the records of a run behind the last one, with one system call.

        Args:
            form: What they have in common.
            items: The records.
            queue_offset: Of the first one.
            born_ms: When they were made.
            store_ms: Their store time.

        Returns:
            Their units in the queue's index; or None if they do not fit into the segment. Then
            nothing is written.

        Raises:
            DiskFull: There is no space; the log is unchanged.
            Unencodable: A record cannot be encoded.
        """
        position, chain = self.end, self._chain
        data, units = encode_items(form, items, queue_offset, position, born_ms, store_ms)
        size, at = len(data), position % self.segment_bytes
        if at + size > self._room:
            return None
        try:
            file = chain.find_open(position - at) or chain.file(position - at)
            file.write(at, (data,))
        except Exception:
            chain.cut(position)
            raise
        self.end = position + size
        return units

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes of a record whose size is known from an index."""
        return self._chain.read(position, size)

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Return the bytes of runs of records; runs that are close together share one read.

        Args:
            runs: First and last positions, in the order of the log. A run must not span segments.
        """
        if len(runs) == 1:
            begin, end = runs[0]
            return [self._chain.read(begin, end - begin)]
        groups: list[list[tuple[int, int]]] = []  # each is one read
        segment_bytes, near_from, near_to = self.segment_bytes, 0, -1
        for run in runs:
            if near_from <= run[0] <= near_to:
                groups[-1].append(run)
            else:
                groups.append([run])
            near_from = run[1]
            segment_end = near_from - near_from % segment_bytes + segment_bytes
            near_to = min(near_from + GAP_BYTES, segment_end - 1)
        parts: list[bytes | memoryview] = []
        for group in groups:
            start = group[0][0]
            data = self._chain.read(start, group[-1][1] - start)
            if len(group) == 1:
                parts.append(data)
            else:
                view = memoryview(data)
                parts += [view[begin - start : end - start] for begin, end in group]
        return parts

    def record_at(self, position: int, bytes_max: int = INT32_MAX) -> Record | None:
        """Return the record at a position, or None where none begins.

        Inside a record, any bytes can stand where a size is expected, up to gigabytes. So the size
        and the position that a record holds are checked before it is read.

        Raises:
            CorruptStore: There is something, but not a whole record.
        """
        if not self.first <= position <= self.end - RECORD_BYTES_MIN:
            return None
        head = self._chain.read(position, LOG_OFFSET_AT + 8)
        size = int.from_bytes(head[:4], "big", signed=True)
        is_here = int.from_bytes(head[LOG_OFFSET_AT:], "big") == position
        if not is_here or not RECORD_BYTES_MIN <= size <= bytes_max:
            return None
        try:
            return decode_record(self._chain.read(position, size))
        except MalformedRecord as error:
            raise self.corrupt(position, error.problem) from error

    def first_record_of(self, start: int) -> Record | None:
        """Return the first record of a segment, or None if it cannot be read."""
        try:
            return next(self.walk(start), None)
        except CorruptStore:
            return None

    def walk(self, position: int) -> Iterator[Record]:
        """Read records from a position to the last written one, even if that is behind `end`.

        Raises:
            CorruptStore: A record is damaged; names the segment and the position in it.
        """
        reader = _Reader(self, self._chain, position)
        while (record := reader.next_record()) is not None:
            yield record

    def scan(
        self, position: int, index_run: IndexRun, *, was_clean: bool
    ) -> Iterator[IndexFields | ScannedRun]:
        """Read the same records, many at once, and only what the indexes need of them.

        Args:
            position: Where the first record begins.
            index_run: Reads many records; see `indexed_run`.
            was_clean: Whether the store had been closed. If not, a torn record is an error, too.

        Raises:
            CorruptStore: A record is damaged; all records before it were returned.
        """
        reader = _Reader(self, self._chain, position)
        while (record := reader.next_record()) is not None:
            if not was_clean and is_torn(record):
                raise self.corrupt(record.log_offset, "its end was not written")
            yield index_fields(record)
            run = reader.next_run(index_run)
            if run is not None:
                yield run

    def begin_scan(self, position: int) -> None:
        """Note that everything before a position is durable, and that the log is read from there.

        Records behind it may only be in the page cache, which keeps the writes of a killed process.
        So they have to be flushed.
        """
        self.end = self.flushed = position

    def cut(self, position: int) -> None:
        """End the log at a position, and remove all bytes behind it."""
        self._chain.cut(position)
        self.end = position
        self.flushed = min(self.flushed, position)

    def begin_flush(self) -> LogFlush:
        """Return a flush of all records so far: run it in any thread, then `finish_flush` it."""
        files = self._chain.files_between(self.flushed, self.end) if self.end > self.flushed else []
        return LogFlush(self.end, files, self.guard)

    def finish_flush(self, flush: LogFlush) -> None:
        """Note that a flush has run."""
        self.flushed = max(self.flushed, flush.end)

    @property
    def can_drop_first(self) -> bool:
        """Whether the oldest segment may be dropped: it is durable, and not the last one."""
        following = self._chain.first + self.segment_bytes
        return following < self.end and following <= self.flushed

    def drop_first_segment(self) -> None:
        """Drop the oldest segment, if `can_drop_first`; its file is removed later.

        After a crash, the segment may be back. So it must be durable: if it were torn, recovery
        would cut the log there and lose all records behind it.
        """
        assert self.can_drop_first
        self._dropped.append(self._chain.drop_first())

    @property
    def dropped_count(self) -> int:
        """How many files of dropped segments wait for `take_dropped`."""
        return len(self._dropped)

    def take_dropped(self) -> list[str]:
        """Return the files of dropped segments, to be removed when no flush uses them."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def next_segment(self) -> Write | None:
        """Return the write that creates the next segment, once half of the last one is used.

        Then the next `append` finds the file and does not wait for the disk.
        """
        used = self.end % self.segment_bytes
        if used < self.segment_bytes // 2:
            return None
        path = self._chain.path(self.end - used + self.segment_bytes)
        return Write(path, self.segment_bytes, 0, b"")

    def corrupt(self, position: int, problem: str) -> CorruptStore:
        """Return the error that names a position by its segment file."""
        start = self._chain.start_of(position)
        return CorruptStore(f"{FOLDER}/{start:020}", position - start, problem)
