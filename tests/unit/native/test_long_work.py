"""Work that lets other threads run meanwhile: the same results as in Python, and others do run."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from downrange.spark.read.property_columns import PropertyTable, property_values
from downrange.spark.read.record_table import RecordTable, pure_record_starts
from downrange.spark.write import row_properties
from downrange.store.key_slots import PureKeySlots
from downrange.store.unit_runs import UNIT
from downrange.wire.batches import KEY_ENTRY, pure_record_batch
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.records import BatchItem, Record, encode_batch, encode_record
from tests.support.native_part import in_python
from tests.unit.native.pairs import native
from tests.unit.native.test_send_runs import FORM, HOSTS, assert_same_run
from tests.unit.server.send_frames import frame, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BORN, STORE, _ = HOSTS[0]
ITEM = BatchItem(0, b"b" * 700, b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01t\x02")


def _batch(count: int) -> bytes:
    return encode_batch([ITEM] * count)


def _taken(data: bytes) -> native.RecordRun:
    batch = native.take_batch(data, b"T", 1, 0, 7, BORN, STORE, 0, 0)
    assert batch is not None
    return batch


def test_many_sends_of_one_read() -> None:
    random = Random(1)
    commands = [send(random, number, rare=0.0) for number in range(1100)]
    for command in commands:  # only sends that all wait for a flush, or none of them, are one run
        for name in {"i", "properties"} & command.fields.keys():
            command.fields[name] = command.fields[name].replace("false", "true")
    data = b"".join(frame(Random(3), each, is_binary=False) for each in commands)
    run = native.take_sends(data, 0, FRAME_BYTES_MAX)
    assert run is not None
    assert (len(run), run.end) == (1100, len(data))
    wanted = in_python(run, 0, data)
    for each in (run, wanted):
        each.prepare(BORN, STORE, 0, b"A\x01b\x02")
    assert_same_run(random, run, wanted)
    assert run.replies(FORM, 0) == wanted.replies(FORM, 0)


def test_a_batch_of_many_messages() -> None:
    data = _batch(2000)
    shared = Record(topic_bytes=b"T", queue_id=1, born_ms=7, born_ip=BORN[0], store_ip=STORE[0])
    shared.born_port, shared.store_port = BORN[1], STORE[1]
    wanted = pure_record_batch(shared, data)
    found = _taken(data)
    results: list[list[bytes]] = []
    for batch in (found, wanted):
        batch.begin(5, [9])
        parts, _ = batch.encode(1000, 1 << 30)
        results.append([b"".join(parts), *batch.queue_units(), batch.key_entries([3], True)])
    assert results[0] == results[1]
    assert native.take_batch(data[:-1], b"T", 1, 0, 7, BORN, STORE, 0, 0) is None


def test_many_keys() -> None:
    random = Random(2)
    entries = b"".join(
        KEY_ENTRY.pack(random.randrange(2**31), random.randrange(2**60)) for _ in range(5000)
    )
    count = 200_000
    pure, fast = PureKeySlots(count), native.KeySlots(count)
    assert tuple(fast.put(entries, 1, 9)) == tuple(pure.put(entries, 1, 9))
    slots = fast.part(0, count)
    assert slots == pure.part(0, count)
    assert native.KeySlots.load(slots).part(0, count) == slots


def test_many_rows_of_spark() -> None:
    texts = [f"KEYS\x01k{number}\x02TAGS\x01t\x02" for number in range(2000)]
    data = b"".join(encode_record(Record(property_bytes=text.encode())) for text in texts)
    starts = np.frombuffer(pure_record_starts(data, [len(data)]), np.int64)
    table = RecordTable(data, starts)
    found, by_numpy = property_values(table, ["KEYS", "TAGS"]), PropertyTable(table)
    for name in ("KEYS", "TAGS"):
        assert found[name].to_pylist() == by_numpy.values(name).to_pylist()
    columns = [(b"KEYS\x01", pa.array([f"k{number}".encode() for number in range(2000)]))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_properties, "_native_rows", native.joined_rows)
        rows = row_properties._native_joined_rows(columns)
    assert rows.equals(row_properties.pure_joined_rows(columns))


def _write(run: native.RecordRun) -> None:
    run.begin(5, [9])
    run.encode(1000, 1 << 30)


def _encoded(data: bytes) -> native.RecordRun:
    batch = _taken(data)
    _write(batch)
    return batch


def _works_of_batches() -> Iterator[tuple[str, Callable[[], object]]]:
    data = _batch(2000)
    yield "take_batch", lambda: _taken(data)
    stored = _encoded(data)
    yield "encode", lambda: _write(stored)
    yield "queue_units", stored.queue_units
    yield "key_entries", lambda: stored.key_entries([3], True)
    yield "ids", lambda: stored.ids("0A00000200002A9F")
    # As many as fit a body of 4 MB.
    many_keys = _encoded(
        encode_batch([BatchItem(0, b"b", b"KEYS\x01" + b"some-key " * 3_600)] * 125)
    )
    long_tags = _encoded(encode_batch([BatchItem(0, b"b", b"TAGS\x01" + b"t" * 32_000)] * 125))
    yield "key_entries of many keys", lambda: many_keys.key_entries([3], True)
    yield "key_entries of long tags", lambda: long_tags.key_entries([3], True)
    yield "queue_units of long tags", long_tags.queue_units


def _works_of_sends() -> Iterator[tuple[str, Callable[[], object]]]:
    command = send(Random(1), 1, rare=0.0)
    for name in {"i", "properties"} & command.fields.keys():
        command.fields[name] = command.fields[name].replace("false", "true")
    data = frame(Random(3), command, is_binary=False) * 1100
    yield "take_sends", lambda: native.take_sends(data, 0, FRAME_BYTES_MAX)
    run = native.take_sends(data, 0, FRAME_BYTES_MAX)
    assert run is not None
    run.prepare(BORN, STORE, 0, b"A\x01b\x02")
    _write(run)
    yield "replies", lambda: run.replies(FORM, 0)


def _works_of_stores() -> Iterator[tuple[str, Callable[[], object]]]:
    log = _log(1000)
    assert native.index_run(log, 0, 0, -1, True, b"late")[0] > 900
    yield "index_run", lambda: native.index_run(log, 0, 0, -1, True, b"late")
    entries = b"".join(KEY_ENTRY.pack(number, number) for number in range(5000))
    slots = native.KeySlots(1_000_000)
    yield "KeySlots.put", lambda: slots.put(entries, 1, 9)
    units = b"".join(UNIT.pack(number * 100, 100, number % 50) for number in range(100_000))
    yield "tagged", lambda: native.tagged(units, frozenset({-1, -2, -3}))
    yield "neighbours", lambda: native.neighbours(units, 0, 1 << 40, 1 << 40)


def _works_of_spark() -> Iterator[tuple[str, Callable[[], object]]]:
    log = _log(1000)
    starts = np.frombuffer(pure_record_starts(log, [len(log)]), np.int64)
    table = RecordTable(log, starts)
    bounds = table.property_starts, table.property_ends
    yield "property_values", lambda: native.property_values(log, *bounds, [b"KEYS", b"TAGS"])
    for count, size in ((2000, 20), (500, 8_000)):
        values = np.zeros(count * size, np.uint8)
        column = (np.arange(count + 1, dtype=np.int32) * size, values, None)
        columns: Any = [(b"KEYS\x01", column, b"\x02")]
        yield f"joined_rows of {size} bytes", partial(native.joined_rows, count, columns, b"")


def _log(count: int) -> bytes:
    record = Record(topic_bytes=b"T", body=b"b" * 1000, property_bytes=ITEM.property_bytes)
    size = len(encode_record(record))
    return b"".join(
        encode_record(replace(record, queue_offset=number, log_offset=number * size))
        for number in range(count)
    )


def test_others_run_meanwhile() -> None:
    steps, is_over = 0, False

    def step() -> None:
        nonlocal steps
        while not is_over:
            steps += 1
            time.sleep(0)

    def has_others(work: Callable[[], object], seconds: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            before = steps
            work()
            if steps > before:
                return True
        return False

    works = [*_works_of_batches(), *_works_of_sends(), *_works_of_stores(), *_works_of_spark()]
    other, usual = threading.Thread(target=step), sys.getswitchinterval()
    sys.setswitchinterval(600)  # a thread runs only while this one lets it
    other.start()
    try:
        assert not has_others(lambda: None, 0.2)
        short = _encoded(_batch(3))
        assert not has_others(lambda: short.key_entries([3], True), 0.2)
        for name, work in works:
            assert has_others(work), name
    finally:
        sys.setswitchinterval(usual)
        is_over = True
        other.join()
