"""Back-pressure: limits on the messages, and their bytes, that are in flight at once.

A flow that finds no room waits in line. One rule: a permit is granted as soon as there is room, to
the first in line, before its flow resumes. So no flow overtakes another, and a flow that was
cancelled meanwhile gives its permit back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from downrange.checks import check_count
from downrange.client.flows.effects import Signal, Wait
from downrange.errors import TooManySends

if TYPE_CHECKING:
    from downrange.client.flows.effects import Clock, Flow


class Permits:
    """Counts what is in flight, and the line of flows that wait for room.

    A message larger than `bytes_max` is sent when nothing else is in flight.

    Args:
        clock: The time.
        count_max: Most messages in flight (`in_flight_max`).
        bytes_max: Most bytes in flight (`in_flight_bytes_max`).

    Attributes:
        in_flight: Messages in flight now.
        in_flight_bytes: Their bytes.
        in_flight_high: The most messages so far.
        in_flight_bytes_high: The most bytes so far.
        waiting_high: The longest line so far.
        size_high: The size of the largest message that was submitted so far, for drivers.

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
        "size_high",
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
        self.size_high = 0
        # The flows that wait, each with its bytes. Ordered; any entry can be removed quickly.
        self._line: OrderedDict[Signal, int] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many flows wait for room."""
        return len(self._line)

    def try_take(self, size: int) -> bool:
        """Take room for one message of `size` bytes, if there is some and the line is empty."""
        # `_has_room` and `_grant` written out, to save two calls per message.
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
        """Take room for one message of `size` bytes; wait in line for it.

        Raises:
            TooManySends: There was none before the deadline.
        """
        if not self.try_take(size):
            yield from self._stand_in_line(size, deadline)

    def give_back(self, size: int) -> None:
        """Give back the room of one message that `take` or `try_take` took."""
        assert self.in_flight > 0, "more was given back than taken"
        self.in_flight -= 1
        self.in_flight_bytes -= size
        if self._line:
            self._serve_line()

    def give_back_together(self, count: int, size: int) -> None:
        """Give back the room of `count` messages that have `size` bytes together."""
        assert self.in_flight >= count, "more was given back than taken"
        self.in_flight -= count
        self.in_flight_bytes -= size
        if self._line:
            self._serve_line()

    def resize(self, count_max: int | None = None, bytes_max: int | None = None) -> None:
        """Change the limits. If more is in flight now, new messages wait until there is room.

        Raises:
            OptionError: A limit is below 1.
        """
        if count_max is not None:
            check_count(1, "in_flight_max", count_max)
            self.count_max = count_max
        if bytes_max is not None:
            check_count(1, "in_flight_bytes_max", bytes_max)
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
            # Not the result of the wait: the permit may come between the deadline and this line.
            is_through = granted.is_fired
            if not is_through:
                raise self.refusal(self._clock.now() - started)
        finally:
            if not is_through:
                self._leave_line(granted, size)

    def _leave_line(self, granted: Signal, size: int) -> None:
        if granted.is_fired:
            self.give_back(size)
        else:
            del self._line[granted]
            self._serve_line()  # the next one may need less room

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

    def refusal(self, waited: float | None = None) -> TooManySends:
        """Return the error for a message that found no room; None for one that did not wait."""
        # If another message were allowed, the first in line waits for bytes.
        if self.in_flight >= self.count_max:
            return TooManySends("in_flight_max", self.count_max, waited)
        return TooManySends("in_flight_bytes_max", self.bytes_max, waited)
