"""One run of a broker, from start to stop: turns, ticks, saving, announcing, forgetting.

Everything here happens in the event loop's thread, except for what `_in_thread` is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from downrange.broker.broker import Broker
from downrange.server.flushing import Flusher
from downrange.server.tables import progress_tables, promised_tables
from downrange.store.retention import disk_used, drop_old_segments, is_disk_full

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import ThreadPoolExecutor

    from downrange.broker.state import BrokerState
    from downrange.handling import Output, Peer
    from downrange.server.access_file import AccessFile
    from downrange.server.listener import Listener
    from downrange.server.registering import Registrar
    from downrange.store.files import OsFiles
    from downrange.store.retention import RetentionOptions
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.broker")

#: How often the broker is told the time: delays and waiting pulls are at most so much late.
_TICK: Final = 0.05


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
        self._flusher = Flusher(
            state.store,
            self._progress,
            state.options,
            executor,
            on_flushed=self._log_flushed,
            is_awaited=lambda: self.broker.awaits_flush,
            is_checkpoint_wanted=self._take_checkpoint_wish,
        )

    async def start(self) -> None:
        """Create what is missing, register, and begin to work."""
        self._state.prepare(wall_clock_ms())
        await self._in_thread(self._promised.write, self._promised.changes())
        self._published = self.broker.version
        self.broker.published(self._published)
        self._state.topics.changed()
        self._flusher.start()
        self._tasks = [
            self._loop.create_task(self._tick_again_and_again()),
            self._loop.create_task(self._clean_again_and_again()),
        ]
        if self._access is not None:
            self._tasks.append(self._loop.create_task(self._access.watch()))
        await self.registrar.start()

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or take it in for the end of this turn."""
        broker = self.broker
        outputs = broker.handle(request, peer, now_ms)
        if broker.has_arrivals and not self._is_commit_due:
            self._is_commit_due = True
            self._loop.call_soon(self._commit)
        if broker.version != self._published:
            self._publish()
        return outputs

    async def end(self) -> None:
        """Stop all work but that of the listener."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)
        await self._flusher.stop()

    async def drain(self) -> None:
        """Take no more messages, make durable what came, and answer everyone who waits."""
        self._state.unwritable = "the broker stops"
        self._listener.perform(self.broker.close(wall_clock_ms()))
        flush = self._state.store.begin_log_flush()
        await self._in_thread(flush.run)
        self._state.store.finish_log_flush(flush)
        await self._in_thread(self._promised.write, self._promised.changes())
        self._listener.perform(self.broker.log_flushed(flush.end))
        self._listener.perform(self.broker.published(self.broker.version))

    async def close(self) -> None:
        """Save everything and close the store."""
        store = self._state.store

        def close_store() -> None:
            store.close()
            self._promised.write(self._promised.changes())
            self._progress.write(self._progress.changes())

        try:
            await self._loop.run_in_executor(self._executor, close_store)
        finally:
            self.drop()

    def drop(self) -> None:
        """Let go of the files as they are."""
        self._executor.shutdown()
        self._files.close()

    # ---- turns -----------------------------------------------------------------------------

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

    def _take_checkpoint_wish(self) -> bool:
        is_wanted, self._state.is_checkpoint_wanted = self._state.is_checkpoint_wanted, False
        return is_wanted

    # ---- tables ----------------------------------------------------------------------------

    def _publish(self) -> None:
        if self._publishing is None:
            self._publishing = self._loop.create_task(self._publish_all())

    async def _publish_all(self) -> None:
        """Save and announce until nothing is new; one round serves all who changed something."""
        try:
            while self.broker.version != self._published:
                version = self.broker.version
                contents = self._promised.changes()
                changed, data_version = (
                    self._state.topics.changed(),
                    self._state.topics.data_version,
                )
                try:
                    await self._in_thread(self._promised.write, contents)
                except OSError as error:
                    self._promised.forget(contents)
                    _log.error("the broker's tables cannot be saved: %s", error)
                    await asyncio.sleep(1.0)
                    continue
                if changed:
                    await self.registrar.announce(changed, data_version)
                self._published = version
                self._listener.perform(self.broker.published(version))
        finally:
            self._publishing = None

    # ---- time ------------------------------------------------------------------------------

    async def _tick_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                self._perform(self.broker.tick(wall_clock_ms()))
                self._flusher.appended()
            except Exception:  # a fault in one duty must not end the others for good
                _log.exception("a tick failed")
                await asyncio.sleep(1.0)

    async def _clean_again_and_again(self) -> None:
        while True:
            self._clean()
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
        is_full = is_disk_full(files, self._retention)
        if is_full and state.unwritable is None:
            state.unwritable = f"the disk is full: {disk_used(files):.0%} are in use"
            _log.warning("sends are refused: %s", state.unwritable)
        elif not is_full and state.unwritable is not None:
            state.unwritable = None
            _log.warning("sends are taken again: the disk has space")

    async def _in_thread(self, work: object, *arguments: object) -> None:
        future = self._loop.run_in_executor(self._executor, work, *arguments)  # type: ignore[arg-type]
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await future
            raise
