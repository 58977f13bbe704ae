"""Send from threads: wait for a receipt, take a future, or send one-way.

python examples/send_sync.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import downrange as mq


def main() -> None:
    with mq.Cluster() as cluster, mq.Producer(cluster.name_server, group="shop") as producer:
        message = mq.Message("orders", b"\x00any bytes", tags="new", keys=["o-1"])
        receipt = producer.send(message)  # waits until a broker has stored it
        print("id     ", receipt.message_id)
        print("where  ", receipt.queue.broker, "queue", receipt.queue.number, "at", receipt.offset)
        print("status ", receipt.status.name, "after", receipt.attempts, "attempt")

        # A producer is thread-safe; one per process is enough.
        with ThreadPoolExecutor(8) as threads:
            many = [mq.Message("orders", f"order {number}") for number in range(100)]
            queues = {receipt.queue.number for receipt in threads.map(producer.send, many)}
        print("threads", len(many), "messages over queues", sorted(queues))

        # `submit` returns a future at once; callbacks run in a thread pool of the client.
        futures = [producer.submit(mq.Message("orders", f"later {n}")) for n in range(100)]
        futures[-1].add_done_callback(lambda future: print("called ", future.result().status.name))
        print("futures", len([future.result() for future in futures]), "receipts")

        # Fast and unsafe: there is no reply, so the message may be lost.
        producer.send_oneway(mq.Message("metrics", "cpu 0.7"))

        stats = producer.client.stats().producers["shop"]
        print("stats   sent", stats.sent, "one-way", stats.oneway, "retried", stats.retried)


if __name__ == "__main__":
    main()
