"""Tasks that handle the messages of an iteration: each has its block when its message is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from downrange import (
    AsyncAdmin,
    AsyncClient,
    AsyncProducer,
    AsyncPushConsumer,
    BrokerOptions,
    ConsumerOptions,
    Message,
    OptionError,
    PushConsumer,
    Retry,
)
from downrange.embedded import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from downrange import AsyncPushedMessage

    Scene = Callable[[AsyncClient], Awaitable[None]]

#: For operations that normally take milliseconds.
TIMEOUT = 30.0
COUNT = 40
BODIES = {b"%d" % number for number in range(COUNT)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker=BrokerOptions(delay_levels=" ".join(["1s"] * 18))) as cluster:
        yield cluster


def run(cluster: Cluster, topic: str, scene: Scene) -> None:
    """Run a test on an event loop, with a topic of one queue that has messages."""

    async def main() -> None:
        async with AsyncClient(cluster.name_server) as client:
            async with AsyncProducer(client, group="sends") as producer:
                await producer.create_topic(topic, queues=1)
                await producer.send_batch([Message(topic, body) for body in sorted(BODIES)])
            await scene(client)

    asyncio.run(asyncio.wait_for(main(), TIMEOUT))


def consumer_of(client: AsyncClient, topic: str, concurrency: int = 20) -> AsyncPushConsumer:
    options = ConsumerOptions(start="earliest", concurrency=concurrency)
    return AsyncPushConsumer(client, group=f"{topic}-group", subscribe=topic, options=options)


async def committed(client: AsyncClient, topic: str) -> int:
    """Return how many messages of the queue are done for the group."""
    async with AsyncAdmin(client) as admin:
        lag = await admin.group_lag(f"{topic}-group")
    return sum(queue.committed or 0 for queue in lag.queues if queue.queue.topic == topic)


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_tasks_that_make_their_block_first_handle_every_message(
    cluster: Cluster, concurrency: int
) -> None:
    topic, handled, open_blocks, most = f"tasks-{concurrency}", Counter[bytes](), 0, 0
    all_open = asyncio.Event()

    async def work(consumer: AsyncPushConsumer, message: AsyncPushedMessage) -> None:
        nonlocal open_blocks, most
        async with message.processing():
            open_blocks += 1
            most = max(most, open_blocks)
            if most == concurrency:
                all_open.set()
            await all_open.wait()
            await asyncio.sleep(0.001)
            open_blocks -= 1
            handled[message.body] += 1
            if handled.keys() == BODIES:
                consumer.stop()

    async def scene(client: AsyncClient) -> None:
        async with (
            consumer_of(client, topic, concurrency) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            async for message in consumer:
                tasks.create_task(work(consumer, message))
        assert await committed(client, topic) == COUNT

    run(cluster, topic, scene)
    assert handled == Counter(BODIES)
    assert most == concurrency


def test_messages_whose_tasks_fail_are_delivered_again(cluster: Cluster) -> None:
    topic, attempts, handled = "failing-tasks", Counter[bytes](), set[bytes]()

    async def work(consumer: AsyncPushConsumer, message: AsyncPushedMessage) -> None:
        async with message.processing():
            attempts[message.body] += 1
            await asyncio.sleep(0)
            if attempts[message.body] == 1 and int(message.body) % 3 == 0:
                raise Retry(after=0)
            handled.add(message.body)
            if handled == BODIES:
                consumer.stop()

    async def scene(client: AsyncClient) -> None:
        async with consumer_of(client, topic) as consumer, asyncio.TaskGroup() as tasks:
            async for message in consumer:
                tasks.create_task(work(consumer, message))
            assert consumer.stats().sent_back == len(range(0, COUNT, 3))

    run(cluster, topic, scene)
    assert attempts == Counter(BODIES) + Counter(b"%d" % number for number in range(0, COUNT, 3))


def test_a_task_group_that_is_cancelled_by_a_failing_task_loses_no_message(
    cluster: Cluster,
) -> None:
    """Its other tasks are cancelled, also one that was created and has not begun."""
    topic, handled, failures = "task-group", set[bytes](), 0

    async def work(consumer: AsyncPushConsumer, message: AsyncPushedMessage) -> None:
        async with message.processing():
            await asyncio.sleep(0)
            if len(handled) % 7 == 3 and message.body not in handled and message.attempt == 1:
                raise ValueError("the whole group ends")
            handled.add(message.body)
            if handled == BODIES:
                consumer.stop()

    async def consume(client: AsyncClient) -> None:
        async with consumer_of(client, topic) as consumer, asyncio.TaskGroup() as tasks:
            async for message in consumer:
                tasks.create_task(work(consumer, message))

    async def scene(client: AsyncClient) -> None:
        nonlocal failures
        while handled != BODIES:
            try:
                await consume(client)
            except* ValueError:
                failures += 1
            assert await committed(client, topic) <= COUNT

    run(cluster, topic, scene)
    assert failures


def test_a_message_whose_task_and_iteration_are_cancelled_at_once_is_delivered_again(
    cluster: Cluster,
) -> None:
    """The task never begins, so it has not made its block when the next message is asked for."""
    topic, handled = "cancelled-at-once", list[bytes]()

    async def work(message: AsyncPushedMessage) -> None:
        async with message.processing():
            handled.append(message.body)

    async def cancelled_soon(client: AsyncClient) -> None:
        this = asyncio.current_task()
        assert this is not None
        async with consumer_of(client, topic) as consumer:
            async for message in consumer:
                task = asyncio.create_task(work(message))
                if len(handled) == 3:  # as a task group does when another task has failed
                    task.cancel()
                    this.cancel()

    async def scene(client: AsyncClient) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.create_task(cancelled_soon(client))
        assert await committed(client, topic) == len(handled) == 3
        async with consumer_of(client, topic) as consumer:
            assert (await anext(consumer)).body == sorted(BODIES)[3]

    run(cluster, topic, scene)


def test_a_loop_that_handles_its_messages_itself_has_done_each_before_the_next(
    cluster: Cluster,
) -> None:
    topic = "plain-loop"

    async def scene(client: AsyncClient) -> None:
        bodies = list[bytes]()
        async with consumer_of(client, topic, concurrency=1) as consumer:
            async for message in consumer:
                assert consumer.stats().handled == len(bodies)
                bodies.append(message.body)
                if len(bodies) == COUNT - 1:
                    break  # this message is not done
        assert bodies == sorted(BODIES)[:-1]
        assert await committed(client, topic) == COUNT - 2

    run(cluster, topic, scene)


def test_a_block_that_is_made_too_late_is_refused_with_the_way_out(cluster: Cluster) -> None:
    topic, errors = "too-late", list[str]()

    async def work(message: AsyncPushedMessage) -> None:
        await asyncio.sleep(0)
        try:
            async with message.processing():
                raise AssertionError("it was done before")
        except OptionError as error:
            errors.append(f"{error}".replace(message.message_id, "1"))

    async def scene(client: AsyncClient) -> None:
        async with consumer_of(client, topic) as consumer:
            first = await anext(consumer)
            task = asyncio.create_task(work(first))
            second = await anext(consumer)
            await task
            async with second.processing():
                with pytest.raises(OptionError, match="or it has another block"):
                    second.processing()

    run(cluster, topic, scene)
    assert errors == [
        "message 1 cannot be handled in this block: it was done when the next message was asked "
        "for, or it has another block; call processing() in the loop, before the next message is "
        "asked for, and give the block to the task"
    ]


def test_a_block_is_refused_by_threads_too_after_the_next_message_was_asked_for(
    cluster: Cluster,
) -> None:
    topic = "late-thread"

    async def fill(_: AsyncClient) -> None: ...

    run(cluster, topic, fill)
    options = ConsumerOptions(start="earliest")
    with PushConsumer(
        cluster.name_server, group="late", subscribe=topic, options=options
    ) as consumer:
        messages = iter(consumer)
        first = next(messages)
        next(messages)
        with pytest.raises(OptionError, match=r"before the next .* give the block to the thread"):
            first.processing()


def test_several_tasks_may_iterate_each_with_blocks_of_its_own(cluster: Cluster) -> None:
    topic, handled = "many-loops", Counter[bytes]()

    async def work(consumer: AsyncPushConsumer) -> None:
        async for message in consumer:
            async with message.processing():
                await asyncio.sleep(0.001)
                handled[message.body] += 1
                if handled.keys() == BODIES:
                    consumer.stop()

    async def scene(client: AsyncClient) -> None:
        async with consumer_of(client, topic, 4) as consumer, asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(work(consumer))
        assert await committed(client, topic) == COUNT

    run(cluster, topic, scene)
    assert handled == Counter(BODIES)


def test_several_tasks_that_iterate_leave_no_message_open(cluster: Cluster) -> None:
    """One that waits does not take away the message that another one got meanwhile."""
    topic, handled = "many-waiting", set[bytes]()

    async def work(consumer: AsyncPushConsumer) -> None:
        async for message in consumer:
            handled.add(message.body)
            await asyncio.sleep(0.001)
            if handled == BODIES:
                consumer.stop()

    async def scene(client: AsyncClient) -> None:
        async with consumer_of(client, topic, 4) as consumer, asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(work(consumer))

    run(cluster, topic, scene)
    assert handled == BODIES
