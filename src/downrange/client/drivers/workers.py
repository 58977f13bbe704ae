"""Workers of a consumer: flows that run in threads, or tasks, of their own.

The functions of the user that a worker calls run in its thread or task. So a handler may block in a
thread, and may be a coroutine function in a task. One rule: a worker that ends with an error is
reported and replaced, whatever its handler raised. A consumer must never stop without a word.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import ClientStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.drivers.aio import AioDriver
    from downrange.client.drivers.threads import ThreadDriver
    from downrange.client.flows.effects import Flow

_log = logging.getLogger("downrange.client")
_ENDED: Final = "worker %s ended with an error; another one takes its place"
#: Seconds until a worker that ended is replaced.
_RESTART: Final = 1.0


class ThreadWorkers:
    """Flows in threads.

    Args:
        driver: Takes their steps.
        make: Makes the flow of a worker.
        count: How many there are.
        name: What the threads are called; a number follows.
    """

    def __init__(
        self, driver: ThreadDriver, make: Callable[[], Flow[None]], count: int, name: str
    ) -> None:
        self._driver = driver
        self._make = make
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while True:
            try:
                return self._driver.run(self._make())
            except ClientStateError:
                return None  # the client was closed before its consumer
            except BaseException:  # Ctrl-C is not for this thread: a handler raised it
                _log.exception(_ENDED, threading.current_thread().name)
            time.sleep(_RESTART)

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

    def __init__(
        self, driver: AioDriver, make: Callable[[], Flow[None]], count: int, name: str
    ) -> None:
        self._driver = driver
        self._make = make
        self._tasks: list[asyncio.Task[Any]] = [
            driver.loop.create_task(self._run(f"{name}-{number}"), name=f"{name}-{number}")
            for number in range(1, count + 1)
        ]

    async def _run(self, name: str) -> None:
        while True:
            try:
                return await self._driver.run_here(self._make())
            except ClientStateError:
                return None  # the client was closed before its consumer
            except (GeneratorExit, KeyboardInterrupt, SystemExit):
                raise  # ends the event loop, or comes after its end
            except BaseException:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # by `join`, or by the end of the loop
                _log.exception(_ENDED, name)
            await asyncio.sleep(_RESTART)

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
