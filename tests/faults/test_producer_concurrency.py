"""Many threads, tasks and event loops with one producer, and tasks cancelled at any time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from downrange import AsyncProducer, Producer
from downrange.embedded import Cluster
from downrange.model import Message
from downrange.options import AutoBatch, ClientOptions, ProducerOptions
from downrange.server.net.interception import deliver
from downrange.wire.codes import RequestCode
from tests.contract.servers import Server
from tests.support.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.apache.fixtures import UniqueName

THREADS = 64
#: For a busy machine; and no timer asks a server while a test counts what is in flight.
CLIENT = ClientOptions(
    connect_timeout=60, call_timeout=60, heartbeat_interval=600, route_refresh_interval=600
)
PATIENT: dict[str, Any] = {"options": ProducerOptions(timeout=60), "client_options": CLIENT}
LOOPS: dict[str, Any] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: Cluster, unique_name: UniqueName) -> Iterator[Server]:
    server = Server(cluster.name_server, cluster.brokers, None, unique_name)
    yield server
    server.close()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Give a function that runs a coroutine, on each kind of loop."""
    return LOOPS[request.param]  # type: ignore[no-any-return]


@pytest.mark.parametrize("connections_max", [0, 4, 100])
def test_threads_share_one_producer(server: Server, connections_max: int) -> None:
    """More threads than connections: threads without a free connection use the engine."""
    topic = server.topic()
    settings: dict[str, Any] = {
        **PATIENT,
        "client_options": replace(CLIENT, sync_connections_max=connections_max),
    }
    barrier = threading.Barrier(THREADS)

    def work(thread: int) -> list[str]:
        barrier.wait()
        ids = []
        for number in range(20):
            body = f"{thread}-{number}"
            if number % 5 == 4:
                ids.append(producer.submit(Message(topic, body)).result(60).message_id)
            else:
                ids.append(producer.send(Message(topic, body)).message_id)
        return ids

    with Producer(server.name_server, group="many", **settings) as producer:
        with ThreadPoolExecutor(THREADS) as pool:
            ids = [one for ids in pool.map(work, range(THREADS)) for one in ids]
        facts = producer.client.stats()
        counts = facts.producers["many"]
        assert (counts.sent, counts.failed, counts.retried) == (THREADS * 20, 0, 0)
        assert (counts.in_flight, counts.in_flight_bytes) == (0, 0)
        assert max(facts.connections[one] for one in server.brokers) <= connections_max + 1
    stored = server.read_all(topic, THREADS * 20)
    assert len(stored) == len(set(ids)) == THREADS * 20
    assert {one.message_id for one in stored} == set(ids)


@pytest.mark.parametrize("auto_batch", [None, AutoBatch(hold_ms=2)], ids=["single", "auto-batch"])
def test_tasks_cancelled_at_random_moments_leave_nothing_behind(
    cluster: Cluster,
    server: Server,
    run: Callable[[Coroutine[Any, Any, None]], None],
    auto_batch: AutoBatch | None,
) -> None:
    """During route lookups, waits for permits, and waits for replies."""
    random = Random(5)
    options = ProducerOptions(in_flight_max=50, auto_batch=auto_batch, timeout=60)

    async def play() -> None:
        async with AsyncProducer(
            server.name_server, group="fickle", options=options, client_options=CLIENT
        ) as producer:
            kept: set[bytes] = set()
            for round_number in range(10):
                topic = server_topics[round_number % 2]
                bodies = [f"{round_number}-{number}".encode() for number in range(150)]
                tasks = [
                    asyncio.ensure_future(producer.send(Message(topic, body))) for body in bodies
                ]
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(random.random() * 0.01)
                for task in tasks:
                    if random.random() < 0.5:
                        task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                for body, end in zip(bodies, ends, strict=True):
                    if not isinstance(end, BaseException):
                        kept.add(body)
                    elif not isinstance(end, asyncio.CancelledError):
                        raise end
            facts = producer.client.stats().producers["fickle"]
            assert (facts.in_flight, facts.in_flight_bytes, facts.waiting) == (0, 0, 0)
            assert facts.gathered_bytes == 0
            assert facts.failed == 0
            driver: Any = producer.client._driver
            # Their heartbeats are over.
            await wait_until_async(lambda: set(server.brokers) <= producer.client.core.registered)
            assert set(driver.addresses().values()) == {0}
            assert not driver.scheduler._shared
            for _ in range(10):
                assert (await producer.send(Message(server_topics[0], b"fine"))).attempts == 1
            assert kept
            all_kept.update(kept)

    server_topics = [server.topic(), server.topic()]
    all_kept: set[bytes] = set()
    cluster.intercept(RequestCode.SEND_MESSAGE_V2, deliver(after=0.003))
    try:
        run(play())
    finally:
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)
    stored = {one.body for topic in server_topics for one in server.read_all(topic, 0)}
    assert all_kept <= stored


def test_futures_cancelled_at_random_moments_leave_nothing_behind(
    cluster: Cluster, server: Server
) -> None:
    random, topic = Random(6), server.topic()
    options = ProducerOptions(in_flight_max=50, timeout=60)
    cluster.intercept(RequestCode.SEND_MESSAGE_V2, deliver(after=0.003))
    try:
        with Producer(
            server.name_server, group="fickle", options=options, client_options=CLIENT
        ) as producer:
            for _ in range(10):
                futures = [producer.submit(Message(topic, b"x")) for _ in range(150)]
                for future in random.sample(futures, 75):
                    future.cancel()
                for future in futures:
                    if not future.cancelled():
                        assert future.result(60).attempts == 1
            driver: Any = producer.client._driver

            def is_idle() -> bool:
                """Check it; the engine forgets a cancelled flow before it gives its room back."""
                facts = producer.client.stats().producers["fickle"]
                held = (facts.in_flight, facts.in_flight_bytes, facts.waiting)
                return not driver.submissions and held == (0, 0, 0)

            wait_until(is_idle)
            assert producer.send(Message(topic, b"fine")).attempts == 1
    finally:
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)


def test_two_event_loops_in_two_threads_have_a_producer_each(server: Server) -> None:
    topic = server.topic()

    async def play(group: str) -> None:
        async with AsyncProducer(server.name_server, group=group, **PATIENT) as producer:
            for _ in range(5):
                await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(100)))

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(asyncio.run, play("one")), pool.submit(uvloop.run, play("two"))]
        for end in ends:
            end.result(120)
    assert len(server.read_all(topic, 1000)) == 1000


def test_one_loop_after_the_other_has_a_producer_of_the_same_group(
    server: Server, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    topic = server.topic()

    async def play() -> None:
        async with AsyncProducer(server.name_server, group="again", **PATIENT) as producer:
            assert (await producer.send(Message(topic, b"x"))).attempts == 1

    run(play())
    run(play())
    assert len(server.read_all(topic, 2)) == 2


def test_sync_producer_in_a_thread_does_not_block_an_event_loop(
    server: Server, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    topic = server.topic()

    async def play() -> None:
        with Producer(server.name_server, group="beside", **PATIENT) as producer:
            receipts = await asyncio.gather(
                *(asyncio.to_thread(producer.send, Message(topic, b"x")) for _ in range(50))
            )
            futures = [producer.submit(Message(topic, b"y")) for _ in range(50)]
            receipts += await asyncio.gather(*map(asyncio.wrap_future, futures))
            assert {receipt.attempts for receipt in receipts} == {1}

    run(play())
    assert len(server.read_all(topic, 100)) == 100


def test_callbacks_of_futures_may_send_themselves(server: Server) -> None:
    """A callback that waits for another send must not wait for the thread that would finish it."""
    topic = server.topic()
    ids: list[str] = []
    with Producer(server.name_server, group="chained", **PATIENT) as producer:

        def send_another(_: object) -> None:
            ids.append(producer.send(Message(topic, b"second")).message_id)
            ids.append(producer.submit(Message(topic, b"third")).result(60).message_id)

        for _ in range(20):
            producer.submit(Message(topic, b"first")).add_done_callback(send_another)
        wait_until(lambda: len(ids) == 40)
    assert len(server.read_all(topic, 60)) == 60
