from __future__ import annotations

import contextlib
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.store.files import MemoryFiles, PowerLost
from downrange.store.key_index import FOUND_MAX, KeyIndex
from downrange.wire.batches import KEY_ENTRY, add_key_entries
from downrange.wire.hashes import key_front
from tests.unit.store.store_stage import record

if TYPE_CHECKING:
    from downrange.store.files import Files
    from downrange.wire.records import Record

DAY_MS = 86_400_000


def _index(files: Files) -> KeyIndex:
    return KeyIndex(files, slots=7, entries=20, memory_entries=4)


def _stored(number: int, store_ms: int | None = None) -> Record:
    made = record(number)
    made.log_offset = number * 100
    made.store_ms = number * 1000 if store_ms is None else store_ms
    return made


def _put(index: KeyIndex, made: Record, tag: str | None = None) -> None:
    entries = bytearray()
    known = made.properties()
    unique_key, keys = known.get("UNIQ_KEY"), known.get("KEYS")
    add_key_entries(entries, key_front("T"), made.log_offset, unique_key, keys, tag)
    index.put(entries, made.store_ms)


def _fill(index: KeyIndex, numbers: range) -> None:
    for number in numbers:
        _put(index, _stored(number))


def _find(index: KeyIndex, key: str, begin_ms: int = 0, end_ms: int = 2**62) -> list[int]:
    return index.find("T", key, begin_ms=begin_ms, end_ms=end_ms, found_max=99).log_offsets


def _flush(index: KeyIndex) -> None:
    flush = index.begin_flush()
    flush.run()
    index.finish_flush(flush)


def test_record_is_indexed_by_unique_id_and_keys(files: Files) -> None:
    index = _index(files)
    made = _stored(5)
    made.property_bytes = made.property_bytes.replace(b"k5 ", b"k5  ")
    _put(index, made)
    assert [_find(index, key) for key in ("u5", "k5", "common", "", "T#t")] == [[500]] * 3 + [
        []
    ] * 2
    plain = _stored(6)
    plain.property_bytes = b"TAGS\x01a\x02"
    _put(index, plain)
    assert index.end_offset == 500


def test_tags_are_indexed_on_request(files: Files) -> None:
    index = KeyIndex(files, slots=7, entries=20)
    for number in range(2):
        _put(index, _stored(number), "t")
    assert _find(index, "T#t") == [100, 0]
    untagged = _stored(3)
    untagged.property_bytes = b""
    _put(index, untagged)
    assert index.end_offset == 100


def test_keys_are_found_before_and_after_a_flush_and_after_opening(files: Files) -> None:
    index = _index(files)
    _fill(index, range(30))
    for step in ("before", "after", "opened"):
        looked_at = _index(files) if step == "opened" else index
        assert _find(looked_at, "k3") == [300]
        assert _find(looked_at, "u29") == [2900]
        assert _find(looked_at, "common") == [number * 100 for number in reversed(range(30))]
        assert _find(looked_at, "never") == []
        _flush(index)
    assert len(files.names("index")) == 5


def test_flush_may_run_while_keys_are_added(files: Files) -> None:
    index = _index(files)
    _fill(index, range(3))
    flush = index.begin_flush()
    _fill(index, range(3, 6))
    assert _find(index, "common") == [500, 400, 300, 200, 100, 0]
    flush.run()
    index.finish_flush(flush)
    assert _find(index, "common") == [500, 400, 300, 200, 100, 0]
    assert _find(_index(files), "common") == [200, 100, 0]  # the others wait for the next flush
    _flush(index)
    assert _find(_index(files), "common") == [500, 400, 300, 200, 100, 0]


def test_query_is_bounded_by_time_and_count(files: Files) -> None:
    index = _index(files)
    _fill(index, range(200))
    assert len(_find(index, "common")) == FOUND_MAX
    assert _find(index, "common", 5_000, 7_000) == [700, 600, 500]
    assert _find(index, "common", 5_000, 5_000) == [500]
    found = index.find("T", "common", begin_ms=0, end_ms=2**62, found_max=2)
    assert found.log_offsets == [19900, 19800]
    assert (found.last_store_ms, found.last_log_offset) == (199_000, 19_900)


def test_empty_index_finds_nothing(files: Files) -> None:
    index = _index(files)
    assert index.find("T", "k", begin_ms=0, end_ms=1, found_max=1) == ([], 0, 0)
    _flush(index)
    assert index.end_offset == -1
    assert files.names("index") == []


def test_files_are_named_by_time_and_never_twice(files: Files) -> None:
    index = _index(files)
    for number in range(20):
        _put(index, _stored(number, store_ms=DAY_MS))
    names = files.names("index")
    assert len(names) == 4
    assert all(len(name) == 17 and name.isdecimal() for name in names)


def test_old_files_go_with_the_log(files: Files) -> None:
    index = _index(files)
    _fill(index, range(30))
    names = files.names("index")
    assert index.drop_before(1500) == [f"index/{name}" for name in names[:2]]
    assert index.drop_before(10**9) == [f"index/{name}" for name in names[2:4]]
    assert _find(index, "k29") == [2900]


def test_entries_are_undone_from_a_log_offset_on(files: Files) -> None:
    index = _index(files)
    _fill(index, range(30))
    index.cut_from(500)
    assert index.end_offset == 400
    for looked_at in (index, _index(files)):
        assert _find(looked_at, "common") == [400, 300, 200, 100, 0]
        assert _find(looked_at, "k7") == []
    _fill(index, range(5, 9))
    assert _find(index, "common")[0] == 800
    index.cut_from(0)
    assert files.names("index") == []


@pytest.mark.parametrize("steps", range(9))
def test_interrupted_flush_hides_nothing_older(steps: int) -> None:
    """Undoing the entries of a flush restores the state before it, whatever was written."""
    for seed in range(20):
        files = MemoryFiles()
        index = _index(files)
        _fill(index, range(3))
        _flush(index)
        _fill(index, range(3, 9))  # into the next file
        files.steps_left = steps
        with contextlib.suppress(PowerLost):
            _flush(index)
        files.crash(Random(seed))
        again = _index(files)
        again.cut_from(300)
        for looked_at in (again, _index(files)):
            assert _find(looked_at, "common") == [200, 100, 0]
            assert [_find(looked_at, f"u{number}") for number in range(3)] == [[0], [100], [200]]
        _fill(again, range(3, 9))
        _flush(again)
        assert _find(_index(files), "common") == [800, 700, 600, 500, 400, 300, 200, 100, 0]


def test_flush_that_failed_is_made_up_for_by_the_next(files: Files) -> None:
    index = _index(files)
    _fill(index, range(2))
    index.begin_flush()
    _flush(index)
    assert _find(_index(files), "common") == [100, 0]


def test_pages_of_slots_are_written_together_where_they_are_neighbours(files: Files) -> None:
    index = KeyIndex(files, slots=5000, entries=100)
    slots = [0, 1500, 1024, 4500, 4999]
    index.put(b"".join(KEY_ENTRY.pack(slot, 7) for slot in slots), 1000)
    flush = index.begin_flush()
    assert [(write.at, len(write.data)) for write in flush.parts[0].slots] == [
        (40, 2 * 4096),
        (40 + 4 * 4096, (5000 - 4096) * 4),
    ]
    flush.run()
    index.finish_flush(flush)
    (name,) = files.names("index")
    numbers = [files.open(f"index/{name}").read(40 + slot * 4, 4)[3] for slot in slots]
    assert numbers == [1, 2, 3, 4, 5]


def test_file_that_is_full_reads_its_slots_from_the_disk(files: Files) -> None:
    index = _index(files)
    _fill(index, range(10))
    flush = index.begin_flush()
    flush.run()
    index.finish_flush(flush)
    (name, *_) = files.names("index")
    files.open(f"index/{name}").write(40, [bytes(4)] * 7)
    assert _find(index, "k1") == []
    assert _find(index, "k9") == [900]


def test_entries_stay_in_memory_while_the_disk_is_full() -> None:
    files = MemoryFiles(capacity=50)
    index = KeyIndex(files, slots=7, entries=100, memory_entries=4)
    _fill(index, range(4))
    assert _find(index, "common") == [300, 200, 100, 0]
    files.capacity = 10_000
    _fill(index, range(4, 9))
    assert files.capacity < 10_000
    _flush(index)
    assert len(_find(_reopened(files), "common")) == 9


def _reopened(files: Files) -> KeyIndex:
    return KeyIndex(files, slots=7, entries=100)


@pytest.mark.parametrize(("store_ms", "found_at_ms"), [(0, 5_000), (2**62, 2**31 * 1000)])
def test_times_that_do_not_fit_are_bent(files: Files, store_ms: int, found_at_ms: int) -> None:
    index = _index(files)
    _put(index, _stored(1, store_ms=5_000))
    _put(index, _stored(2, store_ms=store_ms))
    _put(index, _stored(3, store_ms=2**62))
    end_ms = 5_000 if store_ms == 0 else 5_000 + found_at_ms
    assert 200 in _find(index, "common", 0, end_ms)


def test_broken_chain_ends_a_search(files: Files) -> None:
    index = _index(files)
    _fill(index, range(3))
    _flush(index)
    (name,) = files.names("index")
    entries_at = 40 + 7 * 4
    for number in range(1, 10):  # every entry names itself as the one before it
        files.open(f"index/{name}").write(
            entries_at + number * 20 + 16, [number.to_bytes(4, "big")]
        )
    assert len(_find(_index(files), "common")) == 1


@pytest.mark.parametrize("slot", [-5, 99])
def test_slot_that_names_no_entry_is_empty(files: Files, slot: int) -> None:
    index = _index(files)
    _fill(index, range(2))
    _flush(index)
    (name,) = files.names("index")
    file = files.open(f"index/{name}")
    file.write(40, [slot.to_bytes(4, "big", signed=True)] * 7)
    assert _find(_index(files), "common") == []
