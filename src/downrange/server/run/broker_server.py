"""A broker with a network: listener, pure broker, store on disk, clock, and registration.

The broker runs in the event loop's thread. Blocking calls (flushes, opening and closing the
store) run in two threads beside it; see `flusher`.

A turn: the event loop reads from all connections that have data, and each request goes to the
broker. In the next iteration of the loop, `commit` stores all messages that arrived together with
one write and replies to them. So the busier the broker, the more messages share a write. Pops and
acknowledgements do not wait for that: each read is followed by a commit, since they come one by one
from each consumer, and a further iteration costs more than a larger write would save.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError, StoreError
from downrange.options import BrokerOptions, ListenerOptions
from downrange.server.access.denials import DenialLog
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.settings import write_switch
from downrange.server.broker.state import BrokerState
from downrange.server.broker.tables.measured_statistics import MeasuredStatistics
from downrange.server.metrics.request_times import RequestTimes
from downrange.server.net.listener import Listener
from downrange.server.outputs import BrokerIdentity, Reply
from downrange.server.run.broker_loop import BrokerLoop, wall_clock_ms
from downrange.server.run.flusher import finish_in_thread
from downrange.server.run.metrics_server import MetricsServer, Observed
from downrange.server.run.registrar import Registrar
from downrange.server.run.request_timer import RequestTimer
from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.store.retention import RetentionOptions
from downrange.store.unit_runs import UNIT_BYTES
from downrange.wire.ids import UniqueIdMaker

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from downrange.options import MetricsOptions
    from downrange.server.access.file import AccessFile
    from downrange.server.net.dispatcher import HandleRun
    from downrange.server.net.interception import Rule
    from downrange.server.outputs import AskNameServer, OnReply, Output, Peer
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

_log: Final = logging.getLogger("downrange.broker")

#: How long unregistering may take, of the 2 s that a stop may take as a whole.
_UNREGISTER_TIMEOUT: Final = 0.8


class BrokerServer:
    """One broker.

    Example:
        ```python
        server = BrokerServer("store", BrokerOptions(name_servers=("127.0.0.1:9876",)))
        await server.start()
        print(server.address)
        await server.stop()
        ```

    Args:
        folder: The store's folder; created if it does not exist.
        options: Settings of the broker.
        listener: Address and limits of its connections.
        store: Sizes of the store's files.
        retention: How long messages are kept.
        tls: Certificate and key; see `ListenerOptions.tls_mode`.
        name_server_tls: For name servers that need TLS.
        credentials: Access key and secret that registrations are signed with.
        access: Access rules; without them every request is allowed.
        metrics: Where its metrics are shown; not at all if not given.
        is_measured: Whether it counts what metrics need, for a cluster that shows them.

    Attributes:
        metrics: Shows the metrics; None if they are not shown, or by the cluster.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: BrokerOptions | None = None,
        listener: ListenerOptions | None = None,
        *,
        store: StoreOptions | None = None,
        retention: RetentionOptions | None = None,
        tls: ssl.SSLContext | None = None,
        name_server_tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        access: AccessFile | None = None,
        metrics: MetricsOptions | None = None,
        is_measured: bool = False,
    ) -> None:
        self.folder = os.fspath(folder)
        listener = listener or ListenerOptions()
        self._options = _limit_bulk_pulls(options or BrokerOptions(), listener)
        if self._options.flush == "sync":
            # Replies wait for the flush threads; polling would take the GIL from them.
            listener = dataclasses.replace(listener, busy_poll=0.0)
        self._store_options = store or StoreOptions()
        self._retention = retention or RetentionOptions()
        self._name_server_tls = name_server_tls
        self._credentials = credentials
        self._access = access
        self._denials = DenialLog()
        self._timer: RequestTimer | None = None
        if is_measured or metrics is not None:
            self._timer = RequestTimer(
                self, self._perform_directly, self._held_count, self._handle_run
            )
        self.metrics: MetricsServer | None = None
        if metrics is not None:
            self.metrics = MetricsServer(metrics, lambda: Observed(brokers=(self,)))
        self._listener = Listener(
            self._timer or self,
            listener,
            tls=tls,
            clock_ms=wall_clock_ms,
            logger=_log,
            has_vip_port=self._options.is_vip_port_open,
            ask_name_server=self._ask_name_server,
            handle_run=self._run_handler,
        )
        self._listener_options = listener
        self._broker_loop: BrokerLoop | None = None
        self._lifecycle_lock = asyncio.Lock()  # for start, stop and kill
        self._address = ""

    @property
    def address(self) -> str:
        """The address for clients, "host:port"; empty before the first start."""
        return self._address

    @property
    def vip_address(self) -> str | None:
        """Where it listens for clients with `vip_channel`, "host:port"; None if it does not."""
        return self._listener.vip_address

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._broker_loop is not None

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    @property
    def refused_count(self) -> int:
        """How many connections were refused because of a limit, since the start."""
        return self._listener.refused_count

    @property
    def denied_count(self) -> int:
        """How many requests the access rules denied, since the start."""
        return self._denials.count

    @property
    def request_times(self) -> RequestTimes:
        """How long requests took; empty if that is not measured."""
        return RequestTimes() if self._timer is None else self._timer.times

    @property
    def label(self) -> str:
        """Its name, for people."""
        return f"broker {self._options.name}"

    @property
    def unready_reason(self) -> str | None:
        """Why clients cannot send to it now, or None."""
        if self._broker_loop is None:
            return "it does not serve: its store is being opened, or it was stopped"
        state = self.state
        if state.unwritable is not None:
            return f"sends are refused: {state.unwritable}"
        if not state.accepts_sends:
            return f"sends are refused: its permission is {state.options.permission}"
        return None

    @property
    def intercept(self) -> Rule | None:
        """A rule that gets every request before the broker; for tests."""
        return self._listener.intercept

    @intercept.setter
    def intercept(self, rule: Rule | None) -> None:
        self._listener.intercept = rule

    @property
    def state(self) -> BrokerState:
        """The broker's state, while it serves."""
        assert self._broker_loop is not None, "not started"
        return self._broker_loop.broker.state

    async def start(self) -> None:
        """Open the store, listen, register; does nothing if it serves already.

        Raises:
            StoreLocked: Another process uses the folder.
            StoreError: The folder cannot be used, or the store is damaged.
            CannotListen: The address cannot be bound.
        """
        async with self._lifecycle_lock:
            if self._broker_loop is not None:
                return
            if self.metrics is not None:
                await self.metrics.start()
            try:
                await self._start()
            except BaseException:
                await self._stop_metrics()
                raise

    async def stop(self) -> None:
        """Unregister, flush, send all replies and close; does nothing if it is stopped.

        Raises:
            StoreError: The store cannot be closed; the next start recovers it.
        """
        async with self._lifecycle_lock:
            try:
                if self._broker_loop is not None:
                    await self._stop(self._broker_loop)
            finally:
                await self._stop_metrics()

    async def kill(self) -> None:
        """End at once, as in a crash: without a flush, without unregistering."""
        async with self._lifecycle_lock:
            if self._broker_loop is not None:
                await self._kill(self._broker_loop)
            await self._stop_metrics()

    async def _stop_metrics(self) -> None:
        if self.metrics is not None:
            await self.metrics.stop()

    async def _start(self) -> None:
        executor = ThreadPoolExecutor(2, thread_name_prefix="downrange-broker")
        files: OsFiles | None = None
        try:
            files = await finish_in_thread(executor, OsFiles, self.folder)
            store = await finish_in_thread(executor, self._open_store, files)
            await self._listener.start()
            # No connection is read from before this coroutine awaits again.
            self._broker_loop = self._assemble(files, store, executor)
            if self.state.options.flush == "sync":  # by a change at run time that was saved
                self._listener.stop_polling()
        except BaseException:
            await self._listener.stop()
            if files is not None:
                files.close()
            executor.shutdown()
            raise
        try:
            await self._broker_loop.start()
        except BaseException:
            await self._kill(self._broker_loop)
            raise
        vip = self._listener.vip_address
        also = "" if vip is None else f" and {vip} (VIP channel)"
        _log.info("broker %s listens on %s%s", self._options.name, self._address, also)

    async def _stop(self, broker_loop: BrokerLoop) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNREGISTER_TIMEOUT):
                    await broker_loop.registrar.stop()
            await broker_loop.end()
            await broker_loop.drain()
            await self._listener.stop()
        finally:
            self._broker_loop = None
            await broker_loop.close()
        _log.info("broker %s on %s stopped", self._options.name, self._address)

    async def _kill(self, broker_loop: BrokerLoop) -> None:
        self._broker_loop = None
        self._listener.abort()
        await broker_loop.registrar.abandon()
        await broker_loop.end()
        await self._listener.stop()
        broker_loop.release()

    # ---- called by the dispatcher ----

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Check access and handle a request; sends are stored at the end of this turn."""
        broker_loop = self._broker_loop
        if broker_loop is None:
            return ()
        if self._access is not None:
            denial = self._access.check(request, peer)
            if denial is not None:
                self._denials.add(denial, request, peer)
                return [Reply(denial.reply())]
        return broker_loop.handle(request, peer, now_ms)

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Continue after a `Call` of the broker."""
        broker_loop = self._broker_loop
        return () if broker_loop is None else broker_loop.on_reply(callback, reply, now_ms)

    @property
    def _run_handler(self) -> HandleRun | None:
        """What handles plain sends of one read; access rules check each request on its own."""
        if self._access is not None:
            return None
        return self._handle_run if self._timer is None else self._timer.handle_run

    def _handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        """Handle plain sends of one read; without access rules, which check each request."""
        broker_loop = self._broker_loop
        return broker_loop is not None and broker_loop.handle_run(run, peer, now_ms)

    def _ask_name_server(self, question: AskNameServer) -> None:
        """Ask a name server for the broker."""
        if self._broker_loop is not None:
            self._broker_loop.ask_name_server(question)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Remove the clients and held pulls of a connection that ended."""
        broker_loop = self._broker_loop
        return () if broker_loop is None else broker_loop.broker.on_disconnect(peer, now_ms)

    # ---- internals ----

    def _open_store(self, files: OsFiles) -> MessageStore:
        begun = time.monotonic()
        unit_tag = unit_tag_of(self._options.delay_levels)
        try:
            store = MessageStore(files, self._store_options, unit_tag=unit_tag)
        except OSError as error:
            raise StoreError(f"store {self.folder} cannot be opened: {error}") from error
        found = store.recovery
        if not found.was_clean:
            _log.warning(
                "store %s was not closed: read %d records from %d on in %.2f s",
                self.folder,
                found.scanned_records,
                found.scanned_from,
                time.monotonic() - begun,
            )
        if found.cut_at is not None:
            _log.warning("the log was cut at %d: %s", found.cut_at, found.cut_reason)
        if found.unsaved_reason is not None:
            _log.warning(
                "no checkpoint at the end of recovery: %s; without free space, the next start "
                "reads the same records again",
                found.unsaved_reason,
            )
        return store

    def _assemble(
        self, files: OsFiles, store: MessageStore, executor: ThreadPoolExecutor
    ) -> BrokerLoop:
        now_ms = wall_clock_ms()
        host, port = self._advertised()
        store_host = StoreHost.of(host, port)
        self._address = store_host.address
        make_unique_id = UniqueIdMaker(
            store_host.ip, os.getpid(), now_ms & 0x7FFFFFFF, _month_around
        ).make
        state = BrokerState(
            self._options,
            store_host,
            store,
            make_unique_id,
            now_ms,
            retention=self._retention,
            fixed_settings=self._fixed_settings(),
            statistics=None if self._timer is None else MeasuredStatistics(now_ms),
        )
        identity = BrokerIdentity(
            name=self._options.name,
            cluster=self._options.cluster,
            broker_id=self._options.broker_id,
            address=store_host.address,
            ha_address=store_host.address,
            zone=self._options.zone,
        )
        registrar = Registrar(
            identity,
            self._options.name_servers,
            state.announced_topics,
            interval=self._options.register_interval,
            tls=self._name_server_tls,
            credentials=self._credentials,
        )
        perform = self._listener.perform if self._timer is None else self._timer.perform
        return BrokerLoop(state, files, perform, registrar, executor, self._access)

    def _perform_directly(self, outputs: Iterable[Output]) -> None:
        self._listener.perform(outputs)

    def _held_count(self) -> int:
        if self._broker_loop is None:
            return 0
        state = self._broker_loop.broker.state
        return len(state.held_pulls) + len(state.held_pops)

    def _fixed_settings(self) -> dict[str, str]:
        """Return settings of store and listener by Java's names, as request 26 shows them."""
        sizes, folder = self._store_options, Path(self.folder).absolute()
        return {
            "aclEnable": write_switch(self._access is not None),
            "bindAddress": self._listener_options.host,
            "mappedFileSizeCommitLog": str(sizes.log_segment_bytes),
            "mappedFileSizeConsumeQueue": str(sizes.queue_segment_units * UNIT_BYTES),
            "maxHashSlotNum": str(sizes.key_slots),
            "maxIndexNum": str(sizes.key_entries),
            "serverChannelMaxIdleTimeSeconds": str(round(self._listener_options.idle_timeout)),
            "storePathCommitLog": str(folder / "commitlog"),
            "storePathRootDir": str(folder),
        }

    def _advertised(self) -> tuple[str, int]:
        """Return the numeric address and the port that clients connect to."""
        host, _, port = self._listener.address.rpartition(":")
        host = host.strip("[]")
        advertised = self._options.advertised_host
        if advertised is not None:
            try:
                host = str(socket.getaddrinfo(advertised, None)[0][4][0])
            except OSError as error:
                problem = f"advertised_host={advertised!r} has no address: {error}"
                raise OptionError(problem) from error
        elif host in ("0.0.0.0", "::"):
            host = _own_address()
        return host, int(port)


def _month_around(now_ms: int) -> tuple[int, int]:
    """Return the begin and the end of this month in local time, in ms."""
    now = datetime.fromtimestamp(now_ms / 1000)
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    end = begin.replace(year=year, month=month)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


def _own_address() -> str:
    """Return the address of the interface that the default route uses, or loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the system only picks a route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _limit_bulk_pulls(options: BrokerOptions, listener: ListenerOptions) -> BrokerOptions:
    """Keep the replies to bulk pulls well below the frame limit."""
    bytes_max = min(options.bulk_pull_bytes_max, listener.frame_bytes_max // 2)
    return dataclasses.replace(options, bulk_pull_bytes_max=bytes_max)
