"""Measuring in tests how long something takes, on a machine that may be busy.

Other processes make any run longer now and then. What always takes too long does so in each run, so
the shortest run counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNS_MAX: Final = 10


def shortest(measure: Callable[[], float], limit: float) -> float:
    """Measure until a run is below the limit, a few times at most; return the shortest time.

    Args:
        measure: Does the work, and returns the seconds that it took.
        limit: The seconds that the caller allows.
    """
    times: list[float] = []
    while len(times) < _RUNS_MAX and not (times and times[-1] < limit):
        times.append(measure())
    return min(times)
