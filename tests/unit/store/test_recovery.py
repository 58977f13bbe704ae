"""Opening a store after a clean end, a crash, or the loss of files."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.errors import CorruptStore
from downrange.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from downrange.store.files import MemoryFiles, PowerLost
from downrange.store.log import CommitLog, is_torn
from downrange.store.recovery import ABORT, REBUILD
from downrange.wire.codes import TransactionFlag
from tests.unit.store.store_stage import bodies, expected, fill, find, open_store, record, spoil

if TYPE_CHECKING:
    from downrange.store.files import Files
    from downrange.store.message_store import MessageStore


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


def test_second_crash_without_new_messages_reads_nothing_again(files: Files) -> None:
    fill(open_store(files), 30)
    assert open_store(files).recovery.scanned_records == 30
    again = open_store(files)
    assert not again.recovery.was_clean
    assert (again.recovery.scanned_records, again.recovery.cut_at) == (0, None)
    assert again.log.flushed == again.log.end
    assert bodies(again) == expected(*range(30))
    assert find(again, "k29") == [again.queue("T", 0).units(29, 1)[0].log_offset]


def test_each_of_many_crashes_reads_only_the_messages_since_the_last_one(files: Files) -> None:
    counts: list[int] = []
    for crash in range(12):
        store = open_store(files)
        counts.append(store.recovery.scanned_records)
        fill(store, 5, first=5 * crash)
    assert counts == [0, *[5] * 11]
    assert bodies(open_store(files)) == expected(*range(60))


def test_cut_tail_is_not_read_again(files: Files) -> None:
    *_, last = fill(open_store(files), 8)
    spoil(files, last.log_offset + 90)
    first, second = open_store(files).recovery, open_store(files).recovery
    assert (first.scanned_records, first.cut_at) == (7, last.log_offset)
    assert (second.scanned_from, second.scanned_records) == (last.log_offset, 0)
    assert second.cut_at is None


@pytest.mark.parametrize("seed", range(20))
def test_recovery_writes_the_same_index_files_as_a_store_that_did_not_crash(seed: int) -> None:
    whole, crashed = MemoryFiles(), MemoryFiles()
    for files, is_killed in ((whole, False), (crashed, True)):
        random, number = Random(seed), 0
        store = open_store(files)
        for turn in range(40):
            records = [
                record(
                    number + index,
                    topic=random.choice(["A", "B", "B" * 127]),
                    queue_id=random.randrange(2),
                    size=random.randrange(300),
                    sys_flag=int(TransactionFlag.PREPARED) * (random.random() < 0.2),
                )
                for index in range(random.randrange(1, 6))
            ]
            number += len(records)
            store.append(records, 1000 + turn // 3 * 700)
            if random.random() < 0.1:
                store.flush()
            if random.random() < 0.1 and is_killed:
                store = open_store(files)
                assert not store.recovery.was_clean
        if is_killed:
            store = open_store(files)
        store.close()
    assert _contents(crashed) == _contents(whole)


def _contents(files: MemoryFiles) -> dict[str, bytes | None]:
    folders = ["commitlog", "index"]
    for topic in files.names("consumequeue"):
        folders += [f"consumequeue/{topic}/{name}" for name in files.names(f"consumequeue/{topic}")]
    paths = ["checkpoint"]
    paths += [f"{folder}/{name}" for folder in folders for name in files.names(folder)]
    return {path: files.read_all(path) for path in paths}


def test_interrupted_recovery_gets_further_each_time() -> None:
    """Like a start that a supervisor ends after some time, again and again."""
    files = MemoryFiles()
    fill(open_store(files), 120)
    starts: list[int] = []
    store: MessageStore | None = None
    while store is None:
        files.steps_left = 90
        try:
            store = open_store(files)
        except PowerLost:
            starts.append(load_checkpoint(files).covered_offset)
            assert len(starts) < 20
    assert len(starts) > 1
    assert starts == sorted(set(starts))
    files.steps_left = None
    assert bodies(store) == expected(*range(120))
    assert find(store, "k33") == [store.queue("T", 0).units(33, 1)[0].log_offset]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_log_is_cut_before_a_message_whose_predecessors_are_missing(
    files: Files, is_flushed: bool
) -> None:
    store = open_store(files)
    fill(store, 3)
    if is_flushed:
        store.flush()
    end, late = store.log.end, record(9)
    late.queue_offset = 5
    store.log.append([late, record(10)])
    again = open_store(files)
    assert again.recovery.scanned_records == (0 if is_flushed else 3)
    assert (again.recovery.cut_at, again.log.end) == (end, end)
    assert again.recovery.cut_reason is not None
    assert "messages 3 to 4 are missing" in again.recovery.cut_reason
    assert bodies(again) == expected(0, 1, 2)
    assert [len(find(again, key)) for key in ("k2", "k9", "common")] == [1, 0, 3]


def test_store_on_a_full_disk_is_opened_without_a_checkpoint() -> None:
    files = MemoryFiles()
    fill(open_store(files), 10)
    files.capacity = 0
    full = open_store(files)
    assert full.recovery.unsaved_reason is not None
    assert "no space" in full.recovery.unsaved_reason
    assert bodies(full) == expected(*range(10))
    files.capacity = 1 << 20
    again = open_store(files)
    assert (again.recovery.scanned_records, again.recovery.unsaved_reason) == (10, None)
    assert open_store(files).recovery.scanned_records == 0


def test_failing_disk_ends_the_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that failed once may succeed the next time, without the records that were lost."""
    files = MemoryFiles()
    fill(open_store(files), 3)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(MemoryFiles, "write_durably", fail)
    with pytest.raises(OSError, match="input/output"):
        open_store(files)


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


@pytest.mark.parametrize("is_closed", [True, False])
def test_power_lost_while_lost_indexes_are_built_begins_again(is_closed: bool) -> None:
    steps = 0
    while True:
        files = MemoryFiles()
        store = open_store(files)
        records = fill(store, 30)
        store.flush()
        if is_closed:
            store.close()
        files.remove("consumequeue")
        files.remove("index")
        files.steps_left = steps
        try:
            open_store(files)
        except PowerLost:
            files.crash(Random(steps))
        else:
            break
        again = open_store(files)
        assert bodies(again) == expected(*range(30))
        assert find(again, "k13") == [records[13].log_offset]
        assert files.read_all(REBUILD) is None
        again.close()
        assert open_store(files).recovery.scanned_records == 0
        steps += 1
    assert steps > 20


def test_interrupted_building_of_indexes_keeps_the_checkpoint() -> None:
    """Damage before it is still an error then."""
    files = MemoryFiles()
    store = open_store(files)
    records = fill(store, 30)
    store.flush()
    covered = store.log.end
    files.remove("consumequeue")
    files.steps_left = 25
    with pytest.raises(PowerLost):
        open_store(files)
    files.crash(Random(1))
    assert files.read_all(REBUILD) is not None
    assert load_checkpoint(files).covered_offset == covered
    spoil(files, records[25].log_offset + 90)
    with pytest.raises(CorruptStore, match="does not match its CRC"):
        open_store(files)


def test_indexes_built_on_a_full_disk_are_saved_by_a_close() -> None:
    files = MemoryFiles()
    store = open_store(files)
    fill(store, 10)
    store.close()
    files.remove("consumequeue")
    files.remove("index")
    files.replace(ABORT, b"")
    files.replace(REBUILD, b"")
    files.capacity = 0
    full = open_store(files)
    assert full.recovery.unsaved_reason is not None
    files.capacity = 1 << 20
    full.close()
    assert files.read_all(REBUILD) is None
    again = open_store(files)
    assert (again.recovery.was_clean, again.recovery.scanned_records) == (True, 0)
    assert bodies(again) == expected(*range(10))


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
