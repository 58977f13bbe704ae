"""Recovery: bring log and indexes of a store into agreement when it is opened.

1. Find the start: a position before which log and indexes are durable and agree.
2. After a crash, cut the indexes back to the start. Behind it, they are as uncertain as the log.
3. Walk the log from the start and index each record again, up to the end or to a damaged record.
4. Cut the log there.

Durable records are never cut off. So damage before the checkpoint, or in a store that was closed,
is an error. A clean start reads nothing: the start is the end of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from downrange.errors import CorruptStore
from downrange.store import queue_index
from downrange.store.checkpoint import load_checkpoint
from downrange.store.files import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.store.checkpoint import Checkpoint
    from downrange.store.files import Files
    from downrange.store.log import CommitLog
    from downrange.wire.records import Record

#: A file that exists while the store is open; finding it at the start means that there was a crash.
ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening the store found.

    Attributes:
        was_clean: Whether the store had been closed.
        scanned_from: Where the walk over the log began.
        scanned_records: How many records it read.
        last_ms: The newest store time, of those records and of the checkpoint.
        cut_at: Where the log was cut, or None if it ended with a whole record.
        cut_reason: What was wrong with the record there.
    """

    was_clean: bool
    scanned_from: int
    scanned_records: int
    last_ms: int
    cut_at: int | None = None
    cut_reason: str | None = None


def recover(
    files: Files,
    log: CommitLog,
    cut_indexes: Callable[[int], None],
    index_again: Callable[[Record], None],
) -> Recovery:
    """Bring log and indexes into agreement.

    Args:
        files: The store's folder.
        log: Its end is set.
        cut_indexes: Removes what the indexes say of records from a position on.
        index_again: Indexes a record, where an index does not have it already.

    Raises:
        CorruptStore: A durable part of the store is damaged; it names file and position.
    """
    checkpoint = load_checkpoint(files)
    was_clean = files.read_all(ABORT) is None
    start = _find_start(files, log, checkpoint)
    if not was_clean:
        cut_indexes(start)
    position, records, last_ms = start, 0, checkpoint.log_ms
    damage: CorruptStore | None = None
    try:
        for record in log.walk(start):
            if not was_clean and is_torn(record):
                raise log.corrupt(record.log_offset, "its end was not written")
            index_again(record)
            last_ms = max(last_ms, record.store_ms)
            position = record.log_offset + record.size
            records += 1
    except CorruptStore as error:
        if was_clean or position < checkpoint.covered_offset:
            raise  # this was durable: cutting it off would lose acknowledged messages
        damage = error
    log.cut(position, durable_to=start)
    if damage is None:
        return Recovery(was_clean, start, records, last_ms)
    return Recovery(was_clean, start, records, last_ms, position, str(damage))


def _find_start(files: Files, log: CommitLog, checkpoint: Checkpoint) -> int:
    """Return a position before which log and indexes are durable and whole."""
    first = log.first
    if not files.is_folder(queue_index.FOLDER):
        return first  # the indexes are gone: everything is read again
    covered = checkpoint.covered_offset
    if covered and first <= covered <= first + len(log.segment_starts) * log.segment_bytes:
        return covered
    for start in reversed(log.segment_starts):
        record = log.first_record_of(start)
        if record is not None and record.store_ms <= checkpoint.safe_ms:
            return start
    return first


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
