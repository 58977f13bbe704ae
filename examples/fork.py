"""Processes that fork, as web servers do: each child creates its own producer.

python examples/fork.py
"""

from __future__ import annotations

import os
import sys
import warnings

import downrange as mq


def work(name_server: str, parents: mq.Producer, number: int) -> None:
    """Run a worker process."""
    try:
        parents.send(mq.Message("orders", b"with the producer of the parent"))
    except mq.ForkedClient as error:
        print(f"worker {number}: ForkedClient: {error}")
    with mq.Producer(name_server, group="shop") as producer:  # in gunicorn: in post_fork
        receipt = producer.send(mq.Message("orders", f"from worker {number}"))
        print(f"worker {number}: {receipt.status.name}")


def main() -> None:
    # Python 3.12 and later warn when a process with threads forks, which this example does.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with mq.Cluster() as cluster, mq.Producer(cluster.name_server, group="shop") as producer:
        producer.send(mq.Message("orders", b"before"))
        for number in range(2):
            child = os.fork()
            if child == 0:
                work(cluster.name_server, producer, number)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
        producer.send(mq.Message("orders", b"after"))
        stats = producer.client.stats().producers["shop"]
        print("the parent continues:", stats.sent, "sent")


if __name__ == "__main__":
    main()
