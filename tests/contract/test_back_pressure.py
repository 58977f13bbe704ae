"""Back-pressure: the limits on messages in flight, and the sends that wait for them."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import deliver, drop
from downrange.errors import (
    ClientClosed,
    OptionError,
    RocketMQError,
    SendTimedOut,
    TooManySends,
)
from downrange.model import Message
from downrange.options import ClientOptions, ProducerOptions
from downrange.wire.codes import RequestCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_sync
from tests.contract.servers import stats_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from concurrent.futures import Future

    from downrange import Producer
    from downrange.model import SendReceipt
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2
MIB = 1 << 20
#: Further sends wait in a line; with asyncio they do so in any case.
QUEUEING = ProducerOptions(in_flight_max=10, when_full="queue")


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
    sender, topic = started_producer(embedded, producer, QUEUEING)
    with embedded.held(SEND):
        futures = [sender.submit(Message(topic, b"1")) for _ in range(25)]
        wait_until(lambda: (stats_of(sender).in_flight, stats_of(sender).waiting) == (10, 15))
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 25
    stats = stats_of(sender)
    assert (stats.in_flight, stats.in_flight_bytes, stats.waiting) == (0, 0, 0)


def test_no_more_bytes_than_allowed_are_on_their_way(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_bytes_max=MIB, compress_over_bytes=MIB, when_full="queue")
    sender, topic = started_producer(embedded, producer, options)
    with embedded.held(SEND):
        futures = [sender.submit(Message(topic, b"x" * 400_000)) for _ in range(5)]
        wait_until(lambda: stats_of(sender).waiting == 3)
        assert (stats_of(sender).in_flight, stats_of(sender).in_flight_bytes) == (2, 800_000)
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
    sender, topic = started_producer(embedded, producer, QUEUEING)
    with embedded.held(SEND):
        futures = [sender.submit(Message(topic, b"1")) for _ in range(30)]
        wait_until(lambda: stats_of(sender).waiting == 20)
        sender.set_limits(in_flight_max=30)
        wait_until(lambda: (stats_of(sender).in_flight, stats_of(sender).waiting) == (30, 0))
        sender.set_limits(in_flight_max=10)
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
    under_way = [sender.submit(Message(topic, b"1"), timeout=LONG_TIMEOUT) for _ in range(10)]
    wait_until(lambda: stats_of(sender).in_flight == 10)
    before = time.monotonic()
    with pytest.raises(TooManySends, match="in_flight_max=10") as caught:
        sender.submit(Message(topic, b"1"), timeout=0.2).result(LONG_TIMEOUT)
    assert time.monotonic() - before < LONG_TIMEOUT - 5.0  # not because one of the ten ended
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.limit, caught.value.retryable) == ("in_flight_max", True)
    assert stats_of(sender).in_flight == 10
    for future in under_way:
        future.cancel()
    wait_until(lambda: stats_of(sender).in_flight == 0)
    with pytest.raises(SendTimedOut):
        sender.submit(Message(topic, b"1"), timeout=0.2).result(LONG_TIMEOUT)


def test_more_messages_than_the_limit_all_arrive(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server, options=ProducerOptions(in_flight_max=10, timeout=LONG_TIMEOUT))
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(150)]
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 150
    assert len(server.read_all(topic, 150)) == 150


def test_a_cancelled_send_no_longer_waits(embedded: Embedded, producer: MakeProducer) -> None:
    sender, topic = started_producer(embedded, producer, QUEUEING)
    with embedded.held(SEND):
        futures = [sender.submit(Message(topic, b"1")) for _ in range(20)]
        wait_until(lambda: stats_of(sender).waiting == 10)
        for future in futures[10:]:
            assert future.cancel()
        wait_until(lambda: stats_of(sender).waiting == 0)
        assert stats_of(sender).in_flight == 10
    for future in futures[:10]:
        future.result(LONG_TIMEOUT)
    assert stats_of(sender).in_flight == 0
    assert stats_of(sender).sent == 11


# ---- `when_full` ---------------------------------------------------------------------------------


@only_sync
def test_submit_waits_for_room(embedded: Embedded, producer: MakeProducer) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, deliver(after=0.1))
    began = time.monotonic()
    futures = []
    for number in range(30):
        futures.append(sender.submit(Message(topic, f"{number}")))
        stats = stats_of(sender)
        assert stats.in_flight + stats.waiting <= 10
    # The last ten began when the first twenty had ended. The loop of the servers counts in whole
    # milliseconds, so each delay may be one shorter.
    assert time.monotonic() - began >= 0.198
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 30


@only_sync
def test_submit_raises_when_there_is_no_room_in_time(
    embedded: Embedded, producer: MakeProducer
) -> None:
    sender, topic = started_producer(embedded, producer, ProducerOptions(in_flight_max=10))
    embedded.cluster.intercept(SEND, drop())
    message = Message(topic, b"1")
    under_way = [sender.submit(message, timeout=LONG_TIMEOUT) for _ in range(10)]
    for submit in (
        lambda: sender.submit(message, timeout=0.1),
        lambda: sender.submit_batch([message], timeout=0.1),
        lambda: sender.submit_request(message, timeout=0.1),
    ):
        with pytest.raises(TooManySends, match=r"in_flight_max=10 .* within [\d.]+ s"):
            submit()
    for future in under_way:
        future.cancel()


@only_sync
def test_a_thread_that_waits_for_room_is_counted_and_ends_when_the_producer_is_closed(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_max=10, timeout=LONG_TIMEOUT)
    sender, topic = started_producer(embedded, producer, options)
    embedded.cluster.intercept(SEND, drop())
    for _ in range(10):
        sender.submit(Message(topic, b"1"))
    errors: list[BaseException | None] = []

    def wait_for_room() -> None:
        try:
            errors.append(sender.submit(Message(topic, b"1")).exception(LONG_TIMEOUT))
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait_for_room)
    thread.start()
    wait_until(lambda: stats_of(sender).waiting == 1)
    sender.close(timeout=0.1)
    thread.join(LONG_TIMEOUT)
    assert isinstance(errors[0], RocketMQError)


def test_a_send_that_finds_no_room_fails_at_once_when_told_so(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_max=10, when_full="raise")
    sender, topic = started_producer(embedded, producer, options)
    message = Message(topic, b"1")
    with embedded.held(SEND):
        under_way = [sender.submit(message) for _ in range(10)]
        wait_until(lambda: stats_of(sender).in_flight == 10)
        for submit in (sender.submit, lambda message: sender.submit_batch([message])):
            with pytest.raises(TooManySends, match="when_full='raise' does not wait"):
                submit(message).result(LONG_TIMEOUT)
    for future in under_way:
        future.result(LONG_TIMEOUT)
    assert sender.submit(message).result(LONG_TIMEOUT).attempts == 1


@only_sync
def test_memory_stays_flat_while_a_broker_is_silent(
    embedded: Embedded, producer: MakeProducer
) -> None:
    options = ProducerOptions(in_flight_max=10, submit_retries=0, compress_over_bytes=MIB)
    sender, topic = started_producer(embedded, producer, options)
    embedded.cluster.intercept(SEND, drop())
    submitted = 0
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        until = time.monotonic() + 2.0
        while time.monotonic() < until or submitted < 10:
            with contextlib.suppress(TooManySends):
                sender.submit(Message(topic, bytes(50_000)), timeout=0.5)
                submitted += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Ten messages of 50 kB are in flight at a time, in a few copies; without a limit it would be
    # as many as a loop makes in two seconds, thousands.
    assert 10 <= submitted <= 60
    assert peak - before < 12 * MIB


@only_sync
def test_a_callback_may_submit_when_there_is_no_room(
    embedded: Embedded, producer: MakeProducer
) -> None:
    """Each reply submits the next message, from a thread that may wait and one that may not."""
    options = ProducerOptions(in_flight_max=10)
    topic = embedded.topic()
    sender = producer(
        embedded, options=options, client_options=ClientOptions(callbacks_waiting_max=1)
    )
    is_done = threading.Event()
    left = itertools.count(200, -1)

    def submit_next(future: Future[SendReceipt]) -> None:
        future.result()
        if (number := next(left)) > 0:
            sender.submit(Message(topic, f"{number}")).add_done_callback(submit_next)
        elif number == 0:
            is_done.set()

    for _ in range(20):
        sender.submit(Message(topic, b"1")).add_done_callback(submit_next)
    assert is_done.wait(LONG_TIMEOUT)
