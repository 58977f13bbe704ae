"""Requests of a server to another server, over one connection that is opened when needed.

One rule: every call ends by its deadline, with the reply or with an error that names the address.
Calls share the connection and do not wait for each other. Nothing is sent twice: after an error
the caller decides whether to repeat the request, and the next call reconnects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from downrange.addresses import split_address
from downrange.errors import CallTimeout, ConnectFailed, ConnectionLost, LinkClosed
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived
from downrange.wire.signatures import sign

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from downrange.wire.command import Command

#: How long the other side may take to close the connection.
_CLOSE_TIMEOUT: Final = 1.0


class RemotePeer:
    """Another server.

    Args:
        address: "host:port"; an IPv6 address is in brackets.
        tls: For TLS; without it, plain text.
        connect_timeout: The limit for connecting, TLS handshake included.
        credentials: Access key and secret that commands are signed with.

    Attributes:
        address: See above.
        on_lost: Called when a connection ended that was not closed by `close`.

    Raises:
        OptionError: The address is not host:port.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = 3.0,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.address = address
        self.on_lost: Callable[[], None] | None = None
        self._host, self._port = split_address(address)
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._credentials = credentials
        self._channel: _Channel | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._channel is not None and self._channel.is_open

    async def ask(self, command: Command, within: float) -> Command:
        """Send a request and return the reply, whatever its code.

        Raises:
            ConnectFailed: The server cannot be reached.
            ConnectionLost: The connection ended before the reply came.
            CallTimeout: No reply came `within` seconds, connecting included.
            LinkError: `close` was called, or too many requests wait for replies.
            WireError: The command cannot be encoded.
        """
        try:
            async with asyncio.timeout(within):
                channel = await self._connected()
                return await channel.ask(self._signed(command))
        except TimeoutError as error:
            raise CallTimeout(self.address, within) from error

    async def oneway(self, command: Command) -> None:
        """Send a one-way request.

        Raises:
            ConnectFailed: The server cannot be reached.
            CallTimeout: The connection was not open within `connect_timeout`.
            LinkError: `close` was called.
            WireError: The command cannot be encoded.
        """
        try:
            async with asyncio.timeout(self._connect_timeout):
                channel = await self._connected()
        except TimeoutError as error:
            raise CallTimeout(self.address, self._connect_timeout) from error
        channel.notify(self._signed(command))

    async def close(self) -> None:
        """Close the connection; pending and later calls fail. Does nothing the second time."""
        self._is_closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    # ---- internals ----

    async def _connected(self) -> _Channel:
        """Return the connection, or open one; concurrent callers share it."""
        async with self._connecting:
            self._check_open()
            if self._channel is not None and self._channel.is_open:
                return self._channel
            channel = await self._connect()
            if self._is_closed:  # closed while connecting
                await channel.close()
            self._check_open()
            self._channel = channel
            return channel

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkClosed(f"the connection to {self.address} was closed")

    async def _connect(self) -> _Channel:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, channel = await loop.create_connection(
                    lambda: _Channel(self.address, self.on_lost),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else self._host,
                )
        except OSError as error:  # a time-out is one, too
            problem = (
                error.strerror or str(error) or f"no answer within {self._connect_timeout:g} s"
            )
            raise ConnectFailed(self.address, f"cannot connect: {problem}") from error
        return channel

    def _signed(self, command: Command) -> Command:
        if self._credentials is not None:
            sign(command, *self._credentials)
        return command


class _Channel(asyncio.Protocol):
    """One connection of a `RemotePeer`."""

    def __init__(self, address: str, on_lost: Callable[[], None] | None) -> None:
        self._address = address
        self._on_lost = on_lost
        self._link: Link[asyncio.Future[Command]] = Link()
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self._link.is_closed

    async def ask(self, command: Command) -> Command:
        assert self._transport is not None
        reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._transport.write(self._link.request(command, reply))
        try:
            return await reply
        finally:
            self._link.abandon(command.request_id)

    def notify(self, command: Command) -> None:
        assert self._transport is not None
        self._transport.write(self._link.oneway(command))

    async def close(self) -> None:
        assert self._transport is not None
        self._on_lost = None
        self._fail(self._link.close(), "the connection was closed on this side")
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._ended.wait()
        except TimeoutError:
            self._transport.abort()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        for event in self._link.receive(data):
            if isinstance(event, ReplyArrived):
                if not event.waiter.done():
                    event.waiter.set_result(event.command)
            elif isinstance(event, LinkBroken):
                self._fail(event.waiters, f"the server broke the protocol: {event.error}")
                self._transport.abort()
            elif isinstance(event, RequestArrived) and not event.command.is_oneway:
                refused = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not served here")
                self._transport.write(self._link.reply(event.command, refused))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the connection was closed" if exc is None else f"the connection broke: {exc}"
        self._fail(self._link.close(), reason)
        self._ended.set()
        if self._on_lost is not None:
            self._on_lost()

    def _fail(self, waiters: list[asyncio.Future[Command]], problem: str) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionLost(self._address, problem))
