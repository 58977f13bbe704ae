"""Connections that are slow or cut, as chance has it; what a connection carries stays in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from downrange.options import ListenerOptions
from downrange.server.net.connection import Connection
from downrange.server.outputs import Peer
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from downrange.server.net.dispatcher import Dispatcher
    from downrange.wire.command import Command
    from tests.simulation.clock import VirtualLoop

_LISTENING = ListenerOptions()


class Lost(Exception):
    """The connection ended, or no answer came: nobody knows what became of the request."""


class Owner(Protocol):
    """Where connections go to."""

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Takes new connections, or None while it is down."""
        ...


class Network:
    """All connections.

    Args:
        loop: Whose time they take.
        random: Decides on lags and cuts.
        owner: The machine of the broker.

    Attributes:
        cut_chance: How likely it is that a connection breaks instead of carrying something.
    """

    def __init__(self, loop: VirtualLoop, random: Random, owner: Owner) -> None:
        self.loop = loop
        self.random = random
        self.cut_chance = 0.0
        self._owner = owner
        self._open: dict[int, Line] = {}
        self._numbers = 0

    def connect(self, caller: Caller) -> Line:
        """Open a connection.

        Raises:
            Lost: Nobody listens.
        """
        dispatcher = self._owner.dispatcher
        if dispatcher is None:
            raise Lost("nobody listens")
        self._numbers += 1
        peer = Peer(self._numbers, f"10.0.0.9:{self._numbers % 50_000 + 1024}")
        line = self._open[peer.number] = Line(self, caller, peer, dispatcher)
        return line

    def cut_all(self) -> None:
        """Cut every connection: the machine is gone."""
        for line in list(self._open.values()):
            line.cut()

    def forget(self, line: Line) -> None:
        """Hear that a connection ended."""
        self._open.pop(line.peer.number, None)


class Line(asyncio.Transport):
    """One connection: the server's transport, and the client's link."""

    def __init__(
        self, network: Network, caller: Caller, peer: Peer, dispatcher: Dispatcher
    ) -> None:
        super().__init__()
        self.peer = peer
        self.link: Link[asyncio.Future[Command]] = Link()
        self.is_open = True
        self._network = network
        self._caller = caller
        self._due = {True: 0.0, False: 0.0}  # by direction: when the last thing arrives
        self._connection = Connection(dispatcher, peer, _LISTENING, network.loop)
        self._connection.connection_made(self)

    # ---- the client's end ----

    def send(self, data: bytes) -> None:
        """Carry bytes to the server."""
        self._carry(data, to_server=True)

    def cut(self) -> None:
        """End it, both ways; what is under way is lost."""
        if not self.is_open:
            return
        self.is_open = False
        self._network.forget(self)
        loop = self._network.loop
        loop.call_soon(self._connection.connection_lost, None)
        for waiter in self.link.close():
            if not waiter.done():
                waiter.set_exception(Lost("the connection was cut"))

    # ---- the server's end ----

    def write(self, data: Any) -> None:
        self._carry(bytes(data), to_server=False)

    def close(self) -> None:
        self.cut()

    def abort(self) -> None:
        self.cut()

    def is_closing(self) -> bool:
        return not self.is_open

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network takes whatever is written."""

    # ---- inside ----

    def _carry(self, data: bytes, *, to_server: bool) -> None:
        if not self.is_open:
            return
        network = self._network
        lag, fate = network.random.uniform(0.0001, 0.003), network.random.random()
        if fate < 0.001:
            lag = network.random.uniform(5, 25)  # longer than anybody waits for an answer
        elif fate < 0.02:
            lag = network.random.uniform(0.05, 0.5)
        due = max(network.loop.time() + lag, self._due[to_server])
        self._due[to_server] = due
        take: Callable[[bytes], None] = (
            self._connection.data_received if to_server else self._take_answer
        )
        network.loop.call_at(due, self._arrive, take, data)

    def _arrive(self, take: Callable[[bytes], None], data: bytes) -> None:
        if not self.is_open:
            return
        if self._network.random.random() < self._network.cut_chance:
            self.cut()
        else:
            take(data)

    def _take_answer(self, data: bytes) -> None:
        for event in self.link.receive(data):
            match event:
                case ReplyArrived(waiter, reply):
                    if not waiter.done():
                        waiter.set_result(reply)
                case RequestArrived(request):
                    self._caller.on_request(request)
                case LinkBroken(error):
                    raise error


def _ignore(_request: Command) -> None:
    """Take no notice of what the broker asks."""


class Caller:
    """One client's way to the broker; connects anew when it has lost its connection.

    Args:
        network: What it is connected by.
        on_request: Hears what the broker asks.
        on_connected: Returns what is said first on every new connection.
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
        self._line: Line | None = None

    @property
    def is_connected(self) -> bool:
        """Whether its last connection still stands, as far as it knows."""
        return self._line is not None and self._line.is_open

    async def call(self, command: Command, seconds: float = 8.0) -> Command:
        """Ask, and return the reply.

        Raises:
            Lost: There is none.
        """
        loop = self._network.loop
        waiter: asyncio.Future[Command] = loop.create_future()
        line = self._connected()
        line.send(line.link.request(command, waiter))
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            line.cut()
            raise Lost("no answer came") from None

    def tell(self, command: Command) -> None:
        """Send what is not answered.

        Raises:
            Lost: Nobody listens.
        """
        line = self._connected()
        line.send(line.link.oneway(command))

    def _connected(self) -> Line:
        if self._line is None or not self._line.is_open:
            self._line = self._network.connect(self)
            for command in self._on_connected():
                self.tell(command)
        return self._line
