"""Messages, queues and receipts."""

from __future__ import annotations

import pickle
from array import array
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
import pytest

from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    HostNotFound,
    OptionError,
    RocketMQError,
    TooManyInFlight,
    server_error,
)
from downrange.model import (
    Attempt,
    BatchReceipt,
    CompressedMessage,
    LogOffset,
    Message,
    QueueId,
    QueueOffset,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)


def received(**members: Any) -> ReceivedMessage:
    defaults: dict[str, Any] = {
        "message_id": "ID",
        "queue": QueueId("orders", "broker-a", 3),
        "offset": QueueOffset(7),
        "body": b"secret body",
        "properties": {},
        "offset_id": "OFFSET-ID",
        "log_offset": LogOffset(99),
        "flag": 0,
        "born_at_ms": 1,
        "born_host": "h:1",
        "stored_at_ms": 2,
    }
    return ReceivedMessage(**defaults | members)


# ---- messages to send ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"), [(b"raw", b"raw"), ("é中", "é中".encode()), ("", b"")]
)
def test_a_body_of_text_becomes_utf_8(body: bytes | str, expected: bytes) -> None:
    assert Message("T", body).body == expected


def test_a_body_is_copied_from_what_may_change() -> None:
    data: Any = bytearray(b"now")
    message = Message("T", data)
    data[:] = b"hm?"
    assert message.body == b"now"


def test_keys_may_be_one_word_or_many() -> None:
    assert Message("T", b"").keys == ()
    assert Message("T", b"", keys="one").keys == ("one",)
    assert Message("T", b"", keys=(key for key in ("a", "b"))).keys == ("a", "b")


@pytest.mark.parametrize("key", ["", " ", "a b", " a", "a ", "a\tb", "a\u3000b", "\n"])
def test_a_key_with_blanks_is_refused(key: str) -> None:
    with pytest.raises(OptionError) as caught:
        Message("T", b"", keys=["good", key])
    assert repr(key) in str(caught.value)


def test_properties_are_copied() -> None:
    properties = {"a": "b"}
    message = Message("T", b"", properties=properties)
    properties["a"] = "c"
    assert message.properties == {"a": "b"}
    assert Message("T", b"").properties == {}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"delay_level": 1, "deliver_in": 1.0}, "delay_level and deliver_in"),
        (
            {"delay_level": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "delay_level and deliver_at",
        ),
        (
            {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "deliver_in": 1.0},
            "deliver_at and deliver_in",
        ),
    ],
)
def test_a_message_is_delayed_in_one_way_only(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=f"one way only, not by {named}"):
        Message("T", b"", **options)


def test_a_delivery_time_needs_a_time_zone() -> None:
    with pytest.raises(OptionError, match=r"deliver_at=.* needs a time zone"):
        Message("T", b"", deliver_at=datetime(2030, 1, 1))
    assert Message("T", b"", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)).deliver_at is not None


def test_an_option_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="blanks"):
        Message("T", b"", keys=[""])


def test_a_message_has_no_room_for_misspelt_attributes() -> None:
    message: Any = Message("T", b"")
    with pytest.raises(AttributeError):
        message.tag = "x"


def test_a_message_shows_itself_without_its_body() -> None:
    text = repr(Message("T", b"secret", tags="a", keys=["k"]))
    assert text == "Message(topic='T', body=<6 bytes>, tags='a', keys=['k'])"


def test_a_message_shows_properties_and_delays_where_it_has_any() -> None:
    assert repr(Message("T", b"1")) == "Message(topic='T', body=<1 byte>)"
    assert repr(
        Message("T", b"", properties={"colour": "red"}, sharding_key="s", delay_level=3, flag=7)
    ) == (
        "Message(topic='T', body=<0 bytes>, properties={'colour': 'red'}, sharding_key='s', "
        "delay_level=3, flag=7)"
    )
    at = datetime(2030, 1, 2, 3, tzinfo=UTC)
    assert "deliver_at='2030-01-02 03:00:00+00:00'" in repr(Message("T", b"", deliver_at=at))
    assert "deliver_in=1.5" in repr(Message("T", b"", deliver_in=1.5))
    assert repr(Message("T", b"", wait_stored=False)).endswith(", wait_stored=False)")


def test_a_message_with_large_properties_has_a_short_repr() -> None:
    properties = {f"name-{number}": "v" * 1000 for number in range(30)}
    assert len(repr(Message("T", b"", properties=properties))) < 4000


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "U"},
        {"body": b"2"},
        {"tags": "b"},
        {"keys": ["l"]},
        {"properties": {}},
        {"sharding_key": "t"},
        {"delay_level": 4},
        {"flag": 8},
        {"wait_stored": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_messages_are_equal_when_all_their_fields_are(change: dict[str, Any]) -> None:
    parts: dict[str, Any] = {
        "topic": "T",
        "body": b"1",
        "tags": "a",
        "keys": ["k"],
        "properties": {"p": "q"},
        "sharding_key": "s",
        "delay_level": 3,
        "flag": 7,
        "wait_stored": False,
    }
    assert Message(**parts) == Message(**parts)
    assert Message(**parts) != Message(**parts | change)
    assert Message(**parts) != "a message"


def test_messages_with_other_times_of_delivery_differ() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message("T", b"", deliver_in=1) == Message("T", b"", deliver_in=1.0)
    assert Message("T", b"", deliver_in=1) != Message("T", b"", deliver_in=2)
    assert Message("T", b"", deliver_at=at) != Message("T", b"", deliver_at=at.replace(year=2031))


def test_a_message_can_be_changed_and_so_has_no_hash() -> None:
    message = Message("T", b"1")
    with pytest.raises(TypeError, match="unhashable type: 'Message'"):
        hash(message)
    again = pickle.loads(pickle.dumps(message))
    assert again == message
    again.tags = "new"
    assert again != message


@pytest.mark.parametrize(
    "body", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"xabx")[1:3], array("B", b"ab")]
)
def test_a_body_may_be_anything_that_holds_bytes(body: Any) -> None:
    assert Message("T", body).body == b"ab"


def test_names_may_be_members_of_an_enum() -> None:
    class Name(StrEnum):
        ORDERS = "orders"

    class Flag(IntEnum):
        URGENT = 1

    message = Message(Name.ORDERS, b"", tags=Name.ORDERS, keys=[Name.ORDERS], flag=Flag.URGENT)
    assert (message.topic, message.tags, message.keys) == ("orders", "orders", ("orders",))
    assert message.flag == 1


# ---- received messages ---------------------------------------------------------------------------


def test_a_received_message_has_topic_tags_and_keys() -> None:
    message = received(properties={"TAGS": "new", "KEYS": "k1  k2 "})
    assert (message.topic, message.tags, message.keys) == ("orders", "new", ["k1", "k2"])


def test_a_received_message_may_have_no_tags_and_keys() -> None:
    message = received()
    assert message.tags is None
    assert message.keys == []
    assert message.delivery_attempts == 0


def test_a_received_message_cannot_be_changed() -> None:
    message: Any = received()
    with pytest.raises(AttributeError):
        message.offset = 8


def test_a_received_message_shows_where_it_is_from_without_its_body() -> None:
    assert repr(received()) == (
        "ReceivedMessage(topic='orders', broker='broker-a', queue=3, offset=7, message_id='ID', "
        "body=<11 bytes>, born_at=1970-01-01 00:00:00.001000+00:00, "
        "stored_at=1970-01-01 00:00:00.002000+00:00)"
    )
    properties = {"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "colour": "red"}
    text = repr(received(properties=properties, flag=5, delivery_attempts=2))
    assert "tags='new', keys=['k1', 'k2'], properties={'colour': 'red'}, flag=5, " in text
    assert "delivery_attempts=2, born_at=" in text


def test_a_received_message_has_its_times_in_utc() -> None:
    message = received(born_at_ms=1_700_000_000_123, stored_at_ms=1_700_000_000_456)
    assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.stored_at - message.born_at == timedelta(milliseconds=333)
    assert message.stored_at.tzinfo is UTC


@pytest.mark.parametrize(("at_ms", "year"), [(2**63 - 1, 9999), (-(2**63), 1), (-1, 1969)])
def test_a_time_that_no_calendar_has_is_the_nearest_one(at_ms: int, year: int) -> None:
    assert received(born_at_ms=at_ms).born_at.year == year


def test_equal_received_messages_are_one_member_of_a_set() -> None:
    assert received() == received()
    assert received() != received(body=b"other")
    assert len({received(), received(), received(offset=QueueOffset(8))}) == 2


# ---- queues --------------------------------------------------------------------------------------


def test_queues_sort_by_topic_broker_and_number_as_in_java() -> None:
    queues = [QueueId(t, b, n) for t in ("a", "b") for b in ("x", "y") for n in (2, 10)]
    mixed = [queues[n] for n in (5, 2, 7, 0, 3, 6, 1, 4)]
    assert sorted(mixed) == queues


def test_equal_queues_are_one_key() -> None:
    assert {QueueId("T", "b", 1): 1, QueueId("T", "b", 1): 2} == {QueueId("T", "b", 1): 2}


def test_a_queue_travels_under_its_java_names() -> None:
    queue = QueueId("T", "b", 1)
    assert msgspec.json.decode(msgspec.json.encode(queue)) == {
        "topic": "T",
        "brokerName": "b",
        "queueId": 1,
    }


# ---- receipts ------------------------------------------------------------------------------------


def receipt(*errors: RocketMQError, message_id: str = "ID") -> SendReceipt:
    return SendReceipt(
        message_id=message_id,
        queue=QueueId("orders", "a", 3),
        offset=QueueOffset(7),
        offset_id="OFFSET-ID",
        failures=tuple(Attempt("b", "b:10911", 1, error, 0.25) for error in errors),
    )


def test_a_receipt_counts_the_attempts() -> None:
    assert receipt().attempts == 1
    assert receipt(ConnectionLost("b:10911", "cut"), server_error(2, None, "b:10911")).attempts == 3


@pytest.mark.parametrize(
    ("error", "may_be"),
    [
        (ConnectionLost("b:10911", "cut"), True),
        (CallTimeout("b:10911", 1.0), True),
        (server_error(10, "FLUSH_DISK_TIMEOUT", "b:10911"), True),
        (server_error(11, "SLAVE_NOT_AVAILABLE", "b:10911"), True),
        (server_error(12, "FLUSH_SLAVE_TIMEOUT", "b:10911"), True),
        (ConnectFailed("b:10911", "refused"), False),
        (HostNotFound("b:10911", "no name"), False),
        (server_error(2, "busy", "b:10911"), False),
        (TooManyInFlight(5), False),
    ],
    ids=lambda value: getattr(value, "remark", None) or type(value).__name__,
)
def test_a_message_may_be_stored_twice_after_an_attempt_that_may_have_stored_it(
    error: RocketMQError, may_be: bool
) -> None:
    assert receipt(error).may_be_stored_twice is may_be
    assert receipt(error, ConnectFailed("b:1", "x")).may_be_stored_twice is may_be
    assert not receipt().may_be_stored_twice


def test_an_attempt_tells_where_it_went_and_how_it_ended() -> None:
    attempt = Attempt("b", "b:10911", 1, ConnectionLost("b:10911", "cut"), 0.25)
    assert str(attempt) == "b b:10911 queue 1: ConnectionLost after 0.2 s (cut)"


def test_receipts_and_attempts_cannot_be_changed() -> None:
    one: Any = receipt(ConnectionLost("b:10911", "cut"))
    with pytest.raises(AttributeError):
        one.offset = 8
    with pytest.raises(AttributeError):
        one.failures[0].elapsed = 1.0


def test_receipts_pickle_with_their_failures() -> None:
    one = receipt(CallTimeout("b:10911", 1.0))
    again = pickle.loads(pickle.dumps(BatchReceipt((one,), (1,))))
    assert again.receipts[0].queue == one.queue
    assert str(again.receipts[0].failures[0]) == str(one.failures[0])


def test_a_batch_receipt_counts_requests_and_messages() -> None:
    both = BatchReceipt((receipt(message_id="A,B"), receipt(message_id="C")), (2, 1))
    assert (both.request_count, len(both)) == (2, 3)
    assert both.message_ids == ["A", "B", "C"]
    assert list(both) == list(both.receipts)
    assert repr(both) == "<BatchReceipt of 3 messages for 'orders' in 2 requests>"


def test_a_batch_receipt_of_nothing_is_empty() -> None:
    nothing = BatchReceipt((), ())
    assert (nothing.request_count, len(nothing), nothing.message_ids) == (0, 0, [])
    assert repr(nothing) == "<BatchReceipt of 0 messages in 0 requests>"


def test_each_send_status_has_the_brokers_code() -> None:
    assert {status.name: status.value for status in SendStatus} == {
        "STORED": 0,
        "FLUSH_DISK_TIMEOUT": 10,
        "SLAVE_NOT_AVAILABLE": 11,
        "FLUSH_SLAVE_TIMEOUT": 12,
    }


def test_compressed_message_has_the_compression_and_the_details_of_a_message() -> None:
    message = CompressedMessage("orders", b"x", compression="zstd", tags="new", keys=["k"])
    assert (message.compression, message.tags, message.keys) == ("zstd", "new", ("k",))
    wrong: Any = "rar"
    with pytest.raises(OptionError, match="compression='rar' must be one of zlib, lz4, zstd"):
        CompressedMessage("orders", b"x", compression=wrong)


def test_compressed_messages_differ_from_others_and_show_their_compression() -> None:
    message = CompressedMessage("orders", b"x", compression="zstd")
    assert message == CompressedMessage("orders", b"x", compression="zstd")
    assert message != CompressedMessage("orders", b"x", compression="lz4")
    assert message != Message("orders", b"x")
    assert repr(message) == ("CompressedMessage(topic='orders', body=<1 byte>, compression='zstd')")
    assert "compression='lz4'" in repr(received(compression="lz4"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)
