"""Opening a store after a clean end, a crash, or the loss of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.errors import CorruptStore
from downrange.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from downrange.store.files import MemoryFiles, PowerLost
from downrange.store.log import CommitLog
from downrange.store.recovery import ABORT, is_torn
from downrange.wire.codes import TransactionFlag
from tests.unit.store.store_stage import bodies, expected, fill, find, open_store, record, spoil

if TYPE_CHECKING:
    from downrange.store.files import Files


def test_power_lost_while_a_crashed_store_is_opened_leaves_it_crashed() -> None:
    steps = 0
    while True:
        files = MemoryFiles()
        fill(open_store(files), 3)
        files.steps_left = steps
        try:
            open_store(files)
        except PowerLost:
            files.steps_left = None
            assert not open_store(files).recovery.was_clean
            steps += 1
        else:
            break
    assert steps > 0


def test_closed_store_is_opened_without_a_scan(files: Files) -> None:
    store = open_store(files)
    fill(store, 30)
    assert files.read_all(ABORT) is not None
    store.close()
    assert files.read_all(ABORT) is None
    again = open_store(files)
    assert again.recovery.was_clean
    assert (again.recovery.scanned_records, again.recovery.cut_at) == (0, None)
    assert bodies(again) == expected(*range(30))
    fill(again, 1, first=30)
    assert bodies(again) == expected(*range(31))


def test_open_store_is_scanned_from_the_last_flush_on(files: Files) -> None:
    store = open_store(files)
    fill(store, 20)
    store.flush()
    fill(store, 5, first=20)
    again = open_store(files)
    assert not again.recovery.was_clean
    assert again.recovery.scanned_records == 5
    assert bodies(again) == expected(*range(25))
    assert find(again, "common")[0] == find(store, "common")[0]


def test_torn_tail_is_cut_and_reported(files: Files) -> None:
    store = open_store(files)
    fill(store, 5)
    store.flush()
    *_, last = fill(store, 3, first=5)
    spoil(files, last.log_offset + 90)
    again = open_store(files)
    assert again.recovery.cut_at == last.log_offset
    assert again.recovery.cut_reason is not None
    assert "does not match its CRC" in again.recovery.cut_reason
    assert bodies(again) == expected(*range(7))
    fill(again, 1, first=50)
    assert bodies(again) == expected(*range(7), 50)


def test_lost_sector_of_the_tail_is_cut(files: Files) -> None:
    store = open_store(files)
    long = record(1)
    long.property_bytes = b"a\x01" + b"v" * 1500 + b"\x02"
    store.append([record(0), long], 1000)
    files.open("commitlog/" + "0" * 20).write(512, [bytes(512)])
    again = open_store(files)
    assert again.recovery.cut_at == long.log_offset
    assert bodies(again) == expected(0)


def test_damage_in_what_was_durable_is_an_error(files: Files) -> None:
    store = open_store(files)
    first, *_ = fill(store, 5)
    store.close()
    spoil(files, first.log_offset + 90)
    files.remove("consumequeue")  # so that everything is read again
    with pytest.raises(CorruptStore, match="does not match its CRC") as raised:
        open_store(files)
    assert (raised.value.path, raised.value.position) == ("commitlog/" + "0" * 20, 0)


def test_lost_indexes_are_built_again(files: Files) -> None:
    store = open_store(files)
    records = fill(store, 40)
    store.close()
    files.remove("consumequeue")
    files.remove("index")
    again = open_store(files)
    assert again.recovery.scanned_records == 40
    assert bodies(again) == expected(*range(40))
    assert find(again, "k33") == [records[33].log_offset]


def test_checkpoint_of_an_older_release_is_enough(files: Files) -> None:
    """It has times, but no offset; the scan begins at a segment that is old enough."""
    store = open_store(files)
    fill(store, 60)
    store.close()
    checkpoint = load_checkpoint(files)
    save_checkpoint(files, checkpoint._replace(covered_offset=0))
    again = open_store(files)
    assert 0 < again.recovery.scanned_records < 60
    assert again.recovery.scanned_from == again.log.segment_starts[-1]
    assert bodies(again) == expected(*range(60))
    again.close()
    save_checkpoint(files, Checkpoint())
    assert open_store(files).recovery.scanned_from == 0


def test_missing_checkpoint_reads_as_zeros(files: Files) -> None:
    assert load_checkpoint(files) == Checkpoint()
    assert Checkpoint(10_000, 8_000).safe_ms == 5_000


def test_half_messages_are_in_no_queue_after_a_crash(files: Files) -> None:
    store = open_store(files)
    store.append([record(1, sys_flag=int(TransactionFlag.PREPARED)), record(2)], 1000)
    again = open_store(files)
    assert again.recovery.scanned_records == 2
    assert bodies(again) == expected(2)


def test_index_files_of_deleted_messages_are_removed_when_the_store_is_opened(files: Files) -> None:
    store = open_store(files)
    fill(store, 60)
    store.flush()
    for name in files.names("commitlog")[:2]:
        files.remove(f"commitlog/{name}")
    fill(store, 1, first=60)
    before = len(files.names("consumequeue/T/0"))
    again = open_store(files)
    assert len(files.names("consumequeue/T/0")) < before
    assert bodies(again) == expected(*range(again.queue("T", 0).min_offset, 61))


def test_lost_sector_behind_the_body_is_seen(files: Files) -> None:
    log = CommitLog(files, 8192)
    long = record(1)
    long.property_bytes = b"a\x01" + b"v" * 1500 + b"\x02"
    log.append([long])
    (whole,) = log.walk(0)
    assert not is_torn(whole)
    files.open("commitlog/" + "0" * 20).write(512, [bytes(512)])
    (torn,) = log.walk(0)
    assert is_torn(torn)
