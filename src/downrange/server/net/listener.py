"""A TCP listener that feeds a service: any set of pure handlers behind one method.

The listener accepts by itself instead of through `loop.create_server`, for two reasons: a
connection beyond a limit is refused before anything is made for it, and the first byte can be
looked at, without being read, to tell TLS (0x16, a handshake record) from plain text. No frame of
ours begins so: its length would be far above every limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import logging
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from downrange.busy_poll import BusyPoll
from downrange.errors import CannotListen, OptionError
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher, Service
from downrange.server.outputs import Output, Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterable

    from downrange.options import ListenerOptions
    from downrange.server.net.interception import Rule

_log: Final = logging.getLogger("downrange.server")

_BACKLOG: Final = 1024
_TLS_HANDSHAKE: Final = b"\x16"
_SWEEP_INTERVAL_MAX: Final = 5.0
#: How often a refused connection is worth a line; an attack must not fill the disk.
_REFUSAL_LOG_INTERVAL: Final = 1.0

_numbers: Final = itertools.count(1)


def monotonic_ms() -> int:
    """Return a clock in ms that never jumps; it says nothing about the date."""
    return time.monotonic_ns() // 1_000_000


class Listener:
    """Listens on one address and connects peers with a service.

    Args:
        service: Answers the requests.
        options: Address and limits.
        tls: Certificate and key, for the TLS modes other than disabled.
        clock_ms: The time that handlers are given.
        logger: Where the handlers' notes go.

    Raises:
        OptionError: TLS is demanded and there is no context for it.
    """

    def __init__(
        self,
        service: Service,
        options: ListenerOptions,
        *,
        tls: ssl.SSLContext | None = None,
        clock_ms: Callable[[], int] = monotonic_ms,
        logger: logging.Logger = _log,
    ) -> None:
        if options.tls_mode == "enforcing" and tls is None:
            raise OptionError("tls_mode='enforcing' needs a certificate: give an SSLContext as tls")
        self._options = options
        self._tls = None if options.tls_mode == "disabled" else tls
        self._dispatcher = Dispatcher(
            service, clock_ms=clock_ms, logger=logger, on_closed=self._leave
        )
        self._busy_poll: BusyPoll | None = None
        self._socket: socket.socket | None = None
        self._address = ""
        self._port = 0
        self._per_host: Counter[str] = Counter()
        self._places: dict[int, str] = {}  # number of a connection -> its host
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._connecting: dict[asyncio.Task[Any], socket.socket] = {}
        self._emptied: asyncio.Event | None = None
        self._refused = 0
        self._refusal_logged_at = float("-inf")

    @property
    def address(self) -> str:
        """Where it listens, "host:port"; the port that was picked, where 0 was asked for."""
        return self._address

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._socket is not None

    @property
    def connection_count(self) -> int:
        """How many connections are open, handshakes included."""
        return len(self._places)

    @property
    def intercept(self) -> Rule | None:
        """A rule that sees every request before the service does; for tests."""
        return self._dispatcher.intercept

    @intercept.setter
    def intercept(self, rule: Rule | None) -> None:
        self._dispatcher.intercept = rule

    async def start(self) -> None:
        """Listen; nothing happens when it does already.

        Raises:
            CannotListen: The address cannot be had; the text says why and what to do.
        """
        if self._socket is not None:
            return
        self._socket = await self._bind()
        self._address = _text_of(self._socket.getsockname())
        self._port = self._socket.getsockname()[1]
        if not ipaddress.ip_address(self._socket.getsockname()[0]).is_loopback:
            _log.info("%s can be reached from other machines", self._address)
        loop = asyncio.get_running_loop()
        if self._options.busy_poll > 0:
            self._busy_poll = BusyPoll(loop, self._options.busy_poll)
        self._loops = [
            loop.create_task(self._accept(self._socket)),
            loop.create_task(self._sweep()),
        ]

    async def stop(self) -> None:
        """Stop listening, let replies go, close all connections; harmless when it is stopped."""
        if self._socket is None:
            return
        listening, self._socket = self._socket, None
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops.clear()
        listening.close()
        # A connection that is being set up is let come up: cancelled half-way, it would be a
        # transport on a closed socket, whose end nobody is told.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.stop_timeout)
        for task in list(self._tasks):  # these wait for a first byte that does not come
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._dispatcher.connections.values()):
            connection.close()
        if not await self._is_emptied():
            for connection in list(self._dispatcher.connections.values()):
                connection.abort()
            await self._is_emptied()

    def abort(self) -> None:
        """Cut all connections, as a crash would; `stop` then has nothing to wait for."""
        for task in self._loops:  # the loop watches the socket, so it is closed after these
            task.cancel()
        for connection in list(self._dispatcher.connections.values()):
            connection.abort()

    async def _is_emptied(self) -> bool:
        """Wait until all connections are gone, or for `stop_timeout`; say whether they are."""
        if self._dispatcher.connections:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.stop_timeout):
                    await self._emptied.wait()
            self._emptied = None
        return not self._dispatcher.connections

    def perform(self, outputs: Iterable[Output]) -> None:
        """Act on outputs that belong to no request that is being handled.

        Each connection is written once, at the end, for all its replies together; only what passes
        64 KiB goes out before.
        """
        self._dispatcher.perform(outputs)

    # ---- inside ----

    async def _bind(self) -> socket.socket:
        host = self._options.host
        # A free port that was picked once is kept, so that clients find a server that comes back.
        port = self._options.port or self._port
        where = _text_of((host, port))
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise CannotListen(
                where, f"{error.strerror}; give an address of this machine"
            ) from error
        family, _, _, _, address = found[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._bind_to(listening, address)
        except OSError as error:
            listening.close()
            raise CannotListen(where, _reason(error)) from error
        return listening

    def _bind_to(self, listening: socket.socket, address: Any) -> None:
        # Otherwise the remains of our own closed connections would bar us for a minute.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(_BACKLOG)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._accept_one(listening)
            except OSError as error:
                _log.warning("%s cannot accept a connection: %s", self._address, error)
                await asyncio.sleep(0.1)  # most likely no file handles: one may come free
                continue
            host = str(address[0])
            reason = self._reason_to_refuse(host)
            if reason is not None:
                accepted.close()
                self._log_refusal(host, reason)
                continue
            peer = Peer(next(_numbers), _text_of(address))
            self._places[peer.number] = host
            self._per_host[host] += 1
            self._spawn(self._bring_up(accepted, peer))

    async def _accept_one(self, listening: socket.socket) -> tuple[socket.socket, Any]:
        return await asyncio.get_running_loop().sock_accept(listening)

    def _reason_to_refuse(self, host: str) -> str | None:
        options = self._options
        if len(self._places) >= options.connections_max:
            return f"connections_max={options.connections_max} are open"
        if self._per_host[host] >= options.connections_per_host_max:
            return f"connections_per_host_max={options.connections_per_host_max} are open"
        return None

    def _log_refusal(self, host: str, reason: str) -> None:
        self._refused += 1
        if time.monotonic() - self._refusal_logged_at >= _REFUSAL_LOG_INTERVAL:
            _log.warning("refused %d connection(s), last from %s: %s", self._refused, host, reason)
            self._refusal_logged_at = time.monotonic()
            self._refused = 0

    async def _bring_up(self, accepted: socket.socket, peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = await self._wanted_tls(accepted)
            self._connecting[task] = accepted
            await loop.connect_accepted_socket(
                lambda: Connection(self._dispatcher, peer, self._options, loop, self._busy_poll),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._options.handshake_timeout,
            )
        except BaseException as error:
            accepted.close()
            self._give_back(peer)
            if not isinstance(error, OSError):  # of which a time-out is one
                raise
            reason = str(error) or "it was too slow to begin"
            _log.warning("connection %s is cut: %s", peer.address, reason)
        finally:
            self._connecting.pop(task, None)

    async def _wanted_tls(self, accepted: socket.socket) -> ssl.SSLContext | None:
        """Look at the first byte, without reading it, and say what the connection speaks."""
        if self._tls is None:
            return None
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(self._options.handshake_timeout):
                await readable.wait()
        finally:
            loop.remove_reader(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if first == _TLS_HANDSHAKE:
            return self._tls
        if self._options.tls_mode == "enforcing":
            raise ConnectionError("plain text where TLS is demanded")
        return None

    async def _sweep(self) -> None:
        """Close connections that are silent for too long."""
        idle = self._options.idle_timeout
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_INTERVAL_MAX, idle / 4))
            for connection in list(self._dispatcher.connections.values()):
                if loop.time() - connection.active_at > idle:
                    _log.info(
                        "connection %s is closed: silent for %g s", connection.peer.address, idle
                    )
                    connection.abort()

    def _leave(self, peer: Peer) -> None:
        """Hear that a connection ended."""
        self._give_back(peer)
        if self._emptied is not None and not self._dispatcher.connections:
            self._emptied.set()

    def _give_back(self, peer: Peer) -> None:
        """Free the place of a connection; the second time nothing happens."""
        host = self._places.pop(peer.number, None)
        if host is not None:
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)


def _text_of(address: Any) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another process has the port; stop it, or choose another port (0 picks one)"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have the address; 0.0.0.0 is every address it has"
        case errno.EACCES:
            return "not permitted; choose a port above 1023"
        case _:
            return error.strerror or str(error)
