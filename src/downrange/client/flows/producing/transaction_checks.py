"""Limits on the transaction checks that a producer answers at a time, and that may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downrange.client.flows.producing.permits import Permits
from downrange.errors import TooManySends

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Clock, Flow
    from downrange.options import ProducerOptions


class TransactionChecks:
    """The user's check function, and how many checks run at a time.

    Args:
        function: Takes the half message, returns an `Outcome`.
        options: How many checks run at a time, and how many may wait.
        clock: The time.
    """

    __slots__ = ("_permits", "_waiting_max", "function")

    def __init__(
        self, function: Callable[..., Any], options: ProducerOptions, clock: Clock
    ) -> None:
        self.function = function
        self._permits = Permits(clock, options.check_threads, 1)
        self._waiting_max = options.checks_waiting_max

    def enter(self, deadline: float) -> Flow[bool]:
        """Wait for room; return whether there is some. If so, call `leave` after the check."""
        permits = self._permits
        if permits.try_take(0):
            return True
        if permits.waiting >= self._waiting_max:
            return False
        try:
            yield from permits.take(0, deadline)
        except TooManySends:
            return False
        return True

    def leave(self) -> None:
        """Give the room to the next check."""
        self._permits.give_back(0)
