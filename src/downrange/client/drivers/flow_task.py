"""Flows on an event loop: each is stepped by the events it waits for, without an asyncio task.

A task and a future per request would cost more than the request's own work, so a reply, a timer or
a signal resumes the flow directly. One rule: a flow is stepped only on the loop's thread, with the
core's lock held; user code runs without the lock.

    FlowTask    one flow, from its first step to its end; performs its effects
    Scheduler   what the tasks of one loop share: lock, deadlines, connections, shared flows
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

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
from downrange.errors import ClientClosed, RocketMQError

if TYPE_CHECKING:  # the structs here are never decoded, so their annotations are not evaluated
    from collections.abc import Callable  # noqa: TC004
    from concurrent.futures import Executor

    from downrange.client.drivers.aio_connection import Connection  # noqa: TC004
    from downrange.client.drivers.deadlines import Deadlines
    from downrange.client.flows.effects import Clock

_log = logging.getLogger("downrange.drivers")
#: The answer of an effect that is not answered yet.
_LATER: Final = object()


class Scheduler:
    """What the flow tasks of one event loop share.

    Args:
        loop: The running loop.
        clock: The clock of deadlines.
        lock: Held while a flow takes a step.
        pool: Runs user functions that may block; None for the loop's own pool.
        deadlines: The loop's timer.
        connection: Returns the connection to an address.

    Attributes:
        is_closed: Whether no further flow may start.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lock: threading.Lock,
        pool: Executor | None,
        deadlines: Deadlines,
        connection: Callable[[str], Connection],
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.lock = lock
        self.pool = pool
        self.deadlines = deadlines
        self.connection = connection
        self.is_closed = False
        self._thread_id = threading.get_ident()
        #: Key of a `Once` -> the tasks that wait for its flow.
        self._shared: dict[Any, list[FlowTask]] = {}
        self._fired: list[SignalWait] = []

    def share(self, effect: Once, waiter: FlowTask) -> Callable[[], None]:
        """Resume a task with the result of a flow that others may wait for as well.

        Returns:
            A function that takes the task out again.
        """
        waiters = self._shared.get(effect.key)
        if waiters is None:
            waiters = self._shared[effect.key] = [waiter]

            def done(result: Any, error: BaseException | None) -> None:
                resumed = self._shared.pop(effect.key)
                # In the next turn: a flow must not be resumed inside its own step.
                self.loop.call_soon(_resume_all, resumed, result, error)

            FlowTask(self, effect.flow(), done).resume()
        else:
            waiters.append(waiter)
        return partial(waiters.remove, waiter)

    def fire(self, wait: SignalWait) -> None:
        """Resume the task of a fired signal in the next turn, together with others.

        Called with the lock held, perhaps by another thread.
        """
        if not self._fired:
            self.call_soon(self._resume_fired)
        self._fired.append(wait)

    def _resume_fired(self) -> None:
        with self.lock:
            fired, self._fired = self._fired, []
        for wait in fired:
            wait.resume()

    @property
    def is_here(self) -> bool:
        """Whether this thread is the loop's."""
        return threading.get_ident() == self._thread_id

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop; may be called from any thread."""
        if self.is_here:
            self.loop.call_soon(function, *args)
        else:
            self.loop.call_soon_threadsafe(function, *args)


def _resume_all(waiters: list[FlowTask], result: Any, error: BaseException | None) -> None:
    """Give each task the result, or a copy of the error: a traceback belongs to one of them."""
    for waiter in waiters:
        waiter.resume(result, None if error is None else copy(error))


class FlowTask(msgspec.Struct, eq=False):  # a struct: one is made per message
    """One flow, from its first step to its end.

    Attributes:
        _scheduler: What it shares with other tasks.
        _flow: The flow.
        _done: Called by `finish` with the result, or with None and the error.
        _cancel_wait: Undoes what the flow waits for, when the task is cancelled.
        connection: Where the call went that the flow waits for; see `Caller` for the rest.
        request_id: The id of that request.
        called_at: When the call began.
        deadline: When the call is given up.
    """

    _scheduler: Scheduler
    _flow: Flow[Any]
    _done: Callable[[Any, BaseException | None], None] | None = None
    _cancel_wait: Callable[[], object] | None = None
    connection: Connection | None = None
    request_id: int = 0
    called_at: float = 0.0
    deadline: float = 0.0

    def start(self) -> None:
        """Take the first step; when the scheduler is closed, finish with `ClientClosed`."""
        if self._scheduler.is_closed:
            self.close_flow()
            self.finish(None, ClientClosed("the client"))
        else:
            self.resume()

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Continue with an answer or an error until the flow waits again or ends."""
        flow, scheduler = self._flow, self._scheduler
        lock = scheduler.lock
        self._cancel_wait = self.connection = None
        while True:
            try:
                with lock:
                    effect = flow.send(value) if error is None else flow.throw(error)
            except StopIteration as finished:
                self.finish(finished.value, None)
                return
            except BaseException as failure:
                self.finish(None, failure)
                return
            error = None
            try:
                if type(effect) is Call and not effect.is_oneway:  # the most frequent effect
                    scheduler.connection(effect.address).call(self, effect)
                    return
                value = self._perform(effect)
            except BaseException as failure:
                error = failure
            else:
                if value is _LATER:
                    return

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Report the result or the error."""
        if self._done is not None:
            self._done(result, error)

    def cancel(self) -> None:
        """Close the flow, which returns what it holds; the end is not reported."""
        cancel_wait, self._cancel_wait = self._cancel_wait, None
        self._done = None  # the awaited answer may arrive in the same turn
        if self.connection is not None:
            self.connection.abandon(self.request_id)
        elif cancel_wait is not None:
            cancel_wait()
        self.close_flow()

    def close_flow(self) -> None:
        """Close the flow as one step: it returns what it holds."""
        try:
            with self._scheduler.lock:
                self._flow.close()
        except RuntimeError:
            _log.exception("a flow cannot be closed")

    # ---- effects -----------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Any:
        """Perform an effect, or begin to; return its answer or `_LATER`."""
        if type(effect) is Call:
            connection = self._scheduler.connection(effect.address)
            return None if connection.notify(self, effect) else _LATER
        if type(effect) is Wait:
            return self._wait(effect)
        if type(effect) is Pause:
            timer = self._scheduler.loop.call_later(effect.seconds, self.resume)
            self._cancel_wait = timer.cancel
            return _LATER
        if type(effect) is UserCall:
            return self._call_user(effect)
        if type(effect) is Once:
            self._cancel_wait = self._scheduler.share(effect, self)
            return _LATER
        assert type(effect) is Gather
        return self._gather(effect)

    def _wait(self, effect: Wait) -> Any:
        scheduler, signal = self._scheduler, effect.signal
        with scheduler.lock:
            if signal.is_fired or effect.deadline <= scheduler.clock.now():
                return signal.is_fired
            wait = SignalWait(scheduler, self, signal, effect.deadline)
            signal.listen(wait.on_fire)
        scheduler.deadlines.add(wait)
        self._cancel_wait = wait.end
        return _LATER

    def _call_user(self, effect: UserCall) -> Any:
        scheduler = self._scheduler
        if effect.may_block and not inspect.iscoroutinefunction(effect.function):
            work: asyncio.Future[Any] = scheduler.loop.run_in_executor(
                scheduler.pool, effect.function, *effect.args
            )
        else:
            answer = effect.function(*effect.args)
            if not inspect.isawaitable(answer):
                return answer
            work = asyncio.ensure_future(answer)
        if effect.deadline is not None:
            seconds = effect.deadline - scheduler.clock.now()
            work = asyncio.ensure_future(_limited(work, max(seconds, 0.0)))
        self._cancel_wait = work.cancel
        work.add_done_callback(self._on_user_answer)
        return _LATER

    def _on_user_answer(self, work: asyncio.Future[Any]) -> None:
        if self._cancel_wait is None:
            return  # the task was cancelled
        if work.cancelled():
            self.resume(error=asyncio.CancelledError())
        elif (error := work.exception()) is not None:
            self.resume(error=error)
        else:
            self.resume(work.result())

    def _gather(self, effect: Gather) -> Any:
        if not effect.flows:
            return []
        group = _TaskGroup(self._scheduler, effect, self.resume)
        self._cancel_wait = group.cancel
        return group.start()


class AwaitedTask(FlowTask, eq=False, kw_only=True):
    """A flow whose end a coroutine awaits.

    Attributes:
        future: What the coroutine awaits.
    """

    future: asyncio.Future[Any]

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the future's result, unless the coroutine was cancelled in the same turn."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class SignalWait(msgspec.Struct, eq=False):
    """A task that waits for a signal or a deadline, whichever comes first."""

    _scheduler: Scheduler
    _task: FlowTask
    _signal: Signal
    deadline: float
    _is_over: bool = False

    def on_fire(self) -> None:
        """Called when the signal fires, with the lock held, perhaps by another thread."""
        self._scheduler.fire(self)

    def on_deadline(self) -> None:
        """Called by `Deadlines`."""
        self.resume()

    def end(self) -> None:
        """Stop to wait."""
        self._is_over = True
        self._scheduler.deadlines.discard(self)
        if not self._signal.is_fired:
            with self._scheduler.lock:
                self._signal.unlisten(self.on_fire)

    def resume(self) -> None:
        """Resume the task, unless that was done."""
        if not self._is_over:
            self.end()
            self._task.resume(self._signal.is_fired)


class TaskWait(msgspec.Struct, eq=False):
    """A coroutine that waits for a signal or a deadline; see `wait_here`."""

    _scheduler: Scheduler
    future: asyncio.Future[None]
    deadline: float

    def on_fire(self) -> None:
        """Called when the signal fires, with the lock held, perhaps by another thread."""
        if self._scheduler.is_here:
            self.on_deadline()
        else:
            self._scheduler.call_soon(self.on_deadline)

    def on_deadline(self) -> None:
        """Wake the coroutine; called by `Deadlines`."""
        if not self.future.done():
            self.future.set_result(None)


async def wait_here(scheduler: Scheduler, effect: Wait) -> bool:
    """Wait in this task until a signal fires; return False when the deadline came first.

    Without a flow task between signal and coroutine: an idle worker begins a turn earlier.

    Raises:
        ClientClosed: The driver is closed.
    """
    signal = effect.signal
    if scheduler.is_closed:
        raise ClientClosed("the client")
    wait = TaskWait(scheduler, scheduler.loop.create_future(), effect.deadline)
    with scheduler.lock:
        if signal.is_fired or effect.deadline <= scheduler.clock.now():
            return signal.is_fired
        signal.listen(wait.on_fire)
    scheduler.deadlines.add(wait)
    try:
        await wait.future
    finally:
        scheduler.deadlines.discard(wait)
        if not signal.is_fired:
            with scheduler.lock:
                signal.unlisten(wait.on_fire)
    return signal.is_fired


class _TaskGroup:
    """The flows of a `Gather`: at most `limit` at a time, outcomes in their order."""

    def __init__(self, scheduler: Scheduler, effect: Gather, resume: Callable[..., None]) -> None:
        self._scheduler = scheduler
        self._waiting = list(enumerate(effect.flows))[::-1]
        self._outcomes: list[Any] = [None] * len(effect.flows)
        self._limit = effect.limit
        self._resume = resume
        self._tasks: dict[int, FlowTask] = {}
        self._failure: BaseException | None = None
        self._is_starting = False

    def start(self) -> Any:
        """Start as many flows as allowed; return the outcomes, or `_LATER` if some flows wait."""
        self._start_tasks()
        if self._failure is not None:
            raise self._failure
        return _LATER if self._tasks else self._outcomes

    def cancel(self) -> None:
        """Cancel all flows."""
        waiting, self._waiting = self._waiting, []
        for task in list(self._tasks.values()):
            task.cancel()
        self._tasks.clear()
        for _, flow in waiting:
            flow.close()

    def _start_tasks(self) -> None:
        self._is_starting = True
        while self._waiting and len(self._tasks) < self._limit and self._failure is None:
            index, flow = self._waiting.pop()
            task = self._tasks[index] = FlowTask(
                self._scheduler, flow, partial(self._on_end, index)
            )
            task.resume()
        self._is_starting = False

    def _on_end(self, index: int, result: Any, error: BaseException | None) -> None:
        self._tasks.pop(index, None)
        self._outcomes[index] = result if error is None else error
        if error is not None and not isinstance(error, RocketMQError):
            self._failure = error
            self.cancel()
        if self._is_starting:
            return  # `_start_tasks` is the caller, and continues
        self._start_tasks()
        if self._failure is not None:
            self._resume(error=self._failure)
        elif not self._tasks:
            self._resume(self._outcomes)


async def _limited(work: asyncio.Future[Any], seconds: float) -> Any:
    """Wait for the user's code; give up after some seconds, and cancel it if it is a coroutine."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError("it did not end in time, and is not waited for any more") from error
        raise  # of the user's code
