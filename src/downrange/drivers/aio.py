"""Flows on asyncio: connections, one per server, and everything that happens on them.

Requests of one turn of the loop go out in one write. A reply resumes the flow that waits for it.
Calls that are late are found by one timer per connection, set to the earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from downrange.drivers.deadlines import Deadlines
from downrange.drivers.running import Awaited, Running, Sharing
from downrange.errors import CallTimeout, ClientClosed, ConnectionLost, RocketMQError
from downrange.memory import keep_freed_memory
from downrange.wire.codes import HeaderCodec
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from downrange.core.client import ClientCore
    from downrange.core.flow import Call, Flow, Once
    from downrange.drivers.dialing import Dialer
    from downrange.drivers.running import Waiting
    from downrange.wire.command import Command

_log = logging.getLogger("downrange.drivers")
ResultT = TypeVar("ResultT")
#: So much later than the deadline a late call is found at most.
_LATE: Final = 0.005
#: A connection on which nothing came for so long while somebody waited in vain is given up: the
#: peer may have vanished without a word, which the system notices after a quarter of an hour.
_SILENCE: Final = 1.0
#: Requests of one turn are joined unless they are larger than this on average: from there on a copy
#: costs more than a write.
_JOINED_BYTES_MAX: Final = 16 * 1024
#: So long a connection may take to end in order when the client is closed.
_GOODBYE: Final = 0.5


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


class AioDriver:
    """Carries out the effects of flows on one event loop.

    Args:
        core: The client whose flows they are.
        dialer: Makes connections.
        lock: Held while a flow takes a step; a lock of its own unless other threads step, too.
        pool: Runs functions of the user's that may block.

    Attributes:
        late_replies: Replies that nobody waited for any more, of connections that have ended.
    """

    def __init__(
        self,
        core: ClientCore,
        dialer: Dialer,
        *,
        lock: threading.Lock | None = None,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self.core = core
        self.clock = core.clock
        self.dialer = dialer
        self.lock = lock or threading.Lock()
        self.pool = pool
        self.loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self.loop, self.clock)
        self.late_replies = 0
        self._thread_id = threading.get_ident()
        self._connections: dict[str, Connection] = {}
        self._shared: dict[Any, Sharing] = {}
        self._background: set[Running] = set()
        self._woken: list[Waiting] = []
        self._is_closed = False
        keep_freed_memory()
        self._tidying = self.loop.call_later(core.options.idle_timeout / 4, self._tidy)

    # ---- flows -------------------------------------------------------------------------------

    async def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end; when the caller is cancelled, the flow is given up.

        Raises:
            BaseException: What the flow raises.
        """
        future: asyncio.Future[ResultT] = self.loop.create_future()
        running = Awaited(self, flow, future=future)
        if self._is_closed:
            flow.close()
            raise ClientClosed("the client")
        running.resume()
        try:
            return await future
        except asyncio.CancelledError:
            running.cancel()
            raise

    def start(self, flow: Flow[Any], done: Callable[[Any, BaseException | None], None]) -> Running:
        """Start a flow; `done` is called at its end with the result, or with None and the error."""
        running = Running(self, flow, done)
        self.begin(running)
        return running

    def begin(self, running: Running) -> None:
        """Let a flow take its first step; when the driver is closed, it ends with that."""
        if self._is_closed:
            running.refuse(ClientClosed("the client"))
        else:
            running.resume()

    def spawn(self, flow: Flow[Any]) -> None:
        """Run a flow in the background until it ends or the driver is closed."""

        def done(_: Any, error: BaseException | None) -> None:
            self._background.discard(running)
            if isinstance(error, RocketMQError):
                _log.debug("in the background: %s", error)
            elif error is not None:
                _log.error("a background flow ended", exc_info=error)

        running = Running(self, flow, done)
        self._background.add(running)
        running.resume()

    def share(self, effect: Once, waiter: Running) -> Callable[[], None]:
        """Let a flow wait for one that others may wait for, too; return how it stops waiting."""
        sharing = self._shared.get(effect.key)
        if sharing is None:
            sharing = self._shared[effect.key] = Sharing()
            sharing.waiters.append(waiter)

            def done(result: Any, error: BaseException | None) -> None:
                del self._shared[effect.key]
                # Later, as a flow must not be resumed inside its own step.
                self.loop.call_soon(sharing.done, result, error)

            Running(self, effect.flow(), done).resume()
        else:
            sharing.waiters.append(waiter)
        return partial(sharing.waiters.remove, waiter)

    def wake(self, waiting: Waiting) -> None:
        """Let a flow go on in the next turn, together with others that are woken until then.

        The lock is held, perhaps by another thread.
        """
        if not self._woken:
            self.call_soon(self._go_on)
        self._woken.append(waiting)

    def _go_on(self) -> None:
        with self.lock:
            woken, self._woken = self._woken, []
        for waiting in woken:
            waiting.go_on()

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop, from whichever thread."""
        if threading.get_ident() == self._thread_id:
            self.loop.call_soon(function, *args)
        else:
            self.loop.call_soon_threadsafe(function, *args)

    # ---- connections -------------------------------------------------------------------------

    def connection(self, address: str) -> Connection:
        """Return the connection to a server, made anew where there is none.

        Raises:
            OptionError: The address is none.
        """
        connection = self._connections.get(address)
        if connection is None or connection.is_ended:
            if self._is_closed:
                raise ClientClosed("the client")
            connection = self._connections[address] = Connection(self, address)
        return connection

    def ended(self, connection: Connection) -> None:
        """Take notice that a connection has ended."""
        self.late_replies += connection.late_replies
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        with self.lock:
            self.core.greeted.discard(connection.address)

    def addresses(self) -> dict[str, int]:
        """Return the servers that connections stand to, and how many requests wait at each.

        Any thread may ask, while the loop makes and ends connections: a copy is taken at once.
        """
        return {
            address: connection.in_flight
            for address, connection in self._connections.copy().items()
            if connection.is_open
        }

    def late_count(self) -> int:
        """Return how many replies came too late, to any thread."""
        return self.late_replies + sum(
            connection.late_replies for connection in self._connections.copy().values()
        )

    def _tidy(self) -> None:
        """Close what was not used for long."""
        idle = self.core.options.idle_timeout
        self._tidying = self.loop.call_later(idle / 4, self._tidy)
        oldest = self.clock.now() - idle
        for connection in list(self._connections.values()):
            if connection.used_at < oldest and not connection.in_flight:
                connection.close("it was not used")

    async def close(self) -> None:
        """End all connections and everything in the background."""
        self._is_closed = True
        self._tidying.cancel()
        self.deadlines.close()
        for running in list(self._background):
            running.cancel()
        self._background.clear()
        closing = list(self._connections.values())
        for connection in closing:
            connection.close("the client was closed")
        deadline = self.clock.now() + _GOODBYE
        await asyncio.sleep(0)  # transports close in the next turn
        # TLS says goodbye, and waits for the peer's; a loop must not be closed before that.
        while not all(connection.is_gone for connection in closing):
            await asyncio.sleep(_GOODBYE / 50)
            if self.clock.now() > deadline:
                for connection in closing:
                    connection.abort()
                await asyncio.sleep(0)  # in the next turn they are gone, or will never be
                break

    def abandon(self) -> None:
        """Close when the loop comes to it, from whichever thread: nobody is left who could wait."""
        if not self.loop.is_closed():
            self.call_soon(lambda: self.loop.create_task(self.close()))


class Connection(asyncio.Protocol):
    """One connection to a server, from its first call to its end."""

    def __init__(self, driver: AioDriver, address: str) -> None:
        self.address = address
        self.used_at = driver.clock.now()
        self.is_ended = False
        self._driver = driver
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
        driver.start(driver.core.answer(self.address, request), done)

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
            welcome = self._driver.core.welcome(self.address)
        if welcome is not None:
            self._driver.spawn(welcome)

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
