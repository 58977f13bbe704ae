"""Client connections to a real server over a socket, or to a recording of one."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    import ssl

    from downrange.wire.codes import HeaderCodec

# Long enough for a busy machine; a conversation that passes does not wait for it.
ANSWER_SECONDS = 60.0


class Channel(Protocol):
    """Sends frames to a server and receives its frames."""

    def send(self, frame: bytes) -> None: ...

    def receive(self, seconds: float) -> bytes:
        """Return the next frame; raise `TimeoutError` when none comes, `EOFError` at the end."""
        ...

    def close(self) -> None: ...


class Peer:
    """One connection to a server: sends requests, and keeps the server's own requests."""

    def __init__(self, channel: Channel, codec: HeaderCodec) -> None:
        self._channel = channel
        self._link: Link[int] = Link(codec=codec)
        self._requests: deque[Command] = deque()
        self._calls = 0

    def ask(self, command: Command, *, seconds: float = ANSWER_SECONDS) -> Command:
        """Send a request and return its reply."""
        return self.finish(self.start(command), seconds=seconds)

    def start(self, command: Command) -> int:
        """Send a request and return the number under which `finish` waits for its reply."""
        self._calls += 1
        self._channel.send(self._link.request(command, self._calls))
        return self._calls

    def finish(self, call: int, *, seconds: float = ANSWER_SECONDS) -> Command:
        """Wait for the reply to a started request; requests of the server are kept for later."""
        while True:
            for event in self._link.receive(self._channel.receive(seconds)):
                match event:
                    case ReplyArrived(waiter, reply) if waiter == call:
                        return reply
                    case RequestArrived(request):
                        self._requests.append(request)
                    case LinkBroken(error):
                        raise error
                    case other:
                        raise AssertionError(f"unexpected {other}")

    def notify(self, command: Command) -> None:
        """Send a one-way request."""
        self._channel.send(self._link.oneway(command))

    def answer(self, request: Command, reply: Command) -> None:
        """Answer a request of the server."""
        self._channel.send(self._link.reply(request, reply))

    def exchange_raw(self, frame: bytes) -> Command:
        """Send bytes without the link, and return the command that comes back."""
        self._channel.send(frame)
        frames = FrameSplitter()
        frames.receive(self._channel.receive(ANSWER_SECONDS))
        answer = frames.next_frame()
        assert answer is not None
        return decode(answer)

    def wait_request(self, code: int, *, seconds: float = ANSWER_SECONDS) -> Command:
        """Return the next request of the server with this code; others are dropped."""
        while True:
            while self._requests:
                request = self._requests.popleft()
                if request.code == code:
                    return request
            for event in self._link.receive(self._channel.receive(seconds)):
                if isinstance(event, RequestArrived):
                    self._requests.append(event.command)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


class SocketChannel:
    """Frames over TCP."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = (
            plain if context is None else context.wrap_socket(plain, server_hostname=host)
        )
        self._buffer = b""

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        while len(self._buffer) < 4 or len(self._buffer) < self._frame_size():
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the server closed the connection")
            self._buffer += data
        size = self._frame_size()
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        return frame

    def close(self) -> None:
        self._socket.close()

    def _frame_size(self) -> int:
        return 4 + int.from_bytes(self._buffer[:4], "big")
