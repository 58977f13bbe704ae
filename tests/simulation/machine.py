"""The machine that a broker runs on: it can be started, stopped and killed, and lose power."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, cast

from downrange.options import BrokerOptions, FlushMode
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.state import BrokerState
from downrange.server.net.dispatcher import Dispatcher
from downrange.server.outputs import BrokerIdentity
from downrange.server.run.broker_loop import BrokerLoop
from downrange.server.run.registrar import Registrar
from downrange.store.files import OsFiles, PowerLost
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.store.retention import RetentionOptions
from tests.simulation.clock import Threads, VirtualLoop
from tests.simulation.disk import Disk
from tests.simulation.network import Network

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import ThreadPoolExecutor
    from random import Random

    from downrange.server.outputs import OnReply, Output, Peer
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

#: Small files, so that a run crosses from one to the next.
SIZES = StoreOptions(
    log_segment_bytes=64 * 1024,
    queue_segment_units=50,
    key_slots=31,
    key_entries=400,
    queue_memory_units=40,
    key_memory_entries=90,
    recovery_records=50,
)
#: Delay levels.
DELAYS_MS = {1: 1_000, 2: 3_000, 3: 10_000}
#: Short intervals, so that all of them pass during a run.
OPTIONS = BrokerOptions(
    flush_timeout=1.0,
    checkpoint_interval=2.0,
    retention_interval=1.0,
    delay_levels=" ".join(f"{delay_ms // 1000}s" for delay_ms in DELAYS_MS.values()),
    transaction_timeout=2.0,
    transaction_check_interval=3.0,
    transaction_checks_max=1000,
    message_bytes_max=8 * 1024,
)
#: No segment is dropped because of its age: a run takes minutes.
RETENTION = RetentionOptions(keep_hours=1.0, disk_used_max=0.8, disk_used_full=0.8)
HOST = StoreHost.of("10.0.0.2", 10911)
IDENTITY = BrokerIdentity(
    name=OPTIONS.name,
    cluster=OPTIONS.cluster,
    broker_id=0,
    address=HOST.address,
    ha_address=HOST.address,
)


class Machine:
    """One broker on one disk.

    Args:
        loop: Its clock.
        random: Decides how long calls take, and what the disk keeps after a power loss.
        flush: How sends are acknowledged.

    Attributes:
        disk: The same through all restarts.
        network: The connections to it.
        threads: Those of the broker.
        dispatcher: Takes connections while the broker serves, else None.
        recovered_to: The end of the log when it was last opened.
        retained_from: The begin of the log when the last process ended.
        power_lost: Set when power was lost during an access; call `end_process` then.
    """

    def __init__(self, loop: VirtualLoop, random: Random, flush: FlushMode) -> None:
        self.disk = Disk(self._on_power_lost)
        self.network = Network(loop, random, self)
        self.dispatcher: Dispatcher | None = None
        self.power_lost = asyncio.Event()
        self.recovered_to = 0
        self.retained_from = 0
        self._loop = loop
        self._random = random
        self._flush: FlushMode = flush
        self.threads = Threads(loop, random)
        self._run: BrokerLoop | None = None
        self._ids = 0
        self._was_stopped = False
        self._log_end = 0

    @property
    def state(self) -> BrokerState:
        """The broker's state, while it serves."""
        assert self._run is not None
        return self._run.broker.state

    @property
    def running_state(self) -> BrokerState | None:
        """The broker's state, or None while it does not serve."""
        return None if self._run is None or self.dispatcher is None else self.state

    @property
    def log_end(self) -> int:
        """The end of the log, now or when the last process ended."""
        if self._run is not None:
            self._log_end = self.state.store.log.end
        return self._log_end

    async def start(self) -> None:
        """Open the store and serve.

        Raises:
            PowerLost: Power was lost meanwhile.
            StoreError: The disk has no space for it.
        """
        store = MessageStore(self.disk, SIZES, unit_tag=unit_tag_of(OPTIONS.delay_levels))
        if self._was_stopped:
            assert store.recovery.was_clean
            assert store.recovery.scanned_records == 0
        self._was_stopped = False
        self.recovered_to = store.log.end
        options = dataclasses.replace(OPTIONS, flush=self._flush)
        now_ms = self._loop.wall_clock_ms()
        state = BrokerState(options, HOST, store, self._make_id, now_ms, retention=RETENTION)
        dispatcher = Dispatcher(
            self,
            clock_ms=self._loop.wall_clock_ms,
            logger=logging.getLogger("downrange.broker"),
            on_closed=lambda _peer: None,
            handle_run=self._handle_run,
        )
        self._run = BrokerLoop(
            state,
            cast("OsFiles", self.disk),
            dispatcher.perform,
            Registrar(IDENTITY, (), state.topics.table),
            cast("ThreadPoolExecutor", self.threads),
            None,
        )
        await self._run.start()
        if self.power_lost.is_set():
            raise PowerLost
        self.dispatcher = dispatcher

    async def stop(self) -> None:
        """Stop in order.

        Raises:
            PowerLost: Power was lost meanwhile.
            StoreError: The disk has no space for it.
        """
        run = self._run
        assert run is not None
        await run.registrar.stop()
        await run.end()
        await run.drain()
        self.dispatcher = None
        self.network.cut_all()
        await run.close()
        if self.power_lost.is_set():
            raise PowerLost
        self._run = None
        self._was_stopped = True

    async def end_process(self, *, is_power_lost: bool) -> None:
        """End the process at once; a power loss also drops what was not synced to disk."""
        self.dispatcher = None
        self.network.cut_all()
        self.disk.steps_left = 0  # tasks that still run can change nothing
        self.threads.fail_all(PowerLost())
        self._log_end = self.log_end
        run, self._run = self._run, None
        if run is not None:
            self.retained_from = run.broker.state.store.log.first
            await run.registrar.abandon()
            await run.end()
            run.release()
        for _ in range(3):
            await asyncio.sleep(0)  # the last callbacks of the ended process
        self.disk.steps_left = None
        self.power_lost.clear()
        if is_power_lost:
            self.disk.crash(self._random)

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Handle a request."""
        return () if self._run is None else self._run.handle(request, peer, now_ms)

    def _handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        """Handle plain sends of one read."""
        return self._run is not None and self._run.handle_run(run, peer, now_ms)

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Continue after a `Call` of the broker."""
        return () if self._run is None else self._run.on_reply(callback, reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Clean up after a connection that ended."""
        return () if self._run is None else self._run.broker.on_disconnect(peer, now_ms)

    def _on_power_lost(self) -> None:
        self.dispatcher = None
        self.network.cut_all()
        self.power_lost.set()

    def _make_id(self, _now_ms: int) -> str:
        self._ids += 1
        return f"made-{self._ids}"
