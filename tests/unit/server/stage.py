"""A connection with a fake event loop, transport and service."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from downrange.options import ListenerOptions
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher
from downrange.server.outputs import AskNameServer, LateReply, OnReply, Output, Peer, Reply
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

#: The service keeps a request with the first code; the second releases the last kept one.
KEEP, RELEASE = 999, 998


class FakeTimer:
    """Keeps a scheduled call; the test runs it."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """An event loop with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []
        self.turns: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, run: Callable[..., None], *arguments: Any) -> None:
        self.turns.append(lambda: run(*arguments))

    def call_later(self, delay: float, run: Callable[..., None], *arguments: Any) -> FakeTimer:
        self.timers.append(FakeTimer(lambda: run(*arguments)))
        return self.timers[-1]


class FakeTransport:
    """Keeps what was written, and pauses writing at its limit."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.writes: list[bytes] = []
        self.high = 0
        self.unread = 0
        self.is_reading = True
        self.state = "open"

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        before, self.unread = self.unread, self.unread + len(data)
        if before <= self.high < self.unread:
            self.connection.pause_writing()

    def drain(self) -> None:
        self.unread = 0
        self.connection.resume_writing()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def replies(self) -> list[Command]:
        frames = FrameSplitter()
        frames.receive(b"".join(self.writes))
        found: list[Command] = []
        while (frame := frames.next_frame()) is not None:
            found.append(decode(frame))
        return found


class FakeService:
    """Answers every request at once; keeps those with the code KEEP."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.kept: list[LateReply] = []
        self.body = b""

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        self.events.append(str(request.code))
        if request.code == KEEP:
            self.kept.append(LateReply(peer.number, request, Command(0)))
            return ()
        reply = Reply(Command(0, body=self.body))
        return [self.kept.pop(), reply] if request.code == RELEASE else [reply]

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        self.events.append("lost")
        return ()


class Stage:
    """A connection with a fake event loop, transport and service."""

    def __init__(self, **options: Any) -> None:
        self.service = FakeService()
        self.questions: list[AskNameServer] = []
        self.loop = FakeLoop()
        self.dispatcher = Dispatcher(
            self.service,
            clock_ms=lambda: int(self.loop.now * 1000),
            logger=logging.getLogger("downrange.test"),
            on_closed=lambda _: None,
            ask_name_server=self.questions.append,
        )
        self._options = ListenerOptions(**options)
        self.transport = self.join(Peer(1, "10.0.0.7:4242"))
        self.connection = self.transport.connection

    def join(self, peer: Peer) -> FakeTransport:
        """Connect a peer."""
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        transport = FakeTransport(Connection(self.dispatcher, peer, self._options, loop))
        transport.connection.connection_made(cast("asyncio.Transport", transport))
        return transport

    def receive(self, *codes: int, **changes: Any) -> None:
        commands = [Command(code, request_id=n, **changes) for n, code in enumerate(codes)]
        self.connection.data_received(b"".join(map(encode, commands)))

    def release(self, *numbers: int) -> None:
        """Answer kept requests, by index."""
        self.dispatcher.perform([self.service.kept[number] for number in numbers])
