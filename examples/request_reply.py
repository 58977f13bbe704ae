"""Send a request through a topic and wait for the reply.

python examples/request_reply.py
"""

from __future__ import annotations

import threading

import downrange as mq

PRICES = {"ACME": "12.50", "INIT": "3.75"}


def serve(name_server: str, is_ready: threading.Event, is_over: threading.Event) -> None:
    """Read requests and reply to those with a known price."""
    with (
        mq.PullConsumer(name_server, group="quotes") as consumer,
        mq.Producer(name_server, group="replies") as producer,
    ):
        consumer.assign("requests", start="earliest")
        is_ready.set()
        while not is_over.is_set():
            for request in consumer.poll(timeout=0.1):
                price = PRICES.get(request.body.decode())
                if price is not None:
                    producer.reply(request, price)


def main() -> None:
    with mq.Cluster() as cluster:
        with mq.Admin(cluster.name_server) as admin:
            admin.create_topic("requests")
        is_ready, is_over = threading.Event(), threading.Event()
        thread = threading.Thread(target=serve, args=(cluster.name_server, is_ready, is_over))
        thread.start()
        is_ready.wait()
        with mq.Producer(cluster.name_server, group="traders") as producer:
            reply = producer.request(mq.Message("requests", "ACME"), timeout=3.0)
            print("ACME costs", reply.body.decode())
            future = producer.submit_request(mq.Message("requests", "INIT"), timeout=3.0)
            print("INIT costs", future.result().body.decode())
            try:
                producer.request(mq.Message("requests", "NONE"), timeout=0.5)
            except mq.RequestTimedOut as error:
                print(f"{type(error).__name__}: {error}")
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
