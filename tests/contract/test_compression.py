"""Compressed bodies, and the flags with which every consumer can read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from downrange.errors import InvalidMessage
from downrange.model import Message
from downrange.options import ProducerOptions
from tests.contract.blocking import LONG_TIMEOUT

if TYPE_CHECKING:
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

LARGE = b"the quick brown fox " * 500
#: The flags of a message whose body is compressed, by method.
FLAGS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@pytest.mark.parametrize("name", FLAGS)
def test_a_large_body_is_compressed_and_can_be_read(
    server: Server, producer: MakeProducer, name: str
) -> None:
    topic = server.topic(queues=1)
    sender = producer(server, options=ProducerOptions(compression=name))  # type: ignore[arg-type]
    sender.send(Message(topic, LARGE))
    sender.submit(Message(topic, LARGE)).result(LONG_TIMEOUT)
    sender.send_oneway(Message(topic, LARGE))
    assert [message.body for message in server.read_all(topic, 3)] == [LARGE] * 3
    for record in server.records(topic, 3):
        assert record.sys_flag & 0x701 == FLAGS[name]
        assert len(record.body) < len(LARGE) / 10


def test_a_small_body_is_sent_uncompressed(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server)
    sender.send(Message(topic, b"x" * 4095))
    sender.send(Message(topic, b"x" * 4096))
    small, large = server.records(topic, 2)
    assert (small.sys_flag & 0x701, small.body) == (0, b"x" * 4095)
    assert large.sys_flag & 1
    assert [message.body for message in server.read_all(topic, 2)] == [b"x" * 4095, b"x" * 4096]


def test_the_threshold_can_be_chosen(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=1)
    producer(embedded, options=ProducerOptions(compress_over_bytes=40)).send(
        Message(topic, b"x" * 40)
    )
    (record,) = embedded.records(topic, 1)
    assert record.sys_flag & 1


def test_a_body_that_cannot_be_compressed_arrives_unchanged(
    server: Server, producer: MakeProducer
) -> None:
    """Issue 14: compression made random bytes larger than the broker accepts."""
    topic = server.topic(queues=1)
    body = os.urandom(4 * 1024 * 1024 - 1024)
    producer(server, options=ProducerOptions(timeout=LONG_TIMEOUT)).send(Message(topic, body))
    (record,) = server.records(topic, 1)
    assert (record.sys_flag & 0x701, record.body) == (0, body)
    (stored,) = server.read_all(topic, 1)
    assert stored.body == body


def test_a_batch_is_not_compressed(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    producer(server).send_batch([Message(topic, LARGE), Message(topic, LARGE)])
    for record in server.records(topic, 2):
        assert (record.sys_flag & 0x701, record.body) == (0, LARGE)


def test_a_higher_level_compresses_better(embedded: Embedded, producer: MakeProducer) -> None:
    body = b"".join(b"%d," % (number * number) for number in range(5000))
    topic = embedded.topic(queues=1)
    for level in (1, 9):
        producer(embedded, options=ProducerOptions(compression_level=level)).send(
            Message(topic, body)
        )
    quick, thorough = embedded.records(topic, 2)
    assert len(thorough.body) < len(quick.body)


def test_the_limit_holds_before_compression(embedded: Embedded, producer: MakeProducer) -> None:
    sender = producer(embedded, options=ProducerOptions(body_bytes_max=5000))
    with pytest.raises(InvalidMessage, match="5001"):
        sender.send(Message(embedded.topic(), b"x" * 5001))
