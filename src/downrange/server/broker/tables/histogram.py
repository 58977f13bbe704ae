"""A histogram: how many values fell into each of a few fixed ranges, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Histogram:
    """Counts of values by upper bound.

    Args:
        bounds: The upper bounds, in rising order; a value equal to a bound belongs to it.

    Attributes:
        bounds: See above.
        count: The number of values.
        sum: Their sum.
    """

    __slots__ = ("_counts", "bounds", "count", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.count = 0
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    def cumulative(self) -> Iterator[int]:
        """Yield, for each bound, how many values are not above it."""
        total = 0
        for count in self._counts[:-1]:
            total += count
            yield total
