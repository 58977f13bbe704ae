"""One timer for all who wait for something that may not come in time.

A timer for each of them would cost more than the waiting. So the earliest deadline has one; when it
rings, all who are late are told, and it is set to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

    from downrange.client.flows.effects import Clock

_NEVER: Final = float("inf")


class Waiter(Protocol):
    """Someone who waits."""

    deadline: float

    def late(self) -> None:
        """Go on without what was waited for."""
        ...


class Deadlines:
    """Tells those who wait when they are late.

    Args:
        loop: Where it does so.
        clock: The time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._waiters: set[Waiter] = set()
        self._next = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """Watch someone until `discard`, or until the deadline has passed."""
        self._waiters.add(waiter)
        if waiter.deadline < self._next:
            self._set(waiter.deadline, self._clock.now())

    def discard(self, waiter: Waiter) -> None:
        """Watch someone no longer; harmless when that is so already."""
        self._waiters.discard(waiter)

    def close(self) -> None:
        """Watch nobody any more."""
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, deadline: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        self._timer = (
            None if deadline == _NEVER else self._loop.call_later(deadline - now, self._ring)
        )

    def _ring(self) -> None:
        now = self._clock.now()
        late = [waiter for waiter in self._waiters if waiter.deadline <= now]
        self._waiters.difference_update(late)
        self._set(min((waiter.deadline for waiter in self._waiters), default=_NEVER), now)
        for waiter in late:
            waiter.late()
