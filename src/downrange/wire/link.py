"""The protocol of one connection, without a socket: bytes in, events out.

A driver passes the bytes that it reads to `receive` and acts on the events; `request`, `oneway` and
`reply` return bytes for it to write. Both ends of a connection use the same class, since brokers
send requests to clients, too.

Request ids are counted per link and direction. A request from the peer may have the id of one of
our requests, so only commands marked as replies are matched with pending requests.

A link has no clock. After a timeout, the driver calls `abandon`; if the reply comes later, it is
counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import msgspec

from downrange.errors import LinkClosed, OptionError, TooManyInFlight, WireError
from downrange.wire.codes import CommandFlag, HeaderCodec
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter
from downrange.wire.limits import FRAME_BYTES_MAX, IN_FLIGHT_MAX
from downrange.wire.send_commands import SendCommand
from downrange.wire.send_replies import StoredForm, StoredReply
from downrange.wire.send_runs import SendRun, take_sends

if TYPE_CHECKING:
    from downrange.wire.send_answers import StoredAnswer

WaiterT = TypeVar("WaiterT")

_ID_MASK: Final = 0x7FFFFFFF
_CLOSED: Final = "the connection is closed"
_REPLY: Final = int(CommandFlag.REPLY)  # arithmetic with enum members costs as much as a frame
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class RequestArrived(msgspec.Struct, gc=False):
    """A request from the peer; answer with `Link.reply` unless the command is one-way."""

    command: Command


class RunArrived(msgspec.Struct, gc=False):
    """Plain sends from the peer; answer with `Link.reply_run`. Only with `takes_runs`."""

    run: SendRun


class ReplyArrived(msgspec.Struct, Generic[WaiterT], gc=False):
    """A reply from the peer; `waiter` is the argument of `Link.request`."""

    waiter: WaiterT
    command: Command


class LinkBroken(msgspec.Struct, Generic[WaiterT]):
    """The peer broke the protocol: close the connection and fail the waiters."""

    error: WireError
    waiters: list[WaiterT]


Event: TypeAlias = RequestArrived | RunArrived | ReplyArrived[WaiterT] | LinkBroken[WaiterT]


class Link(Generic[WaiterT]):
    """The protocol side of one connection.

    Args:
        codec: The encoding of request headers.
        frame_bytes_max: The largest frame that is received or sent.
        in_flight_max: How many requests may wait for replies at once.
        takes_runs: Whether plain sends that arrive together are one event, `RunArrived`.
    """

    __slots__ = (
        "_codec",
        "_frame_bytes_max",
        "_frames",
        "_in_flight",
        "_in_flight_max",
        "_is_closed",
        "_last_id",
        "_takes_runs",
        "late_replies",
    )

    def __init__(
        self,
        *,
        codec: HeaderCodec = HeaderCodec.JSON,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        takes_runs: bool = False,
    ) -> None:
        if frame_bytes_max < 8:
            raise OptionError(f"frame_bytes_max={frame_bytes_max} is less than 8")
        if in_flight_max < 1:
            raise OptionError(f"in_flight_max={in_flight_max} is less than 1")
        self._codec = codec
        self._frame_bytes_max = frame_bytes_max
        self._frames = FrameSplitter(frame_bytes_max)
        self._in_flight: dict[int, WaiterT] = {}
        self._in_flight_max = in_flight_max
        self._is_closed = False
        self._last_id = 0
        self._takes_runs = takes_runs
        #: Replies to abandoned or unknown requests.
        self.late_replies = 0

    @property
    def in_flight(self) -> int:
        """How many requests wait for their replies."""
        return len(self._in_flight)

    def waiting(self) -> list[tuple[int, WaiterT]]:
        """Return the id and the waiter of each request that waits for its reply."""
        return list(self._in_flight.items())

    @property
    def is_closed(self) -> bool:
        """Whether the link was closed, or broken by the peer."""
        return self._is_closed

    def request(self, command: Command | SendCommand, waiter: WaiterT) -> bytes:
        """Return the bytes of a request, and keep the waiter for the reply.

        The command's request id and header codec are set.

        Raises:
            LinkClosed: The link was closed or broken.
            TooManyInFlight: The limit is reached.
            Unencodable, FrameTooLarge: The command cannot be sent; the waiter is not kept.
        """
        if self._is_closed:
            raise LinkClosed(_CLOSED)
        if len(self._in_flight) >= self._in_flight_max:
            raise TooManyInFlight(self._in_flight_max)
        command.request_id = request_id = self._next_id()
        command.codec = self._codec
        if isinstance(command, SendCommand):
            data = command.encode(self._frame_bytes_max)
        else:
            data = encode(command, self._frame_bytes_max)
        self._in_flight[request_id] = waiter
        return data

    def oneway(self, command: Command | SendCommand) -> bytes:
        """Return the bytes of a request without a reply.

        Raises:
            LinkClosed: The link was closed or broken.
            Unencodable, FrameTooLarge: The command cannot be sent.
        """
        if self._is_closed:
            raise LinkClosed(_CLOSED)
        command.request_id = self._next_id()
        command.flags |= _ONEWAY
        command.codec = self._codec
        if isinstance(command, SendCommand):
            return command.encode(self._frame_bytes_max)
        return encode(command, self._frame_bytes_max)

    def reply(self, request: Command, reply: Command | StoredReply) -> bytes:
        """Return the bytes of the reply to a request, in the header codec of the request.

        Raises:
            LinkClosed: The link was closed or broken.
            Unencodable, FrameTooLarge: The command cannot be sent.
        """
        if self._is_closed:
            raise LinkClosed(_CLOSED)
        assert not request.flags & _ONEWAY, "a one-way request is never answered"
        if isinstance(reply, StoredReply):
            return reply.encode(request, self._frame_bytes_max)
        reply.request_id = request.request_id
        reply.flags = _REPLY
        reply.codec = request.codec
        return encode(reply, self._frame_bytes_max)

    def reply_run(self, run: SendRun, form: StoredForm, code: int) -> bytes:
        """Return the bytes of the replies to all sends of a run, in the codec of the requests.

        Raises:
            LinkClosed: The link was closed or broken.
        """
        if self._is_closed:
            raise LinkClosed(_CLOSED)
        return run.replies(form, code)

    def abandon(self, request_id: int) -> WaiterT | None:
        """Drop a pending request; return its waiter, or None if the reply came before."""
        return self._in_flight.pop(request_id, None)

    def receive(self, data: bytes) -> list[Event[WaiterT]]:
        """Take bytes from the peer and return the events in them, in order.

        Bad input does not raise: the last event is `LinkBroken`, and the link is closed. The
        events before it are valid. Bytes that arrive after that are ignored.
        """
        events: list[Event[WaiterT]] = []
        if self._is_closed:
            return events
        frames = self._frames
        frames.receive(data)
        try:
            while True:
                if self._takes_runs and (run := frames.next_run(take_sends)) is not None:
                    events.append(RunArrived(run))
                    continue
                frame = frames.next_frame()
                if frame is None:
                    break
                command = decode(frame)
                if not command.flags & _REPLY:
                    events.append(RequestArrived(command))
                elif command.request_id in self._in_flight:
                    waiter = self._in_flight.pop(command.request_id)
                    events.append(ReplyArrived(waiter, command))
                else:
                    self.late_replies += 1
        except WireError as error:
            events.append(LinkBroken(error, self.close()))
        return events

    def receive_answers(self, data: bytes) -> list[tuple[WaiterT, StoredAnswer]]:
        """Take bytes from the peer; return the plain replies to sends at their beginning.

        The rest is kept for `receive`, which has no bytes to take then. Most reads of a client that
        sends much have nothing else, and a reply costs a third of that of `receive`.
        """
        answers: list[tuple[WaiterT, StoredAnswer]] = []
        if self._is_closed:
            return answers
        in_flight, frames = self._in_flight, self._frames
        frames.receive(data)
        for answer in frames.next_answers():
            request_id = answer.request_id
            if request_id in in_flight:
                answers.append((in_flight.pop(request_id), answer))
            else:
                self.late_replies += 1
        return answers

    @property
    def has_rest(self) -> bool:
        """Whether bytes are left that `receive` has not read, or that are not a whole frame."""
        return not self._frames.is_idle

    def close(self) -> list[WaiterT]:
        """Close the link and return the waiters of pending requests; no reply will come."""
        self._is_closed = True
        waiters = list(self._in_flight.values())
        self._in_flight.clear()
        return waiters

    def _next_id(self) -> int:
        """Return the next id that no pending request has; after 2^31 - 1 comes 0."""
        request_id = (self._last_id + 1) & _ID_MASK
        while request_id in self._in_flight:
            request_id = (request_id + 1) & _ID_MASK
        self._last_id = request_id
        return request_id
