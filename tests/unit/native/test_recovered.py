"""What the indexes need of the records of a log, native and in Python."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from downrange.store.indexed_run import pure_index_run
from downrange.wire.codes import SysFlag
from downrange.wire.records import MAGIC_V1, MAGIC_V2, Record, encode_record
from tests.unit.native.pairs import assert_same, native

_BEGIN = 5_000
_TEXTS = st.text("ab T#\u00e4\U0001f600", max_size=6).map(str.encode) | st.binary(max_size=6)
_PROPERTIES = st.lists(
    st.tuples(st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"", b"a"]), _TEXTS), max_size=5
).map(lambda items: b"".join([name + b"\x01" + value + b"\x02" for name, value in items]))
_FLAGS = st.sampled_from(
    [0, 0, 4, 8, 12, int(SysFlag.BORN_HOST_V6), int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)]
)
_MADE = st.lists(
    st.tuples(
        st.sampled_from([b"T", b"T", b"U", b"late", b"\xc3\xa4", b""]),
        st.integers(0, 1),
        st.integers(0, 9).map(lambda number: number == 0),  # leaves out a number
        _FLAGS,
        st.sampled_from([1, 1, 1, 2]),
        st.binary(max_size=20),
        _PROPERTIES,
        st.sampled_from([MAGIC_V1] * 9 + [MAGIC_V2]),
    ),
    max_size=12,
)


def _log(made: list[tuple[Any, ...]]) -> bytes:
    """Return the bytes of records, and some behind them."""
    data, offsets, now_ms = b"", dict[tuple[bytes, int], int](), 0
    for topic, queue_id, is_gap, flags, later_ms, body, properties, magic in made:
        offset = offsets.get((topic, queue_id), 7) + is_gap
        offsets[topic, queue_id] = offset + 1
        now_ms += later_ms - 1
        is_born_v6, is_store_v6 = flags & 0x10, flags & 0x20
        record = Record(
            magic=magic,
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=_BEGIN + len(data),
            sys_flag=flags,
            store_ms=now_ms,
            born_ip=bytes(16 if is_born_v6 else 4),
            store_ip=bytes(16 if is_store_v6 else 4),
            body=body,
            topic_bytes=topic,
            property_bytes=properties,
        )
        data += encode_record(record)
    return data + bytes(200)


@given(_MADE, st.integers(_BEGIN - 1, _BEGIN + 900), st.booleans())
def test_records(made: list[tuple[Any, ...]], keys_end: int, index_tags: bool) -> None:
    arguments = (_log(made), 0, _BEGIN, keys_end, index_tags, b"late")
    assert_same(pure_index_run, native.index_run, *arguments)


@given(_MADE, st.data())
def test_damaged_records(made: list[tuple[Any, ...]], data: st.DataObject) -> None:
    log = bytearray(_log(made))
    for _ in range(data.draw(st.integers(1, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    del log[data.draw(st.integers(0, len(log))) :]
    assert_same(pure_index_run, native.index_run, bytes(log), 0, _BEGIN, 0, True, b"late")


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(-9, 2**62))
def test_any_bytes(data: bytes, at: int, log_offset: int) -> None:
    assert_same(pure_index_run, native.index_run, data, at, log_offset, 0, False, b"late")


def test_no_offset_follows_the_largest_one() -> None:
    offsets = (2**63 - 1, -(2**63))
    log = _log_of([(offset, _BEGIN) for offset in offsets])
    for index_run in (pure_index_run, native.index_run):
        count, size, *_ = index_run(log + bytes(200), 0, _BEGIN, 0, True, b"late")
        assert (count, size) == (1, len(log) // 2)


def test_no_record_follows_the_end_of_all_logs() -> None:
    size = len(encode_record(Record(topic_bytes=b"T")))
    begin = 2**63 - size // 2
    log = _log_of([(7, begin), (8, begin - 2**64)])
    for index_run in (pure_index_run, native.index_run):
        count, bytes_read, *_ = index_run(log + bytes(200), 0, begin, 0, True, b"late")
        assert (count, bytes_read) == (1, size)


def _log_of(places: list[tuple[int, int]]) -> bytes:
    """Return records by queue offset and log offset; only the first log offset is one of a log."""
    size = len(encode_record(Record(topic_bytes=b"T")))
    records: list[bytes] = []
    for number, (queue_offset, begin) in enumerate(places):
        log_offset = begin + number * size
        record = Record(topic_bytes=b"T", queue_offset=queue_offset, log_offset=log_offset)
        records.append(encode_record(record))
    return b"".join(records)
