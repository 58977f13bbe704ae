"""Targets that feed a native function and its twin in Python, which must do the same.

Where the native part is not built there are none.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from random import Random
from struct import iter_unpack
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from downrange.model import QueueId
from downrange.native import find_binary
from downrange.store.indexed_run import pure_index_run
from downrange.store.key_slots import PureKeySlots
from downrange.store.unit_runs import UNIT, UNIT_BYTES, pure_neighbours, pure_tagged
from downrange.wire.batches import KEY_ENTRY, pure_record_batch
from downrange.wire.command import decode
from downrange.wire.ended_runs import pure_ended_run
from downrange.wire.frames import FrameSplitter
from downrange.wire.hashes import pure_java_hash
from downrange.wire.records import LOG_OFFSET_AT, Record, encode_record
from downrange.wire.reply_messages import pure_usual_records
from downrange.wire.send_answers import pure_stored_answers
from downrange.wire.send_replies import StoredForm
from downrange.wire.send_runs import half_properties, pure_take_sends, single_requests
from tests.fuzz import corpus
from tests.support.native_part import assert_same, in_python, outcome
from tests.unit.server.send_frames import frame, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from downrange.wire.batches import BatchRun, RecordRun
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

#: Room for the largest fixed part behind a record: a record close to the end is left to Python.
_ROOM: Final = 120
_BYTES_MAX: Final = 1 << 20
_HOST: Final = (b"\x0a\x00\x00\x01", 1)
_FORM: Final = StoredForm(id_prefix="0A0000010000000A", is_trace_on=True, region="r")
#: Lets a run have all its records at once.
_ROOM_MAX: Final = 1 << 30

_Pair: TypeAlias = "tuple[str, Callable[[bytes], Any], tuple[bytes, ...]]"


def both(pure: Callable[[bytes], Any], native_twin: Callable[[bytes], Any]) -> Callable[..., Any]:
    """Return a reader that calls both and compares them; it does what the one in Python does."""

    def read(data: bytes) -> Any:
        assert_same(pure, native_twin, data)
        return pure(data)

    return read


def pairs() -> list[_Pair]:
    """Return names, readers and seeds of all pairs; of Spark's only with numpy and Arrow."""
    native, _ = find_binary()
    if native is None:
        return []
    has_columns = find_spec("numpy") is not None and find_spec("pyarrow") is not None
    spark = _pairs_of_spark(native) if has_columns else []
    return [*_pairs_of_wire(native), *_pairs_of_store(native), *spark]


def _pairs_of_wire(native: ModuleType) -> list[_Pair]:
    return [
        (
            "both: java_hash",
            both(lambda data: pure_java_hash(_text(data)), lambda d: native.java_hash(_text(d))),
            corpus.PROPERTIES,
        ),
        (
            "both: take_sends",
            both(partial(_requests, pure_take_sends), partial(_compared, native.take_sends)),
            _sends(),
        ),
        (
            "both: take_batch",
            both(partial(_stored, None), partial(_stored, native.take_batch)),
            corpus.BATCHES,
        ),
        (
            "both: usual_records",
            both(
                lambda data: pure_usual_records(data, 0, _queue),
                lambda data: native.usual_records(data, 0, _queue),
            ),
            tuple(record + bytes(_ROOM) for record in corpus.RECORDS),
        ),
        (
            "both: replies to sends",
            both(
                lambda data: _replies(pure_stored_answers, data),
                lambda data: _replies(native.stored_answers, data),
            ),
            corpus.FRAMES,
        ),
        (
            "both: ended_run",
            both(partial(_ended, pure_ended_run), partial(_ended, native.ended_run)),
            _halves(),
        ),
    ]


def _pairs_of_store(native: ModuleType) -> list[_Pair]:
    units = tuple(UNIT.pack(1 + 120 * at, 110 + at % 2 * 10, at % 5) for at in range(40))
    entries = tuple(KEY_ENTRY.pack(at * 7919, at) for at in range(40))
    return [
        (
            "both: index_run",
            both(partial(_indexed, pure_index_run), partial(_indexed, native.index_run)),
            tuple(record + bytes(_ROOM) for record in (*corpus.RECORDS, *corpus.SEGMENTS)),
        ),
        (
            "both: neighbours",
            both(partial(_neighbours, pure_neighbours), partial(_neighbours, native.neighbours)),
            (b"".join(units), b"".join(units[::2])),
        ),
        (
            "both: tagged",
            both(partial(_tagged, pure_tagged), partial(_tagged, native.tagged)),
            (b"".join(units), b"".join(units[::2])),
        ),
        (
            "both: KeySlots",
            both(partial(_slots, PureKeySlots), partial(_slots, native.KeySlots)),
            (b"".join(entries), b"".join(entries[:3]), bytes(60)),
        ),
    ]


def _pairs_of_spark(native: ModuleType) -> list[_Pair]:
    """Need packages that may be missing, so they are imported here."""
    import numpy as np

    from downrange.spark.read import property_columns
    from downrange.spark.read.record_table import RecordTable, find_records, pure_record_starts

    def by_numpy(table: RecordTable) -> dict[str, Any]:
        properties = property_columns.PropertyTable(table)
        return {name: properties.values(name) for name in names}

    def by_native(table: RecordTable) -> dict[str, Any]:
        encoded = [name.encode() for name in names]
        bounds = table.property_starts, table.property_ends
        texts = native.property_values(table.data, *bounds, encoded)
        if texts is None:
            return by_numpy(table)
        return dict(zip(names, map(property_columns._text_array, texts), strict=True))

    def columns(read: Callable[[RecordTable], dict[str, Any]], data: bytes) -> dict[str, Any]:
        data, starts = find_records([data])
        if not len(starts):
            return {}
        return {name: each.to_pylist() for name, each in read(RecordTable(data, starts)).items()}

    def starts(record_starts: Any, data: bytes) -> list[int]:
        found: list[int] = np.frombuffer(record_starts(data, [len(data)]), np.int64).tolist()
        return found

    names = ["KEYS", "TAGS", "UNIQ_KEY"]
    texts = (b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u", b"", b"TAGS\x01a\x01b\x02TAGS\x01")
    records = tuple(encode_record(Record(body=b"b", property_bytes=text)) for text in texts)
    seeds = (*corpus.RECORDS, *records, b"".join(records))
    return [
        (
            "both: record_starts",
            both(partial(starts, pure_record_starts), partial(starts, native.record_starts)),
            seeds,
        ),
        (
            "both: property_values",
            both(partial(columns, by_numpy), partial(columns, by_native)),
            seeds,
        ),
    ]


def _sends() -> tuple[bytes, ...]:
    """Return frames of sends, some of them together."""
    random = Random(17)
    frames = [
        frame(
            random, send(random, number, rare=0.1, is_half=number > 12), is_binary=number % 4 == 0
        )
        for number in range(24)
    ]
    return (*frames[:4], b"".join(frames[:4]), b"".join(frames[1:4]), b"".join(frames[4:]))


def _requests(take: Callable[[bytes, int, int], SendRun | None], data: bytes) -> list[Command]:
    """Return the requests in a read, of which plain sends are taken together."""
    frames = FrameSplitter()
    frames.receive(data)
    requests: list[Command] = []
    while True:
        if (run := frames.next_run(take)) is not None:
            requests += single_requests(run)
        elif (one := frames.next_frame()) is not None:
            requests.append(decode(one))
        else:
            return requests


def _compared(take: Callable[[bytes, int, int], SendRun | None], data: bytes) -> list[Command]:
    """Return the requests in a read; compare each run with the one that Python makes of its sends.

    Which sends are one run may differ from Python, but not what is stored and answered.
    """

    def take_compared(read: bytes, start: int, length_max: int) -> SendRun | None:
        run = take(read, start, length_max)
        if run is not None:
            assert_same(lambda: _written(in_python(run, start, read)), lambda: _written(run))
        return run

    return _requests(take_compared, data)


def _written(run: SendRun) -> list[Any]:
    """Return what a run of sends is and becomes: columns, records, entries, halves and replies."""
    found: list[Any] = [len(run), run.is_half, list(run.queues), list(run.asked_queues)]
    found += [run.is_flush_awaited, run.reply_count, run.body_bytes_max, run.property_bytes_max]
    run.prepare(_HOST, _HOST, 0, b"MSG_REGION\x01r\x02" if run.end % 2 else b"")
    found += [_records(run), run.halves(), run.replies(_FORM, 0)]
    return found


def _records(run: RecordRun) -> list[Any]:
    """Return the records of a run, their units, and their keys without and with tags."""
    run.begin(5, list(range(9, 9 + len(run.queues))))
    parts, unfit = run.encode(1000, _ROOM_MAX)
    fronts = list(range(3, 3 + len(run.queues)))
    keys = [run.key_entries(fronts, index_tags) for index_tags in (False, True)]
    units, sizes = list(run.queue_units()), list(run.queue_bytes)
    return [b"".join(parts), unfit, list(run.counts), sizes, units, keys]


def _halves() -> tuple[bytes, ...]:
    """Return records of half messages for queue 2 of a topic."""
    texts = ("UNIQ_KEY\x01K", "UNIQ_KEY\x01K\x02KEYS\x01a b\x02TAGS\x01t", "TAGS\x01t\x02TAGS\x01")
    return tuple(
        encode_record(
            Record(
                sys_flag=4 | (0x30 if len(ip) == 16 else 0),
                born_ip=ip,
                store_ip=ip,
                log_offset=77,
                body=b"body",
                topic_bytes=b"RMQ_SYS_TRANS_HALF_TOPIC",
                property_bytes=f"{text}\x02{half_properties('K', 'orders', 2)}".encode(),
            )
        )
        for text in texts
        for ip in (_HOST[0], bytes(range(16)))
    )


def _ended(ended_run: Any, data: bytes) -> list[Any]:
    """Return what is stored of a commit and a rollback, and whether the bytes are a half."""
    run = ended_run(_HOST)
    added = outcome(lambda: run.add_end(data, "orders", 2, 5, 6))
    run.add_end(None, "orders", 2, 7, 8)
    return [added, list(run.queues), _records(run)]


def _neighbours(neighbours: Any, data: bytes) -> list[Any]:
    units = _whole(data)
    first = UNIT.unpack_from(units)[0] if units else 0
    places = [(0, 1 << 40), (1, 2_000), (max(first, 0), max(first, 0) + 3_000)]
    return [neighbours(units, *place, limit) for place in places for limit in (0, 500, 1 << 20)]


def _tagged(tagged: Any, data: bytes) -> list[Any]:
    """Search for few and for many tags, some of which are there."""
    units = _whole(data)
    found = [tag for _, _, tag in UNIT.iter_unpack(units)]
    sets = [frozenset(found[:2]), frozenset({*found[::3], *range(1000, 1030)}), frozenset[int]()]
    return [tagged(units, hashes) for hashes in sets]


def _whole(data: bytes) -> bytes:
    """Return bytes without what is behind the last whole unit: stores read whole units only."""
    return data[: len(data) // UNIT_BYTES * UNIT_BYTES]


def _slots(kind: Any, data: bytes) -> list[Any]:
    """Return the slots of a file with any content, after entries were put."""
    count = len(data) // 4
    loaded = outcome(lambda: kind.load(data).part(0, count))
    slots = kind.load(data[: max(count, 1) * 4].ljust(4, b"\0"))
    size = len(slots.part(0, max(count, 1))) // 4
    numbers = [1, 5, *(number for (number,) in iter_unpack("=i", data[: count * 4][:8]))]
    whole = data[: len(data) // KEY_ENTRY.size * KEY_ENTRY.size]
    put = [
        outcome(lambda: tuple(slots.put(entries, number, 9)))  # noqa: B023 - called at once
        for number in numbers
        for entries in (whole, data)
    ]
    return [loaded, put, slots.part(0, size)]


def _stored(take: Callable[..., BatchRun | None] | None, data: bytes) -> list[bytes]:
    """Return what is stored of a batch: records, units and keys."""
    host = (b"\x0a\x00\x00\x01", 1)
    batch = None if take is None else take(data, b"T", 1, 0, 7, host, host, 0, 0)
    if batch is None:
        shared = Record(
            topic_bytes=b"T", queue_id=1, born_ms=7, born_ip=host[0], born_port=1, store_ip=host[0]
        )
        shared.store_port = 1
        batch = pure_record_batch(shared, data)
    batch.begin(5, [9])
    parts, _ = batch.encode(1000, 1 << 30)
    return [b"".join(parts), *batch.queue_units(), batch.key_entries([3], True)]


def _indexed(index_run: Any, data: bytes) -> Any:
    """Return what the indexes need of the records of a log that begins with the first of them."""
    log_offset = int.from_bytes(data[LOG_OFFSET_AT : LOG_OFFSET_AT + 8], "big", signed=True)
    if not 0 <= log_offset < 2**62:
        log_offset = 0
    return index_run(data, 0, log_offset, -1, True, b"SCHEDULE_TOPIC_XXXX")


def _queue(topic: bytes, number: int) -> QueueId:
    return QueueId(topic.decode(errors="replace"), "b", number)


def _replies(stored_answers: Any, data: bytes) -> list[tuple[int, dict[str, str]]]:
    """Read frames: plain replies to sends by this function, all others as commands.

    Which of the two reads a reply with escapes or blanks may differ, but not what is read.
    """
    found: list[tuple[int, dict[str, str]]] = []
    while data:
        answers, end = stored_answers(data, 0, len(data))
        found += [(answer.request_id, answer.fields) for answer in answers]
        splitter = FrameSplitter(_BYTES_MAX)
        splitter.receive(data[end:])
        frame = splitter.next_frame()
        if frame is None:
            break
        command = decode(frame)
        found.append((command.request_id, command.fields))
        data = data[end + 8 + len(frame.header) + len(frame.body) :]
    return found


def _text(data: bytes) -> str:
    """Return a text with lone surrogates where the bytes are no UTF-8."""
    return data.decode("utf-8", "surrogateescape")
