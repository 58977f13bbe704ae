"""The rounds of a run: the steps of each part, and their samples.

A part is a list of steps with its own servers; all but the server under load are paused. In each
round all points of a part are measured one after the other, so that other load on the machine
affects all points. A store can only grow, so it is measured in turns with a second one that stays
small.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from benchmarks.growth import servers
from benchmarks.growth.loader import Loaded, Work
from benchmarks.growth.report import Axis, Curve, Name, Point, Sample
from benchmarks.sends import BATCH, BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from benchmarks.growth.plans import Plan
    from benchmarks.growth.servers import Server, Side

QUEUES: Final = 4

_CPU: Final = "CPU per message"
_GB: Final = 1_000_000_000
_MANY_TOPICS: Final = 1000
_FILL_BATCHES: Final = 5000  # per load generator
#: Bytes of a message in the log besides its body; the size of a filled log may differ by these.
_RECORD_BYTES: Final = len(BODY) + 150


class Step(NamedTuple):
    """A function, and its name for the progress bar."""

    what: str
    act: Callable[[], None]


class Part(Protocol):
    """One part of a run."""

    def steps(self) -> Iterator[Step]:
        """Yield the steps in order."""
        ...

    def axes(self) -> list[Axis]:
        """Return the results."""
        ...

    def close(self) -> None:
        """Stop all servers."""
        ...


class Samples:
    """Collects the samples of one axis."""

    def __init__(self) -> None:
        self._found: dict[Side, dict[float, list[Sample]]] = {}

    def add(self, side: Side, size: float, sample: Sample) -> None:
        """Add one round of one point."""
        self._found.setdefault(side, {}).setdefault(size, []).append(sample)

    def curves(self) -> list[Curve]:
        """Return all points, by side and size."""
        return [
            Curve(
                side=side,
                points=[Point(size=size, samples=points[size]) for size in sorted(points)],
            )
            for side, points in self._found.items()
        ]


class Topics:
    """A server for each number of topics; messages go to all topics in turn, one queue each."""

    def __init__(self, plan: Plan) -> None:
        """Prepare the part; servers start with the first step."""
        self._plan = plan
        self._servers: dict[tuple[Side, int], Server] = {}
        self._samples = Samples()
        self._first: dict[Side, float] = {}

    def steps(self) -> Iterator[Step]:
        """Start and warm up all servers, then measure them in turns."""
        plan = self._plan
        points = [(side, count) for side, counts in plan.topics.items() for count in counts]
        for side, count in points:
            yield Step(f"{side}: start, {count:,} topics", _bind(self._start, side, count))
        for number in range(plan.topic_rounds):
            for side, counts in plan.topics.items():
                for count in ends_first(counts):
                    what = f"{side}: {count:,} topics, round {number + 1}"
                    yield Step(what, _bind(self._measure, side, count))
        for side, count in points:
            yield Step(f"{side}: count", _bind(self._check, side, count))

    def axes(self) -> list[Axis]:
        """Return the cost of a send."""
        return [_axis("topics", _CPU, "µs", "topics of one queue", self._samples, target=1.2)]

    def close(self) -> None:
        """Stop all servers."""
        _close(self._servers.values())

    def _start(self, side: Side, count: int) -> None:
        server = self._servers[side, count] = servers.start(side)
        server.make_topics(count, queues=1)
        is_many = count >= _MANY_TOPICS
        least = self._plan.topic_seconds if is_many else 0.0
        server.load(_window(max(self._plan.warm_up[side], least)))
        if is_many:
            # Each topic has had a message, and the next checkpoint creates their files. That takes
            # seconds, once, and is not part of the cost of a send.
            server.wait_until_calm()
        server.pause()

    def _measure(self, side: Side, count: int) -> None:
        server = self._servers[side, count]
        with _turn(server):
            # No lead-in: the checkpoint that became due during the pause is part of the round.
            found = server.load(_window(self._plan.topic_seconds))
        cost = _cost_us(found)
        if count == self._plan.topics[side][0]:
            self._first[side] = cost
        rate = found.messages / found.seconds
        self._samples.add(side, count, Sample(value=cost, base=self._first[side], rate=rate))

    def _check(self, side: Side, count: int) -> None:
        server = self._servers[side, count]
        with _turn(server):
            server.check_count()


class Connections:
    """One server for each side; the same rate over a growing number of connections."""

    def __init__(self, plan: Plan) -> None:
        """Prepare the part; servers start with the first step."""
        self._plan = plan
        self._servers: dict[Side, Server] = {}
        self._samples, self._latencies = Samples(), Samples()
        self._first: dict[Side, tuple[float, float]] = {}

    def steps(self) -> Iterator[Step]:
        """Start and warm up all servers, then measure them in turns."""
        plan = self._plan
        for side in plan.connections:
            yield Step(f"{side}: start", _bind(self._start, side))
        for number in range(plan.connection_rounds):
            for side, counts in plan.connections.items():
                for count in ends_first(counts):
                    what = f"{side}: {count:,} connections, round {number + 1}"
                    yield Step(what, _bind(self._measure, side, count))
        for side in plan.connections:
            yield Step(f"{side}: count", _bind(self._check, side))

    def axes(self) -> list[Axis]:
        """Return the cost of a send and its round trip."""
        grows = f"connections, {self._plan.rate:,.0f} messages per second over all"
        return [
            _axis("connections", _CPU, "µs", grows, self._samples),
            _axis("latency", "99th percentile", "µs", grows, self._latencies),
        ]

    def close(self) -> None:
        """Stop all servers."""
        _close(self._servers.values())

    def _start(self, side: Side) -> None:
        server = self._servers[side] = servers.start(side)
        server.make_topics(1, QUEUES)
        server.load(_window(self._plan.warm_up[side]))
        server.pause()

    def _measure(self, side: Side, count: int) -> None:
        plan, server = self._plan, self._servers[side]
        work = Work(
            mode="paced",
            address=server.broker,
            connections=count,
            rate=plan.rate,
            seconds=plan.seconds,
            lead_in=plan.lead_in,
        )
        with _turn(server):
            found = server.load(work)
        assert found.latencies_us is not None
        cost, slow = _cost_us(found), found.latencies_us[1]
        if count == plan.connections[side][0]:
            self._first[side] = cost, slow
        first_cost, first_slow = self._first[side]
        rate = found.messages / found.seconds
        self._samples.add(side, count, Sample(value=cost, base=first_cost, rate=rate))
        self._latencies.add(side, count, Sample(value=slow, base=first_slow, rate=rate))

    def _check(self, side: Side) -> None:
        with _turn(self._servers[side]):
            self._servers[side].check_count()


class Log:
    """Two servers for each side: one whose store grows, and a new one for each level."""

    def __init__(self, plan: Plan) -> None:
        """Prepare the part; servers start with the first step."""
        self._plan = plan
        self._grown: dict[Side, Server] = {}
        self._small: dict[Side, Server] = {}
        self._costs, self._starts = Samples(), Samples()

    def steps(self) -> Iterator[Step]:
        """Fill each store to each level, and measure there."""
        plan = self._plan
        for side, levels in plan.levels.items():
            for level in levels:
                if level == levels[0]:
                    yield Step(f"{side}: start", _bind(self._start, side, self._grown))
                yield Step(f"{side}: start a small store", _bind(self._start, side, self._small))
                yield Step(f"{side}: fill up to {level:g} GB", _bind(self._fill, side, level))
                for number in range(plan.level_rounds):
                    what = f"{side}: {level:g} GB stored, round {number + 1}"
                    yield Step(what, _bind(self._measure, side, level))
                if level not in plan.restarts[side]:
                    continue
                for number in range(plan.crashes):
                    what = f"{side}: crash with {level:g} GB, round {number + 1}"
                    yield Step(what, _bind(self._crash, side, level))
            for those in (self._small, self._grown) if levels else ():
                yield Step(f"{side}: count", _bind(self._end, side, those))

    def axes(self) -> list[Axis]:
        """Return the cost of a send and the time to start after a crash."""
        return [
            _axis("stored", _CPU, "µs", "stored before", self._costs, target=1.1),
            _axis("restart", "crash to first send", "s", "size of log", self._starts, target=1.2),
        ]

    def close(self) -> None:
        """Stop all servers."""
        _close([*self._grown.values(), *self._small.values()])

    def _start(self, side: Side, those: dict[Side, Server]) -> None:
        if side in those:
            self._end(side, those)
        server = those[side] = servers.start(side)
        server.make_topics(1, QUEUES)
        server.load(_window(self._plan.warm_up[side]))
        server.pause()

    def _fill(self, side: Side, level: float) -> None:
        server = self._grown[side]
        with _turn(server):
            while (missing := level * _GB - server.stored_min * _RECORD_BYTES) > 0:
                batches = min(int(missing) // (_RECORD_BYTES * BATCH) + 1, _FILL_BATCHES)
                server.load(Work(mode="fill", address=server.broker, batches=batches))

    def _measure(self, side: Side, level: float) -> None:
        work = _window(self._plan.seconds, self._plan.lead_in)
        costs: list[float] = []
        for size, each in ((0.0, self._small), (level, self._grown)):
            with _turn(each[side]):
                found = each[side].load(work)
            costs.append(_cost_us(found))
            rate = found.messages / found.seconds
            self._costs.add(side, size, Sample(value=costs[-1], base=costs[0], rate=rate))

    def _crash(self, side: Side, level: float) -> None:
        times: list[float] = []
        for size, each in ((0.0, self._small), (level, self._grown)):
            with _turn(each[side]):
                times.append(_crash(each[side], self._plan.crash_seconds))
            self._starts.add(side, size, Sample(value=times[-1], base=times[0]))

    def _end(self, side: Side, those: dict[Side, Server]) -> None:
        with _turn(those[side]):
            those[side].check_count()
        those.pop(side).close()


def ends_first(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first size, the last, then the others, so that the compared ones are adjacent."""
    return sizes if len(sizes) < 3 else (sizes[0], sizes[-1], *sizes[1:-1])


def _crash(server: Server, seconds: float) -> float:
    """Kill a server under load and return the seconds until it stores messages again."""
    server.settle()
    load = server.begin(Work(mode="crash", address=server.broker))
    try:
        time.sleep(seconds)
        server.kill()
        server.finish(load)
    finally:
        load.kill()
    took = server.restart()
    server.check_count()
    return took


@contextlib.contextmanager
def _turn(server: Server) -> Generator[None]:
    """Run one server while the block lasts."""
    # Pending disk writes of another server must not slow this one.
    os.sync()
    server.resume()
    try:
        yield
    finally:
        server.pause()


def _bind(act: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: act(*arguments)


def _window(seconds: float, lead_in: float = 0.0) -> Work:
    return Work(mode="window", address="", seconds=seconds, lead_in=lead_in)


def _cost_us(found: Loaded) -> float:
    return found.server_cpu / found.messages * 1e6


def _axis(
    name: Name, figure: str, unit: str, grows: str, samples: Samples, *, target: float | None = None
) -> Axis:
    curves = samples.curves()
    return Axis(name=name, figure=figure, unit=unit, grows=grows, target=target, curves=curves)


def _close(started: Iterable[Server]) -> None:
    for server in started:
        server.close()
