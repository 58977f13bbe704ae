from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.errors import CorruptStore, DiskFull, StoreError
from downrange.store.files import MemoryFiles
from downrange.store.queue_index import QueueIndex, Unit
from downrange.store.unit_runs import UNIT
from downrange.wire.batches import QUEUE_UNIT

if TYPE_CHECKING:
    from downrange.store.files import Files


def _index(files: Files) -> QueueIndex:
    return QueueIndex(files, "T", 3, segment_units=4, memory_units=3)


def _unit(number: int) -> Unit:
    return Unit(log_offset=1000 + number * 10, size=10, tag_hash=-number)


def _filled(files: Files, count: int, first: int = 0) -> QueueIndex:
    index = _index(files)
    for number in range(first, first + count):
        index.put_again(number, _unit(number))
    return index


def _flush(files: Files, index: QueueIndex) -> list[str]:
    """Flush an index and return the names of the files that were written."""
    writes = index.begin_flush()
    files.write_durably(writes)
    index.finish_flush()
    return [write.path.rpartition("/")[2].lstrip("0") or "0" for write in writes]


def test_units_are_read_back_across_files(files: Files) -> None:
    index = _filled(files, 11)
    assert (index.min_offset, index.max_offset) == (0, 11)
    assert index.units(2, 100) == [_unit(number) for number in range(2, 11)]
    assert index.units(11, 1) == []
    assert list(index.walk(9)) == [_unit(9), _unit(10)]
    index.write()
    assert files.names("consumequeue/T/3") == [f"{start:020}" for start in (0, 80, 160)]
    assert index.units(2, 100) == [_unit(number) for number in range(2, 11)]


def test_units_are_read_from_memory_and_files_as_one(files: Files) -> None:
    index = _filled(files, 8)
    assert _index(files).max_offset == 6  # two units are only in memory
    assert index.units(0, 100) == [_unit(number) for number in range(8)]
    assert index.units(7, 100) == [_unit(7)]
    assert index.find(lambda unit: unit.log_offset < 1065) == 7


def test_units_may_be_put_many_at_a_time(files: Files) -> None:
    index = _filled(files, 1)
    units = [_unit(number) for number in range(1, 11)]
    for some in (units[:1], units[1:1], units[1:]):
        index.put_units(b"".join(QUEUE_UNIT.pack(*unit) for unit in some))
    assert index.max_offset == 11
    assert index.units(0, 99) == [_unit(number) for number in range(11)]
    assert _index(files).max_offset == 11  # more than fit into memory were written


def test_packed_units_are_the_bytes_of_units(files: Files) -> None:
    index = _filled(files, 11)
    for offset, count in ((0, 100), (2, 7), (9, 2), (10, 1), (11, 5), (3, 0)):
        packed = index.packed(offset, count)
        assert packed == b"".join([UNIT.pack(*unit) for unit in index.units(offset, count)])
        assert len(packed) == 20 * min(count, max(11 - offset, 0))
    index.drop_before(1060)
    assert index.packed(5, 9) == b""


def test_index_finds_its_end_when_it_is_opened(files: Files) -> None:
    for count in (0, 1, 3, 4, 5, 8):
        files.remove("consumequeue")
        _filled(files, count).write()
        assert _index(files).max_offset == count


def test_index_may_begin_late_and_is_padded(files: Files) -> None:
    _filled(files, 3, first=6).write()
    index = _index(files)
    assert (index.min_offset, index.max_offset) == (6, 9)
    assert index.units(6, 9) == [_unit(6), _unit(7), _unit(8)]
    padding = files.read_all(f"consumequeue/T/3/{80:020}")
    assert padding is not None
    assert padding[:20] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)


def test_known_number_may_be_said_again(files: Files) -> None:
    index = _filled(files, 5)
    index.put_again(2, _unit(2))
    index.put_again(4, _unit(4))
    assert index.units(0, 9) == [_unit(number) for number in range(5)]


@pytest.mark.parametrize("number", [0, 6])
def test_index_begins_anew_where_its_topic_was_dropped_in_between(
    files: Files, number: int
) -> None:
    index = _filled(files, 9, first=2)
    index.put_again(number, _unit(50))
    index.put_again(number + 1, _unit(51))
    assert (index.min_offset, index.max_offset) == (number, number + 2)
    assert index.units(number, 9) == [_unit(50), _unit(51)]
    _flush(files, index)
    assert _index(files).units(number, 9) == [_unit(50), _unit(51)]


def test_number_that_was_left_out_is_named(files: Files) -> None:
    with pytest.raises(CorruptStore, match="messages 2 to 4 are missing"):
        _filled(files, 2).put_again(5, _unit(5))


def test_index_is_searched(files: Files) -> None:
    index = _filled(files, 9)
    assert index.find(lambda unit: unit.log_offset < 1045) == 5
    assert index.find(lambda unit: unit.log_offset < 0) == 0
    assert index.find(lambda unit: unit.log_offset < 10**9) == 9


def test_index_is_cut_at_a_log_offset(files: Files) -> None:
    index = _filled(files, 9)
    index.cut_from(1035)
    assert index.max_offset == 4
    assert _index(files).max_offset == 4
    index.cut_from(0)
    assert (index.max_offset, _index(files).max_offset) == (0, 0)


def test_number_that_is_gone_has_no_unit(files: Files) -> None:
    assert _filled(files, 3, first=6).units(5, 2) == []


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\x00"])
def test_topic_that_cannot_be_a_folder_name_is_refused(files: Files, topic: str) -> None:
    with pytest.raises(StoreError, match="cannot be the name of a folder"):
        QueueIndex(files, topic, 0)


def test_gaps_behind_the_cut_do_not_matter(files: Files) -> None:
    index = _filled(files, 9)
    index.write()
    files.open(f"consumequeue/T/3/{80:020}").write(20, [bytes(20)])  # unit 5 was never written
    again = _index(files)
    again.cut_from(1040)
    assert again.max_offset == 4
    assert _index(files).max_offset == 4


def test_index_follows_the_log_when_its_front_goes(files: Files) -> None:
    index = _filled(files, 11)
    assert index.drop_before(1055) == [f"consumequeue/T/3/{0:020}"]
    assert (index.min_offset, index.max_offset) == (6, 11)
    assert index.units(6, 9) == [_unit(number) for number in range(6, 11)]
    assert index.drop_before(10**9) == [f"consumequeue/T/3/{80:020}"]
    assert (index.min_offset, index.max_offset) == (11, 11)
    assert index.drop_before(10**9) == []


def test_file_that_a_flush_will_write_to_is_needed(files: Files) -> None:
    index = QueueIndex(files, "T", 3, segment_units=4)
    for number in range(9):
        index.put(*_unit(number))
    index.begin_flush()
    assert index.drop_before(10**9) == []


def test_empty_index_may_go_on_later_than_it_ended(files: Files) -> None:
    index = _filled(files, 11)
    for path in index.drop_before(10**9):
        files.remove(path)
    index.put_again(21, _unit(21))
    assert (index.min_offset, index.max_offset) == (21, 22)
    index.write()
    again = _index(files)
    assert (again.min_offset, again.max_offset) == (21, 22)


def test_only_changed_files_are_flushed(files: Files) -> None:
    index = _filled(files, 7)  # six are written already, one is in memory
    assert _flush(files, index) == ["0", "80", "80"]
    assert _flush(files, index) == []
    index.put(*_unit(7))
    assert _flush(files, index) == ["80"]
    index.put(*_unit(8))
    assert _flush(files, index) == ["160"]
    assert _index(files).units(0, 99) == [_unit(number) for number in range(9)]


def test_units_stay_readable_while_they_are_flushed_and_others_come(files: Files) -> None:
    index = _filled(files, 2)
    writes = index.begin_flush()
    for number in range(2, 9):  # more than are kept in memory
        index.put(*_unit(number))
        assert index.units(0, 99) == [_unit(each) for each in range(number + 1)]
    files.write_durably(writes)
    index.finish_flush()
    assert index.units(0, 99) == [_unit(number) for number in range(9)]
    assert _flush(files, index) == ["0", "80", "160"]
    assert _index(files).units(0, 99) == [_unit(number) for number in range(9)]


def test_flush_that_failed_is_made_up_for_by_the_next(files: Files) -> None:
    index = _filled(files, 4)
    index.begin_flush()
    index.put(*_unit(4))
    assert _flush(files, index) == ["0", "0", "80"]
    assert _index(files).max_offset == 5


def test_fresh_index_waits_until_the_files_of_the_dropped_topic_are_removed(files: Files) -> None:
    _filled(files, 5).write()
    index = QueueIndex(files, "T", 3, segment_units=4, memory_units=3, is_fresh=True)
    for number in range(5):
        index.put(*_unit(10 + number))
    assert index.units(0, 9) == [_unit(10 + number) for number in range(5)]
    assert _index(files).units(0, 9) == [_unit(number) for number in range(5)]
    files.remove("consumequeue/T")
    index.allow_writes()
    index.put(*_unit(15))
    assert _index(files).units(0, 9) == [_unit(10 + number) for number in range(6)]


def test_units_stay_in_memory_while_the_disk_is_full() -> None:
    files = MemoryFiles(capacity=50)
    index = _index(files)
    for number in range(9):
        index.put(*_unit(number))
    assert index.units(0, 99) == [_unit(number) for number in range(9)]
    with pytest.raises(DiskFull):
        _flush(files, index)
    files.capacity = 1000
    for number in range(9, 13):
        index.put(*_unit(number))
    assert _index(files).max_offset == 12
