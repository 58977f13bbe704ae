"""Counters that tools read by name, with the sums and rates of the last minute, hour and day.

They are sampled as by Apache (StatsItem): every ten seconds for the minute, every ten minutes for
the hour, every hour for the day. A figure is the difference of the last and the first sample of its
list, so it follows what was counted by up to one interval. All figures are 0 before the first
sample.

One rule: a table of counters has a limit. A counter that was not used for longer than a day, whose
figures are all 0, is removed; at the limit those that were unused for longest are removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from downrange.wire.bodies import Count, CountsBody

if TYPE_CHECKING:
    from collections.abc import Callable

#: How many counters a table keeps.
COUNTERS_MAX: Final = 10_000
#: The interval of the shortest samples; the others are multiples of it.
PERIOD_MS: Final = 10_000
#: The part of a full table that is removed at once.
_REMOVED_PART: Final = 10

KeyT = TypeVar("KeyT", bytes, tuple[str, str])

#: Time, uses, messages and bytes.
_Sample: TypeAlias = tuple[int, int, int, int]


class _Span(NamedTuple):
    """How one of the three lists is sampled.

    Attributes:
        periods: Its interval, in multiples of `PERIOD_MS`.
        samples_max: How many samples it has.
    """

    periods: int
    samples_max: int


_SPANS: Final = (_Span(1, 7), _Span(60, 7), _Span(360, 25))
_IDLE_MS: Final = 25 * 3_600_000


def due_spans(before: int, period: int) -> tuple[int, ...]:
    """Return which of minute (0), hour (1) and day (2) are sampled now.

    Args:
        before: The period of the last sampling, counted from the start.
        period: The period of this one; a broker that was suspended skips some.
    """
    return tuple(
        number
        for number, span in enumerate(_SPANS)
        if before // span.periods != period // span.periods
    )


class Counter:
    """Messages and their bytes, and how often they were counted.

    Attributes:
        times: The number of requests that were counted.
        messages: Their messages.
        size: The bytes of these.
        offsets: Queue id -> the offset behind the last message, where that is of interest.
        is_system: Whether the messages are of a topic of the broker itself.
        used_ms: When it was last found changed.
    """

    __slots__ = ("_samples", "is_system", "messages", "offsets", "size", "times", "used_ms")

    def __init__(self, now_ms: int = 0, *, is_system: bool = False) -> None:
        self.times = 0
        self.messages = 0
        self.size = 0
        self.offsets: dict[int, int] = {}
        self.is_system = is_system
        self.used_ms = now_ms
        self._samples: tuple[list[_Sample], ...] = ([], [], [])

    def sample(self, spans: tuple[int, ...], now_ms: int) -> None:
        """Take the samples that are due; see `due_spans`."""
        taken = (now_ms, self.times, self.messages, self.size)
        for number in spans:
            samples, span = self._samples[number], _SPANS[number]
            if not samples:
                samples.append((now_ms - span.periods * PERIOD_MS, 0, 0, 0))
            if number == 0 and samples[-1][2:] != taken[2:]:
                self.used_ms = now_ms
            samples.append(taken)
            if len(samples) > span.samples_max:
                del samples[0]

    def counts(self, *, is_of_size: bool = False) -> CountsBody:
        """Return the figures of messages, or of their bytes."""
        column = 3 if is_of_size else 2
        minute, hour, day = (_count(samples, column) for samples in self._samples)
        return CountsBody(stats_minute=minute, stats_hour=hour, stats_day=day)

    def rate(self) -> float:
        """Return the messages per second in the last minute."""
        return _count(self._samples[0], 2).tps


def _count(samples: list[_Sample], column: int) -> Count:
    if not samples:
        return Count()
    first, last = samples[0], samples[-1]
    grown, times = last[column] - first[column], last[1] - first[1]
    elapsed_ms = last[0] - first[0]
    return Count(
        sum=grown,
        tps=grown * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,  # a clock may be set back
        avgpt=grown / times if times > 0 else 0.0,
    )


class Counters(Generic[KeyT]):
    """Counters by key: a topic, or a topic and a group.

    Args:
        limit: How many there may be.
    """

    __slots__ = ("_by_key", "_limit", "_now_ms", "get")

    def __init__(self, limit: int = COUNTERS_MAX) -> None:
        self._by_key: dict[KeyT, Counter] = {}
        self._limit = limit
        self._now_ms = 0
        #: Returns a counter, or None.
        self.get: Callable[[KeyT], Counter | None] = self._by_key.get

    def __len__(self) -> int:
        """Return how many counters there are."""
        return len(self._by_key)

    def items(self) -> list[tuple[KeyT, Counter]]:
        """Return all keys with their counters, as they are now."""
        return list(self._by_key.items())

    def add(self, key: KeyT, *, is_system: bool = False) -> Counter:
        """Create a counter; at the limit, remove those that were unused for longest."""
        if len(self._by_key) >= self._limit:
            by_use = sorted(self._by_key, key=lambda key: self._by_key[key].used_ms)
            for unused in by_use[: max(self._limit // _REMOVED_PART, 1)]:
                del self._by_key[unused]
        counter = self._by_key[key] = Counter(self._now_ms, is_system=is_system)
        return counter

    def sample(self, spans: tuple[int, ...], now_ms: int) -> None:
        """Sample all counters; remove those that were not used for a day."""
        self._now_ms = now_ms
        idle: list[KeyT] = []
        for key, counter in self._by_key.items():
            counter.sample(spans, now_ms)
            if now_ms - counter.used_ms > _IDLE_MS:
                idle.append(key)
        for key in idle:
            del self._by_key[key]

    def drop(self, is_dropped: Callable[[KeyT], bool]) -> None:
        """Remove the counters whose keys match."""
        for key in [key for key in self._by_key if is_dropped(key)]:
            del self._by_key[key]
