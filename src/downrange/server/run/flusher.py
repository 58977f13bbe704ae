"""Makes a store durable, in threads beside the event loop.

There are two loops, and each has at most one call running in a thread:

- The log is flushed as soon as a reply waits for it. Replies that start to wait during a flush
  share the next one. Without waiting replies the log is flushed every interval, or when enough
  of it is new.
- The indexes, the checkpoint and the broker's progress tables are made durable every few
  seconds. Recovery after a crash begins at the checkpoint.

When a flush fails with EIO, both loops end and the broker refuses messages from then on: the kernel
has dropped the pages that it could not write. No later flush of the store succeeds (`SyncGuard`),
so replies that wait are answered with code 10, and the next start recovers the store.
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

#: The pause after a failed flush before the next attempt.
_RETRY_INTERVAL: Final = 1.0
#: How often the checkpoint loop checks whether a checkpoint is due.
_CHECK_INTERVAL: Final = 0.1


async def finish_in_thread(
    executor: Executor, work: Callable[..., ResultT], *arguments: object
) -> ResultT:
    """Run a blocking call in a thread; when cancelled, wait for its end before raising.

    The call uses files that the caller closes afterwards.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await future
        raise


class Flusher:
    """Flushes the log and writes the checkpoints of one store.

    Args:
        state: The broker's state; owned by the event loop's thread.
        progress: Saved with every checkpoint.
        executor: Runs blocking calls.
        on_flushed: Called in the event loop with the position up to which the log is durable.
        is_awaited: Returns whether a reply waits for a flush of the log.

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
        self._flush_due = asyncio.Event()
        self._checkpoint_lock = asyncio.Lock()
        self._is_persisting_deletions = False
        self._tasks: list[asyncio.Task[None]] = []
        self._has_disk_failed = False
        # Less than the end of the log if the disk was full at the end of recovery.
        self._covered = state.store.log.flushed
        self.longest_flush = 0.0

    def start(self) -> None:
        """Start both loops."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._log_loop()),
            loop.create_task(self._checkpoint_loop()),
        ]

    async def stop(self) -> None:
        """Stop both loops; calls that run in threads are finished first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def on_append(self) -> None:
        """Called when the log has grown: flush it now if a reply waits or much of it is new."""
        log = self._store.log
        if self._is_awaited() or log.end - log.flushed >= self._state.options.flush_bytes:
            self._flush_due.set()

    # ---- the log ----

    async def _log_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._state.options.flush_interval):
                    await self._flush_due.wait()
            self._flush_due.clear()
            if self._store.log.end > self._store.log.flushed:
                try:
                    await self._flush_log()
                except Exception as error:  # no error may end the loop
                    if self._is_disk_failure(error):
                        return
                    _log_failure("the log cannot be made durable", error)
                    self._flush_due.set()
                    await asyncio.sleep(_RETRY_INTERVAL)

    async def _flush_log(self) -> None:
        flush = self._store.begin_log_flush()
        begun = time.monotonic()
        await finish_in_thread(self._executor, flush.run)
        self.longest_flush = max(self.longest_flush, time.monotonic() - begun)
        self._store.finish_log_flush(flush)
        self._on_flushed(self._store.log.flushed)
        self.on_append()

    def _is_disk_failure(self, error: Exception) -> bool:
        """Whether the disk lost written data; if so, refuse all further messages."""
        if not isinstance(error, OSError) or error.errno != errno.EIO:
            return False
        if not self._has_disk_failed:
            self._has_disk_failed = True
            self._state.unwritable = f"the disk fails: {error}"
            _log.critical("sends are refused until the broker is restarted: the disk fails")
        return True

    # ---- checkpoints ----

    async def persist_deletions(self) -> None:
        """Write a checkpoint if something was deleted, so that no recovery restores it.

        Raises:
            OSError, StoreError: The checkpoint cannot be written.
        """
        if self._state.is_checkpoint_due or self._is_persisting_deletions:
            async with self._checkpoint_lock:
                if self._state.is_checkpoint_due:
                    await self._checkpoint()

    async def _checkpoint_loop(self) -> None:
        due = time.monotonic() + self._state.options.checkpoint_interval
        while True:
            await asyncio.sleep(min(self._state.options.checkpoint_interval, _CHECK_INTERVAL))
            if self._state.is_checkpoint_due or time.monotonic() >= due:
                try:
                    async with self._checkpoint_lock:
                        await self._checkpoint()
                except Exception as error:  # no error may end the loop
                    if self._is_disk_failure(error):
                        return
                    _log_failure("the checkpoint cannot be written", error)
                    await asyncio.sleep(_RETRY_INTERVAL)
                due = time.monotonic() + self._state.options.checkpoint_interval

    async def _checkpoint(self) -> None:
        """Make everything durable that changed since the last checkpoint."""
        contents = self._progress.changes()
        self._is_persisting_deletions, self._state.is_checkpoint_due = (
            self._state.is_checkpoint_due,
            False,
        )
        try:
            if self._store.log.end > self._covered or self._is_persisting_deletions:
                flush = self._store.begin_flush()
                await finish_in_thread(self._executor, flush.run)
                self._store.finish_flush(flush)
                self._covered = flush.log.end
                self._on_flushed(self._store.log.flushed)
            if contents:
                await finish_in_thread(self._executor, self._progress.write, contents)
        except BaseException:
            self._progress.mark_unsaved(contents)
            self._state.is_checkpoint_due |= self._is_persisting_deletions
            raise
        finally:
            self._is_persisting_deletions = False


def _log_failure(problem: str, error: Exception) -> None:
    """Log a failed flush; for a bug in our code, with the traceback."""
    is_expected = isinstance(error, OSError | StoreError)
    _log.error("%s: %s; trying again", problem, error, exc_info=None if is_expected else error)
