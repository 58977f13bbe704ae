"""When each message is due: a rate that varies around its mean, for a limited time."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterator

#: How far the rate goes above and below its mean.
RATE_AMPLITUDE: Final = 0.5
#: A sender that was delayed may use this multiple of the planned time to catch up.
OVERRUN_FACTOR: Final = 1.25
# Enough for a precision of a microsecond.
_HALVINGS: Final = 32


def count_by(elapsed: float, seconds: float, per_second: float) -> float:
    """Return how many messages should have been sent by a time.

    The rate is one sine wave around its mean: high in the first half, low in the second.

    Args:
        elapsed: Seconds since the start.
        seconds: Planned duration.
        per_second: The mean rate.
    """
    turn = 2 * math.pi / seconds
    wave = RATE_AMPLITUDE * (1 - math.cos(turn * elapsed)) / turn
    return per_second * (elapsed + wave)


def due_at(number: int, seconds: float, per_second: float) -> float:
    """Return when a message is due, in seconds since the start: the inverse of `count_by`."""
    early, late = 0.0, seconds
    for _ in range(_HALVINGS):
        middle = (early + late) / 2
        if count_by(middle, seconds, per_second) < number:
            early = middle
        else:
            late = middle
    return late


@dataclass(slots=True)
class SendSchedule:
    """Yields the times at which to send, until all are used or it is stopped.

    Attributes:
        seconds: Planned duration.
        per_second: The mean rate.
        stopped: Setting it ends the schedule early.
        started_at: When it started, on the monotonic clock.
        overrun_factor: A delayed sender may take `seconds` times this factor in total.
    """

    seconds: float
    per_second: float
    stopped: threading.Event
    started_at: float = field(default_factory=time.monotonic)
    overrun_factor: float = OVERRUN_FACTOR

    @property
    def planned(self) -> int:
        """The number of ticks, if the sender is not delayed."""
        return round(self.per_second * self.seconds)

    def ticks(self) -> Iterator[int]:
        """Yield the number of each tick when it is due."""
        for number in range(self.planned):
            self.stopped.wait(self._until(number))
            if self._is_over():
                return
            yield number

    async def async_ticks(self) -> AsyncIterator[int]:
        """Yield the number of each tick when it is due, on an event loop."""
        for number in range(self.planned):
            await asyncio.sleep(self._until(number))
            if self._is_over():
                return
            yield number

    def _until(self, number: int) -> float:
        at = self.started_at + due_at(number, self.seconds, self.per_second)
        return max(0.0, at - time.monotonic())

    def _is_over(self) -> bool:
        late = time.monotonic() - self.started_at > self.seconds * self.overrun_factor
        return late or self.stopped.is_set()
