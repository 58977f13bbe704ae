"""The health of brokers, judged by our own sends, and which of them to avoid.

Producers record the latency of each reply and each failure. A broker that was slow or failed is not
*available* for some time, which a table of latencies sets. A broker whose failure looks like an
outage is not *reachable* until it answers a send or a probe. `queue_picker` then chooses the queue.
One rule: nothing is measured here; results of sends and the time come in as arguments.

The styles follow Java's `MQFaultStrategy` of 4.9 and of 5.x. They differ in more than the tables:

    4.x   the last result decides: a quick reply makes a broker available at once. Every error
          counts as a latency of 30 s.
    5.x   the time to avoid a broker can only grow until it has passed. An error counts as 10 s,
          unless it is the client's own fault. Probes test whether unreachable brokers are back.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.errors import LinkError, ServerError, TransportError
from downrange.options.clients import FaultTolerance

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Randomness
    from downrange.errors import RocketMQError
    from downrange.options.clients import FaultStyle

#: For each style: latency classes in milliseconds, and how long a broker of each is avoided.
TABLES: Final[dict[FaultStyle, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "4.x": (
        (50, 100, 550, 1_000, 2_000, 3_000, 15_000),
        (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
    ),
    "5.x": (
        (50, 100, 550, 1_800, 3_000, 5_000, 15_000),
        (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000),
    ),
    "off": ((), ()),
}
#: An error counts as a reply that took this many seconds; the table turns it into a time to avoid.
_FAILURE_LATENCY: Final[dict[FaultStyle, float]] = {"4.x": 30.0, "5.x": 10.0, "off": 0.0}
_INDEX_MASK: Final = 0x7FFFFFFF


def tolerance_of(option: FaultTolerance | FaultStyle) -> FaultTolerance:
    """Return the settings of fault tolerance; a style stands for its defaults."""
    return option if isinstance(option, FaultTolerance) else FaultTolerance(style=option)


class HealthSnapshot(msgspec.Struct, frozen=True):
    """The health of one broker at one time.

    Attributes:
        broker: Its name.
        is_available: Whether it may be used; False while it is avoided.
        is_reachable: Whether it may be used when no broker is available; always True in 4.x style.
        latency: How long its last reply, or failure, took; in seconds.
        avoided_for: How many more seconds it is avoided.
    """

    broker: str
    is_available: bool
    is_reachable: bool
    latency: float
    avoided_for: float


class _Broker:
    """The record of one broker."""

    __slots__ = ("avoid_until", "is_reachable", "is_reported", "latency", "name", "probe_at")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.latency = 0.0
        self.avoid_until = now
        self.is_reachable = True
        self.probe_at = now
        #: Whether `on_change` was last called because the broker is avoided.
        self.is_reported = False

    def is_avoided(self, now: float) -> bool:
        return now < self.avoid_until or not self.is_reachable

    def state(self, now: float) -> HealthSnapshot:
        until = self.avoid_until
        return HealthSnapshot(
            self.name, now >= until, self.is_reachable, self.latency, max(0.0, until - now)
        )


class BrokerHealth:
    """The health of all brokers that were sent to.

    Args:
        tolerance: Style and tables.
        randomness: Where the choice among avoided brokers starts.
        on_change: Called when a broker begins to be avoided, and when it is used again.

    Attributes:
        style: The style; with "off" nothing is recorded and every broker is available.
        is_on: Whether brokers are avoided at all.
    """

    __slots__ = (
        *("_avoid", "_brokers", "_randomness", "_failure_avoid", "_latencies", "_turn"),
        *("is_on", "on_change", "style", "tolerance"),
    )

    def __init__(
        self,
        tolerance: FaultTolerance,
        randomness: Randomness,
        on_change: Callable[[HealthSnapshot], None] | None = None,
    ) -> None:
        self.tolerance = tolerance
        self.style = tolerance.style
        self.is_on = tolerance.style != "off"
        self.on_change = on_change
        latency_ms, avoid_ms = TABLES[tolerance.style]
        if tolerance.latency_ms is not None and tolerance.avoid_ms is not None:
            latency_ms, avoid_ms = tolerance.latency_ms, tolerance.avoid_ms
        self._latencies = [ms / 1000 for ms in latency_ms]
        self._avoid = [0.0, *(ms / 1000 for ms in avoid_ms)]
        self._failure_avoid = self.seconds_to_avoid(_FAILURE_LATENCY[tolerance.style])
        self._brokers: dict[str, _Broker] = {}
        self._randomness = randomness
        self._turn: int | None = None

    def seconds_to_avoid(self, latency: float) -> float:
        """Return how long to avoid a broker whose reply took this long; 0 means not at all."""
        return self._avoid[bisect_right(self._latencies, latency)]

    def answered(self, broker: str, latency: float, now: float) -> None:
        """Record a send that stored the message."""
        if self.is_on:
            self._record(broker, latency, self.seconds_to_avoid(latency), True, now)

    def failed(self, broker: str, error: RocketMQError, latency: float, now: float) -> None:
        """Record a send that ended with an error after `latency` seconds."""
        if not self.is_on:
            return
        is_refused = isinstance(error, ServerError)
        is_lost = isinstance(error, TransportError | LinkError)
        if self.style == "4.x":
            self._record(broker, latency, self._failure_avoid, True, now)
        elif is_refused or is_lost:
            # Without probes, one lost connection must not make a broker unreachable.
            is_reachable = is_lost and not self.tolerance.detect
            self._record(broker, latency, self._failure_avoid, is_reachable, now)
        else:
            self._record(broker, latency, self.seconds_to_avoid(latency), True, now)

    def is_available(self, broker: str, now: float) -> bool:
        """Return whether a broker is not avoided now; True for an unknown broker."""
        known = self._brokers.get(broker)
        return known is None or now >= known.avoid_until

    def is_reachable(self, broker: str) -> bool:
        """Return whether a broker answers, even if slowly; True for an unknown broker."""
        known = self._brokers.get(broker)
        return known is None or known.is_reachable

    def best_of_all(self, now: float) -> str | None:
        """Return one of the better half of all known brokers, in turn; None when none is known.

        4.x style, for a topic whose brokers are all avoided. The order is: available first, then
        lower latency, then available sooner.
        """
        ranked = sorted(
            self._brokers.values(),
            key=lambda known: (now < known.avoid_until, known.latency, known.avoid_until),
        )
        if len(ranked) < 2:
            return ranked[0].name if ranked else None
        if self._turn is None:
            self._turn = self._randomness.below(_INDEX_MASK)
        else:
            self._turn = (self._turn + 1) & _INDEX_MASK
        return ranked[self._turn % (len(ranked) // 2)].name

    def forget(self, broker: str) -> None:
        """Drop the record of a broker that has left."""
        self._brokers.pop(broker, None)

    def to_probe(self, now: float) -> list[str]:
        """Return the unreachable brokers to probe now, each once per `detect_interval`.

        Java's detector probes all brokers; only the reply of an unreachable one has an effect.
        """
        if self.style != "5.x" or not self.tolerance.detect:
            return []
        due = [
            known
            for known in self._brokers.values()
            if not known.is_reachable and now >= known.probe_at
        ]
        for known in due:
            known.probe_at = now + self.tolerance.detect_interval
        return [known.name for known in due]

    def probed(self, broker: str, is_reachable: bool, now: float) -> None:
        """Record the result of a probe; a failed one changes nothing."""
        known = self._brokers.get(broker)
        if known is not None and is_reachable:
            was_avoided = known.is_avoided(now)
            known.is_reachable = True
            self._report(known, was_avoided, now)

    def snapshot(self, now: float) -> tuple[HealthSnapshot, ...]:
        """Return the health of each broker that was sent to."""
        return tuple(known.state(now) for known in self._brokers.values())

    def _record(
        self, broker: str, latency: float, avoid: float, is_reachable: bool, now: float
    ) -> None:
        known = self._brokers.get(broker)
        if known is None:
            known = self._brokers[broker] = _Broker(broker, now)
        was_avoided = known.is_avoided(now)
        known.latency = latency
        known.is_reachable = is_reachable
        if self.style == "4.x" or (avoid and now + avoid > known.avoid_until):
            known.avoid_until = now + avoid
        self._report(known, was_avoided, now)

    def _report(self, known: _Broker, was_avoided: bool, now: float) -> None:
        """Call `on_change` if the broker begins to be avoided, or is no longer avoided.

        A broker that is used again because time has passed is noticed at its next result. An
        answered probe alone changes nothing as long as the broker is still avoided.
        """
        is_avoided = known.is_avoided(now)
        has_begun = is_avoided and not was_avoided
        has_ended = known.is_reported and not is_avoided
        if has_begun or has_ended:
            known.is_reported = is_avoided
            if self.on_change is not None:
                self.on_change(known.state(now))
