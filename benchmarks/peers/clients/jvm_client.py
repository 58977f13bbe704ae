"""Package pyrocketmq: Java's client in a JVM inside the process; `send`, and callbacks."""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time

import jpype
import jpype.imports

from benchmarks.peers.clients import IN_FLIGHT
from benchmarks.peers.window import Window


class Client:
    """A producer."""

    def __init__(self, addresses: dict[str, str], topic: str, body: bytes) -> None:
        """Start the JVM, and connect."""
        jpype.startJVM("-Xmx512m", classpath=[addresses["jars"]])
        # The package can be imported only after the JVM has started.
        from pyrocketmq.client.producer import Producer, SendCallback, SendStatus
        from pyrocketmq.common.message import Message

        class Callback(SendCallback):
            def __init__(self, window: Window) -> None:
                self._window = window

            def _onSuccess(self, send_result: object) -> None:  # noqa: N802 - the package's name
                is_stored = send_result.sendStatus == SendStatus.SEND_OK
                self._window.leave(None if is_stored else RuntimeError("not stored"))

            def _onException(self, error: object) -> None:  # noqa: N802
                self._window.leave(RuntimeError(str(error)))

        self._callback, self._message, self._stored = Callback, Message, SendStatus.SEND_OK
        self._producer = Producer("peers")
        self._producer.setNamesrvAddr(addresses["name_server"])
        self._producer.start()
        self._topic, self._body = topic, body

    def one(self, until: float) -> int:
        """Send one message at a time."""
        count = 0
        while time.perf_counter() < until:
            result = self._producer.send(self._message(topic=self._topic, body=self._body))
            if result.sendStatus != self._stored:
                raise RuntimeError("not stored")
            count += 1
        return count

    def many(self, until: float) -> int:
        """Send with callbacks."""
        window = Window(IN_FLIGHT)
        callback = self._callback(window)
        while time.perf_counter() < until:
            window.enter()
            message = self._message(topic=self._topic, body=self._body)
            self._producer.send(message, send_callback=callback)
        return window.close()
