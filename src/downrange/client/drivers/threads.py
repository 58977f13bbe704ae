"""Driver for threads: the caller's own thread where it waits, one engine thread for all else.

    run(flow)     steps the flow here; its calls go over blocking sockets of this thread
    submit(flow)  steps it on the engine's event loop; the caller gets a future, at once or when
                  the flow is admitted
    spawn(flow)   the same, for flows whose end is not awaited

Effects that concern several callers (`Once`, `Gather`) are performed on the engine too, so that
there is one place for them. The core's lock is held while a flow takes a step, and never while
anything waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.blocking import BlockingConnections, NoneFree
from downrange.client.drivers.fork_guard import ForkGuard
from downrange.client.drivers.submission import CallbackFuture, Submission, SubmittedSend
from downrange.client.drivers.workers import ThreadWorkers
from downrange.client.flows.effects import (
    Call,
    Effect,
    Flow,
    Gather,
    Once,
    Pause,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.notices import UserCodeFailed
from downrange.client.flows.producing.gathered_send import GatheredSend
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, ForkedClient, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.drivers.aio_connection import Connection
    from downrange.client.drivers.dialer import Dialer
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.producing.plain_send import PlainSend
    from downrange.model import SendReceipt

_log = logging.getLogger("downrange.client")
ResultT = TypeVar("ResultT")
_STOP_TIMEOUT: Final = 5.0
#: How long a submit waits for the engine, which a hook of the user may block.
_CATCH_UP_TIMEOUT: Final = 1.0


class ThreadDriver:
    """Performs the effects of flows in threads.

    Args:
        core: The client's core, whose flows it runs.
        dialer: Opens connections.

    Attributes:
        submissions: Submitted flows that have started and not ended.
    """

    def __init__(self, core: ClientCore, dialer: Dialer) -> None:
        self.core = core
        self._clock = core.clock
        self._lock = threading.Lock()
        self._dialer = dialer
        self._connections = BlockingConnections(
            dialer, core.options, core.clock, reads_answers=core.is_plain
        )
        self._round_robins = threading.local()
        self._fork_guard = ForkGuard()
        self._inbox: deque[Callable[[], None]] = deque()
        self.submissions: set[Submission | SubmittedSend] = set()
        #: One entry for each submitted flow that the engine has not started, and so has no room
        #: yet. A deque, because threads may append and the engine may pop without a lock.
        self.unstarted: deque[None] = deque()
        self._is_woken = False
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: AioDriver | None = None
        self._thread: threading.Thread | None = None
        self._engine_ident = 0
        self._pool: Executor = core.options.callback_executor or ThreadPoolExecutor(
            core.options.callback_threads, thread_name_prefix="downrange-callback"
        )
        self._callbacks_waiting = 0

    # ---- life cycle --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread.

        Raises:
            Exception: The engine cannot start, such as an OSError without free file descriptors.
        """
        started = Future[None]()
        self._thread = threading.Thread(
            target=self._run_engine, args=(started,), name="downrange-engine", daemon=True
        )
        self._thread.start()
        started.result()

    def _run_engine(self, started: Future[None]) -> None:
        try:
            loop = _new_event_loop()
        except BaseException as error:
            started.set_exception(error)  # raised where the driver is started
            return
        self._loop = loop
        self._engine_ident = threading.get_ident()

        async def begin() -> None:
            self._engine = AioDriver(
                self.core, self._dialer, lock=self._lock, pool=self._pool, busy_poll=0.0
            )
            await self._engine.start()
            self._tidy_later(loop)

        try:
            loop.run_until_complete(begin())
            started.set_result(None)
            loop.run_forever()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            loop.close()
            self._call_inbox()  # functions that came in last end with ClientClosed

    def close(self) -> None:
        """End all connections and threads; calls in progress fail. May be called again."""
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
                loop.stop()  # also after an error: the thread must end

        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(end(), loop=loop))
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT)
        if self._pool is not self.core.options.callback_executor:
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Close a driver whose client was not closed; called from a finalizer."""
        self.close()

    def _fail_submitted(self) -> None:
        """Fail submitted flows, which cannot end any more."""
        self._call_inbox()
        for submission in list(self.submissions):
            submission.fail(ClientClosed("the client"))

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process in which the driver was made."""
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
            ClientClosed, ForkedClient: The driver cannot be used any more.
            BaseException: The error of the flow.
        """
        self._check()
        return self._step_through(flow)

    def _step_through(self, flow: Flow[ResultT]) -> ResultT:
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

    def run_send(self, send: PlainSend | GatheredSend) -> SendReceipt:
        """Run a send in this thread: a plain one without a flow as long as all is well.

        Raises:
            As `run`.
        """
        self._check()
        if isinstance(send, GatheredSend):  # a thread waits for its batch either way
            return self._step_through(send.flow())
        lock = self._lock
        with lock:
            is_direct = send.begin()
        if not is_direct:
            return self._step_through(send.flow())
        outcome: Any
        try:
            outcome = self._perform(Call(send.address, send.command(), send.deadline))
        except RocketMQError as error:
            outcome = error
        except BaseException:
            with lock:
                send.leave()
            raise
        else:
            with lock:
                receipt = send.receipt_for(outcome)
            if receipt is not None:
                return receipt
        return self._step_through(send.flow_after(outcome))

    def submit(
        self,
        flow: Flow[ResultT],
        future: Future[ResultT] | None = None,
        admitted: Signal | None = None,
    ) -> Future[ResultT]:
        """Run a flow on the engine; return the future of its result.

        To cancel the future before the flow has ended closes the flow.

        Args:
            flow: The flow.
            future: A plain future; one whose callbacks run in the pool unless given.
            admitted: A signal that the flow fires when there is room for it. With one, this thread
                takes the first steps of the flow, until then.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
            BaseException: The error of the flow before it was admitted.
        """
        self._check()
        if future is None:
            future = CallbackFuture(self)
        submission = Submission(self.engine.scheduler, flow, engine=self, future=future)
        if isinstance(future, CallbackFuture):
            future.submission = submission
        # The engine must not wait for room, which only the engine frees: there the flow waits.
        if admitted is None or threading.get_ident() == self._engine_ident:
            self.unstarted.append(None)
        elif not self._admit(submission, flow, admitted):
            return future
        try:
            self.on_engine(submission.start)
        except ClientClosed:
            submission.close_flow()  # gives its room back
            raise
        return future

    def submit_send(self, send: PlainSend) -> Future[SendReceipt]:
        """Run a plain send on the engine; return the future of its receipt, as `submit`.

        Raises:
            ClientClosed, ForkedClient: The driver cannot be used any more.
        """
        self._check()
        future: CallbackFuture[SendReceipt] = CallbackFuture(self)
        submitted = SubmittedSend(
            self.engine.scheduler, send, future, 0.0, send.deadline, engine=self
        )
        future.submission = submitted
        self.unstarted.append(None)
        self.on_engine(submitted.begin)
        return future

    def _admit(self, submission: Submission, flow: Flow[Any], admitted: Signal) -> bool:
        """Take the first steps of a flow here, until it yields a `Wait` for `admitted`.

        Returns:
            Whether the engine is to continue it; False when it has ended.
        """
        if self.unstarted:
            self._catch_up()
        lock = self._lock
        try:
            with lock:
                effect = next(flow)
            while not admitted.is_fired:
                try:
                    answer = self._perform(effect)
                except BaseException as error:
                    with lock:
                        effect = flow.throw(error)
                else:
                    with lock:
                        effect = flow.send(answer)
            assert type(effect) is Wait, "a flow hands over when it is admitted"
            submission.is_admitted = True
        except StopIteration as finished:
            submission.finish(finished.value, None)
            return False
        except BaseException as error:
            if not admitted.is_fired:
                raise
            submission.finish(None, error)
            return False
        return True

    def _catch_up(self) -> None:
        """Wait until flows that this thread submitted before have started, and asked for room."""
        is_reached = threading.Event()
        self.on_engine(is_reached.set)
        is_reached.wait(_CATCH_UP_TIMEOUT)

    @property
    def backlog(self) -> int:
        """How many submitted flows the engine has not started yet."""
        return len(self.unstarted)

    def run_last(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end that starts after all submitted flows have started."""
        if threading.current_thread() is self._thread:
            return self.run(flow)
        return self.submit(flow, Future()).result()

    def start_workers(self, make: Callable[[], Flow[None]], count: int, name: str) -> ThreadWorkers:
        """Run flows in threads of their own, where their functions of the user run, too."""
        self._check()
        return ThreadWorkers(self, make, count, name)

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
        """Run a callback of the user in the pool; in this thread when too many wait."""
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
        except Exception:  # the pool has ended, as the interpreter exits; or it is full
            counted()

    def report(self, where: str, error: BaseException) -> None:
        """Count an exception of the user's code, and hand it to the observer."""
        with self._lock:
            self.core.user_errors += 1
        if self.core.observe is not None:
            self.core.observe(UserCodeFailed(where, error))

    def connections(self) -> dict[str, int]:
        """Return the number of open connections to each server."""
        counts = self._connections.counts()
        if self._engine is not None:
            for address in self._engine.addresses():
                counts[address] = counts.get(address, 0) + 1
        return counts

    def late_count(self) -> int:
        """Return how many replies arrived late."""
        return 0 if self._engine is None else self._engine.late_count()

    def tidy(self) -> None:
        """Close idle connections."""
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
            # A hook on the engine makes a call: the engine cannot serve it while it waits here.
            return self._connections.call(call, is_limited=False)
        handed = EngineCall(call)
        self.on_engine(lambda: handed.start(self.engine))
        return handed.wait()

    def _perform_on_engine(self, effect: Once | Gather) -> Any:
        if threading.current_thread() is self._thread:
            return self._perform_in_sequence(effect)

        def one_effect() -> Flow[Any]:
            return (yield effect)

        return self.submit(one_effect(), Future()).result()

    def _perform_in_sequence(self, effect: Once | Gather) -> Any:
        """Run flows one after the other, for a hook on the engine, which must not wait for it."""
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
        """The driver of the engine's loop."""
        assert self._engine is not None
        return self._engine

    def on_engine(self, function: Callable[[], None]) -> None:
        """Call a function on the engine's thread; many at once cost one wake-up.

        Raises:
            ClientClosed: The engine has ended.
        """
        self._inbox.append(function)
        if not self._is_woken:
            self._is_woken = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._call_inbox)
            except RuntimeError as error:  # the loop was closed just now
                self._is_woken = False  # so that the next call fails as well
                raise ClientClosed("the client") from error

    def _call_inbox(self) -> None:
        self._is_woken = False
        inbox = self._inbox
        while inbox:
            inbox.popleft()()

    def _check(self) -> None:
        if self._fork_guard.is_forked:
            raise ForkedClient("the client")
        if self._is_closed:
            raise ClientClosed("the client")


class EngineCall:
    """A call that a thread has the engine make, and waits for.

    Used when no connection of the threads is free, that is by many threads at once. So it is cheap:
    no flow, no future, one lock. The engine writes the requests of one turn together. To a
    connection it is a `Caller`, as a flow task is.

    Args:
        call: The call.

    Attributes:
        connection, request_id, called_at, deadline: See `Caller`.
    """

    __slots__ = (
        *("_answer", "_call", "_error", "_is_waiting"),
        *("called_at", "connection", "deadline", "request_id"),
    )

    def __init__(self, call: Call) -> None:
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        #: Held until there is an answer.
        self._is_waiting = threading.Lock()
        self._is_waiting.acquire()
        self.connection: Connection | None = None
        self.request_id: int
        self.called_at: float
        self.deadline: float

    def start(self, engine: AioDriver) -> None:
        """Make the call, on the engine's thread."""
        call = self._call
        try:
            connection = engine.connection(call.address)
            if not call.is_oneway:
                connection.call(self, call)
            elif connection.notify(self, call):
                self.resume()
        except BaseException as error:
            self.resume(error=error)

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Wake the thread with an answer or an error."""
        self._answer, self._error = value, error
        self._is_waiting.release()

    def wait(self) -> Any:
        """Wait in the thread that makes the call; return the answer.

        Raises:
            BaseException: The error of the call.
        """
        self._is_waiting.acquire()
        if self._error is not None:
            raise self._error
        return self._answer


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest loop that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop
