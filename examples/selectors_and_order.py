"""Choose the queue: by sharding key, hash, at random, by machine room, or with a function.

python examples/selectors_and_order.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import downrange as mq

if TYPE_CHECKING:
    from collections.abc import Sequence


def large_to_last(queues: Sequence[mq.QueueId], message: mq.Message) -> mq.QueueId:
    """Send large messages to a queue of their own."""
    return queues[-1] if len(message.body) > 1000 else queues[0]


def main() -> None:
    with mq.Cluster(brokers=2) as cluster, mq.Producer(cluster.name_server, group="g") as producer:
        producer.create_topic("orders", queues=4)  # on both brokers
        queues = producer.publish_queues("orders")
        print("queues      ", [f"{queue.broker}/{queue.number}" for queue in queues])

        def show(how: str, message: mq.Message, queue: mq.QueueId | None = None) -> None:
            receipt = producer.send(message, queue=queue)
            print(f"{how:12} {receipt.queue.broker}/{receipt.queue.number}")

        for _ in range(3):
            show("round robin", mq.Message("orders", b"1"))
        for step in ("placed", "paid", "sent"):
            show("sharding key", mq.Message("orders", step, sharding_key="customer-7"))

        by_hash = producer.send(mq.Message("orders", b"1"), queue=mq.by_hash("customer-7"))
        print("by_hash      the same:", f"{by_hash.queue.broker}/{by_hash.queue.number}")
        producer.send(mq.Message("orders", b"1"), queue=mq.by_random())
        large = producer.send(mq.Message("orders", b"x" * 2000), queue=large_to_last)
        print("own function", f"{large.queue.broker}/{large.queue.number}")
        show("given queue", mq.Message("orders", b"1"), mq.QueueId("orders", "broker-a", 3))

        # A broker's room is the part of its name before an @, unless you pass a function.
        near = mq.by_room("north", room_of={"broker-a": "north", "broker-b": "south"}.get)
        rooms = {producer.send(mq.Message("orders", b"1"), queue=near).queue.broker for _ in "1234"}
        print("by_room     ", rooms)

        read_back(cluster.name_server, by_hash.queue)


def read_back(name_server: str, queue: mq.QueueId) -> None:
    """Show that the messages of one customer are in one queue, in order."""
    with mq.PullConsumer(name_server, group="audit") as consumer:
        consumer.assign(queue, start="earliest")
        steps = [m.body.decode() for m in consumer.poll() if "__SHARDINGKEY" in m.properties]
        print("in order    ", " -> ".join(steps))


if __name__ == "__main__":
    main()
