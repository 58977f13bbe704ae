from __future__ import annotations

import errno
from copy import copy
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from downrange.errors import DiskFull, MalformedRecord, OptionError, StoreError, Unencodable
from downrange.store.checkpoint import load_checkpoint
from downrange.store.files import MemoryFiles
from downrange.store.message_store import MessageStore
from downrange.store.retention import RetentionOptions, drop_old_segments, is_disk_full
from downrange.store.unit_runs import UNIT_BYTES
from downrange.wire.codes import TransactionFlag
from downrange.wire.hashes import tag_hash
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.records import decode_records
from downrange.wire.run_items import RunForm
from tests.support.disks import FailingFile, FailingFiles
from tests.unit.store.store_stage import (
    SMALL,
    batch_of,
    bodies,
    expected,
    fill,
    find,
    open_store,
    record,
    spoil,
)

if TYPE_CHECKING:
    from downrange.store.files import Files
    from downrange.wire.records import Record
    from downrange.wire.run_items import RunItem

HOUR_MS = 3_600_000


def test_appended_records_are_found_at_once_in_every_way(files: Files) -> None:
    store = open_store(files)
    records = fill(store, 40)
    assert [made.queue_offset for made in records] == list(range(40))
    assert bodies(store) == expected(*range(40))
    assert {made.size for made in records} == {unit.size for unit in store.queue("T", 0).walk(0)}
    assert all(made.is_intact for made in records)
    assert find(store, "k7") == [records[7].log_offset]
    assert store.offset_at("T", 0, 12_500) == 13
    assert store.offset_at("T", 0, 10**9) == 40
    assert list(store.queue_names()) == [("T", 0)]


def test_batch_is_one_range_of_offsets_per_queue(files: Files) -> None:
    store = open_store(files)
    batch = [record(number, queue_id=number % 2) for number in range(6)]
    store.append(batch, 1000)
    assert [made.queue_offset for made in batch] == [0, 0, 1, 1, 2, 2]


def test_half_messages_are_in_no_queue(files: Files) -> None:
    store = open_store(files)
    half = record(1, sys_flag=int(TransactionFlag.PREPARED))
    store.append([half, record(2)], 1000)
    assert half.queue_offset == 0
    assert bodies(store) == expected(2)
    assert store.log.record_at(half.log_offset) is not None


def test_store_times_never_go_back(files: Files) -> None:
    store = open_store(files)
    first, second = record(1), record(2)
    store.append([first], 5000)
    store.append([second], 3000)
    assert second.store_ms == 5000


def test_unit_tag_can_be_something_else(files: Files) -> None:
    store = MessageStore(files, SMALL, unit_tag=lambda _topic, _queue, ms, tag: ms if tag else 0)
    store.append([record(1)], 5000)
    (unit,) = store.queue("T", 0).units(0, 1)
    assert unit.tag_hash == 5000


def test_full_disk_refuses_and_recovers() -> None:
    files = MemoryFiles()
    store = open_store(files)
    fill(store, 3)
    files.capacity = 50
    with pytest.raises(DiskFull):
        store.append([record(3)], 9000)
    assert bodies(store) == expected(0, 1, 2)
    files.capacity = 1 << 20
    store.append([record(4)], 9000)
    assert bodies(store) == expected(0, 1, 2, 4)


def test_topic_can_be_dropped(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    store.append([record(1, topic="U")], 1000)
    store.drop_topic("T")
    assert bodies(store) == []
    assert bodies(store, "U") == expected(1)
    store.flush()
    assert list(store.queue_names()) == [("U", 0)]


# ---- retention -----------------------------------------------------------------------------------


def test_old_segments_go_and_the_indexes_follow(files: Files) -> None:
    store = open_store(files)
    fill(store, 60)
    segments = len(store.log.segment_starts)
    options = RetentionOptions(keep_hours=1, disk_used_max=1, disk_used_full=1)
    newest_old_ms = 30_000
    assert drop_old_segments(store, files, options, now_ms=HOUR_MS + newest_old_ms) == 0
    store.flush()  # only durable segments can be dropped
    assert drop_old_segments(store, files, options, now_ms=HOUR_MS) == 0
    dropped = drop_old_segments(store, files, options, now_ms=HOUR_MS + newest_old_ms)
    assert 0 < dropped < segments - 1
    queue = store.queue("T", 0)
    assert 0 < queue.min_offset <= 30
    assert bodies(store) == expected(*range(queue.min_offset, 60))
    store.close()
    assert files.names("commitlog")[0] == f"{store.log.first:020}"
    again = open_store(files)
    assert (again.queue("T", 0).min_offset, again.queue("T", 0).max_offset) == (
        queue.min_offset,
        60,
    )
    assert drop_old_segments(again, files, options, now_ms=10**12) >= 1
    assert len(again.log.segment_starts) == 1  # the segment that is written to stays


def test_segments_go_while_the_disk_is_full() -> None:
    files = MemoryFiles(capacity=100)
    files.space = lambda: (20_000, 100_000)  # type: ignore[method-assign]
    files.capacity = 1 << 20
    store = open_store(files)
    fill(store, 60)
    store.flush()
    options = RetentionOptions(disk_used_max=0.75, disk_used_full=0.79)
    assert is_disk_full(files, options)
    # Dropping two files frees the 5 % above the limit, though they are removed only later.
    assert drop_old_segments(store, files, options, now_ms=60_000) == 2
    assert store.freed_soon_bytes == 2 * SMALL.log_segment_bytes
    flush = store.begin_flush()
    assert store.freed_soon_bytes == 2 * SMALL.log_segment_bytes
    flush.run()
    store.finish_flush(flush)
    assert store.freed_soon_bytes == 0
    files.space = lambda: (50, 100)  # type: ignore[method-assign]
    assert not is_disk_full(files, options)


def test_segment_that_a_log_flush_may_hold_is_removed_later(files: Files) -> None:
    store = open_store(files)
    fill(store, 60)
    store.flush()
    store.drop_first_segment()
    first = "commitlog/" + "0" * 20
    under_way = store.begin_log_flush()
    store.flush()
    assert files.read_all(first) is not None
    under_way.run()
    store.finish_log_flush(under_way)
    store.flush()
    assert files.read_all(first) is None


def test_a_flush_moves_the_front_of_unused_queues(files: Files) -> None:
    store = open_store(files)
    for number in range(70):
        store.append([record(number), record(number, topic="U")], number * 1000)
    store.close()
    store = open_store(files)
    assert len(files.names("consumequeue/U/0")) == 9
    while store.log.can_drop_first:
        store.drop_first_segment()
    store.flush()
    assert len(files.names("consumequeue/U/0")) == 1


def test_records_of_a_segment_that_is_gone_are_not_read(files: Files) -> None:
    store = open_store(files)
    fill(store, 60)
    store.flush()
    units = store.queue("T", 0).packed(0, 60)
    store.drop_first_segment()
    assert store.read_range(units, 1 << 20) == (0, [])
    count, parts = store.read_range(units[-3 * UNIT_BYTES :] + units[:UNIT_BYTES], 1 << 20)
    assert (count, len(parts)) == (3, 1)


# ---- batches -------------------------------------------------------------------------------------


def _snapshot(files: Files) -> dict[str, bytes | None]:
    folders = ["commitlog", "index", *(f"consumequeue/T/{number}" for number in range(3))]
    return {
        f"{folder}/{name}": files.read_all(f"{folder}/{name}")
        for folder in folders
        for name in files.names(folder)
    }


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 900), min_size=1, max_size=12)),
        min_size=1,
        max_size=6,
    )
)
def test_a_batch_is_stored_like_its_messages_one_by_one(made: list[tuple[int, list[int]]]) -> None:
    """Queue and sizes of each batch; a batch of one message is also appended as a record."""
    alone, together = MemoryFiles(), MemoryFiles()
    apart, batched = open_store(alone), open_store(together)
    number = 0
    lists: list[list[Record]] = []
    for queue_id, sizes in made:
        lists.append([])
        for size in sizes:
            lists[-1].append(record(number, queue_id=queue_id, size=size))
            number += 1
    entries = [batch_of(each) if len(each) > 1 else each[0] for each in lists]
    batched.append(entries, 5000)
    apart.append([copy(single) for each in lists for single in each], 5000)
    assert batched.log.end == apart.log.end
    batched.close()
    apart.close()
    assert _snapshot(together) == _snapshot(alone)


def run_of(records: list[Record]) -> tuple[RunForm, list[RunItem]]:
    """Return records of one queue as a run."""
    form = RunForm(replace(records[0], body=b"", property_bytes=b""))
    tag_code = tag_hash("t")
    return form, [
        (b"%b", (made.body,), b"%b", (made.property_bytes,), tag_code) for made in records
    ]


@given(st.lists(st.lists(st.integers(20, 900), min_size=1, max_size=5), max_size=6))
def test_a_run_is_stored_like_its_records_but_for_their_keys(made: list[list[int]]) -> None:
    """Sizes of each run; some cross into the next segment."""
    apart, together = open_store(MemoryFiles()), open_store(MemoryFiles())
    number = 0
    for sizes in made:
        records = [record(number + n, size=size) for n, size in enumerate(sizes)]
        number += len(sizes)
        for each in records:
            each.born_ms = number * 1000
        form, items = run_of(records)
        first = together.append_run(form, items, number * 1000)
        apart.append(records, number * 1000)
        assert first == records[0].queue_offset
    assert together.log.end == apart.log.end
    assert list(together.log.walk(0)) == list(apart.log.walk(0))
    units = [store.queue("T", 0).units(0, 100) for store in (apart, together)]
    assert units[0] == units[1]


def test_keys_of_a_run_are_not_indexed_and_its_times_never_go_back(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    assert store.append_run(*run_of([record(3), record(4)]), 1) == 3
    assert bodies(store) == expected(*range(5))
    assert find(store, "k2") != []
    assert find(store, "k3") == []
    assert store.read_record(store.queue("T", 0).units(4, 1)[0]).store_ms == 2000
    store.close()
    assert bodies(open_store(files)) == expected(*range(5))


def test_a_run_that_cannot_be_stored_leaves_nothing() -> None:
    files = MemoryFiles()
    store = open_store(files)
    fill(store, 3)
    end = store.log.end
    torn = record(4)
    torn.property_bytes = b"a\x01\x00\x02"
    with pytest.raises(Unencodable, match="NUL"):
        store.append_run(*run_of([record(3), torn]), 5000)
    files.capacity = 10
    with pytest.raises(DiskFull):
        store.append_run(*run_of([record(3)]), 5000)
    assert (store.log.end, store.queue("T", 0).max_offset) == (end, 3)
    files.capacity = 1 << 20
    assert store.append_run(*run_of([record(3)]), 5000) == 3
    assert bodies(store) == expected(*range(4))


def test_a_batch_has_the_positions_of_its_records(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    batch = batch_of([record(number) for number in range(3, 40)])
    store.append([record(1000, queue_id=1), batch, record(40)], 99_000, [{}, {}, {"KEYS": "k40"}])
    assert list(batch.queue_offsets) == [3]
    units = store.queue("T", 0).units(3, 37)
    assert [store.read_record(unit).store_ms for unit in units] == [99_000] * 37
    assert batch.ids("") == ",".join(f"{unit.log_offset:016X}" for unit in units)
    assert list(batch.queue_bytes) == [sum(unit.size for unit in units)]
    assert bodies(store) == expected(*range(41))
    assert find(store, "k17") == [units[14].log_offset]
    assert find(store, "k40") != []


def test_a_batch_that_cannot_be_stored_leaves_nothing_and_may_be_tried_again(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    end = store.log.end
    huge = batch_of([record(3), record(4), record(5, size=SMALL.log_segment_bytes)])
    with pytest.raises(StoreError, match="larger than a segment"):
        store.append([huge], 5000)
    torn = record(6)
    torn.property_bytes = b"a\x01\x00\x02"
    with pytest.raises(StoreError, match="NUL"):
        store.append([batch_of([record(3), torn])], 5000)
    assert (store.log.end, store.queue("T", 0).max_offset) == (end, 3)
    good = batch_of([record(3), record(4)])
    with pytest.raises(StoreError, match="NUL"):
        store.append([good, torn], 5000)
    store.append([good], 5000)
    assert bodies(store) == expected(*range(5))


def test_units_hold_the_tag_hash_of_the_broker_and_those_of_a_batch_that_of_the_tag(
    files: Files,
) -> None:
    store = MessageStore(files, SMALL, unit_tag=lambda _topic, _queue, ms, tag: ms + len(tag or ""))
    store.append([record(0), batch_of([record(1), record(2)])], 7000)
    hashes = [7001, ord("t"), ord("t")]
    assert [unit.tag_hash for unit in store.queue("T", 0).units(0, 9)] == hashes


# ---- reading ranges ------------------------------------------------------------------------------


def test_a_record_is_found_only_at_its_first_byte(files: Files) -> None:
    store = open_store(files)
    made, _ = fill(store, 2)
    assert store.find_record(made.log_offset) == made
    for position in (-1, made.log_offset + 1, store.log.end, 10**12):
        assert store.find_record(position) is None


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1])
def test_bytes_of_a_body_that_look_like_a_record_are_not_found(size: int) -> None:
    inside = 88  # a body begins here; its bytes hold this position, like a record at that place
    made = record(0)
    made.body = size.to_bytes(4, "big") + bytes(24) + inside.to_bytes(8, "big") + bytes(200)
    store = open_store(MemoryFiles())
    store.append([made], 1000)
    assert store.log.read(inside, 4) == made.body[:4]
    assert store.find_record(inside) is None


def test_a_damaged_record_of_a_queue_is_refused(files: Files) -> None:
    store = open_store(files)
    (made,) = fill(store, 1)
    (unit,) = store.queue("T", 0).units(0, 1)
    assert store.read_record(unit) == made
    spoil(files, made.log_offset + 90)
    with pytest.raises(MalformedRecord, match="does not match its CRC"):
        store.read_record(unit)


def test_neighbours_are_read_together_up_to_a_size(files: Files) -> None:
    store = open_store(files)
    store.append([record(number, queue_id=number in {2, 5}) for number in range(8)], 1000)
    units = store.queue("T", 0).packed(0, 99)
    sizes = [unit.size for unit in store.queue("T", 0).units(0, 99)]
    count, parts = store.read_range(units, sum(sizes))
    assert (count, len(parts)) == (6, 3)
    bodies = [found.body.rstrip(b".") for found in decode_records(b"".join(parts))]
    assert bodies == expected(0, 1, 3, 4, 6, 7)
    assert store.read_range(units, sum(sizes) - 1).record_count == 5
    assert store.read_range(units, 1).record_count == 1
    assert store.read_range(units[:0], 1) == (0, [])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), max_size=120), st.data())
def test_a_range_is_the_records_one_by_one(
    made: list[tuple[int, int]], data: st.DataObject
) -> None:
    """With any records in between, any ends of segments and files, in memory or not."""
    store = open_store(MemoryFiles())
    for number, (queue_id, size) in enumerate(made):
        store.append([record(number, queue_id=queue_id, size=size)], 1000)
        if number % 17 == 16:
            store.flush()
    queue = store.queue("T", 0)
    units = queue.units(0, 1000)
    offset = data.draw(st.integers(0, len(units)))
    bytes_max = data.draw(st.integers(1, 20_000))
    count, parts = store.read_range(queue.packed(offset, 1000), bytes_max)
    whole = b"".join(store.read(unit) for unit in units[offset : offset + count])
    assert b"".join(parts) == whole
    assert count == min(count, 1) or len(whole) <= bytes_max
    if offset + count < len(units):
        assert count
        assert len(whole) + units[offset + count].size > bytes_max


# ---- flushing ------------------------------------------------------------------------------------


def test_log_can_be_flushed_while_a_full_flush_is_under_way(files: Files) -> None:
    store = open_store(files)
    fill(store, 5)
    full = store.begin_flush()
    *_, last = fill(store, 5, first=5)
    alone = store.begin_log_flush()
    alone.run()
    store.finish_log_flush(alone)
    assert store.log.flushed == store.log.end == last.log_offset + last.size
    full.run()
    store.finish_flush(full)
    assert store.log.flushed == store.log.end
    assert load_checkpoint(files).covered_offset == full.log.end < store.log.end
    assert bodies(store) == expected(*range(10))
    assert bodies(open_store(files)) == expected(*range(10))


def test_no_flush_succeeds_after_the_disk_has_dropped_what_one_should_have_saved() -> None:
    """The kernel reports such a failure once, and then syncs the file without the lost pages."""
    store = open_store(MemoryFiles())
    store.check_disk()
    fill(store, 1)
    lost = store.begin_log_flush()._replace(files=[FailingFile(OSError(errno.EIO, "broken"))])
    with pytest.raises(OSError, match="broken"):
        lost.run()
    for run in (
        store.begin_log_flush().run,
        store.begin_flush().run,
        store.check_disk,
        store.close,
    ):
        with pytest.raises(OSError, match="broken; written data may be lost") as raised:
            run()
        assert raised.value.errno == errno.EIO
    assert store.log.flushed < store.log.end


def test_log_is_not_flushed_after_its_indexes_were_dropped_by_the_disk() -> None:
    store = open_store(MemoryFiles())
    fill(store, 1)
    full = store.begin_flush()
    full.files = FailingFiles(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        full.run()
    with pytest.raises(OSError, match="written data may be lost"):
        store.begin_log_flush().run()


def test_a_flush_is_repeated_after_any_other_failure() -> None:
    store = open_store(MemoryFiles())
    fill(store, 1)
    flush = store.begin_log_flush()
    with pytest.raises(OSError, match="busy"):
        flush._replace(files=[FailingFile(OSError(errno.EBUSY, "busy"))]).run()
    store.check_disk()
    store.flush()
    assert store.log.flushed == store.log.end


def test_flush_that_failed_is_made_up_for_by_the_next() -> None:
    files = MemoryFiles()
    store = open_store(files)
    fill(store, 40)
    store.flush()
    store.drop_first_segment()
    store.queue("T", 0)
    store.append([record(1, topic="U"), record(1, topic="V")], 1000)
    store.drop_topic("U")
    files.capacity = 10
    with pytest.raises(DiskFull):
        store.flush()
    store.drop_topic("V")
    files.capacity = 1 << 20
    fill(store, 1, first=40)
    store.flush()
    assert files.names("consumequeue") == ["T"]
    assert files.names("commitlog")[0] == f"{store.log.first:020}"
    again = open_store(files)
    assert again.recovery.scanned_records == 0
    assert bodies(again) == bodies(store)


def test_next_segment_is_ready_before_it_is_needed(files: Files) -> None:
    store = open_store(files)
    store.append([record(1, size=3000)], 1000)
    store.flush()
    assert len(files.names("commitlog")) == 2
    assert store.log.segment_starts == [0]
    store.append([record(2, size=3000)], 1000)
    assert bodies(store) == expected(1, 2)
    store.close()
    assert bodies(open_store(files)) == expected(1, 2)


def test_properties_that_are_known_are_not_parsed_again(files: Files) -> None:
    store = open_store(files)
    store.append([record(1), record(2)], 1000, [{"KEYS": "x"}, {"KEYS": "y", "TAGS": "a"}])
    assert [find(store, key) for key in ("x", "k1")] == [[0], []]
    assert [unit.tag_hash for unit in store.queue("T", 0).units(0, 2)] == [0, tag_hash("a")]


def test_record_that_cannot_be_stored_leaves_nothing_of_its_group(files: Files) -> None:
    store = open_store(files)
    fill(store, 2)
    for bad in (record(9, size=5000), record(9, topic="a/b"), record(9, topic="t" * 200)):
        with pytest.raises((StoreError, Unencodable)):
            store.append([record(8), bad], 9000)
    assert (bodies(store), find(store, "k8")) == (expected(0, 1), [])
    fill(store, 1, first=2)
    assert bodies(store) == expected(0, 1, 2)


# ---- dropped topics ------------------------------------------------------------------------------


def test_dropped_topic_may_come_again(files: Files) -> None:
    store = open_store(files)
    fill(store, 20)
    store.flush()
    store.drop_topic("T")
    assert list(store.queue_names()) == []
    fill(store, 15, first=20)
    flush = store.begin_flush()
    fill(store, 1, first=35)
    flush.run()
    store.finish_flush(flush)
    fill(store, 9, first=36)
    assert bodies(store) == expected(*range(20, 45))
    for _ in range(2):
        again = open_store(files)
        assert bodies(again) == expected(*range(20, 45))
        again.close()


def test_topic_that_is_dropped_during_a_flush_goes_with_the_next(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    store.drop_topic("T")
    flush = store.begin_flush()
    fill(store, 3)
    store.drop_topic("T")
    fill(store, 3, first=10)
    flush.run()
    store.finish_flush(flush)
    fill(store, 10, first=13)
    store.flush()
    assert bodies(store) == bodies(open_store(files)) == expected(*range(10, 23))


def test_last_topic_that_is_dropped_stays_dropped(files: Files) -> None:
    store = open_store(files)
    fill(store, 3)
    store.flush()
    store.drop_topic("T")
    store.close()
    assert list(open_store(files).queue_names()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep_hours": 0.0}, "keep_hours=0.0"),
        ({"disk_used_max": 0.95}, "disk_used_max=0.95"),
        ({"disk_used_full": 1.5}, "disk_used_full=1.5"),
    ],
)
def test_wrong_retention_options_are_refused(options: dict[str, float], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        RetentionOptions(**options)
