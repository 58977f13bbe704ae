"""One connection of an event loop to a server: requests out, replies to their callers.

Requests of one turn of the loop go out in one write. A reply resumes its caller directly. Calls
that are late are found in one sweep, which the driver's `Deadlines` start at the earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from downrange.client.drivers.awaited_send import resume_together
from downrange.errors import CallTimeout, ConnectionLost, RocketMQError
from downrange.wire.codes import HeaderCodec
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    from downrange.busy_poll import BusyPoll
    from downrange.client.drivers.deadlines import Deadlines
    from downrange.client.drivers.dialer import Dialer
    from downrange.client.drivers.flow_task import Scheduler
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Call, Clock
    from downrange.options import ClientOptions
    from downrange.wire.command import Command
    from downrange.wire.send_commands import SendCommand

_log = logging.getLogger("downrange.drivers")
#: A late call is found at most this many seconds after its deadline: one sweep finds several.
_SWEEP_DELAY: Final = 0.005
#: A sweep that begins so many seconds late follows a stall of this process: replies may wait in the
#: socket. They are read first, for at most `_SILENCE`.
_STALL: Final = 0.1
#: A connection is closed when a call is late and nothing has arrived for so many seconds: the peer
#: may be gone without a FIN, which the system reports only after a quarter of an hour.
_SILENCE: Final = 1.0
#: Requests of one turn are joined unless they are larger than this on average: above, a copy costs
#: more than a write.
_JOINED_BYTES_MAX: Final = 16 * 1024
_NEVER: Final = float("inf")


class Caller(Protocol):
    """The maker of a call, resumed when the call ends; the connection keeps its fields.

    Attributes:
        connection: Where the call went.
        request_id: The id of the request there.
        called_at: When the call began.
        deadline: When the call is given up.
    """

    connection: Connection | None
    request_id: int
    called_at: float
    deadline: float

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Continue with an answer or an error."""
        ...


class ConnectionOwner(Protocol):
    """The driver of connections, as a connection sees it."""

    core: ClientCore
    loop: asyncio.AbstractEventLoop
    clock: Clock
    dialer: Dialer
    deadlines: Deadlines
    options: ClientOptions
    scheduler: Scheduler
    busy_poll: BusyPoll | None

    def on_connect(self, connection: Connection) -> None:
        """Called when a connection is open."""
        ...

    def on_request(self, connection: Connection, request: Command) -> None:
        """Called with a request of the server; answered with `Connection.reply`."""
        ...

    def on_disconnect(self, connection: Connection) -> None:
        """Called once when a connection has ended, or could not be opened."""
        ...


class Connection(asyncio.Protocol):
    """One connection to a server, from its first call to its end.

    Attributes:
        address: The server.
        used_at: When something was written last.
        is_ended: Whether it takes no more calls.
        deadline: When the next sweep is due; for `Deadlines`.
    """

    def __init__(self, owner: ConnectionOwner, address: str) -> None:
        self.address = address
        self.used_at = owner.clock.now()
        self.is_ended = False
        self.deadline = _NEVER
        self._owner = owner
        self._clock = owner.clock
        self._busy_poll = owner.busy_poll
        options = owner.options
        codec = HeaderCodec.BINARY if options.header_codec == "binary" else HeaderCodec.JSON
        self._link: Link[Caller] = Link(codec=codec, in_flight_max=options.in_flight_max)
        #: Replies to sends are not looked at by hooks, so they may have their short form.
        self._reads_answers = owner.core.is_plain
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._unsent: list[bytes] = []
        #: Callers of one-way requests that are not written yet, each with its request.
        self._notifiers: list[tuple[Caller, bytes]] = []
        self._is_flushing = False
        self._is_paused = False
        #: When the first request went out after which nothing came in.
        self._silent_since: float | None = None
        #: The earliest deadline of a call, as far as the next sweep is concerned.
        self._earliest = _NEVER
        self._connecting = owner.loop.create_task(self._connect())

    @property
    def is_open(self) -> bool:
        """Whether the connection is established and not ended."""
        return self._transport is not None and not self.is_ended

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left on the loop."""
        if self._connecting.cancelled():
            return True  # the loop closes a socket that was being opened, uvloop without a callback
        return self._is_lost or (self._transport is None and self._connecting.done())

    @property
    def in_flight(self) -> int:
        """How many requests wait for their replies."""
        return self._link.in_flight

    @property
    def late_replies(self) -> int:
        """How many replies arrived after their calls were given up."""
        return self._link.late_replies

    # ---- out -----------------------------------------------------------------------------------

    def call(self, caller: Caller, call: Call) -> None:
        """Send a request; the caller is resumed with the reply.

        Raises:
            LinkError: Too many requests are in flight.
            WireError: The command cannot be encoded.
        """
        caller.deadline = call.deadline
        caller.called_at = self._clock.now()
        self.request(caller, call.command)

    def request(self, caller: Caller, command: Command | SendCommand) -> None:
        """Send a request of a caller that has set `deadline` and `called_at`; see `call`."""
        self._write(self._link.request(command, caller))
        caller.connection, caller.request_id = self, command.request_id
        if self._silent_since is None:
            self._silent_since = caller.called_at
        if caller.deadline < self._earliest:
            self._sweep_after(caller.deadline)

    def abandon(self, request_id: int) -> None:
        """Forget a request whose caller was cancelled."""
        self._link.abandon(request_id)

    def notify(self, caller: Caller, call: Call) -> bool:
        """Send a one-way request; return whether it is written.

        If not, the caller is resumed when the connection is open, when the peer reads again, or
        with an error: at the deadline, or when the connection has ended. After an error the request
        is never written, so that it can be sent elsewhere.

        Raises:
            WireError: The command cannot be encoded.
        """
        data = self._link.oneway(call.command)
        self._write(data)
        transport = self._transport
        if transport is not None and not self._is_paused and not transport.is_closing():
            return True
        caller.called_at = self._clock.now()
        caller.deadline = call.deadline
        self._notifiers.append((caller, data))
        if call.deadline < self._earliest:
            self._sweep_after(call.deadline)
        return False

    def reply(self, request: Command, reply: Command) -> None:
        """Answer a request of the server; does nothing when the connection has ended."""
        if not self._link.is_closed:
            self._write(self._link.reply(request, reply))

    def _resume_notifiers(self, error: RocketMQError | None = None) -> None:
        notifiers, self._notifiers = self._notifiers, []
        for caller, _ in notifiers:
            caller.resume(None, None if error is None else copy(error))

    def _write(self, data: bytes) -> None:
        self._unsent.append(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._owner.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is None or self._is_paused or not self._unsent:
            return  # written when the connection is open, or when the peer reads again
        if self._transport.is_closing():
            return  # `connection_lost` follows, and resumes the callers with an error
        unsent, self._unsent = self._unsent, []
        self.used_at = self._clock.now()
        if len(unsent) > 1 and sum(map(len, unsent)) <= _JOINED_BYTES_MAX * len(unsent):
            unsent = [b"".join(unsent)]
        for data in unsent:
            self._transport.write(data)

    def pause_writing(self) -> None:
        """Hold requests back: the peer does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write again: the peer reads."""
        self._is_paused = False
        self._flush()
        self._resume_notifiers()

    # ---- in --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Resume the callers whose replies have arrived."""
        self._silent_since = None
        if self._busy_poll is not None:
            self._busy_poll.on_read()
        link = self._link
        if self._reads_answers:
            resume_together(self._owner.scheduler, link.receive_answers(data))
            if not link.has_rest:
                return
            data = b""
        for event in link.receive(data):
            if type(event) is ReplyArrived:
                event.waiter.resume(event.command)
            elif type(event) is RequestArrived:
                self._owner.on_request(self, event.command)
            else:
                assert type(event) is LinkBroken
                for waiter in event.waiters:
                    waiter.resume(error=ConnectionLost(self.address, str(event.error)))
                self.close(f"it breaks the protocol: {event.error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Resume all callers with an error."""
        self._is_lost = True
        why = "by the server" if exc is None else str(exc)
        self._end(ConnectionLost(self.address, f"the connection ended ({why})"))

    # ---- beginning and end -----------------------------------------------------------------------

    async def _connect(self) -> None:
        owner = self._owner
        try:
            await owner.dialer.open(owner.loop, lambda: self, self.address)
        except RocketMQError as error:
            self._end(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.exception("connecting to %s failed", self.address)
            self._end(ConnectionLost(self.address, repr(error)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the requests that were made before the connection was open."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_ended:
            self._transport.abort()
            return
        _log.debug("connected to %s", self.address)
        if self._silent_since is not None:
            self._silent_since = self._clock.now()
        self._flush()
        self._resume_notifiers()
        self._owner.on_connect(self)

    def close(self, why: str) -> None:
        """End the connection; requests of this turn are still written."""
        self._flush()
        self._end(ConnectionLost(self.address, f"the connection was closed: {why}"))

    def abort(self) -> None:
        """End the transport without a regular TLS or TCP close."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: RocketMQError) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        event = "no connection to" if self._transport is None else "end of the connection to"
        _log.debug("%s %s: %s", event, self.address, error.brief)
        self._connecting.cancel()
        self._owner.deadlines.discard(self)
        if self._transport is not None:
            self._transport.close()
        self._owner.on_disconnect(self)
        for waiter in self._link.close():
            waiter.resume(error=copy(error))
        self._resume_notifiers(error)

    # ---- late calls ------------------------------------------------------------------------------

    def _sweep_after(self, deadline: float) -> None:
        self._earliest = deadline
        self.deadline = deadline + _SWEEP_DELAY
        self._owner.deadlines.add(self)

    def on_deadline(self) -> None:
        """Find the calls that are late; after a stall of this process read first, then judge."""
        now = self._clock.now()
        if now - self.deadline > _STALL:
            self._read_first(now + _SILENCE)
        else:
            self._sweep()

    def _read_first(self, until: float) -> None:
        if self._silent_since is None:
            self._silent_since = self._clock.now()
        # Two turns: the first one begins before the loop looks at its sockets.
        loop = self._owner.loop
        loop.call_soon(loop.call_soon, self._sweep_when_read, self._silent_since, until)

    def _sweep_when_read(self, silent_since: float, until: float) -> None:
        """Sweep if the last turn has read nothing; else there may be more."""
        if self._silent_since == silent_since or self._clock.now() >= until:
            self._sweep()
        else:
            self._read_first(until)

    def _sweep(self) -> None:
        """Resume the callers that are late with an error; set the deadline of the next sweep."""
        now = self._clock.now()
        earliest = _NEVER
        late: list[Caller] = []
        for request_id, caller in self._link.waiting():
            if caller.deadline <= now:
                self._link.abandon(request_id)
                late.append(caller)
            else:
                earliest = min(earliest, caller.deadline)
        if self._notifiers:
            late += self._take_late_notifiers(now)
            earliest = min([earliest, *(caller.deadline for caller, _ in self._notifiers)])
        self._earliest = self.deadline = _NEVER
        if earliest < _NEVER:
            self._sweep_after(earliest)
        silent_since = self._silent_since
        if late and self.is_open and silent_since is not None and now - silent_since >= _SILENCE:
            self.close("the server does not answer")
            self.abort()  # a regular close would keep all that the server does not read
        for caller in late:
            caller.resume(error=CallTimeout(self.address, round(now - caller.called_at, 3)))

    def _take_late_notifiers(self, now: float) -> list[Caller]:
        """Remove and return the callers of one-way requests that are late; drop their requests."""
        late = [notifier for notifier in self._notifiers if notifier[0].deadline <= now]
        self._notifiers = [notifier for notifier in self._notifiers if notifier[0].deadline > now]
        dropped = {id(data) for _, data in late}
        self._unsent = [data for data in self._unsent if id(data) not in dropped]
        return [caller for caller, _ in late]
