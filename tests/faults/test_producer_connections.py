"""Connections of a producer that are cut, slow or silent, through a faulty proxy."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from downrange import AsyncProducer
from downrange.embedded import Cluster
from downrange.errors import CallTimeout, ConnectionLost, RocketMQError, SendFailed, SendTimedOut
from downrange.model import Message
from downrange.options import BrokerOptions, ClientOptions, ProducerOptions
from tests.contract.blocking import Blocking
from tests.embedded.brokers import bodies, connection, create_request
from tests.faults.producers import KINDS, Kind, producing
from tests.faults.proxy import OUTSIDE, FaultyProxy, proxy_before
from tests.support.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from downrange import Producer, ProducerStats, SendReceipt

#: A call may end this much after its deadline on a busy machine.
SLACK = 15.0
#: The delay of a reply that must not be in time; a test ends it when it has seen enough.
LATE = 60.0
#: For connections and requests that nothing disturbs.
PATIENT = ClientOptions(connect_timeout=60, call_timeout=60, heartbeat_interval=600)
TOPIC = "T"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker=BrokerOptions(advertised_host=OUTSIDE)) as cluster:
        yield cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultyProxy]:
    with proxy_before(cluster.brokers[0]) as proxy:
        yield proxy


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def producer(cluster: Cluster, proxy: FaultyProxy, kind: Kind) -> Iterator[Producer]:
    """Give a producer with a connection through the proxy, and a topic of one queue."""
    with connection(f"127.0.0.1:{cluster.brokers[0].rpartition(':')[2]}") as peer:
        assert peer.ask(create_request(TOPIC)).code == 0
    options = ProducerOptions(timeout=60)
    with producing(kind, cluster.name_server, options=options, client_options=PATIENT) as producer:
        producer.send(Message(TOPIC, b"hello"))
        if isinstance(producer, Blocking):  # so that no heartbeat is in flight on the connection
            wait_until(lambda: cluster.brokers[0] in producer.inner.client.core.registered)
        yield producer
        proxy.recover()


def _stored(cluster: Cluster, body: bytes) -> int:
    inside = f"127.0.0.1:{cluster.brokers[0].rpartition(':')[2]}"
    return bodies(inside, TOPIC).count(body)


@pytest.mark.parametrize("let_through", [1, 3, 30], ids=lambda count: f"after-{count}-bytes")
def test_send_with_a_cut_off_reply_is_repeated_and_the_receipt_says_so(
    cluster: Cluster, proxy: FaultyProxy, producer: Producer, kind: Kind, let_through: int
) -> None:
    body = f"cut {kind} {let_through}".encode()
    proxy.cut_reply_to(body, after=let_through)
    receipt = producer.send(Message(TOPIC, body))
    assert receipt.attempts == 2
    assert isinstance(receipt.failures[0].error, ConnectionLost)
    assert receipt.may_be_stored_twice
    assert _stored(cluster, body) == 2
    after = producer.send(Message(TOPIC, b"after"))
    assert (after.attempts, after.may_be_stored_twice) == (1, False)


def test_batch_with_a_cut_off_reply_is_repeated_whole(
    cluster: Cluster, proxy: FaultyProxy, producer: Producer, kind: Kind
) -> None:
    sent = [f"batch {kind} {number}".encode() for number in range(3)]
    proxy.cut_reply_to(sent[0], after=5)
    (receipt,) = producer.send_batch(Message(TOPIC, body) for body in sent)
    assert receipt.may_be_stored_twice
    assert [_stored(cluster, body) for body in sent] == [2, 2, 2]


def test_one_deadline_holds_for_all_attempts_when_answers_are_late(
    proxy: FaultyProxy, producer: Producer
) -> None:
    proxy.reply_delay = LATE
    begun = time.monotonic()
    with pytest.raises(SendTimedOut) as caught:
        producer.send(Message(TOPIC, b"late"), timeout=0.9)
    assert 0.9 <= time.monotonic() - begun < 0.9 + SLACK
    assert [type(attempt.error) for attempt in caught.value.attempts] == [CallTimeout]
    proxy.reply_delay = 0.0
    assert producer.send(Message(TOPIC, b"in time")).attempts == 1


def test_attempt_timeout_leaves_time_for_another_attempt_within_the_deadline(
    cluster: Cluster, proxy: FaultyProxy, kind: Kind
) -> None:
    options = ProducerOptions(timeout=10.0, attempt_timeout=1.0)
    with producing(kind, cluster.name_server, options=options, client_options=PATIENT) as producer:
        producer.send(Message(TOPIC, b"hello"))
        proxy.reply_delay = LATE
        begun = time.monotonic()
        with pytest.raises(SendFailed) as caught:
            producer.send(Message(TOPIC, b"late"), timeout=6.0)
        assert time.monotonic() - begun < 6.0 + SLACK
        assert [type(attempt.error) for attempt in caught.value.attempts] == [CallTimeout] * 3
        proxy.reply_delay = 0.0


def test_replies_after_their_deadline_do_not_disturb_later_sends(
    cluster: Cluster, proxy: FaultyProxy, producer: Producer, kind: Kind
) -> None:
    proxy.reply_delay = LATE
    for number in range(3):
        with pytest.raises(SendTimedOut):
            producer.send(Message(TOPIC, f"late {kind} {number}"), timeout=0.05)
    proxy.reply_delay = 0.0
    offsets = {producer.send(Message(TOPIC, f"fine {kind}")).offset for _ in range(10)}
    assert len(offsets) == 10
    assert _stored(cluster, f"fine {kind}".encode()) == 10


def test_peer_that_stops_answering_costs_one_deadline_and_nothing_afterwards(
    proxy: FaultyProxy, producer: Producer
) -> None:
    """The connection stays open on both sides; only the deadline reveals the loss."""
    proxy.fall_silent()
    begun = time.monotonic()
    with pytest.raises(SendTimedOut):
        producer.send(Message(TOPIC, b"into the void"), timeout=0.4)
    assert time.monotonic() - begun < 0.4 + SLACK
    proxy.recover()
    assert producer.send(Message(TOPIC, b"back")).attempts == 1


def test_connection_dropped_by_a_gateway_is_replaced_after_a_deadline(
    proxy: FaultyProxy, producer: Producer
) -> None:
    """A gateway dropped it: bytes are sent, no reply comes, and no error is reported."""
    for _ in range(2):
        proxy.forget_connections()
        with pytest.raises(SendTimedOut):
            # A silence of one second ends a connection; the request may be written a little later.
            producer.send(Message(TOPIC, b"into the void"), timeout=2.0)
        assert producer.send(Message(TOPIC, b"another way")).attempts == 1


def test_short_deadlines_do_not_close_a_slow_connection(
    cluster: Cluster, proxy: FaultyProxy
) -> None:
    """A thread closes its own connection after a time-out; a shared connection stays open."""
    options = ProducerOptions(timeout=60)

    def are_short(producer: Producer) -> bool:
        """Check it, unless this process stalled: a silence of one second closes a connection."""
        producer.send(Message(TOPIC, b"hello"))
        used, begun = proxy.accepted, time.monotonic()
        proxy.reply_delay = LATE
        for _ in range(5):
            with pytest.raises(SendTimedOut):
                producer.send(Message(TOPIC, b"late"), timeout=0.03)
        seconds = time.monotonic() - begun
        proxy.reply_delay = 0.0
        producer.send(Message(TOPIC, b"on the same connection"))
        assert proxy.accepted == used or seconds >= 1.0
        return seconds < 1.0

    with producing(
        "async", cluster.name_server, options=options, client_options=PATIENT
    ) as producer:
        wait_until(lambda: are_short(producer))


def test_connection_that_was_closed_while_it_was_idle_fails_no_send(
    proxy: FaultyProxy, producer: Producer
) -> None:
    for number in range(5):
        used = proxy.accepted
        proxy.cut()
        wait_until(lambda: _has_no_broker(producer, proxy))
        receipt = producer.send(Message(TOPIC, f"again {number}"))
        assert (receipt.attempts, receipt.failures) == (1, ())
        assert proxy.accepted > used


def _has_no_broker(producer: Producer, proxy: FaultyProxy) -> bool:
    """Whether the engine has noticed the loss; idle sockets of threads are checked on use."""
    if isinstance(producer, Blocking):
        return proxy.address not in producer.client.stats().connections
    time.sleep(0.05)
    return True


def test_submits_on_a_connection_that_is_cut_repeatedly_all_end(
    cluster: Cluster, proxy: FaultyProxy, producer: Producer, kind: Kind
) -> None:
    futures: list[Future[SendReceipt]] = []
    for number in range(300):
        if number == 299:  # a cut of the others may come when no request waits for a reply
            proxy.cut_reply_to(f"stormy {kind} {number}".encode(), after=1)
        futures.append(producer.submit(Message(TOPIC, f"stormy {kind} {number}")))
        if number % 60 == 30:
            proxy.cut()
        if number % 60 == 29 and number > 60:
            # What the last cut has disturbed is over, so no message is hit by all its attempts.
            wait(futures[: number - 58], timeout=60)
        time.sleep(0.0005)
    receipts = [future.result(60) for future in futures]
    stored = bodies(f"127.0.0.1:{cluster.brokers[0].rpartition(':')[2]}", TOPIC)
    assert {f"stormy {kind} {number}".encode() for number in range(300)} <= set(stored)
    assert any(receipt.may_be_stored_twice for receipt in receipts)
    facts = _facts(producer)
    assert (facts.in_flight, facts.in_flight_bytes, facts.waiting) == (0, 0, 0)


def test_one_way_messages_go_on_after_a_cut(
    cluster: Cluster, proxy: FaultyProxy, producer: Producer, kind: Kind
) -> None:
    producer.send_oneway(Message(TOPIC, f"before {kind}"))
    wait_until(lambda: _stored(cluster, f"before {kind}".encode()) == 1)
    proxy.cut()
    wait_until(lambda: _has_no_broker(producer, proxy))
    producer.send_oneway(Message(TOPIC, f"after {kind}"))
    wait_until(lambda: _stored(cluster, f"after {kind}".encode()) == 1)


def test_close_returns_in_time_while_sends_wait_for_a_silent_peer(
    cluster: Cluster, proxy: FaultyProxy, kind: Kind
) -> None:
    options = ProducerOptions(timeout=60, in_flight_max=10)
    with (
        producing(kind, cluster.name_server, options=options, client_options=PATIENT) as producer,
        ThreadPoolExecutor(40) as pool,
    ):
        producer.send(Message(TOPIC, b"hello"))
        proxy.fall_silent()
        # Each in a thread of its own, because a sync submit waits for a permit.
        failures = [pool.submit(_failure_of_a_submit, producer) for _ in range(40)]
        wait_until(lambda: _facts(producer).in_flight == 10 and _facts(producer).waiting == 30)
        begun = time.monotonic()
        producer.close(timeout=0.3)
        assert time.monotonic() - begun < 0.3 + SLACK
        for failure in failures:
            assert failure.result(timeout=30) is not None
        proxy.recover()


def _facts(producer: Producer) -> ProducerStats:
    return producer.client.stats().producers["faults"]


def _failure_of_a_submit(producer: Producer) -> BaseException | None:
    """Submit a message; return why it was not sent."""
    try:
        return producer.submit(Message(TOPIC, b"stuck")).exception()
    except RocketMQError as error:
        return error


def test_close_ends_a_send_in_which_another_thread_waits(
    cluster: Cluster, proxy: FaultyProxy
) -> None:
    options = ProducerOptions(timeout=60)
    with producing(
        "sync", cluster.name_server, options=options, client_options=PATIENT
    ) as producer:
        producer.send(Message(TOPIC, b"hello"))
        # The heartbeat is over, so that the proxy holds nothing but the next send.
        wait_until(lambda: cluster.brokers[0] in producer.client.core.registered)
        proxy.fall_silent()
        with ThreadPoolExecutor(1) as pool:
            stuck = pool.submit(producer.send, Message(TOPIC, b"stuck"))
            wait_until(lambda: proxy.held)
            producer.close(timeout=0.1)
            assert isinstance(stuck.exception(timeout=30), SendFailed)
        proxy.recover()


def test_close_sends_what_was_submitted_just_before(cluster: Cluster, proxy: FaultyProxy) -> None:
    """All messages: those that wait for a permit, and those that were not started."""
    options = ProducerOptions(timeout=60, in_flight_max=10)
    with producing(
        "sync", cluster.name_server, options=options, client_options=PATIENT
    ) as producer:
        futures = [producer.submit(Message(TOPIC, b"last")) for _ in range(200)]
        producer.close(timeout=60)
    assert all(future.done() and future.exception() is None for future in futures)
    assert _stored(cluster, b"last") == 200


def test_name_server_that_is_slow_counts_into_the_deadline(cluster: Cluster, kind: Kind) -> None:
    with (
        FaultyProxy(cluster.name_server) as slow,
        producing(kind, slow.address, client_options=PATIENT) as producer,
    ):
        slow.reply_delay = LATE
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            producer.send(Message("never-seen", b"x"), timeout=0.3)
        assert time.monotonic() - begun < 0.3 + SLACK
        slow.reply_delay = 0.0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connection_that_ends_before_a_request_is_written_causes_no_error_in_the_loop(
    cluster: Cluster, proxy: FaultyProxy, run: Any
) -> None:
    """Requests of one turn of the loop are written together at its end."""
    problems: list[dict[str, Any]] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )
        async with AsyncProducer(
            cluster.name_server,
            group="ended",
            options=ProducerOptions(timeout=60),
            client_options=PATIENT,
        ) as producer:
            await producer.send(Message(TOPIC, b"hello"))
            driver: Any = producer.client._driver
            connection = driver.connection(proxy.address)
            connection.abort()
            await asyncio.sleep(0.05)
            connection._write(b"was on its way when the end came")
            await asyncio.sleep(0)
            assert (await producer.send(Message(TOPIC, b"on"))).attempts == 1

    run(play())
    assert problems == []


def test_reconnects_of_an_async_producer_do_not_accumulate_connections(
    cluster: Cluster, proxy: FaultyProxy
) -> None:
    """Many sends that find the connection closed share the new one."""

    async def play() -> None:
        async with AsyncProducer(
            cluster.name_server,
            group="pile",
            options=ProducerOptions(timeout=60),
            client_options=PATIENT,
        ) as producer:
            await producer.send(Message(TOPIC, b"hello"))
            # The heartbeat is over, so that it does not reconnect.
            await wait_until_async(lambda: proxy.address in producer.client.core.registered)
            proxy.cut()
            await wait_until_async(lambda: proxy.address not in producer.client.stats().connections)
            before = proxy.accepted
            await asyncio.gather(*(producer.send(Message(TOPIC, b"many")) for _ in range(200)))
            assert proxy.accepted == before + 1

    asyncio.run(play())
