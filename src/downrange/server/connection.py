"""One connection of a server: bytes to the link, requests to the service, replies back.

A peer is held to three limits without ever being told no. When it has too many requests waiting
for late replies, or leaves too many reply bytes unread, we stop reading from it, and what was read
waits; so its own TCP window fills up and it slows down. A peer that does not take its replies for
`unread_timeout` is cut off. Whoever breaks the protocol is cut off at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from downrange.errors import LinkClosed, WireError
from downrange.handling import Peer, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.link import Event, Link, LinkBroken, RequestArrived

if TYPE_CHECKING:
    from downrange.options import ListenerOptions
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.server")

#: Replies that are joined before they are written: enough for one system call to be well used.
_WRITE_BYTES: Final = 64 * 1024


class ConnectionOwner(Protocol):
    """What a connection tells its listener."""

    def opened(self, connection: Connection, /) -> None:
        """Hear that a connection can be used."""
        ...

    def arrived(self, connection: Connection, request: Command, /) -> None:
        """Hear of a request; answer it, or count it as unanswered."""
        ...

    def closed(self, connection: Connection, /) -> None:
        """Hear that a connection ended."""
        ...


class Connection(asyncio.Protocol):
    """One peer; made by `Listener`.

    Attributes:
        peer: Its number and address.
        active_at: When bytes last went either way, in the loop's time.
        unanswered: Requests that wait for late replies.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        peer: Peer,
        options: ListenerOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.peer = peer
        self.active_at = loop.time()
        self.unanswered = 0
        self._owner = owner
        self._options = options
        self._loop = loop
        self._link: Link[None] = Link(frame_bytes_max=options.frame_bytes_max)
        self._events: deque[Event[None]] = deque()
        self._replies: list[bytes] = []
        self._reply_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._is_working = False
        self._is_congested = False
        self._cut_timer: asyncio.TimerHandle | None = None

    # ---- what the event loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=self._options.unread_bytes_max)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self.active_at = self._loop.time()
        self._events.extend(self._link.receive(data))
        self._work()

    def pause_writing(self) -> None:
        """The peer leaves its replies unread: read no more of it, and wait for a while."""
        self._is_congested = True
        self._cut_timer = self._loop.call_later(self._options.unread_timeout, self._cut_reader)

    def resume_writing(self) -> None:
        """The peer took half of them: go on."""
        self._is_congested = False
        self._stop_cut_timer()
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything; what was read and not yet handled has nobody to be answered to."""
        self._transport = None
        self._events.clear()
        self._stop_cut_timer()
        self._link.close()
        self._owner.closed(self)

    # ---- what the listener calls ----

    def answer(self, request: Command, reply: Command) -> None:
        """Write the reply to a request, or the reason why it cannot be written."""
        if request.is_oneway:
            return
        try:
            data = self._link.reply(request, reply)
        except LinkClosed:
            return
        except WireError as error:
            remark = f"the reply cannot be sent: {error}"
            data = self._link.reply(request, refusal(ResponseCode.SYSTEM_ERROR, remark))
        self._write(data)

    def answer_late(self, request: Command, reply: Command) -> None:
        """Write the reply to a request that was left unanswered, and go on with what waits."""
        self.unanswered -= 1
        self.answer(request, reply)
        self._work()

    def push(self, command: Command) -> None:
        """Write a request of ours that is not answered."""
        try:
            data = self._link.oneway(command)
        except LinkClosed:
            return
        self._write(data)
        if not self._is_working:
            self._flush()

    def close(self) -> None:
        """Close the connection once what was written has gone."""
        self._flush()
        self._link.close()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection; what was written may be lost."""
        self._link.close()
        if self._transport is not None:
            self._transport.abort()

    # ---- inside ----

    def _work(self) -> None:
        """Handle what was read, as far as the limits allow, and write the replies at once."""
        if self._is_working:
            return  # a late reply given while a request is handled: the loop below goes on
        self._is_working = True
        while self._events and not self._must_wait():
            event = self._events.popleft()
            if isinstance(event, RequestArrived):
                self._owner.arrived(self, event.command)
            else:  # no reply can arrive, as we send only what is not answered
                assert isinstance(event, LinkBroken)
                _log.warning("connection %s is cut: %s", self.peer.address, event.error)
                self.close()
            if self._reply_bytes >= _WRITE_BYTES:
                self._flush()
        self._is_working = False
        self._flush()
        if self._transport is None or self._transport.is_closing():
            return
        if self._must_wait():
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _must_wait(self) -> bool:
        return self._is_congested or self.unanswered >= self._options.in_flight_max

    def _write(self, data: bytes) -> None:
        self._replies.append(data)
        self._reply_bytes += len(data)

    def _flush(self) -> None:
        if self._replies and self._transport is not None:
            self.active_at = self._loop.time()
            data = self._replies[0] if len(self._replies) == 1 else b"".join(self._replies)
            self._transport.write(data)
        self._replies.clear()
        self._reply_bytes = 0

    def _cut_reader(self) -> None:
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        _log.warning(
            "connection %s is cut: it left %d reply bytes unread for %g s",
            self.peer.address,
            size,
            self._options.unread_timeout,
        )
        self.abort()

    def _stop_cut_timer(self) -> None:
        if self._cut_timer is not None:
            self._cut_timer.cancel()
            self._cut_timer = None
