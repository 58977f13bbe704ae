"""Makes a store durable, away from the event loop.

Two loops, each with at most one piece of work under way in a thread. The log is flushed as soon as
somebody waits for it; while one flush runs, the next ones to wait gather, and a single flush serves
them all. Otherwise it is flushed every interval, or when enough of it is new. The indexes, the
checkpoint and the broker's progress are made durable every few seconds: recovery after a crash
begins there.

A log flush that fails because the disk does (EIO) is not tried again, and no message is taken any
more: the system has then forgotten what it could not write, and the next flush would succeed
without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from downrange.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from downrange.server.broker.state import BrokerState
    from downrange.server.run.saved_tables import SavedTables

ResultT = TypeVar("ResultT")

_log: Final = logging.getLogger("downrange.broker")

#: How long to wait after a failed flush before it is tried again.
_RETRY_INTERVAL: Final = 1.0
#: How often the loop of checkpoints looks whether one is due.
_LOOK_INTERVAL: Final = 0.1


async def finish_in_thread(
    executor: Executor, work: Callable[..., ResultT], *arguments: object
) -> ResultT:
    """Run what blocks; being cancelled waits for its end, as its files must not be closed."""
    future = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await future
        raise


class Flusher:
    """The flushing of one store.

    Args:
        state: The broker; its owner is the event loop's thread.
        progress: Saved with every checkpoint.
        executor: Runs what blocks.
        on_flushed: Told, in the loop, up to which position the log is durable.
        is_awaited: Says whether somebody waits for a flush of the log.

    Attributes:
        longest_flush: The longest flush of the log so far, in seconds.
    """

    def __init__(
        self,
        state: BrokerState,
        progress: SavedTables,
        executor: Executor,
        *,
        on_flushed: Callable[[int], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        self._state = state
        self._store = state.store
        self._progress = progress
        self._executor = executor
        self._on_flushed = on_flushed
        self._is_awaited = is_awaited
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()  # one checkpoint at a time
        self._is_forgetting = False
        self._tasks: list[asyncio.Task[None]] = []
        self._covered = state.store.log.flushed  # less than its end after a crash
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
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def appended(self) -> None:
        """Hear that the log grew: flush it now, if somebody waits or much is new."""
        log = self._store.log
        if self._is_awaited() or log.end - log.flushed >= self._state.options.flush_bytes:
            self._wanted.set()

    # ---- the log ----

    async def _flush_log_again_and_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._state.options.flush_interval):
                    await self._wanted.wait()
            self._wanted.clear()
            if self._store.log.end > self._store.log.flushed:
                try:
                    await self._flush_log()
                except Exception as error:  # whatever it is, the loop must not end with it
                    if self._is_hopeless(error):
                        return
                    _complain("the log cannot be made durable", error)
                    self._wanted.set()
                    await asyncio.sleep(_RETRY_INTERVAL)

    async def _flush_log(self) -> None:
        flush = self._store.begin_log_flush()
        begun = time.monotonic()
        await finish_in_thread(self._executor, flush.run)
        self.longest_flush = max(self.longest_flush, time.monotonic() - begun)
        self._store.finish_log_flush(flush)
        self._on_flushed(self._store.log.flushed)
        self.appended()

    def _is_hopeless(self, error: Exception) -> bool:
        """Whether the disk lost what it was to keep; then no message is taken any more."""
        if not isinstance(error, OSError) or error.errno != errno.EIO:
            return False
        self._state.unwritable = f"the disk fails: {error}"
        _log.critical("sends are refused until the broker is started anew: the disk fails")
        return True

    # ---- everything else ----

    async def forget(self) -> None:
        """Return when what was deleted from the store cannot come back with a recovery.

        Raises:
            OSError, StoreError: It cannot be made so.
        """
        if self._state.is_checkpoint_wanted or self._is_forgetting:
            async with self._turn:
                if self._state.is_checkpoint_wanted:
                    await self._checkpoint()

    async def _checkpoint_again_and_again(self) -> None:
        due = time.monotonic() + self._state.options.checkpoint_interval
        while True:
            await asyncio.sleep(min(self._state.options.checkpoint_interval, _LOOK_INTERVAL))
            if self._state.is_checkpoint_wanted or time.monotonic() >= due:
                try:
                    async with self._turn:
                        await self._checkpoint()
                except Exception as error:  # see above
                    if self._is_hopeless(error):
                        return
                    _complain("the checkpoint cannot be written", error)
                    await asyncio.sleep(_RETRY_INTERVAL)
                due = time.monotonic() + self._state.options.checkpoint_interval

    async def _checkpoint(self) -> None:
        """Make everything durable that is new since the last time."""
        contents = self._progress.changes()
        self._is_forgetting, self._state.is_checkpoint_wanted = (
            self._state.is_checkpoint_wanted,
            False,
        )
        try:
            if self._store.log.end > self._covered or self._is_forgetting:
                flush = self._store.begin_flush()
                await finish_in_thread(self._executor, flush.run)
                self._store.finish_flush(flush)
                self._covered = flush.log.end
                self._on_flushed(self._store.log.flushed)
            if contents:
                await finish_in_thread(self._executor, self._progress.write, contents)
        except BaseException:
            self._progress.forget(contents)
            self._state.is_checkpoint_wanted |= self._is_forgetting
            raise
        finally:
            self._is_forgetting = False


def _complain(problem: str, error: Exception) -> None:
    """Tell the operator; of a fault of ours, also where it is."""
    is_expected = isinstance(error, OSError | StoreError)
    _log.error("%s: %s; trying again", problem, error, exc_info=None if is_expected else error)
