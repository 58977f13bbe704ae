from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import CorruptStore, DiskFull, StoreError, Unencodable
from downrange.store.files import MemoryFile, MemoryFiles
from downrange.store.log import CommitLog
from downrange.wire.records import blank_record, encode_record
from tests.unit.store.store_stage import record

if TYPE_CHECKING:
    from downrange.store.files import Files

SEGMENT = 1000


def _log(files: Files, count: int = 0) -> CommitLog:
    log = CommitLog(files, SEGMENT)
    log.append([record(number) for number in range(count)])
    return log


def _bodies(log: CommitLog, start: int = 0) -> list[bytes]:
    return [found.body.rstrip(b".") for found in log.walk(start)]


def test_records_are_read_back_where_they_say_they_lie(files: Files) -> None:
    log = _log(files)
    records = [record(number) for number in range(12)]
    log.append(records)
    for written in records:
        assert log.read(written.log_offset, written.size) == encode_record(written)
        assert log.record_at(written.log_offset) is not None
    assert _bodies(log) == [f"body {number}".encode() for number in range(12)]
    assert log.end == records[-1].log_offset + records[-1].size


def test_runs_that_are_close_together_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _log(MemoryFiles())
    records = [record(number) for number in range(12)]
    log.append(records)
    reads: list[int] = []
    read = MemoryFile.read

    def counted(file: MemoryFile, at: int, size: int) -> bytes:
        reads.append(size)
        return read(file, at, size)

    monkeypatch.setattr(MemoryFile, "read", counted)

    def read_some(*numbers: int) -> None:
        wanted = [records[number] for number in numbers]
        reads.clear()
        parts = log.read_runs([(each.log_offset, each.log_offset + each.size) for each in wanted])
        assert [bytes(part) for part in parts] == [encode_record(each) for each in wanted]

    assert log.read_runs([]) == []
    read_some(0)
    assert len(reads) == 1
    read_some(0, 2, 4)
    assert len(reads) == 1
    read_some(*range(0, 12, 2))  # of two segments
    assert len(reads) == len(log.segment_starts) == 2
    read_some(4, 0)  # not an order of a real log, but the records are not mixed up
    assert len(reads) == 2
    monkeypatch.setattr("downrange.store.log.GAP_BYTES", records[1].size - 1)
    read_some(0, 2, 4)
    assert reads == [each.size for each in (records[0], records[2], records[4])]


def test_segment_that_is_full_ends_with_a_blank_record(files: Files) -> None:
    log = _log(files, 12)
    first = files.read_all("commitlog/" + "0" * 20)
    assert first is not None
    used = sum(found.size for found in log.walk(0) if found.log_offset < SEGMENT)
    assert first[used : used + 8] == blank_record(SEGMENT - used)
    assert log.segment_starts[:2] == [0, SEGMENT]


def test_log_has_the_durable_position(files: Files) -> None:
    log = _log(files, 12)
    flush = log.begin_flush()
    assert len(flush.files) == len(log.segment_starts)
    log.append([record(99)])
    flush.run()
    log.finish_flush(flush)
    assert log.flushed == flush.end < log.end
    again = log.begin_flush()
    again.run()
    log.finish_flush(again)
    assert log.begin_flush().files == []


def test_log_is_cut_behind_a_record(files: Files) -> None:
    log = _log(files, 12)
    position = [found.log_offset for found in log.walk(0)][4]
    log.begin_scan(SEGMENT)
    log.cut(position)
    assert (log.end, log.flushed) == (position, min(position, SEGMENT))
    assert _bodies(log) == [f"body {number}".encode() for number in range(4)]
    log.append([record(77)])
    assert _bodies(log)[-1] == b"body 77"


def test_nothing_is_found_where_no_record_begins(files: Files) -> None:
    log = _log(files, 12)
    blank = sum(found.size for found in log.walk(0) if found.log_offset < SEGMENT)
    assert log.record_at(blank) is None
    assert log.record_at(log.end) is None
    assert log.record_at(10**9) is None
    assert log.record_at(4) is None  # the bytes there are a negative size


def test_oldest_segment_can_go(files: Files) -> None:
    log = _log(files, 12)
    assert not log.can_drop_first  # not durable yet
    flush = log.begin_flush()
    flush.run()
    log.finish_flush(flush)
    log.drop_first_segment()
    assert log.first == SEGMENT
    assert log.take_dropped() == ["commitlog/" + "0" * 20]
    assert log.take_dropped() == []
    assert log.record_at(0) is None
    assert len(_bodies(log, SEGMENT)) < 12


def test_failed_append_leaves_the_log_as_it_was() -> None:
    files = MemoryFiles()
    log = _log(files, 3)
    end, before = log.end, _bodies(log)
    for bad, error in (
        (record(1, size=SEGMENT), StoreError),
        (record(1, topic="t" * 200), Unencodable),
    ):
        with pytest.raises(error):
            log.append([record(8), record(9), bad])
        assert (log.end, _bodies(log)) == (end, before)
    nul = record(1)
    nul.property_bytes = b"a\x01\x00\x02"
    with pytest.raises(StoreError, match="NUL"):
        log.append([nul])
    files.capacity = 1500  # enough for the first segment, not for the second
    with pytest.raises(DiskFull):
        log.append([record(number) for number in range(20)])
    assert (log.end, _bodies(log)) == (end, before)
    files.capacity = 1 << 20
    log.append([record(9)])
    assert _bodies(log) == [*before, b"body 9"]


def test_failed_first_append_leaves_an_empty_log(files: Files) -> None:
    log = _log(files)
    with pytest.raises(StoreError, match="larger than a segment"):
        log.append([record(1, size=SEGMENT)])
    assert (log.end, log.segment_starts) == (0, [])


def _spoil(files: Files, position: int, data: bytes) -> None:
    start = position - position % SEGMENT
    files.open(f"commitlog/{start:020}").write(position - start, [data])


def _offset_of(log: CommitLog, number: int) -> int:
    return [found.log_offset for found in log.walk(0)][number]


@pytest.mark.parametrize(
    ("at", "data", "problem"),
    [
        (88, b"X", "does not match its CRC"),
        (0, b"\x00\x00\x00\x05", "a size of 5"),
        (4, b"\x12\x34\x56\x78", "unknown magic"),
        (28, b"\x7f", "the record is of position"),
    ],
)
def test_damage_is_named_with_file_and_position(
    files: Files, at: int, data: bytes, problem: str
) -> None:
    log = _log(files, 12)
    position = _offset_of(log, 7)
    _spoil(files, position + at, data)
    with pytest.raises(CorruptStore, match=problem) as raised:
        list(log.walk(0))
    assert raised.value.path == f"commitlog/{position - position % SEGMENT:020}"
    assert raised.value.position == position % SEGMENT
    assert log.first_record_of(10**6) is None


def test_record_that_cannot_be_read_is_named(files: Files) -> None:
    log = _log(files, 3)
    position = _offset_of(log, 1)
    _spoil(files, position + 84, b"\x7f")
    with pytest.raises(CorruptStore, match="a body of"):
        log.record_at(position)


def test_segment_end_without_room_for_a_blank_is_damage(files: Files) -> None:
    log = CommitLog(files, 200)
    filler: Any = record(1)
    log.append([filler])
    filler.body = filler.body + bytes(200 - filler.size - 4)
    data = encode_record(filler)
    files.open("commitlog/" + "0" * 20).write(0, [data])
    with pytest.raises(CorruptStore, match="are not a blank record"):
        list(log.walk(0))


def test_segment_that_begins_with_damage_has_no_first_record(files: Files) -> None:
    log = _log(files, 3)
    _spoil(files, 4, b"\x01")
    assert log.first_record_of(0) is None


def test_record_larger_than_one_read_is_walked_over(files: Files) -> None:
    log = CommitLog(files, 4 << 20)
    log.append([record(1), record(2, size=3 << 20), record(3)])
    assert _bodies(log) == [b"body 1", b"body 2", b"body 3"]
