"""Producers of both front ends, used alike, and threads that send through them all the time."""

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
    """Give a producer; an async one lives on a loop of its own and is used like a sync one."""
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
    """A message that a broker took."""

    begun: float
    ended: float
    body: bytes
    broker: str


class Load:
    """Threads that send one message after the other until they are told to stop.

    Args:
        producer: What they share.
        topic: Where to.
        threads: How many.

    Attributes:
        sent: What was acknowledged.
        failures: What was not.
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
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def wait_for(self, count: int, broker: str | None = None, seconds: float = 30.0) -> None:
        """Wait until so many more messages are acknowledged, by this broker if one is named."""
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
                self._is_over.wait(0.001)  # the servers need their share of a small machine
