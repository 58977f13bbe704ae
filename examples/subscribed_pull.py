"""A pull consumer as a member of its group: it polls its share of the queues, and commits by hand.

Run: python examples/subscribed_pull.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import time

import downrange as mq

COUNT = 100


def main() -> None:
    """Read orders with two members; the second one leaves, and the first gets its queues."""
    read: list[str] = []

    def got(queues: list[mq.QueueId]) -> None:
        numbers = sorted(queue.number for queue in queues if queue.topic == "orders")
        print("the first member gets queues", numbers)

    def lost(queues: list[mq.QueueId]) -> None:
        print("the first member gives away queues", sorted(queue.number for queue in queues))

    options = mq.PullOptions(start="earliest")
    with mq.Cluster() as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for number in range(COUNT):
                producer.send(mq.Message("orders", f"order {number}"))
        with mq.PullConsumer(cluster.name_server, group="export", options=options) as first:
            first.subscribe("orders", on_assigned=got, on_revoked=lost)
            with mq.PullConsumer(cluster.name_server, group="export", options=options) as second:
                second.subscribe("orders")
                deadline = time.monotonic() + 30
                while len(set(read)) < COUNT and time.monotonic() < deadline:
                    for consumer in (first, second):
                        read += [message.body.decode() for message in consumer.poll(0.2)]
                        consumer.commit()  # what this poll returned is done
    assert len(set(read)) == COUNT
    print(f"{len(set(read))} orders were read")


if __name__ == "__main__":
    main()
