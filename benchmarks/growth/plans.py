"""How much of everything a run measures, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.growth.servers import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure.

    Attributes:
        topics: Numbers of topics, for each side that is measured.
        topic_rounds: Rounds.
        topic_seconds: Length of one: a little more than the time between two checkpoints of our
            store, so that each round pays for about one. That is where topics cost.
        levels: Gigabytes stored at which the cost of a send is measured, for each side.
        level_rounds: Rounds at each.
        restarts: Gigabytes stored at which crashes are measured, for each side; among `levels`.
        crashes: How many at each.
        crash_seconds: How long the server is under load until it dies.
        connections: Numbers of connections, for each side.
        connection_rounds: Rounds.
        rate: Messages per second over all connections.
        seconds: Length of a round, but for those with many topics.
        lead_in: Load before each of these.
        warm_up: Load before the first round, on our side and on Apache's, whose JVM compiles.
    """

    topics: Mapping[Side, tuple[int, ...]]
    topic_rounds: int
    topic_seconds: float
    levels: Mapping[Side, tuple[float, ...]]
    level_rounds: int
    restarts: Mapping[Side, tuple[float, ...]]
    crashes: int
    crash_seconds: float
    connections: Mapping[Side, tuple[int, ...]]
    connection_rounds: int
    rate: float
    seconds: float
    lead_in: float
    warm_up: Mapping[Side, float]


FULL: Final = Plan(
    topics={"downrange": (1, 100, 1000, 10_000), "apache": (1, 10_000)},
    topic_rounds=3,
    topic_seconds=5.3,
    levels={"downrange": (1.0, 3.0), "apache": (3.0,)},
    level_rounds=3,
    restarts={"downrange": (1.0, 3.0), "apache": (3.0,)},
    crashes=2,
    crash_seconds=2.5,
    connections={"downrange": (1, 10, 100, 1000), "apache": (1, 1000)},
    connection_rounds=3,
    rate=2000.0,
    seconds=1.5,
    lead_in=0.3,
    warm_up={"downrange": 1.0, "apache": 10.0},
)
QUICK: Final = Plan(
    topics={"downrange": (1, 1000)},
    topic_rounds=1,
    topic_seconds=5.3,
    levels={"downrange": (0.3,)},
    level_rounds=1,
    restarts={"downrange": (0.3,)},
    crashes=1,
    crash_seconds=1.0,
    connections={"downrange": (1, 1000)},
    connection_rounds=1,
    rate=2000.0,
    seconds=1.5,
    lead_in=0.3,
    warm_up={"downrange": 0.5},
)
