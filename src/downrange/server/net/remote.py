"""A server's own requests to another server: one connection, made when it is needed.

One rule: every call ends by its deadline, with the reply or with an error that names the address.
Calls share the connection and do not wait for each other. Nothing is sent twice: a caller that
gets an error decides itself whether to ask again, and the next call connects anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from downrange.addresses import split_address
from downrange.errors import CallTimeout, ConnectFailed, ConnectionLost, LinkClosed
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.link import Link, LinkBroken, ReplyArrived
from downrange.wire.signing import sign

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from downrange.wire.command import Command

#: How long the other side may take to close a connection in order.
_CLOSE_TIMEOUT: Final = 1.0


class RemotePeer:
    """A server that ours asks.

    Args:
        address: "host:port"; an IPv6 address is in brackets.
        tls: How to speak TLS to it; plain text without.
        connect_timeout: How long it may take until the connection stands, TLS included.
        credentials: Access key and secret that commands are signed with.

    Attributes:
        address: See above.
        on_lost: Called when a connection has ended that we did not close.

    Raises:
        OptionError: The address is none.
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
        """Whether a connection stands."""
        return self._channel is not None and self._channel.is_open

    async def ask(self, command: Command, within: float) -> Command:
        """Send a request and return the reply, whatever its code.

        Raises:
            ConnectFailed: The peer cannot be reached.
            ConnectionLost: The connection ended before the reply came.
            CallTimeout: The reply did not come `within` seconds, connecting included.
            LinkError: The peer was closed, or too many requests wait for it.
            WireError: The command cannot be sent.
        """
        try:
            async with asyncio.timeout(within):
                channel = await self._connected()
                return await channel.ask(self._signed(command))
        except TimeoutError as error:
            raise CallTimeout(self.address, within) from error

    async def oneway(self, command: Command) -> None:
        """Send a request that is not answered.

        Raises:
            ConnectFailed: The peer cannot be reached.
            CallTimeout: The connection did not stand within `connect_timeout`.
            LinkError: The peer was closed.
            WireError: The command cannot be sent.
        """
        try:
            async with asyncio.timeout(self._connect_timeout):
                channel = await self._connected()
        except TimeoutError as error:
            raise CallTimeout(self.address, self._connect_timeout) from error
        channel.notify(self._signed(command))

    async def close(self) -> None:
        """Close the connection; calls that wait fail, later ones too. Harmless the second time."""
        self._is_closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    # ---- inside ----

    async def _connected(self) -> _Channel:
        """Return the connection, made anew where there is none; only one caller makes it."""
        async with self._connecting:
            self._check_open()
            if self._channel is not None and self._channel.is_open:
                return self._channel
            channel = await self._connect()
            if self._is_closed:  # while we connected
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
        except OSError as error:  # a time-out is one too
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
    """One connection of a `RemotePeer`, from its beginning to its end."""

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
        self._fail(self._link.close(), "the connection was closed by us")
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._ended.wait()
        except TimeoutError:
            self._transport.abort()

    # ---- what the event loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        for event in self._link.receive(data):
            if isinstance(event, ReplyArrived):
                if not event.waiter.done():
                    event.waiter.set_result(event.command)
            elif isinstance(event, LinkBroken):
                self._fail(event.waiters, f"it broke the protocol: {event.error}")
                self._transport.abort()
            elif not event.command.is_oneway:
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
