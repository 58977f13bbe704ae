"""Servers at the other end of socket pairs, each in a thread; and drivers that dial them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.dialer import Dialer
from downrange.client.drivers.identity import SystemClock
from downrange.client.drivers.threads import ThreadDriver
from downrange.client.flows.effects import Call, Flow
from downrange.errors import ConnectFailed
from downrange.wire.command import Command
from downrange.wire.link import Link, RequestArrived
from tests.unit.client.flows.flow_steps import core_with

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from downrange.client.flows.client_core import ClientCore
    from downrange.options import ClientOptions

#: Returns the reply to a request; None for no reply.
Serve: TypeAlias = Callable[["Peer", Command], Command | None]
#: Longer than anything here takes.
PATIENCE = 60.0


def agree(_: Peer, command: Command) -> Command:
    """Answer every request with its own body."""
    return Command(0, body=command.body)


def silence(_: Peer, __: Command) -> None:
    """Answer nothing."""


class Peer:
    """The server's end of one connection.

    Attributes:
        requests: What came, in order.
        replies: What came as answers to requests of ours.
        is_ended: Set when the client has closed its end.
    """

    def __init__(self, end: socket.socket, serve: Serve) -> None:
        self.requests: list[Command] = []
        self.replies: list[Command] = []
        self.is_ended = threading.Event()
        self.has_heard = threading.Semaphore(0)
        self._end = end
        self._link: Link[None] = Link()
        self._serve = serve
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def push(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._end.sendall(data)

    def ask(self, command: Command) -> None:
        """Send a request to the client."""
        self.push(self._link.request(command, None))

    def reply(self, request: Command, answer: Command) -> None:
        """Answer a request, perhaps late."""
        self.push(self._link.reply(request, answer))

    def cut(self) -> None:
        """End the connection at once."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
        self._end.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._end.recv(65_536):
                for event in self._link.receive(data):
                    if type(event) is not RequestArrived:
                        self.replies.append(event.command)  # type: ignore[union-attr]
                        self.has_heard.release()
                        continue
                    self.requests.append(event.command)
                    answer = self._serve(self, event.command)
                    if answer is not None and not event.command.is_oneway:
                        self.reply(event.command, answer)
                    self.has_heard.release()
        self.is_ended.set()


class FakeDialer(Dialer):
    """Connects to peers in this process.

    Attributes:
        serve: How peers answer.
        peers: Those that were connected to, in order.
        failure: What dialing fails with instead.
    """

    def __init__(self, serve: Serve = agree) -> None:
        super().__init__(None, None, PATIENCE)
        self.serve = serve
        self.peers: list[Peer] = []
        self.failure: Exception | None = None
        self.is_reading = True
        self._dialed = threading.Semaphore(0)

    def wait_for_request(self, number: int = 0) -> None:
        """Wait until the peer of this number was dialed, and has got a request."""
        for _ in range(number + 1):
            assert self._dialed.acquire(timeout=PATIENCE)
        assert self.peers[number].has_heard.acquire(timeout=PATIENCE)

    def _dial(self) -> socket.socket:
        if self.failure is not None:
            raise self.failure
        ours, theirs = socket.socketpair()
        peer = Peer(theirs, lambda peer, command: self.serve(peer, command))
        self.peers.append(peer)
        if self.is_reading:
            peer.start()
        self._dialed.release()
        return ours

    def connect(self, address: str, within: float) -> socket.socket:
        return self._dial()

    async def open(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        address: str,
    ) -> None:
        ours = self._dial()
        await loop.create_connection(protocol, sock=ours)

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def real_core(options: ClientOptions | None = None) -> ClientCore:
    """Return a core whose clock is the system's."""
    core = core_with(options=options)
    core.clock = SystemClock()
    return core


def refused() -> ConnectFailed:
    return ConnectFailed("a:1", "connection refused")


@contextlib.asynccontextmanager
async def aio_driver(
    dialer: FakeDialer | None = None, options: ClientOptions | None = None
) -> AsyncGenerator[AioDriver]:
    """Return a driver on the running loop; afterwards everything is closed."""
    dialer = dialer or FakeDialer()
    driver = AioDriver(real_core(options), dialer)
    await driver.start()
    try:
        yield driver
    finally:
        await driver.close()
        dialer.close()


@contextlib.contextmanager
def thread_driver(
    dialer: FakeDialer | None = None, options: ClientOptions | None = None
) -> Generator[ThreadDriver]:
    """Return a driver that has started; afterwards everything is closed."""
    dialer = dialer or FakeDialer()
    driver = ThreadDriver(real_core(options), dialer)
    driver.start()
    try:
        yield driver
    finally:
        driver.close()
        dialer.close()


def asking(
    driver: AioDriver,
    body: bytes = b"",
    *,
    timeout: float = PATIENCE,
    address: str = "a:1",
    is_oneway: bool = False,
    fields: dict[str, str] | None = None,
) -> Flow[Command]:
    """Return a flow of one call."""
    deadline = driver.clock.now() + timeout
    reply: Command = yield Call(address, Command(11, fields or {}, body), deadline, is_oneway)
    return reply


def with_driver(
    main: Callable[[AioDriver, FakeDialer], Awaitable[Any]],
    dialer: FakeDialer | None = None,
    options: ClientOptions | None = None,
) -> Any:
    """Run a coroutine function with a driver on a new event loop."""
    dialer = dialer or FakeDialer()

    async def enter() -> Any:
        async with aio_driver(dialer, options) as driver:
            return await main(driver, dialer)

    return asyncio.run(enter())
