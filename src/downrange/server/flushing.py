"""Makes a store durable, away from the event loop.

Two loops, each with at most one piece of work under way in a thread. The log is flushed as soon as
somebody waits for it; while one flush runs, the next ones to wait gather, and a single flush serves
them all. Otherwise it is flushed every interval, or when enough of it is new. The indexes, the
checkpoint and the broker's progress are made durable every few seconds: recovery after a crash
begins there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from downrange.options import BrokerOptions
    from downrange.server.tables import SavedTables
    from downrange.store.message_store import MessageStore

_log: Final = logging.getLogger("downrange.broker")

#: How long to wait after a failed flush before it is tried again.
_RETRY_INTERVAL: Final = 1.0


class Flusher:
    """The flushing of one store.

    Args:
        store: The store; its owner is the event loop's thread.
        progress: Saved with every checkpoint.
        options: Intervals.
        executor: Runs what blocks.
        on_flushed: Told, in the loop, up to which position the log is durable.
        is_awaited: Says whether somebody waits for a flush of the log.
        is_checkpoint_wanted: Says, and forgets, whether a checkpoint shall come soon.
    """

    def __init__(
        self,
        store: MessageStore,
        progress: SavedTables,
        options: BrokerOptions,
        executor: Executor,
        *,
        on_flushed: Callable[[int], None],
        is_awaited: Callable[[], bool],
        is_checkpoint_wanted: Callable[[], bool],
    ) -> None:
        self._store = store
        self._progress = progress
        self._options = options
        self._executor = executor
        self._on_flushed = on_flushed
        self._is_awaited = is_awaited
        self._is_checkpoint_wanted = is_checkpoint_wanted
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._covered = store.log.end
        #: The longest flush of the log so far, in seconds.
        self.longest_flush = 0.0

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._flush_log_again_and_again()),
            loop.create_task(self._checkpoint_again_and_again()),
        ]

    async def stop(self) -> None:
        """End both loops, after what is under way."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    def appended(self) -> None:
        """Hear that the log grew: flush it now, if somebody waits or much is new."""
        log = self._store.log
        if self._is_awaited() or log.end - log.flushed >= self._options.flush_bytes:
            self._wanted.set()

    # ---- the log ----

    async def _flush_log_again_and_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.flush_interval):
                    await self._wanted.wait()
            self._wanted.clear()
            if self._store.log.end > self._store.log.flushed:
                await self._flush_log()

    async def _flush_log(self) -> None:
        flush = self._store.begin_log_flush()
        begun = time.monotonic()
        try:
            await self._in_thread(flush.run)
        except OSError as error:
            _log.error("the log cannot be made durable: %s; trying again", error)
            self._wanted.set()
            await asyncio.sleep(_RETRY_INTERVAL)
            return
        self.longest_flush = max(self.longest_flush, time.monotonic() - begun)
        self._store.finish_log_flush(flush)
        self._on_flushed(self._store.log.flushed)
        self.appended()

    # ---- everything else ----

    async def _checkpoint_again_and_again(self) -> None:
        interval = self._options.checkpoint_interval
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(min(interval, 0.1))
            is_wanted = self._is_checkpoint_wanted()
            if is_wanted or time.monotonic() >= due:
                due = time.monotonic() + interval
                await self._checkpoint(is_wanted)

    async def _checkpoint(self, is_wanted: bool) -> None:
        contents = self._progress.changes()
        try:
            if self._store.log.end > self._covered or is_wanted:
                flush = self._store.begin_flush()
                await self._in_thread(flush.run)
                self._store.finish_flush(flush)
                self._covered = flush.log.end
                self._on_flushed(self._store.log.flushed)
            if contents:
                await self._in_thread(self._progress.write, contents)
        except OSError as error:
            self._progress.forget(contents)
            _log.error("the checkpoint cannot be written: %s; trying again", error)

    async def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        """Run what blocks; being cancelled waits for its end, as the files must not be closed."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await future
            raise
