"""What becomes of a message whose handler fails: another delivery, or a dead letter.

Run: python examples/retries.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import logging
import threading

import downrange as mq


class BankAway(Exception):
    """The bank does not answer."""


def main() -> None:
    """Handle payments, of which some fail once, one fails for good, and one always fails."""
    logging.getLogger("downrange").setLevel(logging.CRITICAL)  # exceptions are expected here
    outcomes: dict[str, list[str]] = {}
    is_done = threading.Event()

    def note(name: str, what: str) -> None:
        outcomes.setdefault(name, []).append(what)
        if sum(map(len, outcomes.values())) == 8:
            is_done.set()

    def book(message: mq.ReceivedMessage) -> None:
        name = message.body.decode()
        note(name, f"attempt {message.delivery_attempts + 1}")
        if name == "unreadable":
            raise mq.DeadLetter("no amount")  # no further attempt
        if name == "too early" and message.delivery_attempts == 0:
            raise mq.Retry(after=0.5)  # then, and not after the usual time
        if name == "bank away":
            raise BankAway  # again after the usual time, up to `retries` times
        note(name, "booked")

    # The usual times are 10 s, 30 s, 1 min and so on; these are shorter, for the example.
    broker = mq.BrokerOptions(delay_levels="1s 1s 1s 1s 1s")
    with mq.Cluster(broker=broker) as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for name in ("fine", "too early", "unreadable", "bank away"):
                producer.send(mq.Message("payments", name))
        with mq.PushConsumer(
            cluster.name_server,
            group="booking",
            subscribe="payments",
            handler=book,
            options=mq.ConsumerOptions(retries=1, start="earliest"),
        ) as consumer:
            assert is_done.wait(30), outcomes
            consumer.close()  # waits until the failed ones are with the broker
        for name, steps in outcomes.items():
            print(f"{name}: {', '.join(steps)}")

        # Dead letters are messages in a topic of the group.
        with mq.PullConsumer(cluster.name_server, group="office") as office:
            office.assign("%DLQ%booking", start="earliest")
            dead: set[str] = set()
            for message in office.messages(idle_timeout=2.0):
                print(f"dead letter: {message.body.decode()}")
                dead.add(message.body.decode())
            assert dead == {"unreadable", "bank away"}


if __name__ == "__main__":
    main()
