"""A consumer group: two members share the messages of a topic, a handler gets each message.

Run: python examples/push_consumer.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import threading
from collections import Counter

import downrange as mq

COUNT = 200


def main() -> None:
    """Send orders, handle them with two members, and look at what each has done."""
    handled: Counter[str] = Counter()
    is_done = threading.Event()

    def bill(message: mq.ReceivedMessage) -> None:
        """Handle an order: to return means that it is done, to raise that it comes again."""
        handled[message.body.decode()] += 1
        if len(handled) == COUNT:
            is_done.set()

    options = mq.ConsumerOptions(concurrency=4, start="earliest")
    with mq.Cluster() as cluster, mq.Producer(cluster.name_server, group="shop") as producer:
        producer.create_topic("orders", queues=4)
        with (
            mq.PushConsumer(
                cluster.name_server,
                group="billing",
                subscribe={"orders": "new || paid"},
                handler=bill,
                options=options,
            ) as first,
            mq.PushConsumer(
                cluster.name_server,
                group="billing",
                subscribe={"orders": "new || paid"},
                handler=bill,
                options=options,
            ) as second,
        ):
            for number in range(COUNT):
                producer.send(mq.Message("orders", f"order {number}", tags="new"))
            producer.send(mq.Message("orders", "not for this group", tags="cancelled"))
            assert is_done.wait(30), f"only {len(handled)} orders were handled"

            for name, member in (("first", first), ("second", second)):
                queues = [queue.number for queue in member.assignment() if queue.topic == "orders"]
                print(f"{name} member: queues {queues}, {member.stats().handled} orders")
            print("healthy:", first.health().is_healthy and second.health().is_healthy)

            second.close()  # handlers end, offsets are committed, queues go to the first
            print("after the second has left, the group's state:", second)
    assert set(handled.values()) == {1}, "an order was handled twice"
    print(f"{len(handled)} orders were handled, each once")


if __name__ == "__main__":
    main()
