"""The rounds of a run: who is loaded when, and what is noted of it.

Each part has servers of its own, all paused but the one under load, and is a list of steps. In each
round all points of a part are measured one after the other, so that a noisy machine hits all alike.
A store can only grow; beside it stands one that stays small, and both are measured in turns.
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
_FILL_BATCHES: Final = 5000  # of one load
#: What a message takes in the log beside its body; a fill may miss its size by this much.
_RECORD_BYTES: Final = len(BODY) + 150


class Step(NamedTuple):
    """Something to do, and what it is called while it is done."""

    what: str
    act: Callable[[], None]


class Part(Protocol):
    """One part of a run."""

    def steps(self) -> Iterator[Step]:
        """Give what is to be done, in order."""
        ...

    def axes(self) -> list[Axis]:
        """Return what was found."""
        ...

    def close(self) -> None:
        """End all servers."""
        ...


class Notes:
    """Samples of one axis, as they come."""

    def __init__(self) -> None:
        self._found: dict[Side, dict[float, list[Sample]]] = {}

    def add(self, side: Side, size: float, sample: Sample) -> None:
        """Note one round of one point."""
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
    """A server for each number of topics; messages go round all topics of one queue each."""

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing is started yet."""
        self._plan = plan
        self._servers: dict[tuple[Side, int], Server] = {}
        self._notes = Notes()
        self._first: dict[Side, float] = {}

    def steps(self) -> Iterator[Step]:
        """Start and warm up all, then go round."""
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
        return [_axis("topics", _CPU, "µs", "topics of one queue", self._notes, target=1.2)]

    def close(self) -> None:
        """End all servers."""
        _close(self._servers.values())

    def _start(self, side: Side, count: int) -> None:
        server = self._servers[side, count] = servers.start(side)
        server.make_topics(count, queues=1)
        is_many = count >= _MANY_TOPICS
        least = self._plan.topic_seconds if is_many else 0.0
        server.load(_window(max(self._plan.warm_up[side], least)))
        if is_many:
            # Each topic has had a message, and a checkpoint is due that creates their files. That
            # takes seconds, once, and is not the cost of a send.
            server.wait_until_calm()
        server.pause()

    def _measure(self, side: Side, count: int) -> None:
        server = self._servers[side, count]
        with _turn(server):
            # No lead-in: the checkpoint that fell due during the pause belongs to the round.
            found = server.load(_window(self._plan.topic_seconds))
        cost = _cost_us(found)
        if count == self._plan.topics[side][0]:
            self._first[side] = cost
        rate = found.messages / found.seconds
        self._notes.add(side, count, Sample(value=cost, base=self._first[side], rate=rate))

    def _check(self, side: Side, count: int) -> None:
        server = self._servers[side, count]
        with _turn(server):
            server.check_count()


class Connections:
    """One server for each side; the same rate over more and more connections."""

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing is started yet."""
        self._plan = plan
        self._servers: dict[Side, Server] = {}
        self._notes, self._latencies = Notes(), Notes()
        self._first: dict[Side, tuple[float, float]] = {}

    def steps(self) -> Iterator[Step]:
        """Start and warm up all, then go round."""
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
            _axis("connections", _CPU, "µs", grows, self._notes),
            _axis("latency", "99th percentile", "µs", grows, self._latencies),
        ]

    def close(self) -> None:
        """End all servers."""
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
        self._notes.add(side, count, Sample(value=cost, base=first_cost, rate=rate))
        self._latencies.add(side, count, Sample(value=slow, base=first_slow, rate=rate))

    def _check(self, side: Side) -> None:
        with _turn(self._servers[side]):
            self._servers[side].check_count()


class Log:
    """Two servers for each side: one whose store grows, and a new one beside it at each level."""

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing is started yet."""
        self._plan = plan
        self._grown: dict[Side, Server] = {}
        self._small: dict[Side, Server] = {}
        self._costs, self._starts = Notes(), Notes()

    def steps(self) -> Iterator[Step]:
        """Fill each store up to each level, and measure there."""
        plan = self._plan
        for side, levels in plan.levels.items():
            for level in levels:
                if level == levels[0]:
                    yield Step(f"{side}: start", _bind(self._start, side, self._grown))
                yield Step(f"{side}: start beside it", _bind(self._start, side, self._small))
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
        """End all servers."""
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
    """Return the first size, the last, and then the others: what is compared lies side by side."""
    return sizes if len(sizes) < 3 else (sizes[0], sizes[-1], *sizes[1:-1])


def _crash(server: Server, seconds: float) -> float:
    """Kill a server under load and return the time until it stores messages again."""
    server.settle()
    load = server.begin(Work(mode="crash", address=server.broker))
    try:
        time.sleep(seconds)
        server.kill()
        server.note(load)
    finally:
        load.kill()
    took = server.restart()
    server.check_count()
    return took


@contextlib.contextmanager
def _turn(server: Server) -> Generator[None]:
    """Let one server run."""
    # What another left to be written to disk must not be written in this one's time.
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
    name: Name, figure: str, unit: str, grows: str, notes: Notes, *, target: float | None = None
) -> Axis:
    curves = notes.curves()
    return Axis(name=name, figure=figure, unit=unit, grows=grows, target=target, curves=curves)


def _close(started: Iterable[Server]) -> None:
    for server in started:
        server.close()
