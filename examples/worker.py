"""Handlers for `downrange consume`, the worker of the command line; and a short run of it.

    downrange consume worker:bill --group billing --topic 'orders:new || paid' --health 10
    downrange consume worker:bill_later --group billing --topic orders --concurrency 100

Run: python examples/worker.py. It starts a cluster of its own and runs the first command on it, for
which it needs the extra `cli` (click and rich).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import downrange as mq


def bill(message: mq.ReceivedMessage) -> None:
    """Handle a message in one of the worker's threads."""
    print("billed", message.body.decode(), flush=True)


async def bill_later(message: mq.ReceivedMessage) -> None:
    """Handle a message on the worker's event loop."""
    await asyncio.sleep(0.1)
    print("billed", message.body.decode(), flush=True)


def main() -> None:
    """Send some orders, and let a worker handle them."""
    with mq.Cluster() as cluster:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for number in range(3):
                producer.send(mq.Message("orders", f"order {number}", tags="new"))
        arguments = ["worker:bill", "--group", "billing", "--topic", "orders:new || paid"]
        arguments += ["--start", "earliest", "-n", cluster.name_server]
        # It would run until Ctrl-C or SIGTERM; here it ends after three messages.
        arguments += ["--max-messages", "3"]
        subprocess.run(
            [sys.executable, "-m", "downrange", "consume", *arguments],
            cwd=Path(__file__).parent,
            check=True,
        )


if __name__ == "__main__":
    main()
