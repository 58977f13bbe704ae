"""Preparing messages for sending."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.producing.prepare import Outgoing, prepare, prepare_batch
from downrange.errors import InvalidMessage
from downrange.model import CompressedMessage, Message
from downrange.options import ClientOptions, ProducerOptions
from downrange.wire.codes import RequestCode
from downrange.wire.compression import decompress
from downrange.wire.properties import decode_properties
from tests.unit.client.flows.flow_steps import core_with, producer_with

MESSAGE = Message("orders", b"1", tags="new", keys=["k1", "k2"], properties={"color": "red"})


def prepared(message: Message = MESSAGE, namespace: str | None = None, **options: Any) -> Outgoing:
    client = core_with(options=ClientOptions(namespace=namespace))
    return prepare(producer_with(client=client, options=ProducerOptions(**options)), message)


def test_a_message_gets_its_id_and_its_properties() -> None:
    outgoing = prepared()
    assert decode_properties(outgoing.properties) == {
        "color": "red",
        "KEYS": "k1 k2",
        "TAGS": "new",
        "UNIQ_KEY": outgoing.message_id,
        "WAIT": "true",
    }
    assert (outgoing.topic, outgoing.body, outgoing.sys_flag) == ("orders", b"1", 0)
    assert (outgoing.born_ms, outgoing.count) == (100_000, 1)
    assert outgoing.message is MESSAGE


def test_each_message_gets_an_id_of_its_own() -> None:
    producer = producer_with()
    assert prepare(producer, MESSAGE).message_id != prepare(producer, MESSAGE).message_id


def test_the_namespace_is_added_to_the_topic_and_to_the_properties() -> None:
    outgoing = prepared(namespace="prod")
    assert outgoing.topic == "prod%orders"
    assert decode_properties(outgoing.properties)["INSTANCE_ID"] == "prod"


def test_a_system_topic_has_no_namespace() -> None:
    assert prepared(Message("TBW102", b"1"), namespace="prod").topic == "TBW102"


def test_properties_of_the_protocol_are_added() -> None:
    producer = producer_with()
    outgoing = prepare(producer, MESSAGE, extra={"TRAN_MSG": "true"})
    assert decode_properties(outgoing.properties)["TRAN_MSG"] == "true"


@pytest.mark.parametrize(
    ("name", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)], ids=str
)
def test_a_large_body_is_compressed_as_the_options_say(name: str, flag: int) -> None:
    text = b"again and " * 1000
    outgoing = prepared(Message("orders", text), compression=name)
    assert outgoing.sys_flag == flag
    assert len(outgoing.body) < len(text)
    assert decompress(outgoing.body, outgoing.sys_flag, 100_000) == text


def test_a_body_is_compressed_from_the_threshold_on() -> None:
    assert prepared(Message("orders", b"x" * 99), compress_over_bytes=100).sys_flag == 0
    assert prepared(Message("orders", b"x" * 100), compress_over_bytes=100).sys_flag != 0


def test_how_hard_to_compress_is_an_option() -> None:
    text = bytes(n * n % 251 for n in range(50_000)) + b"again and " * 5000
    sizes = [len(prepared(Message("orders", text), compression_level=n).body) for n in (0, 9)]
    assert sizes[1] < sizes[0]


def test_a_half_message_is_marked() -> None:
    assert prepare(producer_with(), MESSAGE, is_half=True).sys_flag == 4


@pytest.mark.parametrize(
    ("version", "is_reply", "code"),
    [
        (2, False, RequestCode.SEND_MESSAGE_V2),
        (1, False, RequestCode.SEND_MESSAGE),
        (2, True, RequestCode.SEND_REPLY_MESSAGE_V2),
        (1, True, RequestCode.SEND_REPLY_MESSAGE),
    ],
)
def test_the_request_depends_on_header_version_and_purpose(
    version: Any, is_reply: bool, code: RequestCode
) -> None:
    producer = producer_with(options=ProducerOptions(header_version=version))
    assert prepare(producer, MESSAGE, is_reply=is_reply).code == code


def test_a_message_that_breaks_a_rule_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="body_bytes_max"):
        prepared(Message("orders", b"xx"), body_bytes_max=1)
    with pytest.raises(InvalidMessage):
        prepared(Message("orders", b""))


def test_a_property_that_cannot_be_carried_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="contains a separator"):
        prepared(Message("orders", b"1", properties={"a": "\x01"}))
    with pytest.raises(InvalidMessage, match="property 'a': half a surrogate pair"):
        prepared(Message("orders", b"1", properties={"a": "\ud800"}))


def test_the_namespace_counts_towards_the_limit_of_properties() -> None:
    message = Message("orders", b"1", properties={"a": "v" * 32_700})
    prepare(producer_with(), message)
    producer = producer_with(client=core_with(options=ClientOptions(namespace="production")))
    with pytest.raises(InvalidMessage, match=r"together: 327.. bytes"):
        prepare(producer, message)


@pytest.mark.parametrize("letter", ["v", "é", "中", "😀"])
def test_properties_are_counted_in_bytes_before_anything_is_sent(letter: str) -> None:
    fixed = len(prepared(Message("orders", b"1", properties={"a": "v"})).properties) - 1
    room, size = 32_767 - fixed, len(letter.encode())
    value = letter * (room // size) + "v" * (room % size)
    assert len(prepared(Message("orders", b"1", properties={"a": value})).properties.encode()) == (
        32_767
    )
    with pytest.raises(InvalidMessage, match="together: 32768 bytes, 32767 are"):
        prepared(Message("orders", b"1", properties={"a": value + "v"}))


# ---- batches -------------------------------------------------------------------------------------


def test_a_batch_holds_its_messages_and_their_ids() -> None:
    first, second = Message("orders", b"one"), Message("orders", b"two")
    outgoing = prepare_batch(producer_with(), [first, second])
    assert outgoing.code == RequestCode.SEND_BATCH_MESSAGE
    ids = outgoing.message_id.split(",")
    assert len(set(ids)) == 2
    assert all(one.encode() in outgoing.body for one in ids)
    assert b"one" in outgoing.body
    assert b"two" in outgoing.body
    assert (outgoing.count, outgoing.batch) == (2, [first, second])
    assert outgoing.message is first


@pytest.mark.parametrize(("wait", "text"), [(True, "true"), (False, "false")])
def test_a_batch_says_for_all_whether_to_wait_and_has_no_id_of_its_own(
    wait: bool, text: str
) -> None:
    outgoing = prepare_batch(producer_with(), [Message("orders", b"1", wait_stored=wait)])
    assert decode_properties(outgoing.properties) == {"WAIT": text}


def test_a_batch_is_in_the_namespace_too() -> None:
    client = core_with(options=ClientOptions(namespace="prod"))
    outgoing = prepare_batch(producer_with(client=client), [MESSAGE])
    assert outgoing.topic == "prod%orders"
    assert decode_properties(outgoing.properties) == {"WAIT": "true", "INSTANCE_ID": "prod"}


def test_a_batch_is_never_compressed() -> None:
    producer = producer_with(options=ProducerOptions(compress_over_bytes=1))
    outgoing = prepare_batch(producer, [Message("orders", b"x" * 9000)])
    assert outgoing.sys_flag == 0
    assert b"x" * 9000 in outgoing.body


def test_a_batch_that_is_too_large_is_refused() -> None:
    producer = producer_with(options=ProducerOptions(body_bytes_max=250))
    with pytest.raises(InvalidMessage, match=r"2 messages has \d+ bytes, more than body_bytes_max"):
        prepare_batch(producer, [Message("orders", b"x" * 100)] * 2)


@pytest.mark.parametrize(
    "messages",
    [
        [Message("orders", b"1"), Message("bills", b"1")],
        [Message("orders", b"1", delay_level=1)],
        [Message("orders", b"")],
    ],
    ids=["two topics", "delayed", "empty"],
)
def test_messages_that_cannot_be_in_a_batch_are_refused(messages: list[Message]) -> None:
    with pytest.raises(InvalidMessage):
        prepare_batch(producer_with(), messages)


@pytest.mark.parametrize(("name", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_a_compressed_body_is_sent_as_it_is(name: Any, flag: int) -> None:
    message = CompressedMessage("orders", b"x" * 5000, compression=name, tags="new")
    outgoing = prepared(message)
    assert (outgoing.body, outgoing.sys_flag) == (message.body, flag)


def test_a_batch_cannot_have_a_compressed_message() -> None:
    packed = CompressedMessage("orders", b"x", compression="zlib")
    with pytest.raises(InvalidMessage, match="message 1 is compressed already"):
        prepare_batch(producer_with(), [MESSAGE, packed])
