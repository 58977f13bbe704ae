"""Runs flows in one thread without sockets: the only interpreter of effects in these tests.

Flows that run together all start before the first call is answered, so that a test decides what
happens at the same time. Calls are answered in the order in which they were made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from downrange.client.flows.effects import (
    Call,
    Effect,
    Flow,
    Gather,
    Once,
    Pause,
    UserCall,
    Wait,
)
from downrange.errors import RocketMQError
from downrange.wire.command import Command

if TYPE_CHECKING:
    from tests.support.clock import FakeClock

ResultT = TypeVar("ResultT")
#: Answers a call; an error is raised in the flow.
Serve: TypeAlias = Callable[[Call], Command | RocketMQError | None]
Done: TypeAlias = Callable[[Any, Exception | None], None]


class Interpreter:
    """Performs the effects of flows.

    Args:
        serve: Answers calls.
        clock: Moved forward by pauses, and by waits whose signal does not fire.

    Attributes:
        pauses: The seconds of all pauses so far.
        on_wait: Functions to call, one per wait, when every flow waits; one of them may fire the
            signal. Otherwise the wait ends at its deadline.
    """

    def __init__(self, serve: Serve, clock: FakeClock) -> None:
        self.serve = serve
        self.clock = clock
        self.pauses: list[float] = []
        self.on_wait: list[Callable[[], object]] = []

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end; return its result or raise its error."""
        (outcome,) = _Run(self).outcomes([flow])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def run_together(self, flows: Iterable[Flow[Any]]) -> list[Any]:
        """Run flows at the same time; return the result or the error of each."""
        return _Run(self).outcomes(flows)

    def perform(self, effect: Effect) -> Any:
        """Perform one effect of a flow that a test steps by hand."""

        def one_effect() -> Flow[Any]:
            return (yield effect)

        return self.run(one_effect())


class _Task:
    """A flow, and what to call when it ends."""

    def __init__(self, flow: Flow[Any], done: Done) -> None:
        self.flow = flow
        self.done = done


class _Run:
    """The flows of one call of `run` or `run_together`, and all that they start."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._ready: deque[tuple[_Task, Any, Exception | None]] = deque()
        self._calls: deque[tuple[_Task, Call]] = deque()
        self._waits: deque[tuple[_Task, Wait]] = deque()
        self._shared: dict[Hashable, list[_Task]] = {}

    def outcomes(self, flows: Iterable[Flow[Any]]) -> list[Any]:
        outcomes: dict[int, Any] = {}

        def keep(index: int, result: Any, error: Exception | None) -> None:
            outcomes[index] = result if error is None else error

        for index, flow in enumerate(flows):
            self._start(flow, partial(keep, index))
        while self._ready or self._calls or self._waits:
            self._go_on()
        return [outcomes[index] for index in sorted(outcomes)]

    def _start(self, flow: Flow[Any], done: Done) -> None:
        self._ready.append((_Task(flow, done), None, None))

    def _go_on(self) -> None:
        if self._ready:
            self._step(*self._ready.popleft())
        elif self._calls:
            task, call = self._calls.popleft()
            self._answer(task, partial(self._serve, call))
        else:
            task, wait = self._waits.popleft()
            self._answer(task, partial(self._wait, wait))

    def _answer(self, task: _Task, function: Callable[[], Any]) -> None:
        try:
            self._ready.append((task, function(), None))
        except Exception as error:
            self._ready.append((task, None, error))

    def _step(self, task: _Task, answer: Any, error: Exception | None) -> None:
        try:
            effect = task.flow.send(answer) if error is None else task.flow.throw(error)
        except StopIteration as finished:
            task.done(finished.value, None)
        except Exception as failure:
            task.done(None, failure)
        else:
            self._begin(task, effect)

    def _begin(self, task: _Task, effect: Effect) -> None:
        match effect:
            case Call():
                self._calls.append((task, effect))
            case Wait():
                self._waits.append((task, effect))
            case Pause():
                self._interpreter.pauses.append(effect.seconds)
                self._interpreter.clock.seconds += effect.seconds
                self._ready.append((task, None, None))
            case UserCall():
                self._answer(task, partial(effect.function, *effect.args))
            case Once():
                self._share(task, effect)
            case Gather():
                self._gather(task, list(effect.flows), [])

    def _serve(self, call: Call) -> Command | None:
        answer = self._interpreter.serve(call)
        if isinstance(answer, RocketMQError):
            raise answer
        return answer

    def _wait(self, wait: Wait) -> bool:
        interpreter = self._interpreter
        if interpreter.on_wait:
            interpreter.on_wait.pop(0)()
        if not wait.signal.is_fired:
            interpreter.clock.seconds = max(interpreter.clock.seconds, wait.deadline)
        return wait.signal.is_fired

    def _share(self, task: _Task, once: Once) -> None:
        if once.key in self._shared:
            self._shared[once.key].append(task)
            return
        self._shared[once.key] = [task]

        def done(result: Any, error: Exception | None) -> None:
            for waiter in self._shared.pop(once.key):
                self._ready.append((waiter, result, error))

        self._start(once.flow(), done)

    def _gather(self, task: _Task, flows: list[Flow[Any]], outcomes: list[Any]) -> None:
        """Run flows one after the other, whatever the limit: their calls then have an order."""
        if not flows:
            self._ready.append((task, outcomes, None))
            return

        def done(result: Any, error: Exception | None) -> None:
            if error is not None and not isinstance(error, RocketMQError):
                self._ready.append((task, None, error))
            else:
                self._gather(task, flows[1:], [*outcomes, result if error is None else error])

        self._start(flows[0], done)
