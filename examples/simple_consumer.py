"""Work through a queue of jobs: receive, then settle each message by itself.

python examples/simple_consumer.py
"""

from __future__ import annotations

import asyncio
import time

import downrange as mq


def settle(name_server: str) -> None:
    """Acknowledge, give back, and give up messages."""
    options = mq.SimpleOptions(retries=2)
    with mq.SimpleConsumer(name_server, group="jobs", subscribe=["tasks"], options=options) as jobs:
        while messages := jobs.receive(max_count=16, invisible=30.0, timeout=1.0):
            done = []
            for message in messages:
                name = message.body.decode()
                if name == "unreadable":
                    message.dead_letter("no such job")
                elif name == "not yet" and message.attempt == 1:
                    print(name, "is tried again")
                    message.retry(after=0.2)
                else:
                    print(name, "is done in attempt", message.attempt)
                    done.append(message)
            jobs.ack(done)  # one request for all of them
        print(jobs.stats())


def work(name_server: str) -> None:
    """Keep a message for as long as the work takes."""
    with mq.SimpleConsumer(name_server, group="slow", subscribe=["tasks"]) as jobs:
        (message,) = jobs.receive(max_count=1, invisible=0.5)
        with message.processing():  # renews, and acknowledges at the end
            time.sleep(1.2)
        print(message.body.decode(), "took longer than it was invisible:", jobs.stats().renewed > 0)

        (message,) = jobs.receive(max_count=1)
        with message.processing():
            raise mq.Retry(after=0)  # ends here: the message is delivered again
        while (message := jobs.receive(max_count=1)[0]).attempt == 1:
            message.ack()
        print(message.body.decode(), "came again")
        message.ack()


async def work_async(name_server: str) -> None:
    """Handle messages at the same time."""

    async def handle(message: mq.AsyncPoppedMessage) -> None:
        async with message.processing():
            await asyncio.sleep(0.1)

    async with mq.AsyncSimpleConsumer(name_server, group="other", subscribe="tasks") as jobs:
        while messages := await jobs.receive(max_count=16, timeout=0.5):
            await asyncio.gather(*map(handle, messages))
        print("asyncio handled", jobs.stats().acknowledged)


def main() -> None:
    with mq.Cluster() as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for name in ("resize", "not yet", "unreadable", "scan", "print"):
                producer.send(mq.Message("tasks", name))
        settle(cluster.name_server)
        work(cluster.name_server)
        asyncio.run(work_async(cluster.name_server))


if __name__ == "__main__":
    main()
