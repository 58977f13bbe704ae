"""Stored messages byte for byte, batches, segments, and what is refused."""

from __future__ import annotations

from struct import pack_into
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, MalformedRecord, Unencodable
from downrange.wire.codes import SysFlag
from downrange.wire.records import (
    BLANK_BYTES_MIN,
    LOG_OFFSET_AT,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    BatchItem,
    Record,
    blank_record,
    body_crc,
    decode_batch,
    decode_record,
    decode_records,
    encode_batch,
    encode_record,
    properties_at,
    record_size,
    scan_segment,
    unwrap,
)
from tests.unit.wire import vectors
from tests.unit.wire.strategies import batch_items, records

if TYPE_CHECKING:
    from collections.abc import Callable

INNER = SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP


def patched(data: bytes, at: int, form: str, number: int) -> bytes:
    copy = bytearray(data)
    pack_into(form, copy, at, number)
    return bytes(copy)


# ---- records -------------------------------------------------------------------------------------


def test_a_record_of_java_is_read_and_written_byte_for_byte() -> None:
    record = decode_record(vectors.RECORD)
    assert record == Record(
        size=167,
        magic=MAGIC_V1,
        body_crc=907060870,
        queue_id=2,
        queue_offset=5,
        log_offset=1024,
        born_ms=1700000000000,
        born_ip=bytes([10, 0, 0, 1]),
        born_port=50000,
        store_ms=1700000000123,
        store_ip=bytes([10, 0, 0, 2]),
        store_port=10911,
        body=b"hello",
        topic_bytes=b"TopicTest",
        property_bytes=(
            b"UNIQ_KEY\x017F000001000100000000000000000000\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        ),
    )
    assert encode_record(record) == vectors.RECORD
    assert record.is_intact
    assert record.topic == "TopicTest"
    assert (record.born_host, record.store_host) == ("10.0.0.1:50000", "10.0.0.2:10911")
    assert record.offset_id == vectors.RECORD_OFFSET_ID
    assert record.properties()["TAGS"] == "TagA"


def test_a_record_with_a_long_topic_is_read_and_written_byte_for_byte() -> None:
    record = decode_record(vectors.RECORD_V2)
    assert record.magic == MAGIC_V2
    assert record.topic == f"%RETRY%v2group_{'y' * 70}_V2topic_{'x' * 60}"
    assert (record.body, record.reconsume_times, record.size) == (b"v2body", 1, 446)
    assert record.properties()["1ST_POP_TIME"] == "1794773982648"
    assert record.is_intact
    assert encode_record(record) == vectors.RECORD_V2


@given(records())
def test_a_record_survives_writing_and_reading(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    assert record_size(record) == record.size


@given(st.lists(records(), max_size=4))
def test_records_back_to_back_are_read_in_order(originals: list[Record]) -> None:
    assert decode_records(b"".join(map(encode_record, originals))) == originals


@given(records(), st.binary(max_size=30))
def test_a_record_is_read_where_it_begins(record: Record, before: bytes) -> None:
    data = before + encode_record(record) + b"behind"
    assert decode_record(data, len(before)) == record


def test_hosts_may_be_ipv6() -> None:
    record = Record(
        sys_flag=int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        born_ip=bytes(15) + b"\x01",
        born_port=5,
        store_ip=b"\xfd" + bytes(14) + b"\x02",
        store_port=10911,
        log_offset=7,
    )
    again = decode_record(encode_record(record))
    assert (again.born_host, again.store_host) == ("::1:5", "fd00::2:10911")
    assert again.offset_id == "FD00000000000000000000000000000200002A9F0000000000000007"


def test_bytes_that_are_no_utf_8_show_as_replaced() -> None:
    record = Record(topic_bytes=b"T\xff", property_bytes=b"a\x01\xc3\x02")
    assert record.topic == "T\ufffd"
    assert record.properties() == {"a": "\ufffd"}


@pytest.mark.parametrize(("body", "crc"), vectors.BODY_CRCS.items())
def test_a_body_has_the_crc_that_java_stores(body: bytes, crc: int) -> None:
    assert body_crc(body) == crc


def test_a_changed_body_is_not_intact() -> None:
    changed = vectors.RECORD.replace(b"hello", b"hellO")
    assert not decode_record(changed).is_intact


def test_the_positions_of_the_two_offsets_are_right() -> None:
    data = patched(vectors.RECORD, QUEUE_OFFSET_AT, ">q", 77)
    data = patched(data, LOG_OFFSET_AT, ">q", 88)
    record = decode_record(data)
    assert (record.queue_offset, record.log_offset) == (77, 88)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(topic_bytes=b"t" * 128), "record topic: 128 bytes do not fit its length field"),
        (Record(topic_bytes=b"t" * 32768, magic=MAGIC_V2), "record topic: 32768 bytes"),
        (Record(property_bytes=bytes(32768)), "record properties: 32768 bytes are more than"),
        (Record(born_ip=bytes(16)), "record hosts: IPv4 or IPv6 does not match sysFlag"),
        (Record(sys_flag=16), "record hosts: "),
        (Record(sys_flag=16, store_ip=bytes(16)), "record hosts: "),
        (Record(sys_flag=32, born_ip=bytes(16)), "record hosts: "),
        (Record(sys_flag=48, born_ip=bytes(28)), "record hosts: "),
        (Record(queue_id=2**31), "record: "),
        (Record(queue_offset=2**63), "record: "),
        (Record(born_port=-(2**31) - 1), "record: "),
    ],
)
def test_a_record_that_does_not_fit_cannot_be_written(record: Record, message: str) -> None:
    with pytest.raises(Unencodable) as caught:
        encode_record(record)
    assert message in str(caught.value)


SMALLEST = encode_record(Record())
V6 = encode_record(Record(sys_flag=48, born_ip=bytes(16), store_ip=bytes(16)))


def test_the_smallest_record_is_as_small_as_declared() -> None:
    assert len(SMALLEST) == RECORD_BYTES_MIN
    assert decode_record(SMALLEST).size == RECORD_BYTES_MIN


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "record at byte 0: 0 bytes are less than the smallest record"),
        (SMALLEST[:-1], f"{RECORD_BYTES_MIN - 1} bytes are less than the smallest record"),
        (V6[:100], "100 bytes are less than the fixed part"),
        (patched(SMALLEST, 0, ">i", 0), "a size of 0 where 91 bytes follow"),
        (patched(SMALLEST, 0, ">i", -1), "a size of -1 where 91 bytes follow"),
        (patched(SMALLEST, 0, ">i", 92), "a size of 92 where 91 bytes follow"),
        (patched(SMALLEST, 0, ">i", 2**31 - 1), "a size of 2147483647 where 91 bytes follow"),
        (patched(SMALLEST, 4, ">i", 0), "unknown magic 00000000"),
        (patched(SMALLEST, 4, ">i", -875286124), "unknown magic cbd43194"),
        (patched(SMALLEST, 84, ">i", -1), "a body of -1 bytes in a record of 91"),
        (patched(SMALLEST, 84, ">i", 3), "a body of 3 bytes in a record of 91"),
        (patched(SMALLEST, 84, ">i", 2**31 - 1), "a body of 2147483647 bytes"),
        (patched(V6, 0, ">i", RECORD_BYTES_MIN), "a body of 0 bytes in a record of 91"),
        (patched(SMALLEST, 88, ">b", -1), "a topic of -1 bytes passes the end"),
        (patched(SMALLEST, 88, ">b", 1), "a topic of 1 bytes passes the end"),
        (patched(SMALLEST, 89, ">h", 1), "properties of 1 bytes do not end the record"),
        (patched(SMALLEST, 89, ">h", -1), "properties of -1 bytes do not end the record"),
        (patched(SMALLEST + b"x", 0, ">i", 92), "properties of 0 bytes do not end the record"),
        (patched(SMALLEST, 4, ">i", MAGIC_V2), "a topic of 0 bytes passes the end"),
        (patched(vectors.RECORD_V2, 94, ">h", -1), "a topic of -1 bytes passes the end"),
        (patched(vectors.RECORD_V2, 94, ">h", 32767), "a topic of 32767 bytes passes the end"),
    ],
)
def test_a_record_with_wrong_lengths_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(MalformedRecord) as caught:
        decode_record(data)
    assert message in str(caught.value)


def test_a_long_topic_record_cut_off_at_its_topic_length_is_refused() -> None:
    data = patched(patched(SMALLEST, 4, ">i", MAGIC_V2), 84, ">i", 2)
    with pytest.raises(MalformedRecord):
        decode_record(data)


def test_damage_names_its_position_and_leaves_what_is_before() -> None:
    data = vectors.RECORD * 2 + vectors.RECORD[:50]
    with pytest.raises(MalformedRecord, match="record at byte 334: 50 bytes are less") as caught:
        decode_records(data)
    assert caught.value.position == 2 * len(vectors.RECORD)
    assert len(decode_records(data[: caught.value.position])) == 2


# ---- segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [b"", bytes(5), bytes(200), blank_record(500) + b"\xff" * 492, blank_record(BLANK_BYTES_MIN)],
)
def test_a_segment_is_read_up_to_its_end(end: bytes) -> None:
    segment = vectors.RECORD + vectors.RECORD_V2 + end
    found = list(scan_segment(segment))
    assert [record.body for record in found] == [b"hello", b"v2body"]


def test_an_empty_segment_holds_no_records() -> None:
    assert list(scan_segment(bytes(1000))) == []


def test_a_segment_with_a_changed_body_is_refused_there() -> None:
    reader = scan_segment(vectors.RECORD + vectors.RECORD.replace(b"hello", b"jello"))
    assert next(reader).body == b"hello"
    with pytest.raises(MalformedRecord, match="record at byte 167: the body does not match"):
        next(reader)


def test_garbage_behind_the_records_of_a_segment_is_refused() -> None:
    reader = scan_segment(vectors.RECORD + b"\x01" * 200)
    next(reader)
    with pytest.raises(MalformedRecord) as caught:
        next(reader)
    assert caught.value.position == 167


# ---- batches -------------------------------------------------------------------------------------

BATCH_ITEMS = [
    BatchItem(0, b"a", b"WAIT\x01true\x02"),
    BatchItem(9, b"bc", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA\x02"),
]


def test_a_batch_of_java_is_read_and_written_byte_for_byte() -> None:
    assert decode_batch(vectors.BATCH) == BATCH_ITEMS
    assert encode_batch(BATCH_ITEMS) == vectors.BATCH


@given(st.lists(batch_items, max_size=4))
def test_a_batch_survives_writing_and_reading(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([BatchItem(0, b"", bytes(32768))], "batch item 0: "),
        ([BatchItem(0, b"", b""), BatchItem(2**31, b"", b"")], "batch item 1: "),
    ],
)
def test_a_batch_item_that_does_not_fit_cannot_be_written(
    items: list[BatchItem], message: str
) -> None:
    with pytest.raises(Unencodable, match=message):
        encode_batch(items)


ITEM = encode_batch([BatchItem(0, b"", b"")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ITEM[:-1], "batch byte 0: 21 bytes are less than an item"),
        (ITEM + b"\x00", "batch byte 22: 1 bytes are less than an item"),
        (patched(ITEM, 16, ">i", -1), "batch byte 0: a body of -1 bytes passes the end"),
        (patched(ITEM, 16, ">i", 1), "batch byte 0: a body of 1 bytes passes the end"),
        (patched(ITEM, 16, ">i", 2**31 - 1), "a body of 2147483647 bytes passes the end"),
        (patched(ITEM, 0, ">i", 0), "batch byte 0: the item's lengths do not add up to 0"),
        (patched(ITEM, 0, ">i", -5), "the item's lengths do not add up to -5"),
        (patched(ITEM, 0, ">i", 23), "the item's lengths do not add up to 23"),
        (patched(ITEM, 20, ">h", 1), "the item's lengths do not add up to 22"),
        (patched(patched(ITEM, 20, ">h", -1), 0, ">i", 21), "do not add up to 21"),
        (patched(patched(ITEM, 20, ">h", 1), 0, ">i", 23), "do not add up to 23"),
    ],
)
def test_a_batch_with_wrong_lengths_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        decode_batch(data)
    assert message in str(caught.value)


# ---- inner batches -------------------------------------------------------------------------------


@given(records(), st.lists(batch_items, max_size=4), st.integers(0, 2**62))
def test_an_inner_batch_becomes_records_of_its_own(
    outer: Record, items: list[BatchItem], base: int
) -> None:
    outer.sys_flag |= int(INNER)
    outer.body = encode_batch(items)
    outer.property_bytes = b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (len(items), base)
    found = unwrap(outer)
    assert [BatchItem(r.flag, r.body, r.property_bytes) for r in found] == items
    assert [r.queue_offset for r in found] == [base + index for index in range(len(items))]
    assert all(r.is_intact for r in found)
    assert all(not r.sys_flag & INNER for r in found)
    kept: Callable[[Record], Any] = lambda r: (r.log_offset, r.born_ip, r.topic, r.store_ms)  # noqa: E731
    assert {kept(r) for r in found} <= {kept(outer)}


def test_an_inner_batch_without_a_base_starts_at_its_own_offset() -> None:
    outer = Record(sys_flag=int(INNER), queue_offset=30, body=vectors.BATCH)
    assert [record.queue_offset for record in unwrap(outer)] == [30, 31]


@pytest.mark.parametrize("sys_flag", [0, SysFlag.INNER_BATCH, SysFlag.NEEDS_UNWRAP])
def test_any_other_record_is_left_as_it_is(sys_flag: int) -> None:
    record = Record(sys_flag=int(sys_flag), body=vectors.BATCH)
    assert unwrap(record) == [record]


@pytest.mark.parametrize("base", ["x", "-1", "1.5", " 1", "9" * 20, "9" * 5000])
def test_an_inner_base_that_is_not_an_offset_is_refused(base: str) -> None:
    properties = f"INNER_BASE\x01{base}\x02".encode()
    outer = Record(sys_flag=int(INNER), property_bytes=properties, body=vectors.BATCH)
    with pytest.raises(MalformedBody, match=r"inner batch: INNER_BASE '.*' is not an offset"):
        unwrap(outer)


def test_an_inner_batch_with_another_body_is_refused() -> None:
    with pytest.raises(MalformedBody, match="batch byte 0: 5 bytes are less than an item"):
        unwrap(Record(sys_flag=int(INNER), body=b"hello"))


def test_unwrapping_leaves_the_outer_record_as_it_was() -> None:
    outer = Record(sys_flag=int(INNER), body=vectors.BATCH)
    before = msgspec.structs.asdict(outer)
    unwrap(outer)
    assert msgspec.structs.asdict(outer) == before


def test_v2_record_that_ends_within_its_topic_length_says_so() -> None:
    whole = bytearray(encode_record(Record(magic=MAGIC_V2, body=b"body")))
    size = len(whole) - 3  # one of the topic's two length bytes is left
    whole[:4] = size.to_bytes(4, "big")
    with pytest.raises(MalformedRecord, match="ends within the topic's length"):
        decode_record(bytes(whole[:size]))


def test_record_of_unknown_magic_is_not_written() -> None:
    with pytest.raises(Unencodable, match="0000002a is unknown"):
        encode_record(Record(magic=42))


# ---- properties alone ----


@pytest.mark.parametrize("topic", [b"T", b"T" * 127, b"T" * 200])
@pytest.mark.parametrize("ip", [b"\x7f\x00\x00\x01", bytes(16)])
def test_properties_are_read_without_the_rest(topic: bytes, ip: bytes) -> None:
    flags = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) if len(ip) == 16 else 0
    record = Record(
        magic=MAGIC_V1 if len(topic) < 128 else MAGIC_V2,
        sys_flag=flags,
        born_ip=ip,
        store_ip=ip,
        body=b"b" * 300,
        topic_bytes=topic,
        property_bytes="color\x01réd\x02empty\x01\x02".encode(),
    )
    data = encode_record(record)
    around = b"x" * 7 + data + b"y" * 9
    assert properties_at(around, 7, 7 + len(data)) == record.properties() == {"color": "réd"}


def test_properties_of_a_damaged_record_name_the_damage() -> None:
    data = encode_record(Record(body=b"body", topic_bytes=b"T", property_bytes=b"a\x011\x02"))
    for cut in (0, 20, 60, len(data) - 1):
        with pytest.raises(MalformedRecord):
            properties_at(data[:cut], 0, cut)
    with pytest.raises(MalformedRecord):
        properties_at(data[:84] + b"\xff\xff\xff\xff" + data[88:], 0, len(data))
