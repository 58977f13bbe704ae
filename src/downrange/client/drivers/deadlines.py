"""One timer for everything that an event loop waits for with a deadline.

A timer per waiter would cost more than the wait itself. So one timer is set to the earliest
deadline. When it fires, every waiter that is late is called, and the timer is set to the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

    from downrange.client.flows.effects import Clock

_NEVER: Final = float("inf")


class Waiter(Protocol):
    """An object that waits until a deadline at most."""

    deadline: float

    def on_deadline(self) -> None:
        """Called once the deadline has passed; the waiter is no longer watched then."""
        ...


class Deadlines:
    """Calls waiters whose deadline has passed.

    Args:
        loop: The event loop of the timer.
        clock: The clock of the deadlines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        #: In the order in which they came, so that a simulation can be repeated.
        self._waiters: dict[Waiter, None] = {}
        self._next = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """Watch a waiter until `discard`, or until its deadline has passed."""
        self._waiters[waiter] = None
        if waiter.deadline < self._next:
            self._set(waiter.deadline, self._clock.now())

    def discard(self, waiter: Waiter) -> None:
        """Stop to watch a waiter; does nothing when it is not watched."""
        self._waiters.pop(waiter, None)

    def close(self) -> None:
        """Stop to watch all waiters."""
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, deadline: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        self._timer = (
            None if deadline == _NEVER else self._loop.call_later(deadline - now, self._fire)
        )

    def _fire(self) -> None:
        now = self._clock.now()
        late = [waiter for waiter in self._waiters if waiter.deadline <= now]
        for waiter in late:
            del self._waiters[waiter]
        self._set(min((waiter.deadline for waiter in self._waiters), default=_NEVER), now)
        for waiter in late:
            waiter.on_deadline()
