"""Broadcast: every member of the group gets every message, and keeps its own offsets.

Run: python examples/broadcast.py. It starts a cluster of its own, in this process.
"""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict

import downrange as mq


class Shelf:
    """A process that keeps prices in memory.

    Attributes:
        prices: The prices that it knows.
    """

    def __init__(self, servers: str, folder: str, name: str) -> None:
        self.prices: dict[str, str] = {}
        self._changed = threading.Condition()
        self._consumer = mq.PushConsumer(
            servers,
            group="shelves",
            subscribe="prices",
            handler=self._update,
            options=mq.ConsumerOptions(
                model="broadcast",
                start="earliest",
                offset_store=mq.FolderOffsets(folder, instance=name),
            ),
        )

    def _update(self, message: mq.ReceivedMessage) -> None:
        with self._changed:
            self.prices[message.keys[0]] = message.body.decode()
            self._changed.notify()

    def __enter__(self) -> Shelf:
        """Begin to listen."""
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Save the offsets, and end."""
        self._consumer.close()

    def wait_for(self, count: int) -> None:
        """Wait until it knows so many prices."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.prices) >= count, 30)


def main() -> None:
    """Send prices to two shelves, restart one of them, and send another price."""
    known: dict[str, dict[str, str]] = defaultdict(dict)
    with (
        tempfile.TemporaryDirectory() as folder,
        mq.Cluster() as cluster,
        mq.Producer(cluster.name_server, group="office") as producer,
    ):
        for product, price in {"kettle": "54.90", "cup": "16.50"}.items():
            producer.send(mq.Message("prices", price, keys=[product]))
        with (
            Shelf(cluster.name_server, folder, "left") as left,
            Shelf(cluster.name_server, folder, "right") as right,
        ):
            for name, shelf in (("left", left), ("right", right)):
                shelf.wait_for(2)
                known[name] = shelf.prices
        producer.send(mq.Message("prices", "32.90", keys=["moka-pot"]))
        with Shelf(cluster.name_server, folder, "left") as again:
            again.wait_for(1)
            known["left, after a restart,"] = again.prices
    for name, prices in known.items():
        print(f"{name} got {prices}")
    assert known["left"] == known["right"] == {"kettle": "54.90", "cup": "16.50"}
    assert known["left, after a restart,"] == {"moka-pot": "32.90"}


if __name__ == "__main__":
    main()
