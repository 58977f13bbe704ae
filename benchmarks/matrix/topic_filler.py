"""Fills the topics that are read: with the same messages on both servers."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from benchmarks import peers
from benchmarks.load import Connection
from benchmarks.sends import BATCH, Batches

if TYPE_CHECKING:
    from benchmarks.peers import Peer

#: How many messages a topic holds that is read, by the size of their bodies.
STORED_MESSAGES: Final = {100: 50_000, 1024: 50_000, 16_384: 8_000}


def fill(peer: Peer, topic: str, count: int, body_bytes: int) -> None:
    """Store so many messages in a topic, a whole number of batches."""
    batches = Batches(topic, peers.QUEUES, body=os.urandom(body_bytes).hex().encode()[:body_bytes])
    with contextlib.closing(Connection(peer.broker)) as connection:
        for _ in range(count // BATCH):
            connection.send(batches.take(1))
            while not connection.replies():
                pass
    peer.acknowledged[topic] += count
