"""Opens connections: name resolution, TCP, SOCKS5 proxy, TLS; blocking and on an event loop.

One rule: an attempt ends by its deadline, with a connection that is ready for use or with a
`ConnectFailed` that names the address, the reason in words and, where there is one, the next step.
Every address of a name is tried. Nothing is read or written except for the proxy and TLS.
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
#: An entry of `getaddrinfo`: family, type, protocol, canonical name, address.
_AddressInfo: TypeAlias = tuple[int, int, int, str, Any]

#: Timeout of a socket after the deadline; zero would make it non-blocking.
_TIMEOUT_MIN: Final = 0.001


def tls_context(tls: TLS) -> ssl.SSLContext:
    """Return the SSL context of TLS options.

    Raises:
        OptionError: A file cannot be read or has other content; the text names the file.
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
        timeout: For all steps together: name, proxy, TCP, TLS.
        tls_context: The SSL context; plain text without.
        proxy: The proxy; it resolves the host name then.

    Returns:
        A connected socket that blocks without a timeout, with TCP_NODELAY.

    Raises:
        HostNotFound: The name has no address.
        TlsFailed: TCP works, TLS does not.
        ConnectFailed: The address cannot be reached.
        OptionError: The address is not host:port.
        MissingExtra: A proxy needs the extra 'proxy'.
    """
    target = _Target.of(address, timeout)
    opened = _connect(target) if proxy is None else _connect_through(proxy, target)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls_context is not None:
            opened = _start_tls(opened, tls_context, target)
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
        protocol_factory: Makes the asyncio protocol of the connection.
        address: As there.
        timeout: As there.
        tls_context: As there.
        proxy: As there.
    """
    target = _Target.of(address, timeout)
    if proxy is None:
        opened = await _connect_on(loop, target)
    else:
        opened = await _connect_through_on(loop, proxy, target)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # From here on the transport owns the socket, and closes it when TLS fails.
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
    """The address to connect to, and the deadline."""

    address: str
    host: str
    port: int
    timeout: float
    deadline: float

    @staticmethod
    def of(address: str, timeout: float) -> _Target:
        return _Target(address, *split_address(address), timeout, time.monotonic() + timeout)

    def left(self, shares: int = 1) -> float:
        """Return the remaining seconds, divided by the number of shares."""
        return max((self.deadline - time.monotonic()) / shares, _TIMEOUT_MIN)


# ---- TCP ----


def _connect(target: _Target) -> socket.socket:
    try:
        places = _look_up(target).result(target.left())
    except (OSError, UnicodeError) as error:
        raise not_found(target.address, target.timeout, error) from error
    failures: list[OSError] = []
    for untried, place in zip(range(len(places), 0, -1), places, strict=True):
        try:
            # A share, so that an address that drops packets leaves time for the next one.
            opened = _connect_to(place, target.left(untried))
        except OSError as error:
            failures.append(error)
        else:
            opened.settimeout(target.left())
            return opened
    raise unreachable(target.address, target.timeout, failures) from failures[-1]


def _connect_to(place: _AddressInfo, seconds: float) -> socket.socket:
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


async def _connect_to_on(loop: asyncio.AbstractEventLoop, place: _AddressInfo) -> socket.socket:
    opened = socket.socket(*place[:3])
    try:
        opened.setblocking(False)
        await loop.sock_connect(opened, place[4])
    except BaseException:
        opened.close()
        raise
    return opened


def _look_up(target: _Target) -> Future[list[_AddressInfo]]:
    """Resolve a host name in a daemon thread; an address needs none.

    The system's resolver has no timeout. So the thread waits for it, and neither the caller nor the
    end of the process waits for the thread.
    """
    found: Future[list[_AddressInfo]] = Future()
    found.set_running_or_notify_cancel()  # so that a caller cannot cancel it

    def look_up(flags: int) -> None:
        try:
            places = socket.getaddrinfo(
                target.host, target.port, type=socket.SOCK_STREAM, flags=flags
            )
        except (OSError, UnicodeError) as error:
            found.set_exception(error)
        else:
            found.set_result(cast("list[_AddressInfo]", places))

    if _is_literal(target.host):
        look_up(socket.AI_NUMERICHOST)
    else:
        threading.Thread(target=look_up, args=(0,), name="downrange-names", daemon=True).start()
    return found


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


# ---- proxy ----


@dataclass(frozen=True, slots=True)
class _ProxyConnector:
    """Lets the proxy library use our connections to the proxy, with our errors."""

    open: Callable[[], Any]

    def connect(self, **_: Any) -> Any:
        """Return a socket, or an awaitable of one."""
        return self.open()


def _connect_through(proxy: Proxy, target: _Target) -> socket.socket:
    refusal = _proxy_package().ProxyError
    via = _proxy_target(proxy, target)
    client = _proxy_client("python_socks.sync", proxy, via, lambda: _connect(via))
    try:
        return cast("socket.socket", client.connect(target.host, target.port, target.left()))
    except (ConnectFailed, OSError, UnicodeError, refusal) as error:
        raise proxy_failed(target.address, target.timeout, proxy.address, error) from error


async def _connect_through_on(
    loop: asyncio.AbstractEventLoop, proxy: Proxy, target: _Target
) -> socket.socket:
    refusal = _proxy_package().ProxyError
    via = _proxy_target(proxy, target)
    client = _proxy_client(
        "python_socks.async_.asyncio", proxy, via, lambda: _connect_on(loop, via)
    )
    try:
        opened = await client.connect(target.host, target.port, target.left())
    except (ConnectFailed, OSError, UnicodeError, refusal) as error:
        raise proxy_failed(target.address, target.timeout, proxy.address, error) from error
    return cast("socket.socket", opened)


def _proxy_package() -> Any:
    return require("a SOCKS5 proxy", "proxy")[0]


def _proxy_target(proxy: Proxy, target: _Target) -> _Target:
    return _Target(proxy.address, *split_address(proxy.address), target.timeout, target.deadline)


def _proxy_client(module: str, proxy: Proxy, via: _Target, connect: Callable[[], Any]) -> Any:
    return import_module(module).Proxy(
        _proxy_package().ProxyType.SOCKS5,
        via.host,
        via.port,
        proxy.username,
        proxy.password,
        rdns=True,  # names of a closed network can be resolved only behind the proxy
        forward=_ProxyConnector(connect),
    )


# ---- TLS ----


def _start_tls(opened: socket.socket, context: ssl.SSLContext, target: _Target) -> ssl.SSLSocket:
    opened.settimeout(target.left())
    try:
        return context.wrap_socket(opened, server_hostname=target.host)
    except (OSError, ValueError) as error:
        raise tls_failed(target.address, target.timeout, error) from error
