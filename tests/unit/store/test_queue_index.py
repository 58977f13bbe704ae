from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.errors import CorruptStore
from downrange.store.queue_index import QueueIndex, Unit

if TYPE_CHECKING:
    from downrange.store.files import Files


def _index(files: Files) -> QueueIndex:
    return QueueIndex(files, "T", 3, segment_units=4)


def _unit(number: int) -> Unit:
    return Unit(log_offset=1000 + number * 10, size=10, tag_hash=-number)


def _filled(files: Files, count: int, first: int = 0) -> QueueIndex:
    index = _index(files)
    for number in range(first, first + count):
        index.put(number, _unit(number))
    return index


def test_units_are_read_back_across_files(files: Files) -> None:
    index = _filled(files, 11)
    assert (index.min_offset, index.max_offset) == (0, 11)
    assert index.units(2, 100) == [_unit(number) for number in range(2, 11)]
    assert index.units(11, 1) == []
    assert list(index.walk(9)) == [_unit(9), _unit(10)]
    assert files.names("consumequeue/T/3") == [f"{start:020}" for start in (0, 80, 160)]


def test_index_knows_its_end_after_opening(files: Files) -> None:
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
    index.put(2, _unit(2))
    index.put(3, _unit(33))
    assert index.max_offset == 5
    assert index.units(2, 2) == [_unit(2), _unit(33)]


def test_number_that_was_left_out_is_named(files: Files) -> None:
    with pytest.raises(CorruptStore, match="messages 2 to 4 are missing"):
        _filled(files, 2).put(5, _unit(5))


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


def test_gaps_behind_the_cut_do_not_matter(files: Files) -> None:
    index = _filled(files, 9)
    index.write()
    files.open(f"consumequeue/T/3/{80:020}").write(20, [bytes(20)])  # unit 5 never got there
    again = _index(files)
    again.cut_from(1040)
    assert again.max_offset == 4
    assert _index(files).max_offset == 4


def test_index_follows_the_log_when_its_front_goes(files: Files) -> None:
    index = _filled(files, 11)
    index.drop_before(1055)
    assert (index.min_offset, index.max_offset) == (6, 11)
    assert files.names("consumequeue/T/3") == [f"{start:020}" for start in (80, 160)]
    index.drop_before(10**9)
    assert (index.min_offset, index.max_offset) == (11, 11)
    assert len(files.names("consumequeue/T/3")) == 1


def test_empty_index_may_go_on_later_than_it_ended(files: Files) -> None:
    index = _filled(files, 11)
    index.drop_before(10**9)
    index.put(21, _unit(21))
    assert (index.min_offset, index.max_offset) == (21, 22)
    index.write()
    again = _index(files)
    assert (again.min_offset, again.max_offset) == (21, 22)


def test_only_changed_files_are_flushed(files: Files) -> None:
    index = _filled(files, 6)
    assert len(index.begin_flush()) == 2
    assert index.begin_flush() == []
    index.put(6, _unit(6))
    assert [file.path for file in index.begin_flush()] == [f"consumequeue/T/3/{80:020}"]
