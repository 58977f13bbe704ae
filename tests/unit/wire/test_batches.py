"""Batches as records: the same bytes as from single records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, Unencodable
from downrange.wire.batches import pure_record_batch, record_batch
from downrange.wire.codes import SysFlag
from downrange.wire.records import (
    MAGIC_V2,
    BatchItem,
    Record,
    encode_batch,
    encode_record,
)

BORN_V6 = int(SysFlag.BORN_HOST_V6)
STORE_V6 = int(SysFlag.STORE_HOST_V6)
ITEMS = [
    BatchItem(7, b"first", b"KEYS\x01k\x02"),
    BatchItem(-1, b"", b""),
    BatchItem(0, b"third", b"TAGS\x01t"),
]


def shared(**changes: Any) -> Record:
    settings: dict[str, Any] = {
        "queue_id": 3,
        "queue_offset": 100,
        "born_ms": 1,
        "born_ip": b"\x0a\x00\x00\x01",
        "born_port": 2,
        "store_ms": 3,
        "store_ip": b"\x0a\x00\x00\x02",
        "store_port": 4,
        "reconsume_times": 5,
        "prepared_offset": 6,
        "topic_bytes": b"orders",
    }
    return Record(**(settings | changes))


def one_by_one(items: list[BatchItem], log_offset: int, **changes: Any) -> list[Record]:
    records: list[Record] = []
    for index, (flag, body, properties) in enumerate(items):
        record = shared(**changes)
        record.flag, record.body, record.property_bytes = flag, body, properties
        record.queue_offset += index
        record.log_offset = log_offset
        log_offset += len(encode_record(record))
        records.append(record)
    return records


@given(
    st.lists(
        st.builds(
            BatchItem,
            st.integers(-(2**31), 2**31 - 1),
            st.binary(max_size=50),
            st.binary(max_size=30),
        ),
        max_size=20,
    ),
    st.integers(0, 3),
    st.booleans(),
)
def test_records_of_a_batch_are_the_bytes_of_records_one_by_one(
    items: list[BatchItem], hosts: int, is_long: bool
) -> None:
    changes: dict[str, Any] = {"sys_flag": 1}
    if hosts & 1:
        changes |= {"sys_flag": changes["sys_flag"] | BORN_V6, "born_ip": bytes(16)}
    if hosts & 2:
        changes |= {"sys_flag": changes["sys_flag"] | STORE_V6, "store_ip": bytes(16)}
    if is_long:
        changes |= {"topic_bytes": b"t" * 200, "magic": MAGIC_V2}
    batch = pure_record_batch(shared(**changes), encode_batch(items))
    batch.begin(3, [100])
    parts, unfit_size = batch.encode(5000, 1 << 30)
    wanted = one_by_one(items, 5000, **changes)
    assert b"".join(parts) == b"".join(map(encode_record, wanted))
    assert unfit_size == 0
    assert batch.log_offsets == [record.log_offset for record in wanted]
    assert batch.sizes == [record.size for record in wanted]
    assert batch.properties == [record.properties() for record in wanted]


def test_what_does_not_fit_is_written_by_the_next_run() -> None:
    batch = pure_record_batch(shared(), encode_batch(ITEMS))
    sizes = [record.size for record in one_by_one(ITEMS, 0)]
    assert batch.encode(0, sizes[0] - 1) == ([], sizes[0])
    first, unfit_size = batch.encode(0, sizes[0] + sizes[1])
    assert (batch.sizes, unfit_size) == (sizes[:2], sizes[2])
    second, unfit_size = batch.encode(9000, sizes[2])
    assert (batch.log_offsets, unfit_size) == ([0, sizes[0], 9000], 0)
    wanted = [*one_by_one(ITEMS, 0)[:2], one_by_one(ITEMS, 9000 - sizes[0] - sizes[1])[2]]
    assert b"".join([*first, *second]) == b"".join(map(encode_record, wanted))
    assert batch.encode(9999, 0) == ([], 0)


def test_a_damaged_batch_is_refused() -> None:
    with pytest.raises(MalformedBody, match="batch byte 0"):
        record_batch(shared(), encode_batch(ITEMS)[:-1][1:])


def test_what_cannot_be_written_is_named() -> None:
    batch = pure_record_batch(shared(topic_bytes=b"t" * 200), encode_batch(ITEMS))
    with pytest.raises(Unencodable, match="record topic"):
        batch.encode(0, 1 << 20)
