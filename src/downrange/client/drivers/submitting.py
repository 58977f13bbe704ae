"""Flows that run on the engine while their callers go on, and the futures of their results.

A future that is cancelled gives its flow up; a client that is closed fails the futures of what has
not ended. One rule: the flow is touched on the engine's thread only.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from downrange.client.drivers.flow_task import Running

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.drivers.aio import AioDriver

_log = logging.getLogger("downrange.client")
ResultT = TypeVar("ResultT")


class Engine(Protocol):
    """Where submitted flows run.

    Attributes:
        submissions: Those that have begun and not ended.
    """

    submissions: set[Submission]

    @property
    def engine(self) -> AioDriver:
        """What runs the flows."""
        ...

    def on_engine(self, begin: Callable[[], None]) -> None:
        """Call a function on the engine's thread."""
        ...

    def callback(self, function: Callable[[], None]) -> None:
        """Run a callback in the pool."""
        ...


class Submission(Running, eq=False, kw_only=True):
    """A flow on its way over the engine; its methods are called there.

    Attributes:
        owner: Whose engine it is.
        future: What its result goes to.
    """

    owner: Engine
    future: Future[Any]

    def begin(self) -> None:
        """Start the flow, unless nobody wants its result any more."""
        if self.future.cancelled():
            self._flow.close()
            return
        self.owner.submissions.add(self)
        self._driver.begin(self)

    def give_up(self) -> None:
        """End the flow without a result; harmless when it has ended."""
        if self in self.owner.submissions:
            self.owner.submissions.discard(self)
            self.cancel()

    def fail(self, error: BaseException) -> None:
        """End the flow with an error."""
        self.give_up()
        self.finish(None, error)

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Settle the future, unless it was cancelled."""
        self.owner.submissions.discard(self)
        try:
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        except InvalidStateError:
            pass
        if isinstance(self.future, CallbackFuture):
            self.future.submission = None  # or the two would keep each other


class CallbackFuture(Future[ResultT]):
    """A future whose callbacks run in the client's pool, so that they hold nobody up.

    Attributes:
        submission: What it is the future of; None when that has ended.
    """

    def __init__(self, owner: Engine) -> None:
        super().__init__()
        self._owner = owner
        self.submission: Submission | None = None

    def add_done_callback(self, fn: Callable[[Future[ResultT]], object]) -> None:
        """Have a function called with this future when it is done, in a thread of the pool."""
        owner = self._owner
        super().add_done_callback(lambda future: owner.callback(lambda: _called(fn, future)))

    def cancel(self) -> bool:
        """Give the work up, unless it is done; a message that was sent may be stored."""
        if not super().cancel():
            return False
        submission = self.submission
        if submission is not None:
            self._owner.on_engine(submission.give_up)
        with self._condition:
            if self._state == "CANCELLED":
                self.set_running_or_notify_cancel()  # wakes `wait` and `as_completed`
        return True


def _called(fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        _log.exception("a callback failed")
