"""One run of a broker, from start to stop: turns, ticks, saving, announcing, forgetting.

Everything here happens in the event loop's thread, except for what `_in_thread` is given.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import StoreError
from downrange.server.broker.broker import Broker
from downrange.server.broker.scheduled import timer_handover
from downrange.server.broker.scheduled.timer_handover import TimerHandover
from downrange.server.broker.state import DISK_FULL
from downrange.server.run.flusher import Flusher, finish_in_thread
from downrange.server.run.saved_tables import progress_tables, promised_tables
from downrange.store.retention import disk_used, drop_old_segments, is_disk_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import ThreadPoolExecutor

    from downrange.server.access.file import AccessFile
    from downrange.server.broker.state import BrokerState
    from downrange.server.net.listener import Listener
    from downrange.server.outputs import Output, Peer
    from downrange.server.run.registrar import Registrar
    from downrange.store.files import OsFiles
    from downrange.store.retention import RetentionOptions
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.broker")

#: How often the broker is told the time: delays and waiting pulls are at most so much late.
_TICK: Final = 0.05
_SHORT_TICK: Final = 0.001
#: How long to wait after something failed before it is tried again.
_RETRY_INTERVAL: Final = 1.0


def wall_clock_ms() -> int:
    """Return the time of day in ms since 1970."""
    return time.time_ns() // 1_000_000


class BrokerRun:
    """What there is between start and stop.

    Args:
        state: The broker, its files not yet loaded.
        files: The folder of the store.
        listener: Where outputs go.
        registrar: Tells name servers.
        executor: Runs what blocks.
        retention: How long messages are kept.
        access: Watched for changes.

    Raises:
        CorruptStore: A config file cannot be read.
    """

    def __init__(
        self,
        state: BrokerState,
        files: OsFiles,
        listener: Listener,
        registrar: Registrar,
        executor: ThreadPoolExecutor,
        retention: RetentionOptions,
        access: AccessFile | None,
    ) -> None:
        self.registrar = registrar
        self._state = state
        self._files = files
        self._listener = listener
        self._executor = executor
        self._retention = retention
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: asyncio.Task[None] | None = None
        self._promised = promised_tables(files, state)
        self._progress = progress_tables(files, state)
        self._promised.load()
        self._progress.load()
        self.broker = Broker(state)
        self._published = -1
        self._is_commit_due = False
        self._is_ended = False
        state.write_queue.on_first = self._commit_soon
        self._flusher = Flusher(
            state,
            self._progress,
            executor,
            on_flushed=self._log_flushed,
            is_awaited=lambda: self.broker.awaits_flush,
        )

    async def start(self) -> None:
        """Create what is missing, register, and begin to work.

        Raises:
            StoreError: The tables cannot be saved.
        """
        self._listener.perform(self._state.prepare(wall_clock_ms()))
        version = self.broker.version
        try:
            await self._in_thread(self._promised.write, self._promised.changes())
            await self._in_thread(self._take_over_timers)
        except OSError as error:
            raise StoreError(f"the broker's tables cannot be saved: {error}") from error
        self._state.topics.changed()  # the first registration names all topics
        self._published = version
        self._listener.perform(self.broker.published(version))
        self._flusher.start()
        self._tasks = [
            self._loop.create_task(self._tick_again_and_again()),
            self._loop.create_task(self._clean_again_and_again()),
        ]
        if self._access is not None:
            self._tasks.append(self._loop.create_task(self._access.watch()))
        await self.registrar.start()

    def _take_over_timers(self) -> None:
        """Make what an Apache broker left of its timer useless, once our own view is saved."""
        stale = [path for path in timer_handover.STALE_PATHS if path in self._files.names(".")]
        if stale:
            self._files.replace(timer_handover.PATH, TimerHandover(self._state.timers).dump())
        for path in stale:
            self._files.remove(path)

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or take it in for the end of this turn."""
        outputs = self.broker.handle(request, peer, now_ms)
        if self.broker.awaits_publication:  # what a send changed is seen at the end of the turn
            self._publish()
        return outputs

    async def end(self) -> None:
        """Stop all work but that of the listener."""
        self._is_ended = True
        tasks = [*self._tasks, *([] if self._publishing is None else [self._publishing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._flusher.stop()

    async def drain(self) -> None:
        """Take no more messages, make durable what came, and answer everyone who waits."""
        self._state.unwritable = "the broker stops"
        self._listener.perform(self.broker.close(wall_clock_ms()))
        try:
            flush = self._state.store.begin_log_flush()
            await self._in_thread(flush.run)
            self._state.store.finish_log_flush(flush)
            self._listener.perform(self.broker.log_flushed(flush.end))
            version = self.broker.version
            await self._in_thread(self._promised.write, self._promised.changes())
            self._listener.perform(self.broker.published(version))
        except (OSError, StoreError) as error:
            _log.error("not all is durable at the end: %s", error)
        self._listener.perform(self.broker.time_out_all())

    async def close(self) -> None:
        """Save everything and close the store.

        Raises:
            StoreError: That cannot be done; the next start recovers what can be.
        """
        try:
            await self._in_thread(self._save_all)
        except OSError as error:
            raise StoreError(f"the store cannot be closed: {error}") from error
        finally:
            self.drop()

    def _save_all(self) -> None:
        self._promised.write(self._promised.everything())
        self._progress.write(self._progress.changes())
        self._state.store.close()

    def drop(self) -> None:
        """Let go of the files as they are."""
        self._executor.shutdown()
        self._files.close()

    # ---- turns -----------------------------------------------------------------------------

    def _commit_soon(self) -> None:
        if not self._is_commit_due:
            self._is_commit_due = True
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._is_commit_due = False
        self._perform(self.broker.commit(wall_clock_ms()))
        self._flusher.appended()

    def _log_flushed(self, position: int) -> None:
        self._perform(self.broker.log_flushed(position))

    def _perform(self, outputs: Iterable[Output]) -> None:
        self._listener.perform(outputs)
        if self.broker.version != self._published:
            self._publish()

    # ---- tables ----------------------------------------------------------------------------

    def _publish(self) -> None:
        if self._publishing is None and not self._is_ended:
            self._publishing = self._loop.create_task(self._publish_all())

    async def _publish_all(self) -> None:
        """Save and announce until nothing is new; one round serves all who changed something."""
        try:
            while self.broker.version != self._published:
                await self._publish_once()
        finally:
            self._publishing = None

    async def _publish_once(self) -> None:
        topics, version = self._state.topics, self.broker.version
        contents, data_version = self._promised.changes(), topics.data_version
        changed = topics.changed()
        try:
            await self._flusher.forget()  # a topic's queues go before the topic does
            await self._in_thread(self._promised.write, contents)
        except (OSError, StoreError) as error:
            self._promised.forget(contents)
            topics.change_again(changed)
            _log.error("the broker's tables cannot be saved: %s; trying again", error)
            await asyncio.sleep(_RETRY_INTERVAL)
            return
        if changed:
            await self.registrar.announce(changed, data_version)
        self._published = version
        self._listener.perform(self.broker.published(version))

    # ---- time ------------------------------------------------------------------------------

    async def _tick_again_and_again(self) -> None:
        while True:
            # A tick does only so much, lest it hold up the others; what is left must not wait long.
            is_behind = self.broker.is_behind(wall_clock_ms())
            await asyncio.sleep(_SHORT_TICK if is_behind else _TICK)
            try:
                self._perform(self.broker.tick(wall_clock_ms()))
                self._flusher.appended()
            except Exception:  # the next one may go well
                _log.exception("a tick failed")
                await asyncio.sleep(_RETRY_INTERVAL)

    async def _clean_again_and_again(self) -> None:
        while True:
            try:
                self._clean()
            except (OSError, StoreError) as error:
                _log.error("old messages cannot be looked for: %s", error)
            await asyncio.sleep(self._state.options.retention_interval)

    def _clean(self) -> None:
        state, files = self._state, self._files
        dropped = drop_old_segments(state.store, files, self._retention, wall_clock_ms())
        if dropped:
            state.is_checkpoint_wanted = True
            _log.info(
                "%d old log segment(s) removed, %d bytes each",
                dropped,
                state.store.log.segment_bytes,
            )
        state.disk_used = disk_used(files)
        is_full = is_disk_full(files, self._retention)
        if is_full and state.unwritable is None:
            state.unwritable = f"{DISK_FULL}: {state.disk_used:.0%} are in use"
            _log.warning("sends are refused: %s", state.unwritable)
        elif not is_full and (state.unwritable or "").startswith(DISK_FULL):
            state.unwritable = None
            _log.warning("sends are taken again: the disk has space")

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        await finish_in_thread(self._executor, work, *arguments)
