"""Connections with random delays and cuts; the bytes of one connection stay in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from downrange.options import ListenerOptions
from downrange.server.net.connection import Connection
from downrange.server.outputs import Peer
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived, RunArrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from downrange.server.net.dispatcher import Dispatcher
    from downrange.wire.command import Command
    from tests.simulation.clock import VirtualLoop

_LIMITS = ListenerOptions()
ChannelT = TypeVar("ChannelT", bound="Channel")


class Lost(Exception):
    """The connection ended, or no answer came: the outcome of the request is unknown."""


class Host(Protocol):
    """The machine that connections lead to."""

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Takes new connections; None while the broker is down."""
        ...


class Network:
    """All connections.

    Args:
        loop: The simulated clock.
        random: Decides on delays and cuts.
        host: The machine of the broker.

    Attributes:
        cut_chance: The probability that a connection is cut instead of delivering bytes.
        is_slow: Whether some bytes take long.
    """

    def __init__(self, loop: VirtualLoop, random: Random, host: Host) -> None:
        self.loop = loop
        self.random = random
        self.cut_chance = 0.0
        self.is_slow = True
        self._host = host
        self._open: dict[int, Channel] = {}
        self._numbers = 0

    def connect(self, caller: Caller) -> Channel:
        """Open a connection of a caller.

        Raises:
            Lost: The broker does not listen.
        """
        return self._add(lambda peer, dispatcher: Channel(self, caller, peer, dispatcher))

    def connect_protocol(self, protocol: asyncio.Protocol) -> ProtocolChannel:
        """Open a connection of a client's own protocol, which is told that it is made.

        Raises:
            Lost: The broker does not listen.
        """
        channel = self._add(
            lambda peer, dispatcher: ProtocolChannel(self, protocol, peer, dispatcher)
        )
        protocol.connection_made(ClientEnd(channel))
        return channel

    def _add(self, make: Callable[[Peer, Dispatcher], ChannelT]) -> ChannelT:
        """Open a connection.

        Raises:
            Lost: The broker does not listen.
        """
        dispatcher = self._host.dispatcher
        if dispatcher is None:
            raise Lost("the broker does not listen")
        self._numbers += 1
        peer = Peer(self._numbers, f"10.0.0.9:{self._numbers % 50_000 + 1024}")
        channel = make(peer, dispatcher)
        self._open[peer.number] = channel
        return channel

    def cut_all(self) -> None:
        """Cut every connection: the machine is down."""
        for channel in list(self._open.values()):
            channel.cut()

    def on_close(self, channel: Channel) -> None:
        """Remove a connection that ended."""
        self._open.pop(channel.peer.number, None)


class Channel(asyncio.Transport):
    """One connection: the server's transport, and the client's link."""

    def __init__(
        self, network: Network, caller: Caller | None, peer: Peer, dispatcher: Dispatcher
    ) -> None:
        super().__init__()
        self.peer = peer
        self.link: Link[asyncio.Future[Command]] = Link()
        self.is_open = True
        self._network = network
        self._caller = caller
        self._due = {True: 0.0, False: 0.0}  # by direction: when the last bytes arrive
        self._connection = Connection(dispatcher, peer, _LIMITS, network.loop)
        self._connection.connection_made(self)

    # ---- the client's end ----

    def send(self, data: bytes) -> None:
        """Send bytes to the server."""
        self._send(data, to_server=True)

    def cut(self) -> None:
        """Close both directions; bytes under way are lost."""
        if not self.is_open:
            return
        self.is_open = False
        self._network.on_close(self)
        loop = self._network.loop
        loop.call_soon(self._connection.connection_lost, None)
        for waiter in self.link.close():
            if not waiter.done():
                waiter.set_exception(Lost("the connection was cut"))

    # ---- the server's end ----

    def write(self, data: Any) -> None:
        self._send(bytes(data), to_server=False)

    def close(self) -> None:
        self.cut()

    def abort(self) -> None:
        self.cut()

    def is_closing(self) -> bool:
        return not self.is_open

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the simulated network has no limit."""

    # ---- internals ----

    def _send(self, data: bytes, *, to_server: bool) -> None:
        if not self.is_open:
            return
        network = self._network
        lag, chance = network.random.uniform(0.0001, 0.003), network.random.random()
        if not network.is_slow:
            pass
        elif chance < 0.001:
            lag = network.random.uniform(5, 25)  # longer than the timeout of a call
        elif chance < 0.02:
            lag = network.random.uniform(0.05, 0.5)
        due = max(network.loop.time() + lag, self._due[to_server])
        self._due[to_server] = due
        receive: Callable[[bytes], None] = (
            self._connection.data_received if to_server else self._on_reply_bytes
        )
        network.loop.call_at(due, self._arrive, receive, data)

    def _arrive(self, receive: Callable[[bytes], None], data: bytes) -> None:
        if not self.is_open:
            return
        if self._network.random.random() < self._network.cut_chance:
            self.cut()
        else:
            receive(data)

    def _on_reply_bytes(self, data: bytes) -> None:
        for event in self.link.receive(data):
            match event:
                case ReplyArrived(waiter, reply):
                    if not waiter.done():
                        waiter.set_result(reply)
                case RequestArrived(request):
                    assert self._caller is not None
                    self._caller.on_request(request)
                case LinkBroken(error):
                    raise error
                case RunArrived():
                    raise AssertionError("a client's link takes no runs of sends")


class ProtocolChannel(Channel):
    """A connection whose client's end is a protocol of asyncio, such as that of a real client."""

    def __init__(
        self, network: Network, protocol: asyncio.Protocol, peer: Peer, dispatcher: Dispatcher
    ) -> None:
        super().__init__(network, None, peer, dispatcher)
        self._protocol = protocol

    def cut(self) -> None:
        """Close both directions, and tell the protocol."""
        if self.is_open:
            super().cut()
            self._network.loop.call_soon(self._protocol.connection_lost, None)

    def _on_reply_bytes(self, data: bytes) -> None:
        self._protocol.data_received(data)


class ClientEnd(asyncio.Transport):
    """The transport of a client's protocol."""

    def __init__(self, channel: ProtocolChannel) -> None:
        super().__init__()
        self._channel = channel

    def write(self, data: Any) -> None:
        self._channel.send(bytes(data))

    def close(self) -> None:
        self._channel.cut()

    def abort(self) -> None:
        self._channel.cut()

    def is_closing(self) -> bool:
        return not self._channel.is_open


def _ignore(_request: Command) -> None:
    """Ignore a request of the broker."""


class Caller:
    """One client's connection to the broker; reconnects after a cut.

    Args:
        network: Opens its connections.
        on_request: Called with requests of the broker.
        on_connected: Returns the commands to send first on every new connection.
    """

    def __init__(
        self,
        network: Network,
        on_request: Callable[[Command], None] = _ignore,
        on_connected: Callable[[], list[Command]] = list,
    ) -> None:
        self.on_request = on_request
        self._network = network
        self._on_connected = on_connected
        self._channel: Channel | None = None

    @property
    def is_connected(self) -> bool:
        """Whether its last connection is open."""
        return self._channel is not None and self._channel.is_open

    async def call(self, command: Command, seconds: float = 8.0) -> Command:
        """Send a request and return the reply.

        Raises:
            Lost: No reply came.
        """
        loop = self._network.loop
        waiter: asyncio.Future[Command] = loop.create_future()
        channel = self._connected()
        channel.send(channel.link.request(command, waiter))
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            channel.cut()
            raise Lost("no answer came") from None

    def cut(self) -> None:
        """Drop the connection; the next call opens another one."""
        if self._channel is not None:
            self._channel.cut()

    def notify(self, command: Command) -> None:
        """Send a one-way request.

        Raises:
            Lost: The broker does not listen.
        """
        channel = self._connected()
        channel.send(channel.link.oneway(command))

    def _connected(self) -> Channel:
        if self._channel is None or not self._channel.is_open:
            self._channel = self._network.connect(self)
            for command in self._on_connected():
                self.notify(command)
        return self._channel
