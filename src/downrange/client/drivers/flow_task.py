"""Flows on an event loop: each is stepped by the events it waits for, without a task of its own.

A task and a future per request would cost more than the request's own work, so a reply, a timer or
a signal resumes the flow directly. One rule: a flow is stepped only on the loop's thread, with the
core's lock held, and user code runs without it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
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
from downrange.errors import RocketMQError

if TYPE_CHECKING:  # nobody decodes the structs here, so their annotations are never looked at
    from collections.abc import Callable  # noqa: TC004

    from downrange.client.drivers.aio import AioDriver  # noqa: TC004
    from downrange.client.drivers.aio_connection import Connection  # noqa: TC004

_log = logging.getLogger("downrange.drivers")
#: What an effect answers that cannot be answered yet.
_LATER: Final = object()


class Running(msgspec.Struct, eq=False):  # made per message: a struct is made in one go
    """One flow, from its first step to its end.

    Attributes:
        _driver: Who carries out its effects.
        _flow: The flow.
        _done: Called by `finish` with the result, or with None and the error; None when nobody
            wants to know, or no longer.
        _give_up: Takes back what the flow waits for, when it is cancelled.
        connection: Where the call went that it waits for; connections keep the rest here, too.
        request_id: That call's number.
        asked_at: When it began.
        deadline: When it is given up.
    """

    _driver: AioDriver
    _flow: Flow[Any]
    _done: Callable[[Any, BaseException | None], None] | None = None
    _give_up: Callable[[], object] | None = None
    connection: Connection | None = None
    request_id: int = 0
    asked_at: float = 0.0
    deadline: float = 0.0

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with an answer or an error until the flow waits again or ends."""
        flow, lock = self._flow, self._driver.lock
        self._give_up = self.connection = None
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
                if type(effect) is Call and not effect.is_oneway:
                    # Most of what flows want, and so without a detour.
                    self._driver.connection(effect.address).ask(self, effect)
                    return
                value = self._perform(effect)
            except BaseException as failure:
                error = failure
            else:
                if value is _LATER:
                    return

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Tell whoever wants to know how it ended."""
        if self._done is not None:
            self._done(result, error)

    def refuse(self, error: BaseException) -> None:
        """End a flow that has not begun."""
        self._flow.close()
        self.finish(None, error)

    def cancel(self) -> None:
        """Give the flow up: what it holds is given back, `done` is not called."""
        give_up, self._give_up = self._give_up, None
        self._done = None  # what it waited for may be here already, in the same turn
        if self.connection is not None:
            self.connection.abandon(self.request_id)
        elif give_up is not None:
            give_up()
        try:
            with self._driver.lock:
                self._flow.close()
        except RuntimeError:
            _log.exception("a flow cannot be given up")

    # ---- effects -----------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Any:
        """Carry an effect out, or begin to; return its answer or `_LATER`."""
        if type(effect) is Call:
            connection = self._driver.connection(effect.address)
            return None if connection.tell(self, effect) else _LATER
        if type(effect) is Wait:
            return self._wait(effect)
        if type(effect) is Pause:
            timer = self._driver.loop.call_later(effect.seconds, self.resume)
            self._give_up = timer.cancel
            return _LATER
        if type(effect) is UserCall:
            return self._ask(effect)
        if type(effect) is Once:
            self._give_up = self._driver.share(effect, self)
            return _LATER
        assert type(effect) is Gather
        return self._gather(effect)

    def _wait(self, effect: Wait) -> Any:
        driver, signal = self._driver, effect.signal
        with driver.lock:
            if signal.is_fired or effect.deadline <= driver.clock.now():
                return signal.is_fired
            waiting = Waiting(driver, self, signal, effect.deadline)
            signal.listen(waiting.notice)
        driver.deadlines.add(waiting)
        self._give_up = waiting.end
        return _LATER

    def _ask(self, effect: UserCall) -> Any:
        driver = self._driver
        if effect.may_block and not inspect.iscoroutinefunction(effect.function):
            work: asyncio.Future[Any] = driver.loop.run_in_executor(
                driver.pool, effect.function, *effect.args
            )
        else:
            answer = effect.function(*effect.args)
            if not inspect.isawaitable(answer):
                return answer
            work = asyncio.ensure_future(answer)
        self._give_up = work.cancel
        work.add_done_callback(self._asked)
        return _LATER

    def _asked(self, work: asyncio.Future[Any]) -> None:
        if self._give_up is None:
            return  # the flow was given up
        if work.cancelled():
            self.resume(error=asyncio.CancelledError())
        elif (error := work.exception()) is not None:
            self.resume(error=error)
        else:
            self.resume(work.result())

    def _gather(self, effect: Gather) -> Any:
        if not effect.flows:
            return []
        gathering = _Gathering(self._driver, effect, self.resume)
        self._give_up = gathering.cancel
        return gathering.start(_LATER)


class Awaited(Running, eq=False, kw_only=True):
    """A flow whose end a coroutine awaits.

    Attributes:
        future: What it awaits.
    """

    future: asyncio.Future[Any]

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Settle the future, unless whoever awaited it was cancelled in the same turn."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class Waiting(msgspec.Struct, eq=False):
    """A flow that waits for a signal or a deadline, whichever is first."""

    _driver: AioDriver
    _running: Running
    _signal: Signal
    deadline: float
    _is_over: bool = False

    def notice(self) -> None:
        """Take notice that the signal fires; the lock is held, perhaps by another thread."""
        self._driver.wake(self)

    def late(self) -> None:
        """Take notice that the deadline has passed."""
        self.go_on()

    def end(self) -> None:
        """Wait no longer."""
        self._is_over = True
        self._driver.deadlines.discard(self)
        if not self._signal.is_fired:
            with self._driver.lock:
                self._signal.unlisten(self.notice)

    def go_on(self) -> None:
        """Resume the flow, unless that has been done."""
        if not self._is_over:
            self.end()
            self._running.resume(self._signal.is_fired)


class _Gathering:
    """Flows side by side."""

    def __init__(self, driver: AioDriver, effect: Gather, resume: Callable[..., None]) -> None:
        self._driver = driver
        self._waiting = list(enumerate(effect.flows))[::-1]
        self._outcomes: list[Any] = [None] * len(effect.flows)
        self._limit = effect.limit
        self._resume = resume
        self._running: dict[int, Running] = {}
        self._failure: BaseException | None = None
        self._is_pumping = False

    def start(self, later: object) -> Any:
        """Start as many as may run; return the outcomes when that was all it took."""
        self._pump()
        if self._failure is not None:
            raise self._failure
        return later if self._running else self._outcomes

    def cancel(self) -> None:
        """Give all of them up."""
        waiting, self._waiting = self._waiting, []
        for running in list(self._running.values()):
            running.cancel()
        self._running.clear()
        for _, flow in waiting:
            flow.close()

    def _pump(self) -> None:
        self._is_pumping = True
        while self._waiting and len(self._running) < self._limit and self._failure is None:
            index, flow = self._waiting.pop()
            running = self._running[index] = Running(
                self._driver, flow, partial(self._ended, index)
            )
            running.resume()
        self._is_pumping = False

    def _ended(self, index: int, result: Any, error: BaseException | None) -> None:
        self._running.pop(index, None)
        self._outcomes[index] = result if error is None else error
        if error is not None and not isinstance(error, RocketMQError):
            self._failure = error
            self.cancel()
        if self._is_pumping:
            return  # whoever pumps goes on
        self._pump()
        if self._failure is not None:
            self._resume(error=self._failure)
        elif not self._running:
            self._resume(self._outcomes)


class Sharing:
    """One flow whose outcome several others wait for."""

    def __init__(self) -> None:
        self.waiters: list[Running] = []

    def done(self, result: Any, error: BaseException | None) -> None:
        """Give everyone the result, or an error of their own."""
        for waiter in self.waiters:
            waiter.resume(result, None if error is None else copy(error))
