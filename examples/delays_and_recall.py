"""Delayed delivery: by level, after some seconds, at a time; and recall of a message.

python examples/delays_and_recall.py
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import downrange as mq


def main() -> None:
    with (
        mq.Cluster() as cluster,
        mq.Producer(cluster.name_server, group="shop") as producer,
        mq.PullConsumer(cluster.name_server, group="clock") as consumer,
    ):
        producer.send(mq.Message("reminders", "now"))
        started = time.monotonic()
        producer.send(mq.Message("reminders", "level 1 of 18: a second", delay_level=1))
        producer.send(mq.Message("reminders", "after 1.5 seconds", deliver_in=1.5))
        at = datetime.now(UTC) + timedelta(seconds=2)
        producer.send(mq.Message("reminders", f"at {at:%H:%M:%S}", deliver_at=at))

        receipt = producer.send(mq.Message("reminders", "recalled before delivery", deliver_in=1.0))
        print("recalled    ", producer.recall(receipt.recall_handle))

        consumer.assign("reminders", start="earliest")
        for message in consumer.messages(idle_timeout=2.0):
            print(f"after {time.monotonic() - started:4.1f} s", message.body.decode())

        try:
            producer.send(mq.Message("reminders", b"1", deliver_in=1.0, delay_level=1))
        except mq.OptionError as error:
            print("refused     ", error)


if __name__ == "__main__":
    main()
