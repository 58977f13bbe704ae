"""Templates: destinations, payloads, details and received values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from downrange import AsyncMessageTemplate, AsyncProducer, Envelope, MessageTemplate, Producer
from downrange.errors import MalformedBody, OptionError
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage

PRODUCER = Producer("127.0.0.1:9876", group="shop")
TEMPLATE = MessageTemplate(PRODUCER)
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def _received(body: bytes, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        message_id="id",
        queue=QueueId("orders", "broker-a", 0),
        offset=QueueOffset(0),
        body=body,
        properties=properties,
        offset_id="",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="",
        stored_at_ms=0,
    )


@pytest.mark.parametrize(
    ("destination", "topic", "tags"),
    [
        ("orders", "orders", None),
        ("orders:paid", "orders", "paid"),
        ("orders:", "orders", None),
        ("orders:a:b", "orders", "a:b"),
        (":paid", "events", "paid"),
        ("", "events", None),
    ],
)
def test_destination_is_topic_and_tag(destination: str, topic: str, tags: str | None) -> None:
    template = MessageTemplate(PRODUCER, default_topic="events")
    message = template.message(destination, b"1")
    assert (message.topic, message.tags) == (topic, tags)


@pytest.mark.parametrize("destination", ["", ":paid"])
def test_destination_without_topic_is_refused_when_there_is_no_default(destination: str) -> None:
    with pytest.raises(OptionError, match=f"destination '{destination}' names no topic"):
        TEMPLATE.message(destination, b"1")


def test_a_template_shows_its_producer_and_its_default_topic() -> None:
    assert repr(TEMPLATE) == "<MessageTemplate of <Producer group='shop' new>>"
    template = AsyncMessageTemplate(AsyncProducer("h:1", group="shop"), default_topic="events")
    assert repr(template) == (
        "<AsyncMessageTemplate of <AsyncProducer group='shop' new>, default_topic='events'>"
    )


def test_message_has_the_details() -> None:
    message = TEMPLATE.message("orders", {"id": 7}, keys="o-7", properties={"colour": "red"})
    assert message.body == b'{"id":7}'
    assert message.keys == ("o-7",)
    assert message.properties == {"colour": "red", "contentType": "application/json"}
    assert TEMPLATE.message("orders", "1", delay_level=3).delay_level == 3
    assert TEMPLATE.message("orders", "1", deliver_in=1.5).deliver_in == 1.5
    assert TEMPLATE.message("orders", "1", deliver_at=NOON).deliver_at == NOON


def test_template_tells_its_producer() -> None:
    assert TEMPLATE.producer is PRODUCER


def test_caller_may_name_the_content_type() -> None:
    message = TEMPLATE.message("orders", b"%PDF", properties={"contentType": "application/pdf"})
    assert message.properties == {"contentType": "application/pdf"}


def test_properties_of_the_caller_stay_as_they_are() -> None:
    properties = {"colour": "red"}
    TEMPLATE.message("orders", b"1", properties=properties)
    assert properties == {"colour": "red"}


def test_envelope_has_headers_for_the_fields_and_the_properties_of_a_message() -> None:
    headers = {
        "KEYS": "o-7 o-8",
        "FLAG": "5",
        "WAIT_STORE_MSG_OK": "false",
        "TAGS": "paid",
        "shop": 12,
        "price": 1.5,
        "is_new": True,
        "note": "soon",
        "empty": None,
    }
    message = TEMPLATE.message("orders", Envelope({"id": 7}, headers))
    assert (message.body, message.keys, message.tags) == (b'{"id":7}', ("o-7", "o-8"), "paid")
    assert (message.flag, message.wait_stored) == (5, False)
    assert message.properties == {
        "contentType": "application/json",
        "shop": "12",
        "price": "1.5",
        "is_new": "true",
        "note": "soon",
    }


def test_arguments_have_precedence_over_headers() -> None:
    headers = {
        "rocketmq_KEYS": ["a", 1],
        "rocketmq_TAGS": "paid",
        "contentType": "x/y",
        "WAIT_STORE_MSG_OK": True,
        "colour": "red",
        "size": False,
    }
    envelope = Envelope(b"1", headers)
    message = TEMPLATE.message("orders:new", envelope, keys="k", properties={"colour": "blue"})
    assert (message.keys, message.tags) == (("k",), "new")
    assert message.properties == {"contentType": "x/y", "colour": "blue", "size": "false"}
    other = TEMPLATE.message("orders", envelope)
    assert (other.keys, other.tags, other.wait_stored) == (("a", "1"), "paid", True)
    assert TEMPLATE.message("orders", Envelope(b"1")).properties == {
        "contentType": "application/octet-stream"
    }


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("colour", ["red"], "is not a text, number or bool"),
        ("KEYS", [None], "is not a text, number or bool"),
        ("FLAG", "one", "is not a whole number"),
        ("WAIT_STORE_MSG_OK", "perhaps", "is not True or False"),
    ],
)
def test_header_that_cannot_be_used_is_named(name: str, value: object, problem: str) -> None:
    with pytest.raises(OptionError, match=f"header '{name}' = .* {problem}"):
        TEMPLATE.message("orders", Envelope(b"1", {name: value}))


def test_reply_cannot_have_a_flag() -> None:
    request = _received(b"1")
    with pytest.raises(OptionError, match="a reply cannot have the headers of flag and wait_store"):
        TEMPLATE.convert_and_reply(request, Envelope(b"1", {"FLAG": 1, "WAIT_STORE_MSG_OK": True}))


@pytest.mark.parametrize(
    ("content_type", "value"),
    [
        ("application/json", {"id": 7}),
        ("text/plain;charset=UTF-8", '{"id":7}'),
        ("application/octet-stream", b'{"id":7}'),
    ],
)
def test_message_is_read_as_its_content_type_says(content_type: str, value: object) -> None:
    assert TEMPLATE.receive(_received(b'{"id":7}', contentType=content_type)) == value


def test_message_without_content_type_is_read_as_bytes_or_as_wanted() -> None:
    assert TEMPLATE.receive(_received(b"7")) == b"7"
    assert TEMPLATE.receive(_received(b"7"), int) == 7
    with pytest.raises(MalformedBody, match="JsonConverter cannot read 1 bytes as int"):
        TEMPLATE.receive(_received(b"x"), int)


def test_template_refuses_the_other_kind_of_producer() -> None:
    other: Any = AsyncProducer("127.0.0.1:9876", group="shop")
    with pytest.raises(OptionError, match=r"MessageTemplate needs a Producer, not <AsyncProducer"):
        MessageTemplate(other)
    this: Any = PRODUCER
    with pytest.raises(OptionError, match=r"AsyncMessageTemplate needs an AsyncProducer"):
        AsyncMessageTemplate(this)


def test_transaction_needs_a_producer_for_it() -> None:
    with pytest.raises(OptionError, match="transactions need a TransactionProducer, not <Producer"):
        TEMPLATE.convert_and_send_in_transaction("orders", b"1", lambda *_: None)
    with pytest.raises(OptionError, match="transactions need a TransactionProducer"):
        TEMPLATE.transaction("orders", b"1")
    twin = AsyncMessageTemplate(AsyncProducer("127.0.0.1:9876", group="shop"))
    with pytest.raises(OptionError, match="transactions need an AsyncTransactionProducer"):
        twin.transaction("orders", b"1")
