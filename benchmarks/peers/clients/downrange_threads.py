"""Downrange's client for threads: `send`, and `submit` with futures."""

from __future__ import annotations

import time

from benchmarks.peers.clients import IN_FLIGHT
from benchmarks.peers.window import Window
from downrange import Message, Producer


class Client:
    """A producer."""

    def __init__(self, addresses: dict[str, str], topic: str, body: bytes) -> None:
        """Connect."""
        self._producer = Producer(addresses["name_server"], group="peers").start()
        self._topic, self._body = topic, body

    def one(self, until: float) -> int:
        """Send one message at a time."""
        count = 0
        while time.perf_counter() < until:
            self._producer.send(Message(self._topic, self._body))
            count += 1
        return count

    def many(self, until: float) -> int:
        """Send with futures."""
        window = Window(IN_FLIGHT)
        while time.perf_counter() < until:
            window.enter()
            future = self._producer.submit(Message(self._topic, self._body))
            future.add_done_callback(lambda done: window.leave(done.exception()))
        return window.close()
