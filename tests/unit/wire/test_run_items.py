"""Records of the broker from templates: the same bytes as from single records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from downrange.errors import Unencodable
from downrange.wire.batches import QUEUE_UNIT
from downrange.wire.codes import SysFlag
from downrange.wire.records import Record, encode_record
from downrange.wire.run_items import RunForm, encode_items, fill, pure_encode_items

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.wire.run_items import RunItem

#: Items, and the bodies and properties that they become.
ITEMS: list[RunItem] = [
    (b"first %d", (-5,), b"KEYS\x01%b\x02", (b"k",), 7),
    (b"", (), b"", (), 7),
    (b"[%b] is 100 %%", (range(8, 11),), b"N\x01%d\x02", (2**70,), 7),
    (b"[%b] %b %d", ([3, 1], b"and", 5), b"", (), 7),
]
WANTED = [
    (b"first -5", b"KEYS\x01k\x02"),
    (b"", b""),
    (b"[8,9,10] is 100 %", b"N\x01%d\x02" % 2**70),
    (b"[3,1] and 5", b""),
]


def shared(hosts: int = 0) -> Record:
    record = Record(
        sys_flag=1,
        flag=9,
        queue_id=3,
        queue_offset=100,
        born_ms=1,
        born_port=2,
        store_ms=3,
        store_port=4,
        topic_bytes=b"timer",
    )
    if hosts & 1:
        record.sys_flag |= int(SysFlag.BORN_HOST_V6)
        record.born_ip = bytes(range(16))
    if hosts & 2:
        record.sys_flag |= int(SysFlag.STORE_HOST_V6)
        record.store_ip = bytes(range(16))
    return record


@pytest.mark.parametrize("encode", [encode_items, pure_encode_items])
@pytest.mark.parametrize("hosts", range(4))
def test_records_of_a_run_are_the_bytes_of_records_one_by_one(
    hosts: int, encode: Callable[..., tuple[bytes, bytes]]
) -> None:
    run, wanted, log_offset = shared(hosts), list[Record](), 5000
    for number, (body, properties) in enumerate(WANTED):
        record = replace(run, body=body, property_bytes=properties)
        record.queue_offset += number
        record.log_offset = log_offset
        log_offset += len(encode_record(record))
        wanted.append(record)
    data, units = encode(RunForm(run), ITEMS, run.queue_offset, 5000, run.born_ms, run.store_ms)
    assert data == b"".join(map(encode_record, wanted))
    assert units == b"".join(
        [QUEUE_UNIT.pack(record.log_offset, record.size, 7) for record in wanted]
    )


def test_an_empty_list_of_numbers() -> None:
    assert fill(b"[%b]", ([],)) == b"[]"
    assert fill(b"[%b]", (range(0),)) == b"[]"


@pytest.mark.parametrize("encode", [encode_items, pure_encode_items])
@pytest.mark.parametrize(
    ("properties", "problem"), [(b"x" * 32_768, "32768 bytes"), (b"a\x01\x00\x02", "NUL")]
)
def test_properties_that_cannot_be_stored_are_refused(
    properties: bytes, problem: str, encode: Callable[..., tuple[bytes, bytes]]
) -> None:
    with pytest.raises(Unencodable, match=problem):
        encode(RunForm(shared()), [(b"", (), b"%b", (properties,), 0)], 0, 0, 0, 0)
