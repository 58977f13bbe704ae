"""Put small messages of many threads into one request; each gets its own receipt.

python examples/auto_batch.py
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import downrange as mq

COUNT = 3200
THREADS = 64


def send_all(name_server: str, title: str, options: mq.ProducerOptions) -> None:
    """Send from many threads; each thread waits for its receipts."""
    with mq.Producer(name_server, group="g", options=options) as producer:
        started = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            messages = [mq.Message("events", b"x" * 100) for _ in range(COUNT)]
            receipts = list(threads.map(producer.send, messages))
        rate = COUNT / (time.perf_counter() - started)
        print(f"{title:12} {rate:8,.0f} messages/s, {len({r.message_id for r in receipts})} ids")


def main() -> None:
    with mq.Cluster() as cluster:
        print(f"{THREADS} threads, {COUNT} messages, the server in the same process")
        send_all(cluster.name_server, "one by one", mq.ProducerOptions())
        auto_batch = mq.AutoBatch(hold_ms=10, hold_bytes=32_768)
        send_all(cluster.name_server, "auto batch", mq.ProducerOptions(auto_batch=auto_batch))

        options = mq.ProducerOptions(auto_batch=mq.AutoBatch(hold_ms=2000))
        producer = mq.Producer(cluster.name_server, group="g", options=options).start()
        started = time.perf_counter()
        future = producer.submit(mq.Message("events", "waits up to two seconds for others"))
        producer.close()  # sends the messages that still wait
        receipt = future.result()
        print(
            f"close sent the rest: {receipt.status.name} in {time.perf_counter() - started:.2f} s"
        )


if __name__ == "__main__":
    main()
