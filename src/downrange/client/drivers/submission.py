"""Flows that run on the engine while their callers continue, and the futures of their results.

To cancel a future closes its flow; to close the client fails the futures of flows that have not
ended. One rule: a flow is touched on the engine's thread only, once it was handed over: a flow that
waits for room under the limits of back-pressure takes its first steps in the thread of its caller.
"""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from downrange.client.drivers.awaited_send import AwaitedSend
from downrange.client.drivers.flow_task import FlowTask
from downrange.client.flows.hooks import name_of
from downrange.errors import ClientClosed

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from downrange.client.flows.effects import Flow
    from downrange.model import SendReceipt

ResultT = TypeVar("ResultT")


class Engine(Protocol):
    """The driver that submitted flows run on.

    Attributes:
        submissions: Submissions that have started and not ended.
        unstarted: One entry for each submission that was not admitted and has not started.
    """

    submissions: set[Submission | SubmittedSend]
    unstarted: deque[None]

    def on_engine(self, function: Callable[[], None]) -> None:
        """Call a function on the engine's thread."""
        ...

    def callback(self, function: Callable[[], None]) -> None:
        """Run a callback of the user in the pool."""
        ...

    def report(self, where: str, error: BaseException) -> None:
        """Report an exception of the user's code."""
        ...


class Submission(FlowTask, eq=False, kw_only=True):
    """A flow on the engine with a future; its methods are called on the engine's thread.

    Attributes:
        engine: The driver that it runs on.
        future: The future of its result.
        is_admitted: Whether its caller took the first steps, until there was room.
    """

    engine: Engine
    future: Future[Any]
    is_admitted: bool = False

    def start(self) -> None:
        """Start or continue the flow, unless the future was cancelled before."""
        is_admitted, engine = self.is_admitted, self.engine
        if not is_admitted:
            engine.unstarted.popleft()
        if self.future.cancelled():
            self.close_flow()
            return
        engine.submissions.add(self)
        if is_admitted and not self._scheduler.is_closed:
            self.resume(True)  # the answer of the `Wait` for its signal
        else:
            super().start()

    def give_up(self) -> None:
        """Close the flow; does nothing when it has ended."""
        if self in self.engine.submissions:
            self.engine.submissions.discard(self)
            self.cancel()

    def fail(self, error: BaseException) -> None:
        """Close the flow, and set the error of the future."""
        self.give_up()
        self.finish(None, error)

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the result or the error of the future, unless it was cancelled."""
        self.engine.submissions.discard(self)
        _set_outcome(self.future, result, error)


class SubmittedSend(AwaitedSend, eq=False, kw_only=True):
    """A plain send on the engine, with a future; without a flow as long as all is well.

    Its methods are called on the engine's thread.

    Attributes:
        engine: The driver that it runs on.
    """

    engine: Engine

    def begin(self) -> None:
        """Make the call, or run the flow, unless the future was cancelled before."""
        engine, send = self.engine, self.send
        engine.unstarted.popleft()
        if self.future.cancelled():
            return
        engine.submissions.add(self)
        if self.scheduler.is_closed:
            self.finish(None, ClientClosed("the client"))
            return
        with self.scheduler.lock:
            is_direct = send.begin()
        if is_direct:
            self.called_at = send.started
            self.start()
        else:
            self.go_on(send.flow())

    def complete(self, receipt: SendReceipt) -> None:
        """Set the result of the future."""
        self.finish(receipt, None)

    def go_on(self, flow: Flow[SendReceipt]) -> None:
        """Run the flow that takes over."""
        self.task = FlowTask(self.scheduler, flow, self.finish)
        self.task.resume()

    def give_up(self) -> None:
        """End the send; does nothing when it has ended."""
        if self in self.engine.submissions:
            self.engine.submissions.discard(self)
            self.cancel()

    def fail(self, error: BaseException) -> None:
        """End the send, and set the error of the future."""
        self.give_up()
        self.finish(None, error)

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the result or the error of the future, unless it was cancelled."""
        self.engine.submissions.discard(self)
        _set_outcome(self.future, result, error)


def _set_outcome(future: Any, result: Any, error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass
    if isinstance(future, CallbackFuture):
        future.submission = None  # breaks the reference cycle of the two


class CallbackFuture(Future[ResultT]):
    """A future whose callbacks run in the client's pool, where they do not block the engine.

    Attributes:
        submission: The submission of this future; None when it has ended.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self.submission: Submission | SubmittedSend | None = None

    def add_done_callback(self, fn: Callable[[Future[ResultT]], object]) -> None:
        """Have a function called with this future when it is done, in a thread of the pool."""
        engine = self._engine
        super().add_done_callback(lambda future: engine.callback(lambda: _call(engine, fn, future)))

    def cancel(self) -> bool:
        """Cancel the work, unless it is done; a message that was sent may be stored."""
        if not super().cancel():
            return False
        submission = self.submission
        if submission is not None:
            self._engine.on_engine(submission.give_up)
        with self._condition:
            if self._state == "CANCELLED":
                self.set_running_or_notify_cancel()  # wakes `wait` and `as_completed`
        return True


def _call(engine: Engine, fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except BaseException as error:  # an executor would drop it, and it must not end the engine
        engine.report(f"callback {name_of(fn)} of a future", error)
