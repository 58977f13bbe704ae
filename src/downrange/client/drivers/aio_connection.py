"""One connection of an event loop to a server: requests out, replies to those who wait.

Requests of one turn of the loop go out in one write. A reply resumes the flow that waits for it.
Calls that are late are found by one timer per connection, set to the earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from downrange.client.flows.routing.membership import heartbeat_on_connect
from downrange.errors import CallTimeout, ConnectionLost, RocketMQError
from downrange.wire.codes import HeaderCodec
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    from downrange.client.drivers.aio import AioDriver
    from downrange.client.flows.effects import Call
    from downrange.wire.command import Command

_log = logging.getLogger("downrange.drivers")
#: So much later than the deadline a late call is found at most.
_LATE: Final = 0.005
#: A connection on which nothing came for so long while somebody waited in vain is given up: the
#: peer may have vanished without a word, which the system notices after a quarter of an hour.
_SILENCE: Final = 1.0
#: Requests of one turn are joined unless they are larger than this on average: from there on a copy
#: costs more than a write.
_JOINED_BYTES_MAX: Final = 16 * 1024


class Caller(Protocol):
    """Whoever made a call on a connection, and is resumed at its end.

    Attributes:
        connection: Where the call went.
        request_id: Its number there.
        asked_at: When it began.
        deadline: When it is given up.
    """

    connection: Connection | None
    request_id: int
    asked_at: float
    deadline: float

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with an answer or an error."""
        ...


class Connection(asyncio.Protocol):
    """One connection to a server, from its first call to its end."""

    def __init__(self, driver: AioDriver, address: str) -> None:
        self.address = address
        self.used_at = driver.clock.now()
        self.is_ended = False
        self._driver = driver
        self._busy_poll = driver.busy_poll
        options = driver.core.options
        codec = HeaderCodec.BINARY if options.header_codec == "binary" else HeaderCodec.JSON
        self._link: Link[Caller] = Link(codec=codec, in_flight_max=options.in_flight_max)
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._unsent: list[bytes] = []
        self._tellers: list[Caller] = []
        self._is_flushing = False
        self._is_paused = False
        #: When the first request went out after which nothing came in.
        self._silent_since: float | None = None
        self._sweep_at = float("inf")
        self._sweeping: asyncio.TimerHandle | None = None
        self._connecting = driver.loop.create_task(self._connect())

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return self._transport is not None and not self.is_ended

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it on the loop."""
        if self._connecting.cancelled():
            return True  # the loop ends what was about to stand, uvloop without telling
        return self._is_lost or (self._transport is None and self._connecting.done())

    @property
    def in_flight(self) -> int:
        """How many requests wait for their replies."""
        return self._link.in_flight

    @property
    def late_replies(self) -> int:
        """How many replies nobody waited for any more."""
        return self._link.late_replies

    # ---- out -----------------------------------------------------------------------------------

    def ask(self, caller: Caller, call: Call) -> None:
        """Send a request; the flow is resumed with the reply.

        Raises:
            LinkError: Too many requests wait.
            WireError: The command cannot be written.
        """
        command, deadline = call.command, call.deadline
        self._write(self._link.request(command, caller))
        now = caller.asked_at = self._driver.clock.now()
        if self._silent_since is None:
            self._silent_since = now
        caller.deadline = deadline
        caller.connection, caller.request_id = self, command.request_id
        if deadline < self._sweep_at:
            self._sweep_by(deadline, now)

    def abandon(self, request_id: int) -> None:
        """Forget a request whose flow was given up."""
        self._link.abandon(request_id)

    def tell(self, caller: Caller, call: Call) -> bool:
        """Send a request that is not answered; return whether it is on its way.

        Otherwise the flow is resumed when the connection stands, when the peer reads again, or at
        the deadline.

        Raises:
            WireError: The command cannot be written.
        """
        self._write(self._link.oneway(call.command))
        if self._transport is not None and not self._is_paused:
            return True
        now = caller.asked_at = self._driver.clock.now()
        caller.deadline = call.deadline
        self._tellers.append(caller)
        if call.deadline < self._sweep_at:
            self._sweep_by(call.deadline, now)
        return False

    def _release_tellers(self, error: RocketMQError | None = None) -> None:
        tellers, self._tellers = self._tellers, []
        for caller in tellers:
            caller.resume(None, None if error is None else copy(error))

    def _write(self, data: bytes) -> None:
        self._unsent.append(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._driver.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is None or self._is_paused or not self._unsent:
            return  # goes out when it stands, or when the peer reads again
        if self._transport.is_closing():
            return  # those who wait hear of it, if they have not yet
        unsent, self._unsent = self._unsent, []
        self.used_at = self._driver.clock.now()
        if len(unsent) > 1 and sum(map(len, unsent)) <= _JOINED_BYTES_MAX * len(unsent):
            unsent = [b"".join(unsent)]
        for data in unsent:
            self._transport.write(data)

    def pause_writing(self) -> None:
        """Hold back: the peer does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on: the peer reads again."""
        self._is_paused = False
        self._flush()
        self._release_tellers()

    # ---- in --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Resume the flows whose replies these are."""
        self._silent_since = None
        if self._busy_poll is not None:
            self._busy_poll.on_read()
        for event in self._link.receive(data):
            if type(event) is ReplyArrived:
                event.waiter.resume(event.command)
            elif type(event) is RequestArrived:
                self._answer(event.command)
            else:
                assert type(event) is LinkBroken
                for waiter in event.waiters:
                    waiter.resume(error=ConnectionLost(self.address, str(event.error)))
                self.close(f"it breaks the protocol: {event.error}")

    def _answer(self, request: Command) -> None:
        """Let the client answer a request of the server's."""

        def done(reply: Command | None, error: BaseException | None) -> None:
            if error is not None:
                _log.warning(
                    "request %d of %s could not be answered: %s", request.code, self.address, error
                )
            elif reply is not None and not request.is_oneway and not self._link.is_closed:
                self._write(self._link.reply(request, reply))

        driver = self._driver
        driver.start_flow(driver.core.answer(self.address, request), done)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail those who wait."""
        self._is_lost = True
        why = "by the server" if exc is None else str(exc)
        self._end(ConnectionLost(self.address, f"the connection ended ({why})"))

    # ---- beginning and end -----------------------------------------------------------------------

    async def _connect(self) -> None:
        driver = self._driver
        try:
            await driver.dialer.open(driver.loop, lambda: self, self.address)
        except RocketMQError as error:
            self._end(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.exception("connecting to %s failed", self.address)
            self._end(ConnectionLost(self.address, repr(error)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has gathered while there was no connection."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_ended:
            self._transport.abort()
            return
        if self._silent_since is not None:
            self._silent_since = self._driver.clock.now()
        self._flush()
        self._release_tellers()
        with self._driver.lock:
            heartbeat = heartbeat_on_connect(self._driver.core, self.address)
        if heartbeat is not None:
            self._driver.spawn(heartbeat)

    def close(self, why: str) -> None:
        """End the connection; what was to be written in this turn is written."""
        self._flush()
        self._end(ConnectionLost(self.address, f"the connection was closed: {why}"))

    def abort(self) -> None:
        """Do not wait for an end in order."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: RocketMQError) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        self._connecting.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._transport is not None:
            self._transport.close()
        self._driver.ended(self)
        for waiter in self._link.close():
            waiter.resume(error=copy(error))
        self._release_tellers(error)

    def _sweep_by(self, deadline: float, now: float) -> None:
        self._sweep_at = deadline
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = self._driver.loop.call_later(deadline - now + _LATE, self._sweep)

    def _sweep(self) -> None:
        """Give up what is late, and come again when the next can be."""
        now = self._driver.clock.now()
        earliest = float("inf")
        late: list[Caller] = []
        for request_id, caller in self._link.waiting():
            if caller.deadline <= now:
                self._link.abandon(request_id)
                late.append(caller)
            else:
                earliest = min(earliest, caller.deadline)
        late += [caller for caller in self._tellers if caller.deadline <= now]
        self._tellers = [caller for caller in self._tellers if caller.deadline > now]
        earliest = min([earliest, *(caller.deadline for caller in self._tellers)])
        self._sweep_at, self._sweeping = float("inf"), None
        if earliest < float("inf"):
            self._sweep_by(earliest, now)
        silent_since = self._silent_since
        if late and self.is_open and silent_since is not None and now - silent_since >= _SILENCE:
            self.close("the server does not answer")
        for caller in late:
            caller.resume(error=CallTimeout(self.address, round(now - caller.asked_at, 3)))
