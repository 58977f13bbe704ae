"""A message that appears only when the local work has succeeded.

python examples/transactions.py
"""

from __future__ import annotations

import asyncio
import threading

import downrange as mq

#: Stands for a database: which orders were really placed.
PLACED: set[str] = set()
CHECKED = threading.Event()


def look_up(message: mq.ReceivedMessage) -> mq.Outcome:
    """Tell the broker how a transaction ended, when it did not hear; any process may be asked."""
    outcome = mq.Outcome.COMMIT if message.keys[0] in PLACED else mq.Outcome.ROLLBACK
    print(f"the broker asks about {message.keys[0]}: {outcome.name}")
    CHECKED.set()
    return outcome


def place(message: mq.Message, receipt: mq.SendReceipt) -> mq.Outcome:
    """Do the local work: the Java form, a function that returns how it ended."""
    PLACED.add(message.keys[0])
    return mq.Outcome.COMMIT


def forget_to_say(message: mq.Message, receipt: mq.SendReceipt) -> None:
    """Do the local work and do not know yet whether it will last."""
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
    # A broker asks after 6 seconds, and looks every 30; that is too slow for an example.
    broker = mq.BrokerOptions(transaction_timeout=0.5, transaction_check_interval=0.5)
    with mq.Cluster(broker=broker) as cluster:
        with mq.TransactionProducer(cluster.name_server, group="shop", check=look_up) as producer:
            with producer.transaction(order(1)) as transaction:
                PLACED.add("o-1")  # the message waits at the broker meanwhile
            print("with     ", transaction.outcome)

            try:
                with producer.transaction(order(2)) as transaction:
                    raise RuntimeError("out of stock")
            except RuntimeError as error:
                print("with     ", transaction.outcome, "because", error)

            print("function ", producer.send_in_transaction(order(3), place).outcome)
            print("function ", producer.send_in_transaction(order(4), forget_to_say).outcome)
            CHECKED.wait(5.0)
            asyncio.run(send_async(cluster.name_server))
        with mq.PullConsumer(cluster.name_server, group="audit") as consumer:
            consumer.assign("orders", start="earliest")
            seen = sorted(m.body.decode() for m in consumer.messages(idle_timeout=0.5))
            print("delivered", ", ".join(seen))


if __name__ == "__main__":
    main()
