"""Transactions: a message is delivered only if the local work has succeeded.

python examples/transactions.py
"""

from __future__ import annotations

import asyncio
import threading

import downrange as mq

#: Stands for a database of the orders that were placed.
PLACED: set[str] = set()
CHECKED = threading.Event()


def look_up(message: mq.ReceivedMessage) -> mq.Outcome:
    """Answer the broker's check of an open transaction; any process of the group may get it."""
    outcome = mq.Outcome.COMMIT if message.keys[0] in PLACED else mq.Outcome.ROLLBACK
    print(f"the broker checks {message.keys[0]}: {outcome.name}")
    CHECKED.set()
    return outcome


def place(message: mq.Message, receipt: mq.SendReceipt) -> mq.Outcome:
    """Do the local work; return the outcome, as a Java transaction listener does."""
    PLACED.add(message.keys[0])
    return mq.Outcome.COMMIT


def place_without_outcome(message: mq.Message, receipt: mq.SendReceipt) -> None:
    """Do the local work without an outcome; the broker will check later."""
    PLACED.add(message.keys[0])


def order(number: int) -> mq.Message:
    return mq.Message("orders", f"order {number}", keys=[f"o-{number}"])


async def send_async(name_server: str) -> None:
    """Do it with asyncio."""
    async with mq.AsyncTransactionProducer(name_server, group="async", check=look_up) as producer:
        async with producer.transaction(order(5)) as transaction:
            PLACED.add("o-5")
        print("asyncio  ", transaction.outcome)


def main() -> None:
    # By default a broker checks after 6 seconds, every 30 seconds; too slow for an example.
    broker = mq.BrokerOptions(transaction_timeout=0.5, transaction_check_interval=0.5)
    with mq.Cluster(broker=broker) as cluster:
        with mq.TransactionProducer(cluster.name_server, group="shop", check=look_up) as producer:
            with producer.transaction(order(1)) as transaction:
                PLACED.add("o-1")  # the broker holds the message back until the block ends
            print("with     ", transaction.outcome)

            try:
                with producer.transaction(order(2)) as transaction:
                    raise RuntimeError("out of stock")
            except RuntimeError as error:
                print("with     ", transaction.outcome, "because", error)

            print("function ", producer.send_in_transaction(order(3), place).outcome)
            print(
                "function ", producer.send_in_transaction(order(4), place_without_outcome).outcome
            )
            CHECKED.wait(5.0)
            asyncio.run(send_async(cluster.name_server))
        with mq.PullConsumer(cluster.name_server, group="audit") as consumer:
            consumer.assign("orders", start="earliest")
            bodies = sorted(m.body.decode() for m in consumer.messages(idle_timeout=0.5))
            print("delivered", ", ".join(bodies))


if __name__ == "__main__":
    main()
