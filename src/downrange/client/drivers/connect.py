"""Connections: name resolution, TCP, a SOCKS5 proxy, TLS, blocking and on an event loop.

One rule: by its deadline an attempt has ended, with a connection that is ready for use or with a
`ConnectFailed` that names the address, the reason in words and, where there is one, the next step.
Every address that a name has is tried. Nothing is read or written but what the proxy and TLS need.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from downrange.addresses import split_address
from downrange.client.drivers.connect_errors import not_found, proxy_failed, tls_failed, unreachable
from downrange.errors import ConnectFailed
from downrange.extras import require
from downrange.tls import client_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.options import TLS, Proxy

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
#: Family, type, protocol, canonical name, address: what `getaddrinfo` answers.
_Place: TypeAlias = tuple[int, int, int, str, Any]

#: A time-out of zero would mean "do not wait" to a socket; a deadline that is over gets this much.
_LEAST_WAIT: Final = 0.001


def tls_context(tls: TLS) -> ssl.SSLContext:
    """Return how to speak TLS; the host is checked unless told otherwise.

    Raises:
        OptionError: A file cannot be read or is not what it should be; the text names it.
    """
    if tls.context is not None:
        return tls.context
    certificate = None if tls.certificate is None else os.fspath(tls.certificate)
    key = certificate if tls.key is None else os.fspath(tls.key)
    context = client_context(
        ca=None if tls.ca is None else os.fspath(tls.ca),
        certificate=certificate,
        key=key,
        key_password=tls.key_password,
        is_name_checked=tls.check_host and tls.verify,
    )
    if not tls.verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def connect_blocking(
    address: str,
    *,
    timeout: float,
    tls_context: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
) -> socket.socket:
    """Connect in this thread.

    Args:
        address: "host:port"; an IPv6 address is in brackets.
        timeout: For all of it: name, proxy, TCP, TLS.
        tls_context: How to speak TLS; plain text without.
        proxy: Whom to go through; it looks up the host's name then.

    Returns:
        A connected socket that blocks without a time limit and sends small packets at once.

    Raises:
        HostNotFound: The name has no address.
        TlsFailed: TCP stands, TLS does not.
        ConnectFailed: The address cannot be reached.
        OptionError: The address is none.
        MissingExtra: A proxy needs the extra 'proxy'.
    """
    target = _Target.of(address, timeout)
    opened = _connect(target) if proxy is None else _connect_through(proxy, target)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls_context is not None:
            opened = _speak_tls(opened, tls_context, target)
        opened.settimeout(None)
    except BaseException:
        opened.close()
        raise
    return opened


async def open_transport(
    loop: asyncio.AbstractEventLoop,
    protocol_factory: Callable[[], ProtocolT],
    address: str,
    *,
    timeout: float,
    tls_context: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
) -> tuple[asyncio.Transport, ProtocolT]:
    """Connect on an event loop; arguments and errors are those of `connect_blocking`.

    Args:
        loop: The running loop.
        protocol_factory: Makes the protocol that is told what arrives.
        address: See there.
        timeout: See there.
        tls_context: See there.
        proxy: See there.
    """
    target = _Target.of(address, timeout)
    if proxy is None:
        opened = await _connect_on(loop, target)
    else:
        opened = await _connect_through_on(loop, proxy, target)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # From here on the transport owns the socket, and closes it when there is no TLS.
    if tls_context is None:
        return await loop.create_connection(protocol_factory, sock=opened)
    try:
        async with asyncio.timeout(target.left()):
            return await loop.create_connection(
                protocol_factory, sock=opened, ssl=tls_context, server_hostname=target.host
            )
    except (OSError, ValueError) as error:
        raise tls_failed(target.address, target.timeout, error) from error


@dataclass(frozen=True, slots=True)
class _Target:
    """Where to connect to, and until when."""

    address: str
    host: str
    port: int
    timeout: float
    deadline: float

    @staticmethod
    def of(address: str, timeout: float) -> _Target:
        return _Target(address, *split_address(address), timeout, time.monotonic() + timeout)

    def left(self, shares: int = 1) -> float:
        """Return the seconds that remain, or one of so many equal shares of them."""
        return max((self.deadline - time.monotonic()) / shares, _LEAST_WAIT)


# ---- TCP ----


def _connect(target: _Target) -> socket.socket:
    try:
        places = _look_up(target).result(target.left())
    except (OSError, UnicodeError) as error:
        raise not_found(target.address, target.timeout, error) from error
    failures: list[OSError] = []
    for untried, place in zip(range(len(places), 0, -1), places, strict=True):
        try:
            # A share, so that an address that swallows packets leaves time for the next one.
            opened = _connect_to(place, target.left(untried))
        except OSError as error:
            failures.append(error)
        else:
            opened.settimeout(target.left())
            return opened
    raise unreachable(target.address, target.timeout, failures) from failures[-1]


def _connect_to(place: _Place, seconds: float) -> socket.socket:
    opened = socket.socket(*place[:3])
    try:
        opened.settimeout(seconds)
        opened.connect(place[4])
    except BaseException:
        opened.close()
        raise
    return opened


async def _connect_on(loop: asyncio.AbstractEventLoop, target: _Target) -> socket.socket:
    try:
        async with asyncio.timeout(target.left()):
            places = await asyncio.wrap_future(_look_up(target), loop=loop)
    except (OSError, UnicodeError) as error:
        raise not_found(target.address, target.timeout, error) from error
    failures: list[OSError] = []
    for untried, place in zip(range(len(places), 0, -1), places, strict=True):
        try:
            async with asyncio.timeout(target.left(untried)):
                return await _connect_to_on(loop, place)
        except OSError as error:
            failures.append(error)
    raise unreachable(target.address, target.timeout, failures) from failures[-1]


async def _connect_to_on(loop: asyncio.AbstractEventLoop, place: _Place) -> socket.socket:
    opened = socket.socket(*place[:3])
    try:
        opened.setblocking(False)
        await loop.sock_connect(opened, place[4])
    except BaseException:
        opened.close()
        raise
    return opened


def _look_up(target: _Target) -> Future[list[_Place]]:
    """Find the addresses of a host, in a thread unless it is an address already.

    The system's resolver knows no deadline, so somebody else waits for it: a daemon, for whom
    neither a caller nor the end of the process waits.
    """
    found: Future[list[_Place]] = Future()
    found.set_running_or_notify_cancel()  # a caller who goes away does not disturb the thread

    def look_up(flags: int) -> None:
        try:
            places = socket.getaddrinfo(
                target.host, target.port, type=socket.SOCK_STREAM, flags=flags
            )
        except (OSError, UnicodeError) as error:
            found.set_exception(error)
        else:
            found.set_result(cast("list[_Place]", places))

    if _is_literal(target.host):
        look_up(socket.AI_NUMERICHOST)
    else:
        threading.Thread(target=look_up, args=(0,), name="downrange-names", daemon=True).start()
    return found


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


# ---- the proxy ----


@dataclass(frozen=True, slots=True)
class _Way:
    """How the proxy library gets its connection to the proxy: ours, with our errors."""

    open: Callable[[], Any]

    def connect(self, **_: Any) -> Any:
        """Return a socket, or what becomes one."""
        return self.open()


def _connect_through(proxy: Proxy, target: _Target) -> socket.socket:
    refusal = _proxy_package().ProxyError
    door = _door(proxy, target)
    client = _proxy_client("python_socks.sync", proxy, door, lambda: _connect(door))
    try:
        return cast("socket.socket", client.connect(target.host, target.port, target.left()))
    except (ConnectFailed, OSError, UnicodeError, refusal) as error:
        raise proxy_failed(target.address, target.timeout, proxy.address, error) from error


async def _connect_through_on(
    loop: asyncio.AbstractEventLoop, proxy: Proxy, target: _Target
) -> socket.socket:
    refusal = _proxy_package().ProxyError
    door = _door(proxy, target)
    client = _proxy_client(
        "python_socks.async_.asyncio", proxy, door, lambda: _connect_on(loop, door)
    )
    try:
        opened = await client.connect(target.host, target.port, target.left())
    except (ConnectFailed, OSError, UnicodeError, refusal) as error:
        raise proxy_failed(target.address, target.timeout, proxy.address, error) from error
    return cast("socket.socket", opened)


def _proxy_package() -> Any:
    return require("a SOCKS5 proxy", "proxy")[0]


def _door(proxy: Proxy, target: _Target) -> _Target:
    return _Target(proxy.address, *split_address(proxy.address), target.timeout, target.deadline)


def _proxy_client(module: str, proxy: Proxy, door: _Target, open_door: Callable[[], Any]) -> Any:
    return import_module(module).Proxy(
        _proxy_package().ProxyType.SOCKS5,
        door.host,
        door.port,
        proxy.username,
        proxy.password,
        rdns=True,  # names of a closed network are known only behind the proxy
        forward=_Way(open_door),
    )


# ---- TLS ----


def _speak_tls(opened: socket.socket, context: ssl.SSLContext, target: _Target) -> ssl.SSLSocket:
    opened.settimeout(target.left())
    try:
        return context.wrap_socket(opened, server_hostname=target.host)
    except (OSError, ValueError) as error:
        raise tls_failed(target.address, target.timeout, error) from error
