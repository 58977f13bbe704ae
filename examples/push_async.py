"""A consumer group on an event loop: with a coroutine function, and as `async for`.

Run: python examples/push_async.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import downrange as mq

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

COUNT = 100
OPTIONS = mq.ConsumerOptions(concurrency=50, start="earliest")


async def with_a_handler(servers: str) -> None:
    """Let the consumer call a coroutine function, up to 50 at a time."""
    handled: list[str] = []

    async def bill(message: mq.ReceivedMessage) -> None:
        await asyncio.sleep(0.05)  # a database, another service
        handled.append(message.body.decode())
        if len(handled) == COUNT:
            consumer.stop()  # lets wait() return

    consumer = mq.AsyncPushConsumer(
        servers, group="billing", subscribe="orders", handler=bill, options=OPTIONS
    )
    async with consumer:
        assert await consumer.wait(30), f"only {len(handled)} orders were handled"
    print(f"the handler got {len(handled)} orders")


async def with_a_loop(servers: str) -> None:
    """Iterate: a message is done when the next one is asked for."""
    count = 0
    async with mq.AsyncPushConsumer(
        servers, group="audit", subscribe="orders", options=OPTIONS
    ) as consumer:
        async for _message in consumer:
            count += 1
            if count == COUNT:
                consumer.stop()  # ends the loop; this message is done
    print(f"the loop got {count} orders")


async def with_tasks(servers: str) -> None:
    """Iterate, and handle each message in a task of its own."""
    done: list[str] = []

    async def pack(block: AbstractAsyncContextManager[mq.ReceivedMessage]) -> None:
        async with block as message:  # done at its end, delivered again if it raises
            await asyncio.sleep(0.05)
            done.append(message.body.decode())
            if len(done) == COUNT:
                consumer.stop()

    async with (
        mq.AsyncPushConsumer(
            servers, group="packing", subscribe="orders", options=OPTIONS
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        async for message in consumer:
            tasks.create_task(pack(consumer.processing(message)))
    print(f"the tasks got {len(done)} orders")


async def main() -> None:
    """Send orders, and consume them with three groups."""
    with mq.Cluster() as cluster:
        async with mq.AsyncProducer(cluster.name_server, group="shop") as producer:
            messages = [mq.Message("orders", f"order {number}") for number in range(COUNT)]
            await asyncio.gather(*map(producer.send, messages))
        await with_a_handler(cluster.name_server)
        await with_a_loop(cluster.name_server)
        await with_tasks(cluster.name_server)


if __name__ == "__main__":
    asyncio.run(main())
