"""Workers of a consumer: flows that run in threads, or tasks, of their own.

The functions of the user that a worker calls run in its thread or task. So a handler may block in a
thread, and may be a coroutine function in a task.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from downrange.errors import ClientStateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.drivers.aio import AioDriver
    from downrange.client.drivers.threads import ThreadDriver
    from downrange.client.flows.effects import Flow

_log = logging.getLogger("downrange.client")


class ThreadWorkers:
    """Flows in threads.

    Args:
        driver: Takes their steps.
        flows: One per thread.
        name: What the threads are called; a number follows.
    """

    def __init__(self, driver: ThreadDriver, flows: Iterable[Flow[None]], name: str) -> None:
        self._driver = driver
        self._threads = [
            threading.Thread(target=self._run, args=(flow,), name=f"{name}-{number}", daemon=True)
            for number, flow in enumerate(flows, 1)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, flow: Flow[None]) -> None:
        try:
            self._driver.run(flow)
        except ClientStateError:
            return  # the client was closed before its consumer
        except Exception:
            _log.exception("a worker ended")

    @property
    def is_current(self) -> bool:
        """Whether this code runs in one of the workers."""
        return threading.current_thread() in self._threads

    def join(self, timeout: float) -> bool:
        """Wait until all have ended; return whether they have."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class AioWorkers:
    """Flows in tasks of an event loop; `ThreadWorkers` is its twin."""

    def __init__(self, driver: AioDriver, flows: Iterable[Flow[None]], name: str) -> None:
        self._driver = driver
        self._tasks: list[asyncio.Task[Any]] = [
            driver.loop.create_task(self._run(flow), name=f"{name}-{number}")
            for number, flow in enumerate(flows, 1)
        ]

    async def _run(self, flow: Flow[None]) -> None:
        try:
            await self._driver.run_here(flow)
        except ClientStateError:
            return  # the client was closed before its consumer
        except Exception:
            _log.exception("a worker ended")

    @property
    def is_current(self) -> bool:
        """Whether this code runs in one of the workers."""
        return asyncio.current_task() in self._tasks

    async def join(self, timeout: float) -> bool:
        """Wait until all have ended; cancel those that have not; return whether they had."""
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=timeout)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
        return not late
