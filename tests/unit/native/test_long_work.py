"""Work that lets other threads run meanwhile: the same results as in Python, and others do run."""

from __future__ import annotations

import sys
import threading
import time
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from downrange.spark.read.property_columns import PropertyTable, property_values
from downrange.spark.read.record_table import RecordTable, pure_record_starts
from downrange.spark.write import row_properties
from downrange.store.key_slots import PureKeySlots
from downrange.wire.batches import KEY_ENTRY, pure_record_batch
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.records import BatchItem, Record, encode_batch, encode_record
from tests.unit.native.pairs import native
from tests.unit.native.test_send_runs import FORM, HOSTS, assert_same_run, in_python
from tests.unit.server.send_frames import frame, send

if TYPE_CHECKING:
    from collections.abc import Callable

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
        patch.setattr(row_properties, "native", native)
        rows = row_properties._native_joined_rows(columns)
    assert rows.equals(row_properties.pure_joined_rows(columns))


def test_others_run_meanwhile() -> None:
    data = _batch(20_000)
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

    def write() -> None:
        batch.begin(5, [9])
        batch.encode(1000, 1 << 30)

    other, usual = threading.Thread(target=step), sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread runs only while this one lets it
    other.start()
    try:
        assert not has_others(lambda: None, 0.2)
        assert has_others(lambda: _taken(data))
        batch = _taken(data)
        assert has_others(write)
    finally:
        sys.setswitchinterval(usual)
        is_over = True
        other.join()
