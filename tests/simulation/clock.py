"""An event loop with simulated time, which passes only while no callback is ready."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

START_MS = 1_800_000_000_000


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their times, without sockets and without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # the base class waits by `select`
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now

    def wall_clock_ms(self) -> int:
        """Return the time of day."""
        return START_MS + round(self._now * 1000)

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass until the next callback is due."""
        assert timeout is not None, "deadlock: no callback is scheduled"
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks."""


class Threads:
    """An executor whose calls run in the event loop, after a simulated delay.

    Args:
        loop: The simulated clock.
        random: Decides on the delays; some are as long as those of a slow disk.

    Attributes:
        is_slow: Whether there are such long delays.
    """

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._waiting: dict[Future[Any], None] = {}
        self.is_slow = True

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Schedule a call."""
        future: Future[Any] = Future()
        self._waiting[future] = None
        slowness = self._random.random()
        delay = self._random.uniform(0.0002, 0.005)
        if not self.is_slow:
            pass
        elif slowness < 0.02:
            delay = self._random.uniform(1, 4)  # longer than `flush_timeout`
        elif slowness < 0.1:
            delay = self._random.uniform(0.05, 0.8)
        self._loop.call_later(delay, self._do, future, work, arguments)
        return future

    def _do(
        self, future: Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        if future not in self._waiting:
            return  # its process has ended
        del self._waiting[future]
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """Drop all scheduled calls; their futures get the error."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def shutdown(self) -> None:
        """Check that no call is left."""
        assert not self._waiting
