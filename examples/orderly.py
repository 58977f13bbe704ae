"""Messages in order: each customer's orders are handled one after the other, as they were sent.

Run: python examples/orderly.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import threading

import downrange as mq

CUSTOMERS = ("ada", "ben", "cleo")
STEPS = ("placed", "paid", "packed", "sent")


def main() -> None:
    """Send the steps of some orders, and handle them in order, with a failure in between."""
    seen: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
    failures = {"ben": 1}
    is_done = threading.Event()

    def follow(message: mq.ReceivedMessage) -> None:
        """Note a step; the queue waits while this runs, and when it fails."""
        customer = message.keys[0]
        step = message.body.decode()
        if step == "paid" and failures.get(customer):
            failures[customer] -= 1
            print(f"{customer}: the payment cannot be booked now; the queue waits")
            raise mq.Retry(after=0.2)
        seen[customer].append(step)
        if all(len(steps) == len(STEPS) for steps in seen.values()):
            is_done.set()

    with mq.Cluster() as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for step in STEPS:
                for customer in CUSTOMERS:
                    # Messages with the same sharding key go to the same queue.
                    producer.send(mq.Message("steps", step, keys=[customer], sharding_key=customer))
        with mq.PushConsumer(
            cluster.name_server,
            group="follow",
            subscribe="steps",
            handler=follow,
            options=mq.ConsumerOptions(mode="orderly", start="earliest"),
        ):
            assert is_done.wait(30), seen
    for customer, steps in seen.items():
        print(f"{customer}: {' -> '.join(steps)}")
        assert tuple(steps) == STEPS


if __name__ == "__main__":
    main()
