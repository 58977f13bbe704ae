"""Messages to properties and batches, and from records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, Unencodable
from downrange.model import Message, QueueId
from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression, compress
from downrange.wire.messages import (
    batch_of,
    properties_of,
    property_text,
    received,
    received_as_stored,
)
from downrange.wire.properties import encode_properties
from downrange.wire.records import Record, decode_batch, decode_record
from tests.unit.wire import vectors

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_plain_message_travels_with_its_id_and_whether_to_wait() -> None:
    assert properties_of(Message("T", b""), "ID") == {"UNIQ_KEY": "ID", "WAIT": "true"}


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ({"tags": "TagA"}, {"TAGS": "TagA"}),
        ({"keys": ["k1", "k2"]}, {"KEYS": "k1 k2"}),
        ({"properties": {"mine": "1"}}, {"mine": "1"}),
        ({"sharding_key": "s"}, {"__SHARDINGKEY": "s"}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"deliver_in": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        (
            {"deliver_at": datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)},
            {"TIMER_DELIVER_MS": "1700000000500"},
        ),
        (
            {"deliver_at": datetime(2023, 11, 15, 6, 13, 20, tzinfo=timezone(timedelta(hours=8)))},
            {"TIMER_DELIVER_MS": "1700000000000"},
        ),
        ({"wait_stored": False}, {"WAIT": "false"}),
        ({"properties": {"UNIQ_KEY": "x", "WAIT": "x"}}, {}),
    ],
)
def test_what_a_message_asks_for_travels_as_properties(
    options: dict[str, Any], properties: dict[str, str]
) -> None:
    expected = {"UNIQ_KEY": "ID", "WAIT": "true", **properties}
    assert properties_of(Message("T", b"", **options), "ID") == expected


def test_properties_of_a_message_leave_the_message_alone() -> None:
    message = Message("T", b"", properties={"a": "b"})
    properties_of(message, "ID")
    assert message.properties == {"a": "b"}


def test_a_batch_holds_each_message_with_its_id() -> None:
    data = batch_of([(Message("T", b"a", flag=9), "ID1"), (Message("T", b"b", tags="t"), "ID2")])
    first, second = decode_batch(data)
    assert (first.flag, first.body, second.body) == (9, b"a", b"b")
    assert first.property_bytes == b"UNIQ_KEY\x01ID1\x02WAIT\x01true\x02"
    assert second.property_bytes == b"UNIQ_KEY\x01ID2\x02WAIT\x01true\x02TAGS\x01t\x02"


@pytest.mark.parametrize("value", ["a\x01b", "a\x02b", "", "\ud800"])
def test_a_property_that_cannot_be_carried_is_refused(value: str) -> None:
    with pytest.raises(Unencodable, match="propert"):
        batch_of([(Message("T", b"", properties={"mine": value}), "ID")])


def test_a_record_becomes_a_message() -> None:
    (message,) = received(decode_record(vectors.RECORD), "broker-a", body_bytes_max=100)
    assert message.message_id == "7F000001000100000000000000000000"
    assert message.offset_id == vectors.RECORD_OFFSET_ID
    assert message.queue == QueueId("TopicTest", "broker-a", 2)
    assert (message.topic, message.tags, message.keys) == ("TopicTest", "TagA", [])
    assert (message.offset, message.log_offset, message.flag) == (5, 1024, 0)
    assert (message.born_at_ms, message.stored_at_ms) == (1700000000000, 1700000000123)
    assert (message.born_host, message.delivery_attempts) == ("10.0.0.1:50000", 0)
    assert message.body == b"hello"


def test_a_message_without_a_unique_id_is_known_by_its_offset_id() -> None:
    record = Record(store_ip=bytes([10, 0, 0, 2]), store_port=10911, log_offset=1024)
    (message,) = received(record, "b", body_bytes_max=0)
    assert message.message_id == message.offset_id == vectors.RECORD_OFFSET_ID


@pytest.mark.parametrize(("sys_flag", "packed"), vectors.COMPRESSED_BODIES.items())
def test_a_compressed_body_is_given_unpacked(sys_flag: int, packed: bytes) -> None:
    record = Record(body=packed, sys_flag=int(sys_flag))
    (message,) = received(record, "b", body_bytes_max=5000)
    assert message.body == vectors.COMPRESSIBLE_BODY
    with pytest.raises(MalformedBody, match="cannot be decompressed to at most 4999 bytes"):
        received(record, "b", body_bytes_max=4999)


@pytest.mark.parametrize(
    ("sys_flag", "name"),
    [(0, None), (0x1, "zlib"), (0x301, "zlib"), (0x101, "lz4"), (0x201, "zstd")],
)
def test_a_body_can_stay_as_it_is_stored(sys_flag: int, name: str | None) -> None:
    (message,) = received_as_stored(Record(body=b"packed", sys_flag=sys_flag), "b")
    assert (message.body, message.compression) == (b"packed", name)
    with pytest.raises(MalformedBody, match="unknown compression type 7"):
        received_as_stored(Record(body=b"packed", sys_flag=0x701), "b")


def test_an_inner_batch_becomes_its_messages() -> None:
    record = Record(
        sys_flag=int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP),
        body=vectors.BATCH,
        topic_bytes=b"T",
        property_bytes=b"INNER_NUM\x012\x02INNER_BASE\x0140\x02",
    )
    first, second = received(record, "b", body_bytes_max=0)
    assert (first.body, first.offset, first.tags) == (b"a", 40, None)
    assert (second.body, second.offset, second.tags) == (b"bc", 41, "TagA")
    assert (second.keys, second.flag, second.topic) == (["k1"], 9, "T")


def test_a_body_with_an_unknown_compression_is_refused() -> None:
    body, _ = compress(b"x", Compression.ZLIB)
    with pytest.raises(MalformedBody, match="unknown compression type 7"):
        received(Record(body=body, sys_flag=0x701), "b", body_bytes_max=10)


@given(
    properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    keys=st.lists(st.text("abc\x01", min_size=1, max_size=3), max_size=2),
    tags=st.none() | st.text("ab\x01", min_size=1, max_size=3),
    sharding_key=st.none() | st.text(min_size=1, max_size=3),
    wait_stored=st.booleans(),
    delay_level=st.none() | st.integers(1, 3),
)
def test_the_fast_way_to_write_properties_equals_the_plain_one(**parts: Any) -> None:
    message = Message("T", b"1", **parts)

    def plain(message: Message, unique_id: str) -> str:
        return encode_properties(properties_of(message, unique_id))

    assert _outcome(property_text, message) == _outcome(plain, message)


def _outcome(write: Callable[[Message, str], str], message: Message) -> str:
    try:
        return write(message, "ID")
    except Unencodable as refusal:
        return f"refused: {refusal}"
