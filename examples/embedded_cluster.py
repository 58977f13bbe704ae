"""A cluster in this process: send, read, query, crash and restart, delayed delivery.

python examples/embedded_cluster.py

It needs the extra `cli`, for the tables of rich.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

import downrange as mq

TOPIC = "orders"
console = Console(width=100)


def show(title: str, messages: list[mq.ReceivedMessage]) -> None:
    """Print messages as a table."""
    table = Table(title=title, title_justify="left")
    for column in ("queue", "offset", "body", "tags", "keys"):
        table.add_column(column)
    for message in messages:
        place = str(message.queue.number), str(message.offset)
        table.add_row(*place, message.body.decode(), message.tags, ", ".join(message.keys))
    console.print(table)


def read_all(cluster: mq.Cluster) -> list[mq.ReceivedMessage]:
    """Read the topic from its beginning."""
    with mq.PullConsumer(cluster.name_server, group="warehouse") as consumer:
        consumer.assign(TOPIC, start="earliest")
        return list(consumer.messages(idle_timeout=0.3))


def main() -> None:
    started = time.perf_counter()
    with mq.Cluster() as cluster:
        console.print(f"cluster started in {(time.perf_counter() - started) * 1000:.0f} ms")
        console.print("the first send creates the topic, as on every RocketMQ cluster\n")
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for number, fruit in enumerate(("apples", "pears", "plums")):
                text = f"{number} {fruit}"
                producer.send(mq.Message(TOPIC, text, tags="new", keys=[f"o-{number}"]))
            show("pulled", read_all(cluster))

            with mq.Admin(producer.client) as admin:
                show("found by key o-1", admin.query_messages(TOPIC, "o-1"))

            cluster.kill_broker(0)  # nothing is flushed
            cluster.restart_broker(0)
            show("after a crash and a restart", read_all(cluster))

            with mq.PullConsumer(cluster.name_server, group="clock") as consumer:
                consumer.assign(TOPIC, start="latest")
                sent = time.perf_counter()
                producer.send(mq.Message(TOPIC, "cherries, in a second", deliver_in=1.0))
                late = consumer.poll(timeout=5.0)
                show(f"delivered after {time.perf_counter() - sent:.2f} s", late)


if __name__ == "__main__":
    main()
