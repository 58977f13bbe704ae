"""One timer for all who wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from downrange.client.drivers.deadlines import Deadlines
from tests.support.clock import FakeClock


@dataclass(eq=False)
class Waiting:
    """Notes when it was told that it is late."""

    deadline: float
    told: list[float]
    is_told: asyncio.Event | None = None

    def late(self) -> None:
        self.told.append(self.deadline)
        if self.is_told is not None:
            self.is_told.set()


def test_all_who_are_late_are_told_and_nobody_else() -> None:
    async def story() -> list[float]:
        clock, told = FakeClock(100.0), list[float]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        gone = Waiting(100.5, told)
        for waiting in (Waiting(103.0, told), gone, Waiting(101.0, told), Waiting(102.0, told)):
            deadlines.add(waiting)
        deadlines.discard(gone)
        clock.seconds += 2.0
        deadlines._ring()
        assert deadlines._next == 103.0
        clock.seconds += 1.0
        deadlines._ring()
        assert deadlines._next == float("inf")
        deadlines.close()
        return told

    assert sorted(asyncio.run(story())) == [101.0, 102.0, 103.0]


def test_the_timer_rings_at_the_earliest_deadline() -> None:
    async def story() -> list[float]:
        loop = asyncio.get_running_loop()
        told: list[float] = []

        class Clock:
            def now(self) -> float:
                return loop.time()

            def wall_ms(self) -> int:
                return 0

        deadlines = Deadlines(loop, Clock())
        start = loop.time()
        deadlines.add(Waiting(start + 60, told))
        early = Waiting(start + 0.01, told, asyncio.Event())
        deadlines.add(early)
        assert early.is_told is not None
        await asyncio.wait_for(early.is_told.wait(), 5.0)
        deadlines.close()
        return [round(deadline - start, 2) for deadline in told]

    assert asyncio.run(story()) == [0.01]
