"""Package rocketmq-python-client: gRPC, by the proxy; `send`, and `send_async` with futures."""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

from benchmarks.peers.clients import IN_FLIGHT
from benchmarks.peers.window import Window


class Client:
    """A producer."""

    def __init__(self, addresses: dict[str, str], topic: str, body: bytes) -> None:
        """Connect."""
        configuration = ClientConfiguration(addresses["proxy"], Credentials(), request_timeout=10)
        self._producer = Producer(configuration, (topic,))
        self._producer.startup()
        self._topic, self._body = topic, body

    def _message(self) -> Message:
        message = Message()
        message.topic = self._topic
        message.body = self._body
        return message

    def one(self, until: float) -> int:
        """Send one message at a time."""
        count = 0
        while time.perf_counter() < until:
            self._producer.send(self._message())
            count += 1
        return count

    def many(self, until: float) -> int:
        """Send with futures."""
        window = Window(IN_FLIGHT)
        while time.perf_counter() < until:
            window.enter()
            future = self._producer.send_async(self._message())
            future.add_done_callback(lambda done: window.leave(done.exception()))
        return window.close()
