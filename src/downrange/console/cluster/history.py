"""Figures over time, kept in memory: 15 minutes in fine steps, 24 hours in coarse ones.

Pure: times come as arguments. A coarse point is the mean of the fine points of its step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.pages.overview import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The figures that are kept.
COLUMNS: Final = ("sent", "received", "lag", "stored")

#: The figures of one point, in the order of `COLUMNS`.
_Values = tuple[float | None, ...]


class History:
    """The figures of the last 24 hours.

    Args:
        step: Seconds between two points that are added.
        recent: How many seconds fine points are kept.
        day: How many seconds coarse points are kept.
        day_step: Seconds of a coarse point.
    """

    def __init__(
        self,
        step: float,
        *,
        recent: float = limits.RECENT_SECONDS,
        day: float = limits.DAY_SECONDS,
        day_step: float = limits.DAY_STEP,
    ) -> None:
        self._step = step
        self._day_step = day_step
        self._recent_seconds = recent
        self._day_seconds = day
        # A count as well as an age limits both: a clock that is set back must not keep points.
        self._recent: deque[tuple[float, _Values]] = deque(maxlen=int(recent / step) + 1)
        self._day: deque[tuple[float, _Values]] = deque(maxlen=int(day / day_step) + 1)
        self._open: list[_Values] = []
        self._open_at: float | None = None

    def add(self, at: float, figures: Mapping[str, float | None]) -> None:
        """Add the figures of a time.

        Args:
            at: Unix seconds. A time before the last one, of a clock that was set back, is left out.
            figures: By the names of `COLUMNS`; a missing one is not known.
        """
        if self._recent and at <= self._recent[-1][0]:
            return
        values = tuple(figures.get(name) for name in COLUMNS)
        self._recent.append((at, values))
        _forget(self._recent, at - self._recent_seconds)
        begin = at - at % self._day_step
        if self._open_at is not None and begin != self._open_at:
            self._close()
        self._open_at = begin
        self._open.append(values)

    def _close(self) -> None:
        assert self._open_at is not None
        self._day.append((self._open_at, _means(self._open)))
        _forget(self._day, self._open_at - self._day_seconds)
        self._open.clear()

    def recent(self) -> Series:
        """Return the fine points."""
        return _series(self._step, self._recent)

    def day(self) -> Series:
        """Return the coarse points, the last of which is not complete."""
        points = list(self._day)
        if self._open_at is not None and self._open:
            points.append((self._open_at, _means(self._open)))
        return _series(self._day_step, points)


def _forget(points: deque[tuple[float, _Values]], before: float) -> None:
    while points and points[0][0] < before:
        points.popleft()


def _means(points: list[_Values]) -> _Values:
    """Return the mean of each figure, over the points that know it."""
    means: list[float | None] = []
    for column in zip(*points, strict=True):
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return tuple(means)


def _series(step: float, points: Iterable[tuple[float, _Values]]) -> Series:
    kept = list(points)
    columns = {
        name: tuple(values[index] for _, values in kept) for index, name in enumerate(COLUMNS)
    }
    return Series(step=step, times=tuple(at for at, _ in kept), columns=columns)
