"""Recovery: bring log and indexes of a store into agreement when it is opened.

1. Find the start: a position before which log and indexes are durable and agree.
2. After a crash, cut the indexes back to the start. Behind it, they are as uncertain as the log.
3. Read the log from the start and index each record again, up to the end or to a damaged record.
4. Cut the log there.
5. Make log and indexes durable and write the checkpoint. So the next recovery begins here, even if
   the next crash comes at once. A long recovery does the same now and then on its way.

Durable records are never cut off. So damage before the checkpoint, or in a store that was closed,
is an error. A clean start reads nothing: the start is the end of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import CorruptStore
from downrange.store import queue_index
from downrange.store.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.store.checkpoint import Checkpoint
    from downrange.store.files import Files
    from downrange.store.log import CommitLog, IndexRun, ScannedRun
    from downrange.wire.records import IndexFields

#: A file that exists while the store is open; finding it at the start means that there was a crash.
ABORT: Final = "abort"
#: A file that exists while lost indexes are built from the whole log. If that is interrupted, the
#: checkpoint is true for the log, but not for the indexes, so they are built from the start again.
REBUILD: Final = "rebuild"


class Indexed(NamedTuple):
    """How far records were indexed.

    Attributes:
        record_count: How many.
        end: The position behind the last one, if there is one.
        newest_ms: Their newest store time.
        problem: What is wrong with the next one, or None.
    """

    record_count: int
    end: int
    newest_ms: int
    problem: CorruptStore | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening the store found.

    Attributes:
        was_clean: Whether the store had been closed.
        scanned_from: Where the log was read from.
        scanned_records: How many records were read.
        last_ms: The newest store time, of those records and of the checkpoint.
        cut_at: Where the log was cut, or None if it ended with a whole record.
        cut_reason: What was wrong with the record there.
        unsaved_reason: Why the checkpoint at the end could not be written, because the disk is
            full; else None. The next flush writes it.
    """

    was_clean: bool
    scanned_from: int
    scanned_records: int
    last_ms: int
    cut_at: int | None = None
    cut_reason: str | None = None
    unsaved_reason: str | None = None


def recover(
    files: Files,
    log: CommitLog,
    cut_indexes: Callable[[int], None],
    index_run: IndexRun,
    index_again: Callable[[IndexFields | ScannedRun], Indexed],
    save: Callable[[int], str | None],
    *,
    save_records: int,
) -> Recovery:
    """Bring log and indexes into agreement.

    Args:
        files: The store's folder.
        log: Its end is set.
        cut_indexes: Removes what the indexes say of records from a position on.
        index_run: Reads what the indexes need of many records.
        index_again: Indexes one record or many, where an index does not have them already.
        save: Makes everything durable up to the log's end and writes the checkpoint, with the
            newest store time. Returns the problem if the disk is full.
        save_records: There is a checkpoint after so many records, besides the one at the end.

    Raises:
        CorruptStore: A durable part of the store is damaged; it names file and position.
    """
    checkpoint = load_checkpoint(files)
    was_clean = files.read_all(ABORT) is None
    was_rebuilding = files.read_all(REBUILD) is not None
    is_rebuilding = was_rebuilding or not files.is_folder(queue_index.FOLDER)
    start = log.first if is_rebuilding else _find_start(log, checkpoint)
    if is_rebuilding and not was_rebuilding and log.segment_starts:
        files.replace(REBUILD, b"")
    if was_rebuilding or not was_clean:
        cut_indexes(start)
    log.begin_scan(start)
    records, last_ms, unsaved = 0, checkpoint.log_ms, 0
    damage: CorruptStore | None = None
    try:
        for found in log.scan(start, index_run, was_clean=was_clean):
            count, end, newest_ms, problem = index_again(found)
            if count:
                log.end = end
                last_ms = max(last_ms, newest_ms)
            records += count
            unsaved += count
            if problem is not None:
                raise problem
            # The checkpoint never goes back: it says where damage is an error.
            if unsaved >= save_records and log.end > checkpoint.covered_offset:
                save(last_ms)
                unsaved = 0
    except CorruptStore as error:
        if was_clean or log.end < checkpoint.covered_offset:
            raise  # this was durable: cutting it off would lose acknowledged messages
        damage = error
    log.cut(log.end)
    # Without the folder, the next recovery would read everything.
    files.make_folder(queue_index.FOLDER)
    unsaved_reason = save(last_ms) if records else None
    if is_rebuilding and unsaved_reason is None:
        files.remove(REBUILD)
    return Recovery(
        was_clean,
        start,
        records,
        last_ms,
        None if damage is None else log.end,
        None if damage is None else str(damage),
        unsaved_reason,
    )


def _find_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Return a position before which log and indexes are durable and whole."""
    first = log.first
    covered = checkpoint.covered_offset
    if covered and first <= covered <= first + len(log.segment_starts) * log.segment_bytes:
        return covered
    for start in reversed(log.segment_starts):
        record = log.first_record_of(start)
        if record is not None and record.store_ms <= checkpoint.safe_ms:
            return start
    return first
