"""Calls of asyncio clients that are cancelled, or whose object is closed, in the worst moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    AsyncClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    ClientClosed,
    ConsumerOptions,
    Message,
    PullOptions,
)
from downrange.client.drivers.flow_task import AwaitedTask
from downrange.embedded import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    #: Makes an object that uses a shared client.
    Make = Callable[[AsyncClient, str], Awaitable[Any]]

#: For operations that normally take milliseconds.
TIMEOUT = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Give a function that cancels a call in the turn in which the flow has ended it waits for."""
    doomed: list[asyncio.Task[Any]] = []
    finish = AwaitedTask.finish

    def finish_too_late(self: AwaitedTask, result: Any, error: BaseException | None) -> None:
        finish(self, result, error)
        if doomed and asyncio.current_task() is not doomed[0]:
            doomed.pop().cancel()

    async def cancel(call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(call)
        doomed.append(task)
        await asyncio.wait([task], timeout=TIMEOUT)
        assert not doomed
        assert task.cancelled()

    monkeypatch.setattr(AwaitedTask, "finish", finish_too_late)
    return cancel


async def soon(is_true: Callable[[], object]) -> None:
    """Wait until something is true, and look in every turn."""
    async with asyncio.timeout(TIMEOUT):
        while not is_true():  # noqa: ASYNC110 - nothing fires then
            await asyncio.sleep(0)


async def topic_with(producer: AsyncProducer, name: str) -> str:
    await producer.send(Message(name, b"first"))
    return name


def run(cluster: Cluster, scene: Callable[[AsyncClient, AsyncProducer], Awaitable[None]]) -> None:
    """Run a test on an event loop, with a client and a producer that share connections."""

    async def main() -> None:
        async with (
            AsyncClient(cluster.name_server) as client,
            AsyncProducer(client, group="sends") as producer,
        ):
            await scene(client, producer)

    asyncio.run(main())


# ---- messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_member", [True, False])
def test_a_cancelled_poll_has_taken_no_messages(
    cluster: Cluster, cancelled: Any, *, is_member: bool
) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, f"polls-{is_member}")
        options = PullOptions(start="earliest")
        async with AsyncPullConsumer(client, group=topic, options=options) as consumer:
            if is_member:
                await consumer.subscribe(topic)
            else:
                await consumer.assign(topic, start="earliest")
            assert [each.body for each in await consumer.poll(TIMEOUT)] == [b"first"]
            await consumer.poll(0)
            sending = asyncio.ensure_future(producer.send(Message(topic, b"second")))
            await cancelled(consumer.poll(TIMEOUT))
            await sending
            await consumer.commit()
            assert sum((await consumer.lag()).values()) == 1
            assert [each.body for each in await consumer.poll(TIMEOUT)] == [b"second"]

    run(cluster, scene)


def test_no_message_is_lost_by_timeouts_of_polls(cluster: Cluster) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic, found = await topic_with(producer, "timeouts"), set[bytes]()
        bodies = {b"first", *(b"%d" % number for number in range(200))}
        options = PullOptions(start="earliest")

        async def send() -> None:
            for body in bodies - {b"first"}:
                await producer.send(Message(topic, body))

        async with AsyncPullConsumer(client, group=topic, options=options) as consumer:
            await consumer.subscribe(topic)
            sending = asyncio.ensure_future(send())
            async with asyncio.timeout(TIMEOUT):
                while found != bodies:
                    try:
                        async with asyncio.timeout(0.001):
                            found |= {message.body for message in await consumer.poll(1.0)}
                    except TimeoutError:
                        pass
            await sending

    run(cluster, scene)


async def iterating(client: AsyncClient, topic: str) -> AsyncPushConsumer:
    """Return a consumer to iterate over, which has had the first message."""
    options = ConsumerOptions(start="earliest", concurrency=4)
    consumer = AsyncPushConsumer(client, group=topic, subscribe=topic, options=options)
    await consumer.start()
    async with asyncio.timeout(TIMEOUT):
        assert (await anext(consumer)).body == b"first"
    return consumer


def test_a_cancelled_step_of_an_iteration_has_taken_no_message(
    cluster: Cluster, cancelled: Any
) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, "steps")
        consumer = await iterating(client, topic)
        sending = asyncio.ensure_future(producer.send(Message(topic, b"second")))
        await cancelled(anext(consumer))
        await sending
        assert consumer.stats().running == 0
        async with asyncio.timeout(TIMEOUT):
            assert (await anext(consumer)).body == b"second"
        await consumer.close(timeout=TIMEOUT)

    run(cluster, scene)


def test_another_step_gets_the_message_of_one_that_is_cancelled(
    cluster: Cluster, cancelled: Any
) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, "others")
        consumer = await iterating(client, topic)
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)  # it waits before the other one, which a message wakes first
        sending = asyncio.ensure_future(producer.send(Message(topic, b"second")))
        await cancelled(anext(consumer))
        async with asyncio.timeout(TIMEOUT):
            assert (await waiting).body == b"second"
        await sending
        await consumer.close(timeout=TIMEOUT)

    run(cluster, scene)


# ---- starting --------------------------------------------------------------------------------


async def push(client: AsyncClient, topic: str) -> AsyncPushConsumer:
    async def handle(_: object) -> None: ...

    return AsyncPushConsumer(client, group="taken", subscribe=topic, handler=handle)


async def pull(client: AsyncClient, topic: str) -> AsyncPullConsumer:
    consumer = AsyncPullConsumer(client, group="taken")
    await consumer.subscribe(topic)
    return consumer


async def simple(client: AsyncClient, topic: str) -> AsyncSimpleConsumer:
    return AsyncSimpleConsumer(client, group="taken", subscribe=topic)


async def producing(client: AsyncClient, topic: str) -> AsyncProducer:
    del topic
    return AsyncProducer(client, group="taken")


USERS = pytest.mark.parametrize("make", [push, pull, simple, producing])


def members(client: AsyncClient) -> set[str]:
    """Return the groups of a client."""
    return {*client.core.consumers, *client.core.producers} - {"sends"}


@USERS
def test_a_start_that_is_cancelled_leaves_the_group(
    cluster: Cluster, cancelled: Any, make: Make
) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, "cancelled-starts")
        await cancelled((await make(client, topic)).start())
        assert not members(client)
        again = await make(client, topic)
        await again.start()
        await again.close()

    run(cluster, scene)


@USERS
def test_close_during_a_start_leaves_the_group(cluster: Cluster, make: Make) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, "closed-starts")
        user = await make(client, topic)
        starting = asyncio.ensure_future(user.start())
        await soon(lambda: members(client))
        assert not starting.done()
        await user.close()
        with pytest.raises(ClientClosed):
            await starting
        assert user.state == "closed"
        assert not members(client)

    run(cluster, scene)


def test_close_during_a_subscription_leaves_the_group(cluster: Cluster) -> None:
    async def scene(client: AsyncClient, producer: AsyncProducer) -> None:
        topic = await topic_with(producer, "closed-subscriptions")
        consumer = await AsyncPullConsumer(client, group="taken").start()
        subscribing = asyncio.ensure_future(consumer.subscribe(topic))
        await soon(lambda: members(client))
        await consumer.close()
        with pytest.raises(ClientClosed):
            await subscribing
        assert not members(client)

    run(cluster, scene)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (AsyncPushConsumer, {"group": "g", "subscribe": "closed-clients"}),
        (AsyncPullConsumer, {"group": "g"}),
        (AsyncSimpleConsumer, {"group": "g", "subscribe": "closed-clients"}),
        (AsyncProducer, {"group": "g"}),
        (AsyncClient, {}),
    ],
)
def test_close_while_the_own_client_connects_leaves_nothing_running(
    cluster: Cluster, kind: type[Any], settings: dict[str, Any]
) -> None:
    async def main() -> None:
        user = kind(cluster.name_server, **settings)
        starting = asyncio.ensure_future(user.start())
        await asyncio.sleep(0)
        await user.close()
        with pytest.raises(ClientClosed):
            await starting
        assert user.state == "closed"
        client = user if kind is AsyncClient else user.client
        assert client.state == "closed"

    asyncio.run(main())
