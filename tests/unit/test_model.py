"""What users hold in their hands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from downrange.errors import OptionError
from downrange.model import LogOffset, Message, QueueId, QueueOffset, ReceivedMessage


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
    with pytest.raises(OptionError, match=f"one way only, not {named}"):
        Message("T", b"", **options)


def test_a_delivery_time_must_know_its_time_zone() -> None:
    with pytest.raises(OptionError, match=r"deliver_at=.* does not say its time zone"):
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


# ---- received messages ---------------------------------------------------------------------------


def test_a_received_message_knows_its_topic_tags_and_keys() -> None:
    message = received(properties={"TAGS": "new", "KEYS": "k1  k2 "})
    assert (message.topic, message.tags, message.keys) == ("orders", "new", ["k1", "k2"])


def test_a_received_message_without_tags_and_keys_says_so() -> None:
    message = received()
    assert message.tags is None
    assert message.keys == []
    assert message.delivery_attempts == 0


def test_a_received_message_cannot_be_changed() -> None:
    message: Any = received()
    with pytest.raises(AttributeError):
        message.offset = 8


def test_a_received_message_shows_where_it_is_from_without_its_body() -> None:
    text = repr(received())
    assert "offset=7" in text
    assert "broker-a" in text
    assert "secret" not in text


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
