"""Flows on asyncio: takes their steps, and holds the connections, one per server."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from downrange.busy_poll import BusyPoll
from downrange.client.drivers.aio_connection import Connection
from downrange.client.drivers.deadlines import Deadlines
from downrange.client.drivers.flow_task import Awaited, Running, Sharing
from downrange.client.drivers.fork_guard import ForkGuard
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, ForkedClient, RocketMQError
from downrange.memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from downrange.client.drivers.dialer import Dialer
    from downrange.client.drivers.flow_task import Waiting
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow, Once

_log = logging.getLogger("downrange.drivers")
ResultT = TypeVar("ResultT")
#: So long a connection may take to end in order when the client is closed.
_GOODBYE: Final = 0.5


class AioDriver:
    """Carries out the effects of flows on one event loop.

    Args:
        core: The client whose flows they are.
        dialer: Makes connections.
        lock: Held while a flow takes a step; a lock of its own unless other threads step, too.
        pool: Runs functions of the user's that may block.
        busy_poll: Replies that follow each other within so many seconds keep the loop awake; the
            client's option unless given. 0 for a loop in the background, which would take the
            interpreter from the user's threads.

    Attributes:
        lane: The round robin of all flows that run here.
        late_replies: Replies that nobody waited for any more, of connections that have ended.
    """

    def __init__(
        self,
        core: ClientCore,
        dialer: Dialer,
        *,
        lock: threading.Lock | None = None,
        pool: ThreadPoolExecutor | None = None,
        busy_poll: float | None = None,
    ) -> None:
        self.core = core
        self.clock = core.clock
        self.dialer = dialer
        self.lock = lock or threading.Lock()
        self.pool = pool
        self.loop = asyncio.get_running_loop()
        if busy_poll is None:
            busy_poll = core.options.busy_poll
        self.busy_poll = BusyPoll(self.loop, busy_poll) if busy_poll > 0 else None
        self.deadlines = Deadlines(self.loop, self.clock)
        self.late_replies = 0
        self._thread_id = threading.get_ident()
        self._connections: dict[str, Connection] = {}
        self._shared: dict[Any, Sharing] = {}
        self._background: set[Running] = set()
        self._woken: list[Waiting] = []
        self._is_closed = False
        self._fork_guard = ForkGuard()
        self._tidying: asyncio.TimerHandle | None = None
        self.round_robin = RoundRobin()

    # ---- life cycle --------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to close idle connections."""
        keep_freed_memory()
        self._tidying = self.loop.call_later(self.core.options.idle_timeout / 4, self._tidy)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process in which the driver was made."""
        return self._fork_guard.is_forked

    # ---- flows -------------------------------------------------------------------------------

    async def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end; when the caller is cancelled, the flow is given up.

        Raises:
            BaseException: What the flow raises.
        """
        if self._is_closed or self._fork_guard.is_forked:
            flow.close()
            raise self._unusable()
        future: asyncio.Future[ResultT] = self.loop.create_future()
        running = Awaited(self, flow, future=future)
        running.resume()
        try:
            return await future
        except asyncio.CancelledError:
            running.cancel()
            raise

    def start_flow(
        self, flow: Flow[Any], done: Callable[[Any, BaseException | None], None]
    ) -> Running:
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

        if self._fork_guard.is_forked:
            raise self._unusable()
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

    def step(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a short function of the core as one step, while no flow takes one.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
        """
        if self._is_closed or self._fork_guard.is_forked:
            raise self._unusable()
        with self.lock:
            return function()

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
            self.core.on_disconnect(connection.address)

    def connections(self) -> dict[str, int]:
        """Return the number of connections to each server, which is one; from any thread."""
        return dict.fromkeys(self.addresses(), 1)

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
        """End all connections and everything in the background; may be called again.

        In a forked child it does nothing: the connections are the parent's.
        """
        if self.is_forked:
            return
        self._is_closed = True
        if self._tidying is not None:
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
        if not self.is_forked and not self.loop.is_closed():
            self.call_soon(lambda: self.loop.create_task(self.close()))

    def _unusable(self) -> ClientClosed | ForkedClient:
        return ForkedClient("the client") if self.is_forked else ClientClosed("the client")
