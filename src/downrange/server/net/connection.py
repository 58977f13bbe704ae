"""One connection of a server: bytes in become events, replies become bytes out.

The connection decodes what it reads and passes the events to a `Dispatcher`, which handles them
and calls `reply`, `push` or `request`. Written frames are collected until `write_frames`.

Each peer has three limits, and none of them leads to an error reply:

- With `in_flight_max` requests waiting for late replies, or `unread_bytes_max` reply bytes not
  yet taken by the peer, the connection stops reading. Requests that were already read wait. The
  peer's TCP window fills up, so the peer slows down.
- A peer that does not take its replies within `unread_timeout` is disconnected.
- A peer that breaks the protocol is disconnected at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from downrange.errors import LinkClosed, LinkError, WireError
from downrange.server.outputs import Peer, refusal
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.link import Event, Link

if TYPE_CHECKING:
    from downrange.busy_poll import BusyPoll
    from downrange.options import ListenerOptions
    from downrange.server.outputs import OnReply
    from downrange.wire.command import Command
    from downrange.wire.send_replies import StoredForm, StoredReply
    from downrange.wire.send_runs import SendRun

_log: Final = logging.getLogger("downrange.server")

#: Frames are joined up to this size before they are written: enough to make good use of a
#: system call.
_WRITE_BYTES: Final = 64 * 1024
_ONEWAY: Final = int(CommandFlag.ONEWAY)
#: Runs are not taken where a reply to a send might not fit a frame.
_RUN_FRAME_BYTES_MIN: Final = 4096


class PendingCall(NamedTuple):
    """A request of the server that waits for the peer's reply."""

    on_reply: OnReply
    timer: asyncio.TimerHandle


class ConnectionCallbacks(Protocol):
    """Called by a connection; implemented by `Dispatcher`.

    Attributes:
        unwritten: A connection adds itself when it gets its first frame to write.
        takes_runs: Whether plain sends that are read together are one event.
    """

    unwritten: list[Connection]
    takes_runs: bool

    def on_connect(self, connection: Connection, /) -> None:
        """The connection can be used."""
        ...

    def on_events(self, connection: Connection, /) -> None:
        """`connection.events` has something to handle, or handling may go on."""
        ...

    def on_reply(self, pending: PendingCall, reply: Command | None, /) -> None:
        """A call got its reply, or None: it will not be answered."""
        ...

    def on_disconnect(self, connection: Connection, /) -> None:
        """The connection ended."""
        ...


class Connection(asyncio.Protocol):
    """One peer; made by `Listener`.

    Args:
        callbacks: Handles the events of this connection.
        peer: Its number and address.
        options: Limits.
        loop: The event loop that it runs in.
        busy_poll: Notified of every read, where the server polls.

    Attributes:
        peer: See above.
        loop: See above.
        events: Read and not yet handled.
        active_at: When bytes last went either way, in the loop's time.
        unanswered: How many requests wait for late replies.
        in_flight_max: The limit of `unanswered`.
        held: Ids of requests that are held until there is a message; they are not unanswered.
        turn_bytes: Frame bytes since the dispatcher last set it to 0.
        is_congested: Whether the peer leaves too many reply bytes unread.
        is_reading: Whether the limits allow to read from the peer.
    """

    def __init__(
        self,
        callbacks: ConnectionCallbacks,
        peer: Peer,
        options: ListenerOptions,
        loop: asyncio.AbstractEventLoop,
        busy_poll: BusyPoll | None = None,
    ) -> None:
        self.peer = peer
        self.loop = loop
        self.events: deque[Event[PendingCall]] = deque()
        self.active_at = loop.time()
        self.unanswered = 0
        self.in_flight_max = options.in_flight_max
        self.held: set[int] = set()
        self.turn_bytes = 0
        self.is_congested = False
        self.is_reading = True
        self._callbacks = callbacks
        self._options = options
        self._busy_poll = busy_poll
        self._link: Link[PendingCall] = Link(
            frame_bytes_max=options.frame_bytes_max,
            takes_runs=callbacks.takes_runs and options.frame_bytes_max >= _RUN_FRAME_BYTES_MIN,
        )
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._transport.set_write_buffer_limits(high=self._options.unread_bytes_max)
        self._callbacks.on_connect(self)

    def data_received(self, data: bytes) -> None:
        """Decode the bytes and have the events handled."""
        self.active_at = self.loop.time()
        if self._busy_poll is not None:
            self._busy_poll.on_read()
        self.events.extend(self._link.receive(data))
        self._callbacks.on_events(self)

    def pause_writing(self) -> None:
        """The peer leaves its replies unread: stop reading, and disconnect it after a while."""
        self.is_congested = True
        self._unread_timer = self.loop.call_later(self._options.unread_timeout, self._cut_unread)
        self.pause_or_resume_reading()

    def resume_writing(self) -> None:
        """The peer has read enough of its replies: handle more requests."""
        self.is_congested = False
        self._stop_unread_timer()
        self._callbacks.on_events(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls and report the end."""
        self._transport = None
        self._stop_unread_timer()
        self._end_link()
        self._callbacks.on_disconnect(self)

    # ---- called by the dispatcher ----

    def pause_or_resume_reading(self) -> None:
        """Pause or resume reading, as the limits say."""
        is_free = not self.is_congested and self.unanswered < self.in_flight_max
        if is_free is self.is_reading or self._transport is None or self._transport.is_closing():
            return
        self.is_reading = is_free
        if is_free:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def reply(self, request: Command, reply: Command | StoredReply) -> None:
        """Add the reply to a request; if it cannot be encoded, an error reply says why."""
        if request.flags & _ONEWAY:
            return
        try:
            data = self._link.reply(request, reply)
        except LinkClosed:
            return
        except WireError as error:
            remark = f"the reply cannot be sent: {error}"
            data = self._link.reply(request, refusal(ResponseCode.SYSTEM_ERROR, remark))
        self._add_frame(data)

    def hold(self, request: Command) -> bool:
        """Note that a request is held; return False if it must be counted as unanswered.

        That is so for a second one with the same id. Their replies cannot be told apart: the first
        takes the place among `held`, and the others that of an unanswered request.
        """
        if request.request_id in self.held:
            return False
        self.held.add(request.request_id)
        return True

    def reply_late(self, request: Command, reply: Command | StoredReply) -> None:
        """Add the reply to a request that was counted as unanswered, or is held."""
        if request.flags & _ONEWAY:
            return  # it was never counted
        if self.held and request.request_id in self.held:
            self.held.remove(request.request_id)
        else:
            self.unanswered -= 1
        self.reply(request, reply)

    def reply_run_late(self, run: SendRun, form: StoredForm, code: int) -> None:
        """Add the replies to the sends of a run, which were counted as unanswered."""
        self.unanswered -= run.reply_count
        try:
            data = self._link.reply_run(run, form, code)
        except LinkClosed:
            return
        if data:
            self._add_frame(data)

    def push(self, command: Command) -> None:
        """Add a one-way request of the server."""
        try:
            data = self._link.oneway(command)
        except LinkClosed:
            return
        except WireError as error:
            _log.error("request %d to %s is not sent: %s", command.code, self.peer.address, error)
            return
        self._add_frame(data)

    def request(self, command: Command, pending: PendingCall) -> bool:
        """Add a request of the server; return False when it cannot be sent."""
        try:
            data = self._link.request(command, pending)
        except (LinkError, WireError) as error:
            _log.info("request %d to %s is not sent: %s", command.code, self.peer.address, error)
            return False
        self._add_frame(data)
        return True

    def abandon(self, request_id: int) -> PendingCall | None:
        """Stop waiting for a reply; return the call, or None if it was answered before."""
        return self._link.abandon(request_id)

    def write_frames(self) -> None:
        """Write all frames that were added, with one call of the transport."""
        frames = self._frames
        if not frames:
            return
        if self._transport is not None:
            self.active_at = self.loop.time()
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        self._frames = []
        self._frames_bytes = 0

    def close(self) -> None:
        """Close the connection after what was written has been sent."""
        self.write_frames()
        self._end_link()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; what was written may be lost."""
        self._end_link()
        if self._transport is not None:
            self._transport.abort()

    # ---- internals ----

    def _add_frame(self, data: bytes) -> None:
        if not self._frames:
            self._callbacks.unwritten.append(self)
        self._frames.append(data)
        self._frames_bytes += len(data)
        self.turn_bytes += len(data)
        if self._frames_bytes >= _WRITE_BYTES:
            self.write_frames()

    def _end_link(self) -> None:
        for pending in self._link.close():
            self._callbacks.on_reply(pending, None)

    def _cut_unread(self) -> None:
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        _log.warning(
            "connection %s is cut: it left %d reply bytes unread for %g s",
            self.peer.address,
            size,
            self._options.unread_timeout,
        )
        self.abort()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
