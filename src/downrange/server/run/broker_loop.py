"""Drives a broker from start to stop: turns, ticks, saved tables, announcements, retention.

Everything here runs in the event loop's thread, except for the functions given to `_in_thread`.
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
from downrange.server.broker.tables.topic_table import with_permission
from downrange.server.run.flusher import Flusher, finish_in_thread
from downrange.server.run.saved_tables import confirmed_tables, progress_tables
from downrange.store.retention import disk_used, drop_old_segments, is_disk_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import ThreadPoolExecutor

    from downrange.server.access.file import AccessFile
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import AskNameServer, OnReply, Output, Peer
    from downrange.server.run.registrar import Registrar
    from downrange.store.files import OsFiles
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

_log: Final = logging.getLogger("downrange.broker")

#: The interval of ticks; delayed messages and held pulls are late by at most this much.
_TICK: Final = 0.05
_SHORT_TICK: Final = 0.001
#: The pause after a failure before the next attempt.
_RETRY_INTERVAL: Final = 1.0


def wall_clock_ms() -> int:
    """Return the time of day in ms since 1970."""
    return time.time_ns() // 1_000_000


class BrokerLoop:
    """One run of a broker, between start and stop.

    Args:
        state: The broker's state; the tables are loaded from `files` here.
        files: The folder of the store.
        perform: Performs outputs; see `Listener.perform`.
        registrar: Registers the broker with name servers.
        executor: Runs blocking calls.
        access: Access rules, reloaded when their file changes.

    Attributes:
        broker: The broker.
        registrar: See above.

    Raises:
        CorruptStore: A config file cannot be read.
    """

    def __init__(
        self,
        state: BrokerState,
        files: OsFiles,
        perform: Callable[[Iterable[Output]], None],
        registrar: Registrar,
        executor: ThreadPoolExecutor,
        access: AccessFile | None,
    ) -> None:
        self.registrar = registrar
        self._state = state
        self._files = files
        self._perform = perform
        self._executor = executor
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._publish_task: asyncio.Task[None] | None = None
        self._questions: set[asyncio.Task[None]] = set()  # to name servers
        self._confirmed = confirmed_tables(files, state)
        self._progress = progress_tables(files, state)
        self._confirmed.load()
        self._progress.load()
        self.broker = Broker(state)
        self._published = -1
        self._is_commit_due = False
        self._is_ended = False
        self._flusher = Flusher(
            state,
            self._progress,
            executor,
            on_flushed=self._log_flushed,
            is_awaited=lambda: self.broker.awaits_flush,
        )

    async def start(self) -> None:
        """Create missing system topics, save the tables, register, and start all tasks.

        Raises:
            StoreError: The tables cannot be saved.
        """
        self._perform(self._state.prepare(wall_clock_ms()))
        version = self.broker.tables_version
        try:
            await self._in_thread(self._confirmed.write, self._confirmed.changes())
            await self._in_thread(self._retire_apache_timer)
        except OSError as error:
            raise StoreError(f"the broker's tables cannot be saved: {error}") from error
        self._state.topics.changed()  # the first registration names all topics
        self._published = version
        self._perform(self.broker.published(version))
        self._flusher.start()
        self._tasks = [
            self._loop.create_task(self._tick_loop()),
            self._loop.create_task(self._retention_loop()),
        ]
        if self._access is not None:
            self._tasks.append(self._loop.create_task(self._access.watch()))
        await self.registrar.start()

    def _retire_apache_timer(self) -> None:
        """Remove the timer files of an Apache broker, once our own state of them is saved."""
        stale = [path for path in timer_handover.STALE_PATHS if path in self._files.names(".")]
        if stale:
            self._files.replace(timer_handover.PATH, TimerHandover(self._state.timers).dump())
        for path in stale:
            self._files.remove(path)

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Handle a request; sends are stored in the next iteration of the event loop."""
        broker = self.broker
        outputs = broker.handle(request, peer, now_ms)
        if broker.awaits_commit and not self._is_commit_due:
            self._commit_soon()
        elif broker.awaits_flush:
            self._flusher.on_append()
        if broker.awaits_publication:  # changes by a send are seen at the end of the turn
            self._publish()
        return outputs

    def handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        """Handle plain sends of one read, or decline them; see `Broker.handle_run`."""
        is_handled = self.broker.handle_run(run, peer, now_ms)
        if is_handled and not self._is_commit_due:
            self._commit_soon()
        return is_handled

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Continue after a `Call` of the broker; what this stores is committed soon."""
        outputs = self.broker.on_reply(callback, reply, now_ms)
        if self.broker.awaits_commit and not self._is_commit_due:
            self._commit_soon()
        return outputs

    def ask_name_server(self, question: AskNameServer) -> None:
        """Send a request of the broker to a name server, and continue with its reply."""
        if not self._is_ended:
            task = self._loop.create_task(self._ask_name_server(question))
            self._questions.add(task)  # the event loop holds only weak references
            task.add_done_callback(self._questions.discard)

    async def _ask_name_server(self, question: AskNameServer) -> None:
        try:
            reply = await self.registrar.ask(question.command, question.timeout)
        except Exception:  # the broker must get an answer, because requests of clients wait for it
            _log.exception("a request to a name server failed")
            reply = None
        try:
            self._perform(self.on_reply(question.on_reply, reply, wall_clock_ms()))
        except Exception:
            _log.exception("handling the reply of a name server failed")

    async def end(self) -> None:
        """Stop all tasks; the listener goes on."""
        self._is_ended = True
        tasks = [*self._tasks, *self._questions]
        if self._publish_task is not None:
            tasks.append(self._publish_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._flusher.stop()

    async def drain(self) -> None:
        """Refuse new messages, make the stored ones durable, and send all replies that wait."""
        self._state.unwritable = "the broker stops"
        self._perform(self.broker.close(wall_clock_ms()))
        try:
            flush = self._state.store.begin_log_flush()
            await self._in_thread(flush.run)
            self._state.store.finish_log_flush(flush)
            self._perform(self.broker.log_flushed(flush.end))
            version = self.broker.tables_version
            await self._in_thread(self._confirmed.write, self._confirmed.changes())
            self._perform(self.broker.published(version))
        except (OSError, StoreError) as error:
            _log.error("not everything is durable at the stop: %s", error)
        self._perform(self.broker.time_out_all())

    async def close(self) -> None:
        """Save everything and close the store.

        Raises:
            StoreError: The store cannot be closed; the next start recovers it.
        """
        try:
            await self._in_thread(self._save_all)
        except OSError as error:
            raise StoreError(f"the store cannot be closed: {error}") from error
        finally:
            self.release()

    def _save_all(self) -> None:
        self._state.store.check_disk()
        self._state.checkpoints.commit_all()
        self._confirmed.write(self._confirmed.everything())
        self._progress.write(self._progress.changes())
        self._state.store.close()

    def release(self) -> None:
        """Close the files as they are, and end the threads."""
        self._executor.shutdown()
        self._files.close()

    # ---- turns -----------------------------------------------------------------------------

    def _commit_soon(self) -> None:
        self._is_commit_due = True
        self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._is_commit_due = False
        woken = self.broker.commit_first(wall_clock_ms())
        if woken:
            # uvloop writes what was added in one iteration to its connections in any order, so the
            # rest waits for the next one.
            self._perform(woken)
            self._loop.call_soon(self._perform_ready)
        else:
            self._perform_ready()
        self._flusher.on_append()

    def _perform_ready(self) -> None:
        self._perform_and_publish(self.broker.take_ready())

    def _log_flushed(self, position: int) -> None:
        self._perform_and_publish(self.broker.log_flushed(position))

    def _perform_and_publish(self, outputs: Iterable[Output]) -> None:
        self._perform(outputs)
        if self.broker.tables_version != self._published:
            self._publish()

    # ---- tables ----------------------------------------------------------------------------

    def _publish(self) -> None:
        if self._publish_task is None and not self._is_ended:
            self._publish_task = self._loop.create_task(self._publish_all())

    async def _publish_all(self) -> None:
        """Save and announce until nothing is new; one round covers all changes made before it."""
        try:
            while self.broker.tables_version != self._published:
                await self._publish_once()
        finally:
            self._publish_task = None

    async def _publish_once(self) -> None:
        topics, version = self._state.topics, self.broker.tables_version
        contents, data_version = self._confirmed.changes(), topics.data_version
        changed = topics.changed()
        try:
            await self._flusher.persist_deletions()  # of a topic's queues, before the topic's own
            await self._in_thread(self._confirmed.write, contents)
        except (OSError, StoreError) as error:
            self._confirmed.mark_unsaved(contents)
            topics.change_again(changed)
            _log.error("the broker's tables cannot be saved: %s; trying again", error)
            await asyncio.sleep(_RETRY_INTERVAL)
            return
        if changed:
            announced = with_permission(changed, self._state.options.permission)
            await self.registrar.announce(announced, data_version)
        self._published = version
        self._perform(self.broker.published(version))

    # ---- time ------------------------------------------------------------------------------

    async def _tick_loop(self) -> None:
        while True:
            # One tick delivers a limited number of messages, so that requests do not wait for it;
            # the rest follows shortly after.
            is_behind = self.broker.is_behind(wall_clock_ms())
            await asyncio.sleep(_SHORT_TICK if is_behind else _TICK)
            try:
                self._perform_and_publish(self.broker.tick(wall_clock_ms()))
                self._flusher.on_append()
            except Exception:  # the next tick may succeed
                _log.exception("a tick failed")
                await asyncio.sleep(_RETRY_INTERVAL)

    async def _retention_loop(self) -> None:
        while True:
            try:
                self._apply_retention()
            except (OSError, StoreError) as error:
                _log.error("old messages cannot be removed: %s", error)
            await asyncio.sleep(self._state.options.retention_interval)

    def _apply_retention(self) -> None:
        state, files = self._state, self._files
        dropped = drop_old_segments(state.store, files, state.retention, wall_clock_ms())
        if dropped:
            state.is_checkpoint_due = True
            _log.info(
                "%d old log segment(s) removed, %d bytes each",
                dropped,
                state.store.log.segment_bytes,
            )
        state.disk_used = disk_used(files)
        state.disk_space = files.space()
        is_full = is_disk_full(files, state.retention)
        if is_full and state.unwritable is None:
            state.unwritable = f"{DISK_FULL}: {state.disk_used:.0%} are in use"
            _log.warning("sends are refused: %s", state.unwritable)
        elif not is_full and (state.unwritable or "").startswith(DISK_FULL):
            state.unwritable = None
            _log.warning("sends are accepted again: the disk has space")

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        await finish_in_thread(self._executor, work, *arguments)
