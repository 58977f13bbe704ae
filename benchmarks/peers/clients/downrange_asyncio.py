"""Downrange's client for asyncio, on uvloop as in the matrix."""

from __future__ import annotations

import asyncio
import time

import uvloop

from benchmarks.peers.clients import IN_FLIGHT
from downrange import AsyncProducer, Message


class Client:
    """A producer and its event loop."""

    def __init__(self, addresses: dict[str, str], topic: str, body: bytes) -> None:
        """Connect."""
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._start(addresses["name_server"]))
        self._topic, self._body = topic, body

    async def _start(self, name_server: str) -> None:
        self._producer = await AsyncProducer(name_server, group="peers").start()

    def one(self, until: float) -> int:
        """Send one message at a time."""
        return self._runner.run(self._send(until, 1))

    def many(self, until: float) -> int:
        """Send from many tasks."""
        return self._runner.run(self._send(until, IN_FLIGHT))

    async def _send(self, until: float, tasks: int) -> int:
        async def work() -> int:
            count = 0
            while time.perf_counter() < until:
                await self._producer.send(Message(self._topic, self._body))
                count += 1
            return count

        return sum(await asyncio.gather(*(work() for _ in range(tasks))))
