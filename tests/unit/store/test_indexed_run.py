"""What recovery's indexes need of a run; the native twin is compared in tests/unit/native."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.store.indexed_run import index_run, pure_index_run
from downrange.store.unit_runs import UNIT
from downrange.wire.batches import KEY_ENTRY
from downrange.wire.hashes import key_hash, tag_hash
from downrange.wire.records import Record, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

both = pytest.mark.parametrize("find", [index_run, pure_index_run])


def _log(*records: Record) -> bytes:
    """Return the bytes of records from the log's position 0 on, and some behind them."""
    data = b""
    for record in records:
        record.log_offset = len(data)
        data += encode_record(record)
    return data + bytes(200)


def _record(offset: int, properties: bytes = b"", **changes: Any) -> Record:
    fields: dict[str, Any] = {"topic_bytes": b"T", "store_ms": 1000} | changes
    return Record(queue_offset=offset, body=b"b", property_bytes=properties, **fields)


@both
def test_units_and_keys_of_a_run(find: Callable[..., Any]) -> None:
    one = _record(5, b"UNIQ_KEY\x01id\x02KEYS\x01a  b\x02TAGS\x01t\x02")
    two = _record(0, b"KEYS\x01 \x02", queue_id=3)
    three = _record(6, b"TAGS\x01t\x02", store_ms=2000)
    half = _record(0, b"KEYS\x01no\x02", sys_flag=4, store_ms=3000)
    data = _log(one, two, three, half)
    count, size, newest_ms, queues, keys = find(data, 0, 0, -1, False, b"")
    assert (count, size, newest_ms) == (4, len(data) - 200, 3000)
    first = UNIT.pack(0, one.size, tag_hash("t"))
    last = UNIT.pack(three.log_offset, three.size, tag_hash("t"))
    assert queues == [
        (b"T", 0, 5, first + last),
        (b"T", 3, 0, UNIT.pack(two.log_offset, two.size, 0)),
    ]
    entries = [KEY_ENTRY.pack(key_hash("T", key), 0) for key in ("id", "a", "b")]
    assert keys == [(1000, b"".join(entries))]
    *_, keys = find(data, 0, 0, -1, True, b"")
    tags = [KEY_ENTRY.pack(key_hash("T", "T#t"), made.log_offset) for made in (one, three)]
    assert keys == [(1000, b"".join([*entries, tags[0]])), (2000, tags[1])]
    *_, keys = find(data, 0, 0, 0, True, b"")  # the first record is indexed already
    assert keys == [(2000, tags[1])]


@both
@pytest.mark.parametrize(
    "last", [_record(7), _record(0, topic_bytes=b"late"), _record(0, topic_bytes=b"\xc3\xa4")]
)
def test_a_run_ends_before_a_record_of_another_kind(find: Callable[..., Any], last: Record) -> None:
    data = _log(_record(5), last)
    count, _, _, queues, _ = find(data, 0, 0, -1, False, b"late")
    assert (count, [offset for _, _, offset, _ in queues]) == (1, [5])


@both
def test_a_run_may_be_empty(find: Callable[..., Any]) -> None:
    assert find(b"", 0, 0, -1, True, b"") == (0, 0, 0, [], [])
