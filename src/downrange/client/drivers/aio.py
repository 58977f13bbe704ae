"""Driver for asyncio: runs flows on one event loop, with one connection per server.

aio.py             the driver: owns connections and background flows
flow_task.py       steps a flow and performs its effects
awaited_send.py    runs a plain send without a flow
aio_connection.py  writes requests, resumes the tasks whose replies arrive
deadlines.py       the one timer of all waits
"""

from __future__ import annotations

import asyncio
import logging
import threading
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from downrange.busy_poll import BusyPoll
from downrange.client.drivers.aio_connection import Connection
from downrange.client.drivers.awaited_send import AwaitedBatch, AwaitedSend
from downrange.client.drivers.deadlines import Deadlines
from downrange.client.drivers.flow_task import AwaitedTask, FlowTask, Scheduler, wait_here
from downrange.client.drivers.fork_guard import ForkGuard
from downrange.client.drivers.workers import AioWorkers
from downrange.client.flows.effects import UserCall, Wait
from downrange.client.flows.producing.gathered_send import GatheredSend
from downrange.client.flows.producing.plain_send import PlainSend
from downrange.client.flows.routing.membership import heartbeat_on_connect
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, ForkedClient, RocketMQError, WrongEventLoop
from downrange.memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from downrange.client.drivers.dialer import Dialer
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Effect, Flow
    from downrange.model import SendReceipt
    from downrange.wire.command import Command

_log = logging.getLogger("downrange.drivers")
ResultT = TypeVar("ResultT")
#: How long connections may take to close in order when the client is closed.
_CLOSE_TIMEOUT: Final = 0.5
#: Seconds that a worker whose handlers never wait keeps the loop from other tasks.
_TURN: Final = 0.002


class AioDriver:
    """Performs the effects of flows on one event loop.

    Args:
        core: The client's core, whose flows it runs.
        dialer: Opens connections.
        lock: Held while a flow takes a step; a lock of its own unless other threads take steps.
        pool: Runs user functions that may block; the client's option unless given, or else the
            loop's own pool.
        busy_poll: Replies that follow each other within so many seconds keep the loop awake; the
            client's option unless given. 0 for a loop in the background, which would take the
            GIL from the user's threads.

    Attributes:
        scheduler: What the flow tasks share.
        round_robin: The round robin of all flows that run here.
        late_replies: Late replies of connections that have ended.
    """

    def __init__(
        self,
        core: ClientCore,
        dialer: Dialer,
        *,
        lock: threading.Lock | None = None,
        pool: Executor | None = None,
        busy_poll: float | None = None,
    ) -> None:
        self.core = core
        self.options = core.options
        self.clock = core.clock
        self.dialer = dialer
        self.loop = asyncio.get_running_loop()
        seconds = core.options.busy_poll if busy_poll is None else busy_poll
        self.busy_poll = BusyPoll(self.loop, seconds) if seconds > 0 else None
        self.deadlines = Deadlines(self.loop, self.clock)
        self.lock = lock or threading.Lock()
        self.scheduler = Scheduler(
            self.loop,
            self.clock,
            self.lock,
            pool or core.options.callback_executor,
            self.deadlines,
            self.connection,
        )
        self.round_robin = RoundRobin()
        self.late_replies = 0
        self._connections: dict[str, Connection] = {}
        self._background: dict[FlowTask, None] = {}
        self._tidying: asyncio.TimerHandle | None = None
        self._fork_guard = ForkGuard()
        self._thread = threading.current_thread().name
        self._thread_id = threading.get_ident()

    # ---- life cycle --------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to close idle connections."""
        keep_freed_memory()
        self._tidying = self.loop.call_later(self.options.idle_timeout / 4, self._tidy)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process in which the driver was made."""
        return self._fork_guard.is_forked

    async def close(self) -> None:
        """End all connections and background flows; may be called again.

        In a forked child it does nothing: the connections are the parent's.
        """
        if self.is_forked:
            return
        self.scheduler.is_closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        self.deadlines.close()
        for task in list(self._background):
            task.cancel()
        self._background.clear()
        closing = list(self._connections.values())
        for connection in closing:
            connection.close("the client was closed")
        deadline = self.clock.now() + _CLOSE_TIMEOUT
        await asyncio.sleep(0)  # transports close in the next turn
        # TLS sends close_notify and waits for the peer's; the loop must live until then.
        while not all(connection.is_gone for connection in closing):
            await asyncio.sleep(_CLOSE_TIMEOUT / 50)
            if self.clock.now() > deadline:
                for connection in closing:
                    connection.abort()
                await asyncio.sleep(0)  # transports abort in the next turn
                break

    def abandon(self) -> None:
        """Close a driver whose client was not closed; called from a finalizer, in any thread."""
        if not self.is_forked and not self.loop.is_closed():
            self.scheduler.call_soon(lambda: self.loop.create_task(self.close()))

    def check_loop(self, what: str = "the client") -> None:
        """Check that this code runs on the driver's event loop; a forked child has another.

        Raises:
            WrongEventLoop: It runs on another one, or on none.
        """
        if asyncio._get_running_loop() is not self.loop and not self._fork_guard.is_forked:
            raise WrongEventLoop(what, self.loop.is_closed(), self._thread)

    def _unusable(self) -> ClientClosed | ForkedClient:
        return ForkedClient("the client") if self.is_forked else ClientClosed("the client")

    # ---- flows -------------------------------------------------------------------------------

    async def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end; when the caller is cancelled, the flow is closed.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
            WrongEventLoop: This is not the driver's event loop.
            BaseException: The error of the flow.
        """
        scheduler = self.scheduler
        if scheduler.is_closed or self._fork_guard.is_forked:
            flow.close()
            raise self._unusable()
        if asyncio._get_running_loop() is not self.loop:
            flow.close()
            self.check_loop()
        future: asyncio.Future[ResultT] = self.loop.create_future()
        task = AwaitedTask(scheduler, flow, future=future)
        task.resume()
        try:
            return await future
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def run_send(self, send: PlainSend | GatheredSend) -> SendReceipt:
        """Run a send: without a flow as long as all is well.

        Raises:
            As `run`.
        """
        scheduler, loop = self.scheduler, self.loop
        if scheduler.is_closed or self._fork_guard.is_forked:
            raise self._unusable()
        # A thread runs one loop at a time; to ask asyncio for it costs a system call.
        if threading.get_ident() != self._thread_id or not loop.is_running():
            self.check_loop()
        with self.lock:
            is_direct = send.begin()
        if not is_direct:
            return await self.run(send.flow())
        future: asyncio.Future[SendReceipt] = loop.create_future()
        if type(send) is GatheredSend:
            send.future, batch = future, send.batch
            assert batch is not None, "it has begun"
            gathered: AwaitedBatch = batch.watch or AwaitedBatch(scheduler, batch)
            if send.deadline < gathered.deadline:
                gathered.watch(send)
            try:
                return await future
            except asyncio.CancelledError:
                gathered.cancel(send)
                raise
        assert type(send) is PlainSend
        awaited = AwaitedSend(scheduler, send, future, send.started, send.deadline)
        awaited.start()
        try:
            return await future
        except asyncio.CancelledError:
            awaited.cancel()
            raise

    async def run_here(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end in this task: functions of the user run in it, too.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
            BaseException: The error of the flow.
        """
        lock, now = self.lock, self.clock.now
        turn_ends = now() + _TURN
        try:
            with lock:
                effect = next(flow)
            while True:
                try:
                    if type(effect) is UserCall:
                        answer = effect.function(*effect.args)
                        if isawaitable(answer):
                            answer = await _own_errors(answer)
                        if now() > turn_ends:
                            await asyncio.sleep(0)
                            turn_ends = now() + _TURN
                    else:
                        if type(effect) is Wait:
                            answer = await wait_here(self.scheduler, effect)
                        else:
                            answer = await self.run(_performing(effect))
                        turn_ends = now() + _TURN
                except BaseException as error:
                    with lock:
                        effect = flow.throw(error)
                else:
                    with lock:
                        effect = flow.send(answer)
        except StopIteration as finished:
            return cast("ResultT", finished.value)

    def start_workers(self, make: Callable[[], Flow[None]], count: int, name: str) -> AioWorkers:
        """Run flows in tasks of their own, where their functions of the user run, too."""
        return AioWorkers(self, make, count, name)

    def spawn(self, flow: Flow[Any]) -> None:
        """Run a flow in the background until it ends or the driver is closed.

        Raises:
            ForkedClient: The driver belongs to the parent process.
        """
        if self._fork_guard.is_forked:
            raise self._unusable()

        def done(_: Any, error: BaseException | None) -> None:
            self._background.pop(task, None)
            if isinstance(error, RocketMQError):
                _log.debug("in the background: %s", error)
            elif error is not None:
                _log.error("a background flow ended", exc_info=error)

        task = FlowTask(self.scheduler, flow, done)
        self._background[task] = None
        task.resume()

    def step(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a short function of the core as one step, while no flow takes one.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
        """
        if self.scheduler.is_closed or self._fork_guard.is_forked:
            raise self._unusable()
        with self.lock:
            return function()

    # ---- connections -------------------------------------------------------------------------

    def connection(self, address: str) -> Connection:
        """Return the connection to a server; a new one where there is none.

        Raises:
            ClientClosed: The driver is closed.
        """
        connection = self._connections.get(address)
        if connection is None or connection.is_ended:
            if self.scheduler.is_closed:
                raise ClientClosed("the client")
            connection = self._connections[address] = Connection(self, address)
        return connection

    def on_connect(self, connection: Connection) -> None:
        """Send a heartbeat, which registers the client's groups, to a broker that it uses."""
        with self.lock:
            heartbeat = heartbeat_on_connect(self.core, connection.address)
        if heartbeat is not None:
            self.spawn(heartbeat)

    def on_request(self, connection: Connection, request: Command) -> None:
        """Answer a request of a broker."""

        def done(reply: Command | None, error: BaseException | None) -> None:
            if error is not None:
                address = connection.address
                _log.warning(
                    "request %d of %s could not be answered: %s", request.code, address, error
                )
            elif reply is not None and not request.is_oneway:
                connection.reply(request, reply)

        FlowTask(self.scheduler, self.core.answer(connection.address, request), done).start()

    def on_disconnect(self, connection: Connection) -> None:
        """Forget a connection; the client registers again on the next one."""
        self.late_replies += connection.late_replies
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        with self.lock:
            self.core.on_disconnect(connection.address)

    def addresses(self) -> dict[str, int]:
        """Return the servers with an open connection, and the requests in flight to each.

        May be called from any thread while the loop opens and ends connections: it works on a copy.
        """
        return {
            address: connection.in_flight
            for address, connection in self._connections.copy().items()
            if connection.is_open
        }

    def connections(self) -> dict[str, int]:
        """Return the number of connections to each server, always one; from any thread."""
        return dict.fromkeys(self.addresses(), 1)

    def late_count(self) -> int:
        """Return how many replies arrived late, to any thread."""
        return self.late_replies + sum(
            connection.late_replies for connection in self._connections.copy().values()
        )

    def _tidy(self) -> None:
        """Close idle connections."""
        idle = self.options.idle_timeout
        self._tidying = self.loop.call_later(idle / 4, self._tidy)
        oldest = self.clock.now() - idle
        for connection in list(self._connections.values()):
            if connection.used_at < oldest and not connection.in_flight:
                connection.close("it was not used")


async def _own_errors(awaited: Awaitable[Any]) -> Any:
    """Await the user's coroutine; a `CancelledError` of its own does not end this task."""
    try:
        return await awaited
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it was cancelled, but not by the consumer") from error


def _performing(effect: Effect) -> Flow[Any]:
    return (yield effect)
