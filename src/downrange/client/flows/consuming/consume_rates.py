"""Rates of a consumer per topic over the last minute, for tools that ask for its running state."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.wire.consumer_bodies import ConsumeRates

if TYPE_CHECKING:
    from downrange.client.flows.effects import Clock

#: Seconds of one slot, and how many slots are kept: a minute.
_SLOT: Final = 10.0
_SLOTS: Final = 6


class _Slot(msgspec.Struct):
    """What happened in one slot: counts of messages, and seconds of pulls and of handlers."""

    begun_at: float
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0
    handled: int = 0
    failed: int = 0
    handle_seconds: float = 0.0


class TopicRates:
    """Counts of one topic in slots of ten seconds.

    Args:
        clock: The time.
    """

    __slots__ = ("_begun_at", "_clock", "_failed", "_slots")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_at = clock.now()
        self._slots: deque[_Slot] = deque(maxlen=_SLOTS)
        self._failed = 0

    def pulled(self, count: int, seconds: float, now: float) -> None:
        """Count an answered pull."""
        slot = self._slot(now)
        slot.pulls += 1
        slot.pull_seconds += seconds
        slot.pulled += count

    def handled(self, count: int, seconds: float, now: float) -> None:
        """Count messages that were handled without an error."""
        slot = self._slot(now)
        slot.handled += count
        slot.handle_seconds += seconds

    def failed(self, count: int, seconds: float, now: float) -> None:
        """Count messages that were handled with an error."""
        slot = self._slot(now)
        slot.failed += count
        slot.handle_seconds += seconds
        self._failed += count

    def snapshot(self) -> ConsumeRates:
        """Return the rates of the last minute."""
        now = self._clock.now()
        slots = [slot for slot in self._slots if now - slot.begun_at < _SLOT * _SLOTS]
        seconds = max(1.0, min(_SLOT * _SLOTS, now - self._begun_at))
        pulls = sum(slot.pulls for slot in slots)
        handled = sum(slot.handled for slot in slots)
        failed = sum(slot.failed for slot in slots)
        busy = sum(slot.handle_seconds for slot in slots)
        return ConsumeRates(
            pull_ms=1000 * sum(slot.pull_seconds for slot in slots) / max(1, pulls),
            pull_rate=sum(slot.pulled for slot in slots) / seconds,
            consume_ms=1000 * busy / max(1, handled + failed),
            consume_ok_rate=handled / seconds,
            consume_failed_rate=failed / seconds,
            consume_failed_msgs=self._failed,
        )

    def _slot(self, now: float) -> _Slot:
        slots = self._slots
        if not slots or now - slots[-1].begun_at >= _SLOT:
            slots.append(_Slot(now))
        return slots[-1]
