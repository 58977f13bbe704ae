"""Fills the topics for reading, with the same messages on both servers."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from benchmarks import server_pair
from benchmarks.load import Connection
from benchmarks.sends import BATCH, Batches

if TYPE_CHECKING:
    from benchmarks.server_pair import Peer

#: Number of messages in a topic for reading, by body size.
STORED_MESSAGES: Final = {100: 50_000, 1024: 50_000, 16_384: 8_000}
#: The same for push consumers, whose start and end must not count much.
PUSHED_MESSAGES: Final = 100_000


def fill(peer: Peer, topic: str, count: int, body_bytes: int) -> None:
    """Send `count` messages to a topic, a multiple of the batch size."""
    batches = Batches(
        topic, server_pair.QUEUES, body=os.urandom(body_bytes).hex().encode()[:body_bytes]
    )
    with contextlib.closing(Connection(peer.broker)) as connection:
        for _ in range(count // BATCH):
            connection.send(batches.take(1))
            while not connection.replies():
                pass
    peer.acknowledged[topic] += count
