"""One of two brokers crashes: retries store all messages, fault tolerance avoids the dead one.

python examples/fault_tolerance.py
"""

from __future__ import annotations

import logging
import time

import downrange as mq


def main() -> None:
    logging.getLogger("downrange.client").setLevel(logging.ERROR)  # no lines on failed attempts
    for style in ("off", "4.x", "5.x"):
        with (
            mq.Cluster(brokers=2) as cluster,
            mq.Producer(
                cluster.name_server,
                group="shop",
                options=mq.ProducerOptions(fault_tolerance=style, auto_create="balanced"),
            ) as producer,
        ):
            brokers = {send(producer).queue.broker for _ in range(16)}
            print(f"{style:4} sends to {' and '.join(sorted(brokers))}")
            cluster.kill_broker(0)
            started = time.perf_counter()
            receipts = [send(producer) for _ in range(200)]
            elapsed = time.perf_counter() - started
            retried = sum(receipt.attempts > 1 for receipt in receipts)
            print(f"     broker-a killed: 200 of 200 stored, {retried} needed a second attempt,")
            print(f"     {elapsed:.2f} s in total")
            for broker in producer.client.stats().brokers:
                print(f"     {broker.broker}: available={broker.is_available}, ", end="")
                print(f"reachable={broker.is_reachable}, avoided for {broker.avoided_for:.0f} s")


def send(producer: mq.Producer) -> mq.SendReceipt:
    """Send an order."""
    return producer.send(mq.Message("orders", b"1"))


if __name__ == "__main__":
    main()
