"""Producers of both front ends with the same interface, and threads that send through them."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from downrange import AsyncProducer, Producer
from downrange.errors import RocketMQError
from downrange.model import Message
from tests.contract.blocking import Blocking, LoopThread

if TYPE_CHECKING:
    from collections.abc import Generator

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, ...] = ("sync", "async")


@contextmanager
def producing(
    kind: Kind, servers: str, group: str = "faults", **settings: Any
) -> Generator[Producer]:
    """Give a producer; an async one runs on its own loop and is used like a sync one."""
    if kind == "sync":
        with Producer(servers, group=group, **settings) as producer:
            yield producer
        return
    loop = LoopThread()
    try:
        with Blocking(AsyncProducer(servers, group=group, **settings), loop) as producer:
            yield cast("Producer", producer)
    finally:
        loop.close()


class Sent(NamedTuple):
    """An acknowledged message."""

    begun: float
    ended: float
    body: bytes
    broker: str


class Load:
    """Threads that send one message after the other until they are stopped.

    Args:
        producer: Shared by all threads.
        topic: The topic.
        threads: The number of threads.

    Attributes:
        sent: Acknowledged messages.
        failures: Errors of the others.
    """

    def __init__(self, producer: Producer, topic: str, threads: int = 4) -> None:
        self.sent: list[Sent] = []
        self.failures: list[RocketMQError] = []
        self._producer = producer
        self._topic = topic
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, args=(number,), daemon=True)
            for number in range(threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def wait_for(self, count: int, broker: str | None = None, seconds: float = 90.0) -> None:
        """Wait until this many more messages are acknowledged, by the given broker or any."""
        before = len(self.sent)
        deadline = time.monotonic() + seconds
        while sum(broker in (None, one.broker) for one in self.sent[before:]) < count:
            assert time.monotonic() < deadline, self.failures
            time.sleep(0.002)

    def longest_pause(self) -> float:
        """Return the longest time between two acknowledgements of one thread, in seconds."""
        longest = 0.0
        last: dict[bytes, float] = {}
        for one in self.sent:
            thread = one.body.split(b"-")[0]
            longest = max(longest, one.ended - last.get(thread, one.begun))
            last[thread] = one.ended
        return longest

    def _send_all(self, thread: int) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            body = f"{thread}-{number}".encode()
            begun = time.monotonic()
            try:
                receipt = self._producer.send(Message(self._topic, body))
            except RocketMQError as error:
                self.failures.append(error)
            else:
                self.sent.append(Sent(begun, time.monotonic(), body, receipt.queue.broker))
                self._is_over.wait(0.001)  # leave CPU time to the servers on a small machine
