"""A TCP listener: accepts connections and passes their requests to a service.

The listener accepts sockets itself instead of using `loop.create_server`, for two reasons. It can
refuse a connection beyond a limit before anything is created for it. And it can peek at the first
byte to distinguish TLS (0x16, a handshake record) from plain text; a plain frame never begins with
0x16, since its length would be far above every limit.
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
from downrange.options.servers import VIP_DISTANCE, check_vip_port
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher, Service
from downrange.server.net.foreign_protocols import TLS_HANDSHAKE, plain_on_tls
from downrange.server.outputs import Output, Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterable

    from downrange.options import ListenerOptions
    from downrange.server.net.dispatcher import HandleRun
    from downrange.server.net.interception import Rule
    from downrange.server.outputs import AskNameServer

_log: Final = logging.getLogger("downrange.server")

_BACKLOG: Final = 1024
#: How often the system chooses a port whose VIP channel is in use before the start fails.
_PORT_DRAWS_MAX: Final = 20
_SWEEP_INTERVAL_MAX: Final = 5.0
#: Refused connections are logged at this interval, so that an attack does not fill the disk.
_REFUSAL_LOG_INTERVAL: Final = 1.0

_numbers: Final = itertools.count(1)


def monotonic_ms() -> int:
    """Return the monotonic time in ms; it is not a date."""
    return time.monotonic_ns() // 1_000_000


class Listener:
    """Listens on one address and passes requests to a service.

    Args:
        service: Handles the requests.
        options: Address and limits.
        tls: Certificate and key, for the TLS modes other than disabled.
        clock_ms: The time that handlers get.
        logger: Logs the notes of handlers.
        has_vip_port: Whether it also listens on its port less 2. Connections to both ports have
            the same service and share the limits.
        ask_name_server: See `Dispatcher`.
        handle_run: See `Dispatcher`.

    Attributes:
        refused_count: Connections that were refused because of a limit, since the start.

    Raises:
        OptionError: TLS is required and `tls` is missing, or there is no port for the VIP channel.
    """

    def __init__(
        self,
        service: Service,
        options: ListenerOptions,
        *,
        tls: ssl.SSLContext | None = None,
        clock_ms: Callable[[], int] = monotonic_ms,
        logger: logging.Logger = _log,
        has_vip_port: bool = False,
        ask_name_server: Callable[[AskNameServer], None] | None = None,
        handle_run: HandleRun | None = None,
    ) -> None:
        if has_vip_port:
            check_vip_port("port", options.port)
        if options.tls_mode == "enforcing" and tls is None:
            raise OptionError("tls_mode='enforcing' needs a certificate: give an SSLContext as tls")
        self._options = options
        self._tls = None if options.tls_mode == "disabled" else tls
        self._dispatcher = Dispatcher(
            service,
            clock_ms=clock_ms,
            logger=logger,
            on_closed=self._on_closed,
            ask_name_server=ask_name_server,
            handle_run=handle_run,
        )
        self._busy_poll: BusyPoll | None = None
        self._has_vip_port = has_vip_port
        self._sockets: list[socket.socket] = []
        self._address = ""
        self._vip_address: str | None = None
        self._port = 0
        self._per_host: Counter[str] = Counter()
        self._hosts: dict[int, str] = {}  # number of a connection -> host
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._none_left: asyncio.Event | None = None
        self._refused = 0
        self._refusal_logged_at = float("-inf")
        self.refused_count = 0

    @property
    def address(self) -> str:
        """Its address, "host:port"; with the chosen port if the option is 0."""
        return self._address

    @property
    def vip_address(self) -> str | None:
        """The address of the VIP channel; None without one."""
        return self._vip_address

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return bool(self._sockets)

    @property
    def connection_count(self) -> int:
        """The number of open connections, including those in a TLS handshake."""
        return len(self._hosts)

    @property
    def intercept(self) -> Rule | None:
        """A rule that gets every request before the service; for tests."""
        return self._dispatcher.intercept

    @intercept.setter
    def intercept(self, rule: Rule | None) -> None:
        self._dispatcher.intercept = rule

    async def start(self) -> None:
        """Listen; does nothing if it listens already.

        Raises:
            CannotListen: The address cannot be bound; the text says why and what to do.
        """
        if self._sockets:
            return
        self._sockets = await self._bind_ports()
        names = [listening.getsockname() for listening in self._sockets]
        self._address, *vip = map(text_of, names)
        self._vip_address = vip[0] if vip else None
        self._port = names[0][1]
        if not ipaddress.ip_address(names[0][0]).is_loopback:
            _log.info("%s can be reached from other machines", self._address)
        loop = asyncio.get_running_loop()
        if self._options.busy_poll > 0:
            self._busy_poll = BusyPoll(loop, self._options.busy_poll)
        self._loops = [
            *[loop.create_task(self._accept(listening)) for listening in self._sockets],
            loop.create_task(self._sweep()),
        ]

    async def stop(self) -> None:
        """Stop listening, send the replies, close all connections; does nothing if stopped."""
        if not self._sockets:
            return
        sockets, self._sockets = self._sockets, []
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops.clear()
        for listening in sockets:
            listening.close()
        # Connections in setup are completed first. A cancelled setup would leave a transport on a
        # closed socket that never reports its end.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.stop_timeout)
        for task in list(self._tasks):  # these wait for a first byte
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._dispatcher.connections.values()):
            connection.close()
        if not await self._all_closed():
            for connection in list(self._dispatcher.connections.values()):
                connection.abort()
            await self._all_closed()

    def abort(self) -> None:
        """Cut all connections, as in a crash; `stop` then has nothing to wait for."""
        for task in self._loops:  # they use the socket, which `stop` closes
            task.cancel()
        for connection in list(self._dispatcher.connections.values()):
            connection.abort()

    async def _all_closed(self) -> bool:
        """Wait up to `stop_timeout` for all connections to close; return whether they did."""
        if self._dispatcher.connections:
            self._none_left = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.stop_timeout):
                    await self._none_left.wait()
            self._none_left = None
        return not self._dispatcher.connections

    def stop_polling(self) -> None:
        """Turn `ListenerOptions.busy_poll` off for connections that open from now on."""
        self._busy_poll = None

    def perform(self, outputs: Iterable[Output]) -> None:
        """Perform outputs that do not answer the request that is being handled.

        Each connection is written once, at the end, with all its replies; only more than 64 KiB
        are written before.
        """
        self._dispatcher.perform(outputs)

    # ---- internals ----

    async def _bind_ports(self) -> list[socket.socket]:
        """Bind the port, and the one of the VIP channel if there is one."""
        # A port chosen by the system is kept, so that clients find a restarted server.
        port = self._options.port or self._port
        draws = 1 if port else _PORT_DRAWS_MAX
        while True:
            main = await self._bind(port)
            if not self._has_vip_port:
                return [main]
            host, bound = main.getsockname()[:2]
            try:
                return [main, await self._bind(bound - VIP_DISTANCE)]
            except CannotListen as error:
                main.close()
                draws -= 1
                if not draws:
                    problem = (
                        f"{error.problem}. This is the VIP channel of {text_of((host, bound))}, "
                        f"its port less {VIP_DISTANCE}: choose another port for the broker, or "
                        "turn the VIP channel off (--vip, is_vip_port_open)"
                    )
                    where = text_of((self._options.host, bound - VIP_DISTANCE))
                    raise CannotListen(where, problem) from error
            except BaseException:
                main.close()
                raise

    async def _bind(self, port: int) -> socket.socket:
        host = self._options.host
        where = text_of((host, port))
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
            raise CannotListen(where, bind_error(error)) from error
        return listening

    def _bind_to(self, listening: socket.socket, address: Any) -> None:
        # Otherwise closed connections in TIME_WAIT would block the port for a minute.
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
                await asyncio.sleep(0.1)  # most likely the limit of open files is reached
                continue
            host = str(address[0])
            reason = self._reason_to_refuse(host)
            if reason is not None:
                accepted.close()
                self._log_refusal(host, reason)
                continue
            peer = Peer(next(_numbers), text_of(address))
            self._hosts[peer.number] = host
            self._per_host[host] += 1
            self._spawn(self._set_up(accepted, peer))

    async def _accept_one(self, listening: socket.socket) -> tuple[socket.socket, Any]:
        return await asyncio.get_running_loop().sock_accept(listening)

    def _reason_to_refuse(self, host: str) -> str | None:
        options = self._options
        if len(self._hosts) >= options.connections_max:
            return f"connections_max={options.connections_max} are open"
        if self._per_host[host] >= options.connections_per_host_max:
            return f"connections_per_host_max={options.connections_per_host_max} are open"
        return None

    def _log_refusal(self, host: str, reason: str) -> None:
        self._refused += 1
        self.refused_count += 1
        if time.monotonic() - self._refusal_logged_at >= _REFUSAL_LOG_INTERVAL:
            _log.warning("refused %d connection(s), last from %s: %s", self._refused, host, reason)
            self._refusal_logged_at = time.monotonic()
            self._refused = 0

    async def _set_up(self, accepted: socket.socket, peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = await self._tls_for(accepted)
            await loop.connect_accepted_socket(
                lambda: Connection(self._dispatcher, peer, self._options, loop, self._busy_poll),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._options.handshake_timeout,
            )
        except BaseException as error:
            accepted.close()
            self._uncount(peer)
            if not isinstance(error, OSError):  # a time-out is one, too
                raise
            reason = str(error) or f"no first byte within {self._options.handshake_timeout:g} s"
            _log.warning("connection %s is cut: %s", peer.address, reason)

    async def _tls_for(self, accepted: socket.socket) -> ssl.SSLContext | None:
        """Peek at the first byte; return the TLS context, or None for plain text."""
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
        first = accepted.recv(4, socket.MSG_PEEK)
        if first[:1] == TLS_HANDSHAKE:
            return self._tls
        if self._options.tls_mode == "enforcing":
            raise ConnectionError(plain_on_tls(first))
        return None

    async def _sweep(self) -> None:
        """Close idle connections."""
        idle = self._options.idle_timeout
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_INTERVAL_MAX, idle / 4))
            for connection in list(self._dispatcher.connections.values()):
                if loop.time() - connection.active_at > idle:
                    _log.info(
                        "connection %s is closed: idle for %g s", connection.peer.address, idle
                    )
                    connection.abort()

    def _on_closed(self, peer: Peer) -> None:
        self._uncount(peer)
        if self._none_left is not None and not self._dispatcher.connections:
            self._none_left.set()

    def _uncount(self, peer: Peer) -> None:
        """Stop counting a connection; does nothing the second time."""
        host = self._hosts.pop(peer.number, None)
        if host is not None:
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._tasks.discard)


def text_of(address: Any) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_error(error: OSError) -> str:
    """Return why an address cannot be bound, and what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            return "another process uses the port; stop it, or choose another one (0 picks any)"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have the address; 0.0.0.0 means all its addresses"
        case errno.EACCES:
            return "not permitted; choose a port above 1023"
        case _:
            return error.strerror or str(error)
