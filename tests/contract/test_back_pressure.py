"""Back-pressure: the limits on messages in flight, and the sends that wait for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import deliver, drop
from downrange.errors import OptionError, SendTimedOut, TooManySends
from downrange.model import Message
from downrange.options import ProducerOptions
from downrange.wire.codes import RequestCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.servers import stats_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange import Producer
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2
MIB = 1 << 20


def started_producer(
    embedded: Embedded, producer: MakeProducer, options: ProducerOptions
) -> tuple[Producer, str]:
    """Return a producer that already has the route of its topic, and the topic."""
    topic = embedded.topic()
    sender = producer(embedded, options=options)
    sender.send(Message(topic, b"first"))
    return sender, topic


def test_no_more_messages_than_allowed_are_on_their_way(
    embedded: Embedded, producer: MakeProducer
) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, deliver(after=0.2))
    futures = [sender.submit(Message(topic, b"1")) for _ in range(25)]
    wait_until(lambda: (stats_of(sender).in_flight, stats_of(sender).waiting) == (10, 15))
    embedded.cluster.intercept(SEND, None)
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 25
    stats = stats_of(sender)
    assert (stats.in_flight, stats.in_flight_bytes, stats.waiting) == (0, 0, 0)


def test_no_more_bytes_than_allowed_are_on_their_way(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_bytes_max=MIB, compress_over_bytes=MIB)
    sender, topic = started_producer(embedded, producer, options)
    embedded.cluster.intercept(SEND, deliver(after=0.2))
    futures = [sender.submit(Message(topic, b"x" * 400_000)) for _ in range(5)]
    wait_until(lambda: stats_of(sender).waiting == 3)
    assert (stats_of(sender).in_flight, stats_of(sender).in_flight_bytes) == (2, 800_000)
    embedded.cluster.intercept(SEND, None)
    for future in futures:
        future.result(LONG_TIMEOUT)
    assert stats_of(sender).in_flight_bytes == 0


def test_a_message_larger_than_all_bytes_allowed_goes_alone(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_bytes_max=MIB, compress_over_bytes=8 * MIB)
    sender, topic = started_producer(embedded, producer, options)
    assert sender.submit(Message(topic, b"x" * (2 * MIB))).result(LONG_TIMEOUT).attempts == 1


def test_limits_can_be_changed_while_messages_wait(
    embedded: Embedded, producer: MakeProducer
) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, deliver(after=0.5))
    futures = [sender.submit(Message(topic, b"1")) for _ in range(30)]
    wait_until(lambda: stats_of(sender).waiting == 20)
    sender.set_limits(in_flight_max=30)
    wait_until(lambda: (stats_of(sender).in_flight, stats_of(sender).waiting) == (30, 0))
    sender.set_limits(in_flight_max=10)
    embedded.cluster.intercept(SEND, None)
    for future in futures:
        future.result(LONG_TIMEOUT)


def test_limits_below_the_minimum_are_refused(embedded: Embedded, producer: MakeProducer) -> None:
    sender, _ = started_producer(embedded, producer, ProducerOptions())
    with pytest.raises(OptionError, match="in_flight_max=9"):
        sender.set_limits(in_flight_max=9)
    with pytest.raises(OptionError, match="in_flight_bytes_max=1000"):
        sender.set_limits(in_flight_bytes_max=1000)


def test_waiting_for_a_permit_counts_towards_the_deadline(
    embedded: Embedded, producer: MakeProducer
) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, drop())
    under_way = [sender.submit(Message(topic, b"1"), timeout=1.0) for _ in range(10)]
    wait_until(lambda: stats_of(sender).in_flight == 10)
    before = time.monotonic()
    with pytest.raises(TooManySends, match="in_flight_max=10") as caught:
        sender.submit(Message(topic, b"1"), timeout=0.2).result(LONG_TIMEOUT)
    assert time.monotonic() - before < 0.9
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.limit, caught.value.retryable) == ("in_flight_max", True)
    for future in under_way:
        with pytest.raises(SendTimedOut):
            future.result(LONG_TIMEOUT)


def test_more_messages_than_the_limit_all_arrive(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server, options=ProducerOptions(in_flight_max=10, timeout=LONG_TIMEOUT))
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(150)]
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 150
    assert len(server.read_all(topic, 150)) == 150


def test_a_cancelled_send_no_longer_waits(embedded: Embedded, producer: MakeProducer) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, deliver(after=0.3))
    futures = [sender.submit(Message(topic, b"1")) for _ in range(20)]
    wait_until(lambda: stats_of(sender).waiting == 10)
    for future in futures[10:]:
        assert future.cancel()
    wait_until(lambda: stats_of(sender).waiting == 0)
    for future in futures[:10]:
        future.result(LONG_TIMEOUT)
    assert stats_of(sender).in_flight == 0
    assert stats_of(sender).sent == 11
