"""The sizes, rounds and durations of a run."""

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
        topic_rounds: Rounds with topics.
        topic_seconds: Duration of such a round: a little longer than the checkpoint interval of our
            store, so that each round contains about one checkpoint. There topics cost CPU.
        levels: Stored gigabytes at which the cost of a send is measured, for each side.
        level_rounds: Rounds at each level.
        restarts: Stored gigabytes at which crashes are measured, for each side; part of `levels`.
        crashes: Crashes at each level.
        crash_seconds: Duration of the load before the server is killed.
        connections: Numbers of connections, for each side.
        connection_rounds: Rounds with connections.
        rate: Messages per second over all connections.
        seconds: Duration of a round, except those with topics.
        lead_in: Duration of the load before each such round.
        warm_up: Load before the first round, for our server and for Apache's, whose JVM compiles.
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
