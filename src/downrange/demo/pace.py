"""When the next message is due: a rate that swells and ebbs, and ends."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterator

#: How much above and below its mean the rate goes.
SWELL: Final = 0.5
#: A sender that was held up may take so many times its time in all, to catch up.
OVERTIME: Final = 1.25
# Enough to know the time to a microsecond in any demo.
_HALVINGS: Final = 32


def count_by(elapsed: float, seconds: float, per_second: float) -> float:
    """Return how many messages should be on their way by a time.

    The rate is a wave around its mean, one per run: busy in the first half, quiet in the second.

    Args:
        elapsed: Seconds since the begin.
        seconds: How long all of it takes.
        per_second: The mean rate.
    """
    turn = 2 * math.pi / seconds
    wave = SWELL * (1 - math.cos(turn * elapsed)) / turn
    return per_second * (elapsed + wave)


def due_at(number: int, seconds: float, per_second: float) -> float:
    """Return when a message is due, in seconds since the begin: `count_by` the other way round."""
    early, late = 0.0, seconds
    for _ in range(_HALVINGS):
        middle = (early + late) / 2
        if count_by(middle, seconds, per_second) < number:
            early = middle
        else:
            late = middle
    return late


@dataclass(slots=True)
class Pace:
    """Beats at which to send; ends by itself, or when it is stopped.

    Attributes:
        seconds: How long it goes on.
        per_second: The mean rate.
        stopped: Ends it early.
        begun_at: When it began, on the monotonic clock.
        overtime: How many times `seconds` a sender that was held up may take in all.
    """

    seconds: float
    per_second: float
    stopped: threading.Event
    begun_at: float = field(default_factory=time.monotonic)
    overtime: float = OVERTIME

    @property
    def planned(self) -> int:
        """How many beats there will be, if nothing holds them up."""
        return round(self.per_second * self.seconds)

    def beats(self) -> Iterator[int]:
        """Go through the beats, waiting for each."""
        for number in range(self.planned):
            self.stopped.wait(self._until(number))
            if self._is_over():
                return
            yield number

    async def async_beats(self) -> AsyncIterator[int]:
        """Go through the beats on an event loop."""
        for number in range(self.planned):
            await asyncio.sleep(self._until(number))
            if self._is_over():
                return
            yield number

    def _until(self, number: int) -> float:
        at = self.begun_at + due_at(number, self.seconds, self.per_second)
        return max(0.0, at - time.monotonic())

    def _is_over(self) -> bool:
        late = time.monotonic() - self.begun_at > self.seconds * self.overtime
        return late or self.stopped.is_set()
