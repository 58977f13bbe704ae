"""One connection of a server: bytes to the link, requests to the service, replies back.

A peer is held to three limits without ever being told no. When it has too many requests waiting
for late replies, or leaves too many reply bytes unread, we stop reading from it, and what was read
waits; so its own TCP window fills up and it slows down. A peer that does not take its replies for
`unread_timeout` is cut off. Whoever breaks the protocol is cut off at once.

Requests that came together are handled together, but large replies one by one: in between the
event loop sees to the other peers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from downrange.errors import LinkClosed, LinkError, WireError
from downrange.server.outputs import Peer, refusal
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.link import Event, Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.busy_poll import BusyPoll
    from downrange.options import ListenerOptions
    from downrange.server.outputs import Output
    from downrange.wire.command import Command
    from downrange.wire.send_replies import StoredReply

    Then: TypeAlias = Callable[[Command | None, int], Iterable[Output]]

_log: Final = logging.getLogger("downrange.server")

#: Replies that are joined before they are written: enough for one system call to be well used.
_WRITE_BYTES: Final = 64 * 1024
#: After so many bytes of replies a connection lets the others have a turn: a few ms of work.
_TURN_BYTES: Final = 2 * 1024 * 1024
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class ConnectionOwner(Protocol):
    """What a connection tells the one who has it, and the two lists in which it asks for a turn.

    Attributes:
        ready: Takes connections whose `work` shall be called.
        unwritten: Takes connections whose `flush` shall be called.
    """

    ready: list[Connection]
    unwritten: list[Connection]

    def clock_ms(self) -> int:
        """Return the time that handlers are given."""
        ...

    def opened(self, connection: Connection, /) -> None:
        """Hear that a connection can be used."""
        ...

    def arrived(self, connection: Connection, request: Command, now_ms: int, /) -> None:
        """Hear of a request; answer it, or count it as unanswered."""
        ...

    def conclude(self, then: Then, reply: Command | None, now_ms: int, /) -> None:
        """Hear what came of a question."""
        ...

    def settle(self) -> None:
        """Give all who ask for it their turn."""
        ...

    def closed(self, connection: Connection, /) -> None:
        """Hear that a connection ended."""
        ...


class _Question(NamedTuple):
    """A request of ours that waits for its answer."""

    then: Then
    timer: asyncio.TimerHandle


class Connection(asyncio.Protocol):
    """One peer; made by `Listener`.

    Attributes:
        peer: Its number and address.
        active_at: When bytes last went either way, in the loop's time.
        unanswered: Requests that wait for late replies.
        loop: The event loop it lives in.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        peer: Peer,
        options: ListenerOptions,
        loop: asyncio.AbstractEventLoop,
        busy_poll: BusyPoll | None = None,
    ) -> None:
        self.peer = peer
        self.active_at = loop.time()
        self.unanswered = 0
        self.loop = loop
        self._owner = owner
        self._options = options
        self._busy_poll = busy_poll
        self._link: Link[_Question] = Link(frame_bytes_max=options.frame_bytes_max)
        self._events: deque[Event[_Question]] = deque()
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._turn_bytes = 0  # of replies in this turn
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
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
        self.active_at = self.loop.time()
        if self._busy_poll is not None:
            self._busy_poll.on_read()
        self._events.extend(self._link.receive(data))
        self._owner.ready.append(self)
        self._owner.settle()

    def pause_writing(self) -> None:
        """The peer leaves its replies unread: read no more of it, and wait for a while."""
        self._is_congested = True
        self._cut_timer = self.loop.call_later(self._options.unread_timeout, self._cut_reader)
        self._read_or_wait()

    def resume_writing(self) -> None:
        """The peer took half of them: go on."""
        self._is_congested = False
        self._stop_cut_timer()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything; what was read and not yet handled has nobody to be answered to."""
        self._transport = None
        self._stop_cut_timer()
        self._end_link()
        events, self._events = self._events, deque()
        for event in events:
            if not isinstance(event, RequestArrived):
                self._take(event)
        self._owner.closed(self)

    # ---- what the owner calls ----

    def work(self) -> None:
        """Handle what was read, as far as the limits allow, and not too much of it in one go."""
        events, owner = self._events, self._owner
        in_flight_max = self._options.in_flight_max
        is_traced = _log.isEnabledFor(logging.DEBUG)
        now_ms = owner.clock_ms()  # one moment for all that came with one read
        self._turn_bytes = 0
        while events and self.unanswered < in_flight_max and not self._is_congested:
            if self._turn_bytes >= _TURN_BYTES:
                self.loop.call_soon(self._go_on)
                break
            event = events.popleft()
            if isinstance(event, RequestArrived):
                request = event.command
                if is_traced:
                    _log.debug("< %d %d %s", request.code, request.request_id, self.peer.address)
                owner.arrived(self, request, now_ms)
            else:
                self._take(event)
        self._read_or_wait()

    def flush(self) -> None:
        """Write what there is to write, in one piece."""
        frames = self._frames
        if not frames:
            return
        if self._transport is not None:
            self.active_at = self.loop.time()
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        self._frames = []
        self._frames_bytes = 0

    def answer(self, request: Command, reply: Command | StoredReply) -> None:
        """Write the reply to a request, or the reason why it cannot be written."""
        if request.flags & _ONEWAY:
            return
        try:
            data = self._link.reply(request, reply)
        except LinkClosed:
            return
        except WireError as error:
            remark = f"the reply cannot be sent: {error}"
            data = self._link.reply(request, refusal(ResponseCode.SYSTEM_ERROR, remark))
        self._write(data)

    def answer_late(self, request: Command, reply: Command | StoredReply) -> None:
        """Write the reply to a request that was left unanswered."""
        if request.flags & _ONEWAY:
            return  # it was never counted
        self.unanswered -= 1
        if not self._is_reading:
            self._owner.ready.append(self)
        self.answer(request, reply)

    def push(self, command: Command) -> None:
        """Write a request of ours that is not answered."""
        try:
            data = self._link.oneway(command)
        except LinkClosed:
            return
        except WireError as error:
            _log.error("request %d to %s is not sent: %s", command.code, self.peer.address, error)
            return
        self._write(data)

    def ask(self, command: Command, timeout: float, then: Then) -> bool:
        """Write a request of ours; the owner concludes it. Say whether that could be done."""
        timer = self.loop.call_later(timeout, self._give_up, command)
        try:
            data = self._link.request(command, _Question(then, timer))
        except (LinkError, WireError) as error:
            timer.cancel()
            _log.info("request %d to %s is not sent: %s", command.code, self.peer.address, error)
            return False
        self._write(data)
        return True

    def close(self) -> None:
        """Close the connection once what was written has gone."""
        self.flush()
        self._end_link()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection; what was written may be lost."""
        self._end_link()
        if self._transport is not None:
            self._transport.abort()

    # ---- inside ----

    def _take(self, event: ReplyArrived[_Question] | LinkBroken[_Question]) -> None:
        if isinstance(event, ReplyArrived):
            self._conclude(event.waiter, event.command)
            return
        _log.warning("connection %s is cut: %s", self.peer.address, event.error)
        for question in event.waiters:
            self._conclude(question, None)
        self.close()

    def _go_on(self) -> None:
        """Handle more of what was read."""
        self._owner.ready.append(self)
        self._owner.settle()

    def _give_up(self, command: Command) -> None:
        question = self._link.abandon(command.request_id)
        if question is not None:
            self._conclude(question, None)
            self._owner.settle()

    def _end_link(self) -> None:
        for question in self._link.close():
            self._conclude(question, None)

    def _conclude(self, question: _Question, reply: Command | None) -> None:
        question.timer.cancel()
        self._owner.conclude(question.then, reply, self._owner.clock_ms())

    def _read_or_wait(self) -> None:
        """Read on, or stop reading, as the limits tell."""
        is_free = not self._is_congested and self.unanswered < self._options.in_flight_max
        if is_free is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = is_free
        if is_free:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _write(self, data: bytes) -> None:
        if not self._frames:
            self._owner.unwritten.append(self)
        self._frames.append(data)
        self._frames_bytes += len(data)
        self._turn_bytes += len(data)
        if self._frames_bytes >= _WRITE_BYTES:
            self.flush()

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
