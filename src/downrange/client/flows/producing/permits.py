"""Back-pressure: how many messages, and bytes of them, may be on their way at once.

Who finds no room waits in line. The one rule: a permit is granted the moment there is room, to the
first in line and before that one wakes up; so nobody overtakes, and what a waiter was granted it
passes on when it has gone away meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from downrange.client.flows.effects import Signal, Wait
from downrange.errors import TooManySends
from downrange.options.checks import check_at_least

if TYPE_CHECKING:
    from downrange.client.flows.effects import Clock, Flow


class Permits:
    """What is on its way, and who waits for room.

    A message of more than `bytes_max` bytes goes alone: it could never be sent otherwise.

    Args:
        clock: The time.
        count_max: Messages on their way at once (`in_flight_max`).
        bytes_max: Bytes of them (`in_flight_bytes_max`).

    Attributes:
        in_flight: Messages on their way now.
        in_flight_bytes: Bytes of them.
        in_flight_high: The most there ever were.
        in_flight_bytes_high: The most bytes there ever were.
        waiting_high: The longest that the line ever was.

    Example:
        >>> def send(permits, message, deadline):
        ...     yield from permits.take(len(message.body), deadline)
        ...     try:
        ...         return (yield from ...)
        ...     finally:
        ...         permits.give_back(len(message.body))
    """

    __slots__ = (
        "_clock",
        "_line",
        "bytes_max",
        "count_max",
        "in_flight",
        "in_flight_bytes",
        "in_flight_bytes_high",
        "in_flight_high",
        "waiting_high",
    )

    def __init__(self, clock: Clock, count_max: int, bytes_max: int) -> None:
        self._clock = clock
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.in_flight_high = 0
        self.in_flight_bytes_high = 0
        self.waiting_high = 0
        # Who waits, with the bytes wanted. Ordered, and anyone may leave at no cost.
        self._line: OrderedDict[Signal, int] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._line)

    def try_take(self, size: int) -> bool:
        """Take room for one message of so many bytes, if there is some and nobody waits."""
        # `_has_room` and `_grant`, written out: this is done for every message.
        count, whole = self.in_flight, self.in_flight_bytes + size
        if self._line or count >= self.count_max or (whole > self.bytes_max and count):
            return False
        self.in_flight = count = count + 1
        self.in_flight_bytes = whole
        if count > self.in_flight_high:
            self.in_flight_high = count
        if whole > self.in_flight_bytes_high:
            self.in_flight_bytes_high = whole
        return True

    def take(self, size: int, deadline: float) -> Flow[None]:
        """Take room for one message of so many bytes; wait in line for it.

        Raises:
            TooManySends: There was none before the deadline.
        """
        if not self.try_take(size):
            yield from self._stand_in_line(size, deadline)

    def give_back(self, size: int) -> None:
        """Return the room of one message that `take` or `try_take` gave."""
        assert self.in_flight > 0, "more was given back than taken"
        self.in_flight -= 1
        self.in_flight_bytes -= size
        if self._line:
            self._serve_line()

    def resize(self, count_max: int | None = None, bytes_max: int | None = None) -> None:
        """Change the limits. Below what is on its way now, nothing more goes until there is room.

        Raises:
            OptionError: Nothing could be sent with such a limit.
        """
        if count_max is not None:
            check_at_least(1, "in_flight_max", count_max)
            self.count_max = count_max
        if bytes_max is not None:
            check_at_least(1, "in_flight_bytes_max", bytes_max)
            self.bytes_max = bytes_max
        self._serve_line()

    def _stand_in_line(self, size: int, deadline: float) -> Flow[None]:
        started = self._clock.now()
        granted = Signal()
        self._line[granted] = size
        self.waiting_high = max(self.waiting_high, len(self._line))
        is_through = False
        try:
            yield Wait(granted, deadline)
            # Not the answer: the permit may come between the deadline and this line.
            is_through = granted.is_fired
            if not is_through:
                raise self._refusal(self._clock.now() - started)
        finally:
            if not is_through:
                self._leave_line(granted, size)

    def _leave_line(self, granted: Signal, size: int) -> None:
        if granted.is_fired:
            self.give_back(size)
        else:
            del self._line[granted]
            self._serve_line()  # what was too little for this one may do for the next

    def _serve_line(self) -> None:
        while self._line:
            granted, size = next(iter(self._line.items()))
            if not self._has_room(size):
                return
            del self._line[granted]
            self._grant(size)
            granted.fire()

    def _has_room(self, size: int) -> bool:
        return self.in_flight < self.count_max and (
            self.in_flight_bytes + size <= self.bytes_max or not self.in_flight
        )

    def _grant(self, size: int) -> None:
        self.in_flight += 1
        self.in_flight_bytes += size
        if self.in_flight > self.in_flight_high:
            self.in_flight_high = self.in_flight
        if self.in_flight_bytes > self.in_flight_bytes_high:
            self.in_flight_bytes_high = self.in_flight_bytes

    def _refusal(self, waited: float) -> TooManySends:
        # With room for one more message, it is bytes that the first in line waits for.
        if self.in_flight >= self.count_max:
            return TooManySends("in_flight_max", self.count_max, waited)
        return TooManySends("in_flight_bytes_max", self.bytes_max, waited)
