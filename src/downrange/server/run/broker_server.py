"""A broker that listens: the pure broker, a store on a disk, a clock, and name servers to tell.

All of the broker runs in the event loop's thread. What blocks, which is making things durable and
opening or closing the store, runs in two threads beside it (`flushing`).

A turn: the loop reads from all connections that have something, each request goes to the broker,
and when the loop comes round again, `commit` stores what arrived together in one write and answers
it. So the busier the broker, the more messages share a write.
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
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError
from downrange.options import BrokerOptions, ListenerOptions
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.state import BrokerState, StoreHost
from downrange.server.net.listener import Listener
from downrange.server.outputs import BrokerIdentity, Reply
from downrange.server.run.broker_loop import BrokerRun, wall_clock_ms
from downrange.server.run.flusher import finish_in_thread
from downrange.server.run.registrar import Registrar
from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.store.retention import RetentionOptions
from downrange.wire.ids import UniqueIdMaker

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from downrange.server.access.file import AccessFile
    from downrange.server.net.interception import Rule
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.broker")

#: How long leaving the name servers and ending the loops may take, of the 2 s a stop may last.
_LEAVE_TIMEOUT: Final = 0.8


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
        folder: Where its store is; created where it is missing.
        options: How it decides.
        listening: Where it listens, and its limits.
        store: Sizes of the store's files.
        retention: How long messages are kept.
        tls: Certificate and key; see `ListenerOptions.tls_mode`.
        name_server_tls: How to speak to name servers that want TLS.
        credentials: Access key and secret to sign registrations with.
        access: Says what a request's sender may not do; everyone may do everything without.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: BrokerOptions | None = None,
        listening: ListenerOptions | None = None,
        *,
        store: StoreOptions | None = None,
        retention: RetentionOptions | None = None,
        tls: ssl.SSLContext | None = None,
        name_server_tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        access: AccessFile | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        listening = listening or ListenerOptions()
        self._options = _fit(options or BrokerOptions(), listening)
        if self._options.flush == "sync":
            # Replies wait for threads that flush; a loop that never sleeps would hold them up.
            listening = dataclasses.replace(listening, busy_poll=0.0)
        self._store_options = store or StoreOptions()
        self._retention = retention or RetentionOptions()
        self._name_server_tls = name_server_tls
        self._credentials = credentials
        self._access = access
        self._listener = Listener(
            self,
            listening,
            tls=tls,
            clock_ms=wall_clock_ms,
            logger=_log,
        )
        self._running: BrokerRun | None = None
        self._turn = asyncio.Lock()  # starting, stopping and killing exclude each other
        self._address = ""

    @property
    def address(self) -> str:
        """Where clients reach it, "host:port"; empty before the first start."""
        return self._address

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._running is not None

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    @property
    def intercept(self) -> Rule | None:
        """A rule that sees every request before the broker does; for tests."""
        return self._listener.intercept

    @intercept.setter
    def intercept(self, rule: Rule | None) -> None:
        self._listener.intercept = rule

    @property
    def state(self) -> BrokerState:
        """The broker's state, while it serves."""
        assert self._running is not None, "not started"
        return self._running.broker.state

    async def start(self) -> None:
        """Open the store, listen, register; nothing happens when it serves already.

        Raises:
            StoreLocked: Another process has the folder.
            StoreError: The folder cannot be used, or the store is damaged.
            CannotListen: The address cannot be had.
        """
        async with self._turn:
            if self._running is None:
                await self._start()

    async def stop(self) -> None:
        """Answer what is on its way, flush, leave the name servers; harmless when it is stopped.

        Raises:
            StoreError: The store cannot be closed in order; the next start recovers it.
        """
        async with self._turn:
            if self._running is not None:
                await self._stop(self._running)

    async def kill(self) -> None:
        """End at once, as a crash would: nothing is flushed, nobody is told."""
        async with self._turn:
            if self._running is not None:
                await self._drop(self._running)

    async def _start(self) -> None:
        executor = ThreadPoolExecutor(2, thread_name_prefix="downrange-broker")
        files: OsFiles | None = None
        try:
            files = await finish_in_thread(executor, OsFiles, self.folder)
            store = await finish_in_thread(executor, self._open, files)
            await self._listener.start()
            # Nothing is read from any connection before this coroutine waits again.
            self._running = self._assemble(files, store, executor)
        except BaseException:
            await self._listener.stop()
            if files is not None:
                files.close()
            executor.shutdown()
            raise
        try:
            await self._running.start()
        except BaseException:
            await self._drop(self._running)
            raise
        _log.info("broker %s listens on %s", self._options.name, self._address)

    async def _stop(self, running: BrokerRun) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await running.registrar.stop()
            await running.end()
            await running.drain()
            await self._listener.stop()
        finally:
            self._running = None
            await running.close()
        _log.info("broker %s on %s stopped", self._options.name, self._address)

    async def _drop(self, running: BrokerRun) -> None:
        self._running = None
        self._listener.abort()
        await running.registrar.abandon()
        await running.end()
        await self._listener.stop()
        running.drop()

    # ---- what the listener calls ----

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or take it in for the end of this turn."""
        running = self._running
        if running is None:
            return ()
        if self._access is not None:
            denial = self._access.check(request, peer)
            if denial is not None:
                return [Reply(denial.reply())]
        return running.handle(request, peer, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Forget what belongs to a connection that ended."""
        return () if self._running is None else self._running.broker.on_disconnect(peer, now_ms)

    # ---- inside ----

    def _open(self, files: OsFiles) -> MessageStore:
        begun = time.monotonic()
        unit_tag = unit_tag_of(self._options.delay_levels)
        store = MessageStore(files, self._store_options, unit_tag=unit_tag)
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
        return store

    def _assemble(
        self, files: OsFiles, store: MessageStore, executor: ThreadPoolExecutor
    ) -> BrokerRun:
        now_ms = wall_clock_ms()
        host, port = self._advertised()
        store_host = StoreHost.of(host, port)
        self._address = store_host.address
        make_unique_id = UniqueIdMaker(
            store_host.ip, os.getpid(), now_ms & 0x7FFFFFFF, _month_around
        ).make
        state = BrokerState(self._options, store_host, store, make_unique_id, now_ms)
        identity = BrokerIdentity(
            name=self._options.name,
            cluster=self._options.cluster,
            broker_id=self._options.broker_id,
            address=store_host.address,
            ha_address=store_host.address,
        )
        registrar = Registrar(
            identity,
            self._options.name_servers,
            state.topics.table,
            interval=self._options.register_interval,
            tls=self._name_server_tls,
            credentials=self._credentials,
        )
        return BrokerRun(
            state, files, self._listener, registrar, executor, self._retention, self._access
        )

    def _advertised(self) -> tuple[str, int]:
        """Return the numeric address that clients are told."""
        host, _, port = self._listener.address.rpartition(":")
        host = host.strip("[]")
        wanted = self._options.advertised_host
        if wanted is not None:
            try:
                host = str(socket.getaddrinfo(wanted, None)[0][4][0])
            except OSError as error:
                raise OptionError(f"advertised_host={wanted!r} has no address: {error}") from error
        elif host in ("0.0.0.0", "::"):
            host = _own_address()
        return host, int(port)


def _month_around(now_ms: int) -> tuple[int, int]:
    """Return when this month began and ends, local time, in ms."""
    now = datetime.fromtimestamp(now_ms / 1000)
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    end = begin.replace(year=year, month=month)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


def _own_address() -> str:
    """Return the address of this machine that others most likely reach it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the system only picks a way there
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _fit(options: BrokerOptions, listening: ListenerOptions) -> BrokerOptions:
    """Keep bulk answers well below the largest frame that may be sent."""
    bytes_max = min(options.bulk_pull_bytes_max, listening.frame_bytes_max // 2)
    return dataclasses.replace(options, bulk_pull_bytes_max=bytes_max)
