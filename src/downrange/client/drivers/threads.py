"""Flows in threads: the caller's own where it waits, one engine thread for everything else.

    run(flow)     steps the flow here; its calls go over blocking sockets of this thread
    submit(flow)  steps it on the engine's event loop; the caller gets a future
    spawn(flow)   the same, for flows that nobody waits for

What concerns several callers (`Once`, `Gather`) is done on the engine as well, so that there is one
place for it. The core's lock is held while a flow takes a step, and never while anything waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.blocking import BlockingConnections, NoneFree
from downrange.client.drivers.fork_guard import ForkGuard
from downrange.client.drivers.handing import HandedCall
from downrange.client.drivers.submitting import CallbackFuture, Submission
from downrange.client.flows.effects import Call, Effect, Flow, Gather, Once, Pause, UserCall, Wait
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, ForkedClient, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.drivers.dialer import Dialer
    from downrange.client.flows.client_core import ClientCore

_log = logging.getLogger("downrange.client")
ResultT = TypeVar("ResultT")
_STOP_TIMEOUT: Final = 5.0


class ThreadDriver:
    """Carries out the effects of flows in threads.

    Args:
        core: The client whose flows they are.
        dialer: Makes connections.
    """

    def __init__(self, core: ClientCore, dialer: Dialer) -> None:
        self.core = core
        self._clock = core.clock
        self._lock = threading.Lock()
        self._dialer = dialer
        self._connections = BlockingConnections(dialer, core.options, core.clock)
        self._round_robins = threading.local()
        self._fork_guard = ForkGuard()
        self._inbox: deque[Callable[[], None]] = deque()
        self.submissions: set[Submission] = set()
        self._is_woken = False
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: AioDriver | None = None
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(
            core.options.callback_threads, thread_name_prefix="downrange-callback"
        )
        self._callbacks_waiting = 0

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread."""
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(is_ready,), name="downrange-engine", daemon=True
        )
        self._thread.start()
        is_ready.wait()

    def _live(self, is_ready: threading.Event) -> None:
        loop = _new_event_loop()
        self._loop = loop

        async def begin() -> None:
            self._engine = AioDriver(
                self.core, self._dialer, lock=self._lock, pool=self._pool, busy_poll=0.0
            )
            await self._engine.start()
            self._tidy_later(loop)

        try:
            loop.run_until_complete(begin())
            is_ready.set()
            loop.run_forever()
        finally:
            loop.close()
            self._take()  # what came in at the last moment fails

    def close(self) -> None:
        """End all connections and threads; what still waits fails. Harmless the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.is_forked:
            self._connections.forget_threads()
        self._connections.close()
        if self.is_forked or self._loop is None or self._thread is None:
            return
        loop, engine = self._loop, self._engine
        assert engine is not None

        async def end() -> None:
            try:
                await engine.close()
                self._fail_submitted()
            finally:
                loop.stop()  # whatever happens: the thread must not stay

        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(end(), loop=loop))
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT)
        self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Close a driver whose client was not closed; called from a finalizer."""
        self.close()

    def _fail_submitted(self) -> None:
        """End what waits for something that will not come any more."""
        self._take()
        for submission in list(self.submissions):
            submission.fail(ClientClosed("the client"))

    @property
    def is_forked(self) -> bool:
        """Whether this is another process than the one that started it."""
        return self._fork_guard.is_forked

    # ---- flows -------------------------------------------------------------------------------

    @property
    def round_robin(self) -> RoundRobin:
        """This thread's place in the round robin."""
        try:
            return cast("RoundRobin", self._round_robins.round_robin)
        except AttributeError:
            round_robin = self._round_robins.round_robin = RoundRobin()
            return round_robin

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow in this thread to its end.

        Raises:
            ClientClosed, ForkedClient: It cannot be run any more.
            BaseException: What the flow raises.
        """
        self._check()
        lock, perform = self._lock, self._perform
        try:
            with lock:
                effect = next(flow)
            while True:
                try:
                    answer = perform(effect)
                except BaseException as error:
                    with lock:
                        effect = flow.throw(error)
                else:
                    with lock:
                        effect = flow.send(answer)
        except StopIteration as finished:
            return cast("ResultT", finished.value)

    def submit(self, flow: Flow[ResultT], future: Future[ResultT] | None = None) -> Future[ResultT]:
        """Run a flow on the engine; return the future of its result.

        A future that is cancelled before the flow has ended gives the flow up.
        """
        self._check()
        if future is None:
            future = CallbackFuture(self)
        submission = Submission(self.engine, flow, owner=self, future=future)
        if isinstance(future, CallbackFuture):
            future.submission = submission
        self.on_engine(submission.begin)
        return future

    def run_last(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end that begins after everything that was submitted has begun."""
        if threading.current_thread() is self._thread:
            return self.run(flow)
        return self.submit(flow, Future()).result()

    def spawn(self, flow: Flow[Any]) -> None:
        """Run a flow in the background until it ends or the driver is closed."""
        self._check()

        self.on_engine(lambda: self.engine.spawn(flow))

    def step(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a short function of the core as one step, while no flow takes one.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
        """
        self._check()
        with self._lock:
            return function()

    def callback(self, function: Callable[[], None]) -> None:
        """Run a callback in the pool; here when too many wait already."""
        with self._lock:
            is_room = self._callbacks_waiting < self.core.options.callbacks_waiting_max
            self._callbacks_waiting += is_room
        if not is_room or self._is_closed:
            function()
            return

        def counted() -> None:
            with self._lock:
                self._callbacks_waiting -= 1
            function()

        try:
            self._pool.submit(counted)
        except RuntimeError:  # the pool has ended: the interpreter is about to
            counted()

    def connections(self) -> dict[str, int]:
        """Return how many connections stand to each server."""
        counts = self._connections.counts()
        if self._engine is not None:
            for address in self._engine.addresses():
                counts[address] = counts.get(address, 0) + 1
        return counts

    def late_count(self) -> int:
        """Return how many replies came too late."""
        return 0 if self._engine is None else self._engine.late_count()

    def tidy(self) -> None:
        """Close connections that were not used for long."""
        self._connections.tidy()

    def _tidy_later(self, loop: asyncio.AbstractEventLoop) -> None:
        def again() -> None:
            self.tidy()
            self._tidy_later(loop)

        loop.call_later(self.core.options.idle_timeout / 4, again)

    # ---- effects -----------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Any:
        if type(effect) is Call:
            try:
                return self._connections.call(effect)
            except NoneFree:
                return self._hand_over(effect)
        if type(effect) is Wait:
            return self._wait(effect)
        if type(effect) is Pause:
            time.sleep(effect.seconds)
            return None
        if type(effect) is UserCall:
            return effect.function(*effect.args)
        assert isinstance(effect, Once | Gather)
        return self._perform_on_engine(effect)

    def _wait(self, effect: Wait) -> bool:
        latch = threading.Lock()
        latch.acquire()
        with self._lock:
            effect.signal.listen(latch.release)
        if latch.acquire(timeout=max(effect.deadline - self._clock.now(), 0)):
            return True
        with self._lock:
            effect.signal.unlisten(latch.release)
        return effect.signal.is_fired

    def _hand_over(self, call: Call) -> Any:
        if threading.current_thread() is self._thread:
            # A hook or a callback that runs on the engine: nobody else could make its call.
            return self._connections.call(call, is_limited=False)
        handed = HandedCall(call)
        self.on_engine(lambda: handed.begin(self.engine))
        return handed.wait()

    def _perform_on_engine(self, effect: Once | Gather) -> Any:
        if threading.current_thread() is self._thread:
            return self._perform_inside(effect)

        def one_effect() -> Flow[Any]:
            return (yield effect)

        return self.submit(one_effect(), Future()).result()

    def _perform_inside(self, effect: Once | Gather) -> Any:
        """Run flows one after the other: a hook on the engine sends, and would wait for itself."""
        if type(effect) is Once:
            return self.run(effect.flow())
        assert type(effect) is Gather
        outcomes: list[Any] = []
        for flow in effect.flows:
            try:
                outcomes.append(self.run(flow))
            except RocketMQError as error:
                outcomes.append(error)
        return outcomes

    # ---- the engine ----------------------------------------------------------------------------

    @property
    def engine(self) -> AioDriver:
        """What runs flows on the engine's loop."""
        assert self._engine is not None
        return self._engine

    def on_engine(self, begin: Callable[[], None]) -> None:
        """Have the engine call a function; many at once cost one wake-up."""
        self._inbox.append(begin)
        if not self._is_woken:
            self._is_woken = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError as error:  # the loop was closed just now
                self._is_woken = False  # or the next one would wait for a loop that is no more
                raise ClientClosed("the client") from error

    def _take(self) -> None:
        self._is_woken = False
        inbox = self._inbox
        while inbox:
            inbox.popleft()()

    def _check(self) -> None:
        if self._fork_guard.is_forked:
            raise ForkedClient("the client")
        if self._is_closed:
            raise ClientClosed("the client")


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest loop that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop
