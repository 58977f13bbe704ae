"""One timer for everything that waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from downrange.client.drivers.deadlines import Deadlines
from tests.support.clock import FakeClock


@dataclass(eq=False)
class FakeWaiter:
    """Records that its deadline has passed."""

    deadline: float
    called: list[float]
    is_called: asyncio.Event | None = None

    def on_deadline(self) -> None:
        self.called.append(self.deadline)
        if self.is_called is not None:
            self.is_called.set()


def test_only_late_waiters_are_called() -> None:
    async def scenario() -> list[float]:
        clock, called = FakeClock(100.0), list[float]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        gone = FakeWaiter(100.5, called)
        for waiter in (
            FakeWaiter(103.0, called),
            gone,
            FakeWaiter(101.0, called),
            FakeWaiter(102.0, called),
        ):
            deadlines.add(waiter)
        deadlines.discard(gone)
        clock.seconds += 2.0
        deadlines._fire()
        assert deadlines._next == 103.0
        clock.seconds += 1.0
        deadlines._fire()
        assert deadlines._next == float("inf")
        deadlines.close()
        return called

    assert sorted(asyncio.run(scenario())) == [101.0, 102.0, 103.0]


def test_the_timer_fires_at_the_earliest_deadline() -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        called: list[float] = []

        class Clock:
            def now(self) -> float:
                return loop.time()

            def wall_ms(self) -> int:
                return 0

        deadlines = Deadlines(loop, Clock())
        start = loop.time()
        deadlines.add(FakeWaiter(start + 60, called))
        early = FakeWaiter(start + 0.01, called, asyncio.Event())
        deadlines.add(early)
        assert early.is_called is not None
        await asyncio.wait_for(early.is_called.wait(), 5.0)
        deadlines.close()
        return [round(deadline - start, 2) for deadline in called]

    assert asyncio.run(scenario()) == [0.01]
