"""Read a topic with a pull consumer: start anywhere, commit when you decide.

python examples/pull_consumer.py
"""

from __future__ import annotations

import asyncio

import downrange as mq


def read(name_server: str) -> None:
    """Read, commit, and continue at the committed offsets."""
    with mq.PullConsumer(name_server, group="audit") as consumer:
        consumer.assign("orders", start="earliest")
        for message in consumer.messages(idle_timeout=0.5):
            print("read", message.body.decode(), "at", message.offset, message.keys)
        print("lag", sum(consumer.lag().values()), "after reading everything")
        committed = consumer.commit()
        print("committed", {queue.number: offset for queue, offset in committed.items()})

    with mq.PullConsumer(name_server, group="audit") as consumer:
        consumer.assign("orders")  # starts at the committed offsets
        print("nothing new:", consumer.poll(timeout=0.3))
        queue = next(iter(committed))
        consumer.seek(queue, "earliest")
        print("again:", [message.body.decode() for message in consumer.poll()])

        consumer.assign("orders", start="earliest", tags="paid || sent")
        print("paid or sent:", [m.body.decode() for m in consumer.messages(idle_timeout=0.5)])


async def read_async(name_server: str) -> None:
    """Read with asyncio."""
    async with mq.AsyncPullConsumer(name_server, group="other") as consumer:
        await consumer.assign("orders", start="earliest")
        count = 0
        async for _ in consumer.messages(idle_timeout=0.5):
            count += 1
        print("asyncio read", count)


def main() -> None:
    with mq.Cluster() as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for number, tag in enumerate(("new", "paid", "sent", "new", "paid")):
                message = mq.Message("orders", f"{number} {tag}", tags=tag, keys=[f"o-{number}"])
                producer.send(message)
        read(cluster.name_server)
        asyncio.run(read_async(cluster.name_server))


if __name__ == "__main__":
    main()
