"""Counters of stored and pulled messages: totals and rates.

Counting is one addition per message. `sample` keeps the totals of each second, which give the rates
of the last ten seconds, minute and ten minutes, and the totals of each midnight.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final, NamedTuple

SAMPLE_MS: Final = 1_000
#: The spans that tools show, in seconds.
SPANS: Final = (10, 60, 600)


class Totals(NamedTuple):
    """The counters at a time."""

    now_ms: int
    messages_stored: int
    bytes_stored: int
    messages_pulled: int
    bytes_pulled: int


class Statistics:
    """Counters since the start.

    Args:
        now_ms: The time of the start.

    Attributes:
        today: The totals at the last midnight, or at the start if that was later.
        yesterday: The totals at the midnight before.
    """

    __slots__ = (
        "_day",
        "_samples",
        "bytes_pulled",
        "bytes_stored",
        "messages_pulled",
        "messages_stored",
        "today",
        "yesterday",
    )

    def __init__(self, now_ms: int) -> None:
        self.messages_stored = 0
        self.bytes_stored = 0
        self.messages_pulled = 0
        self.bytes_pulled = 0
        self._samples: deque[Totals] = deque([self.totals(now_ms)], maxlen=SPANS[-1] + 1)
        self._day = _day(now_ms)
        self.today = self.yesterday = self._samples[0]

    def stored(self, messages: int, size: int) -> None:
        """Count messages that were stored, and their bytes."""
        self.messages_stored += messages
        self.bytes_stored += size

    def pulled(self, messages: int, size: int) -> None:
        """Count messages that were pulled, and their bytes."""
        self.messages_pulled += messages
        self.bytes_pulled += size

    def totals(self, now_ms: int) -> Totals:
        """Return the totals so far."""
        return Totals(
            now_ms,
            self.messages_stored,
            self.bytes_stored,
            self.messages_pulled,
            self.bytes_pulled,
        )

    def sample(self, now_ms: int) -> None:
        """Keep the totals of this second; cheap to call more often."""
        if now_ms - self._samples[-1].now_ms < SAMPLE_MS:
            return
        totals = self.totals(now_ms)
        self._samples.append(totals)
        day = _day(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday, self.today = self.today, totals

    def rates(self, name: str) -> list[float]:
        """Return a counter's rate per second over each of `SPANS`, as far as samples reach."""
        last = self._samples[-1]
        found: list[float] = []
        for span in SPANS:
            first = self._samples[max(0, len(self._samples) - 1 - span)]
            seconds = (last.now_ms - first.now_ms) / 1000
            grown: int = getattr(last, name) - getattr(first, name)
            found.append(grown / seconds if seconds else 0.0)
        return found


def _day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()  # in local time, for the operator
