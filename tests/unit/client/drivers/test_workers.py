"""Workers: flows in threads, or tasks, of their own."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.workers import AioWorkers, ThreadWorkers
from downrange.client.flows.effects import Pause, Signal, UserCall, Wait
from tests.unit.client.flows.flow_steps import core_with

if TYPE_CHECKING:
    from downrange.client.drivers.dialer import Dialer
    from downrange.client.drivers.threads import ThreadDriver
    from downrange.client.flows.effects import Flow


def calling(function: Any) -> Flow[None]:
    yield UserCall(function)


class Runner:
    """Runs flows whose only effects are calls of the user's functions."""

    def run(self, flow: Flow[None]) -> None:
        effect = next(flow)
        assert isinstance(effect, UserCall)
        effect.function()
        with pytest.raises(StopIteration):
            flow.send(None)


def threads(*functions: Any) -> ThreadWorkers:
    driver = cast("ThreadDriver", Runner())
    flows = map(calling, functions)
    return ThreadWorkers(driver, flows.__next__, len(functions), "downrange-billing")


def test_each_flow_has_a_thread_of_its_own() -> None:
    names: list[str] = []
    started, ended = threading.Event(), threading.Event()
    inside: list[bool] = []

    def wait() -> None:
        names.append(threading.current_thread().name)
        started.set()
        assert ended.wait(10)
        inside.append(workers.is_current)

    workers = threads(wait)
    assert started.wait(10)
    assert not workers.is_current
    assert not workers.join(0.0)
    ended.set()
    assert workers.join(10)
    assert names == ["downrange-billing-1"]
    assert inside == [True]


# ---- asyncio ---------------------------------------------------------------------------------


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 0


def driver_here() -> AioDriver:
    core = core_with()
    core.clock = LoopClock()
    return AioDriver(core, cast("Dialer", None))


def test_each_flow_has_a_task_of_its_own() -> None:
    inside: list[bool] = []

    async def scene() -> None:
        driver = driver_here()
        ended = asyncio.Event()

        async def wait() -> None:
            inside.append(workers.is_current)
            await ended.wait()

        def pausing() -> Flow[None]:
            yield Pause(0.0)
            for _ in range(70):  # other tasks get their turn between two of them
                yield UserCall(lambda: None)

        flows = iter([calling(wait), pausing()])
        workers = driver.start_workers(flows.__next__, 2, "downrange-billing")
        await asyncio.sleep(0)
        assert not workers.is_current
        ended.set()
        assert await workers.join(10)
        assert await AioWorkers(driver, pausing, 0, "none").join(0)
        await driver.close()

    asyncio.run(scene())
    assert inside == [True]


def test_tasks_that_do_not_end_are_cancelled() -> None:
    async def scene() -> None:
        driver = driver_here()
        make = partial(calling, asyncio.Event().wait)
        workers = driver.start_workers(make, 1, "downrange-billing")
        assert not await workers.join(0.01)
        assert workers._tasks[0].cancelled()
        await driver.close()

    asyncio.run(scene())


def test_a_task_that_its_loop_left_behind_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        driver = driver_here()
        make = partial(calling, asyncio.Event().wait)
        task = AioWorkers(driver, make, 0, "none")._run("downrange-billing-1")
        task.send(None)
        task.close()
        await driver.close()

    asyncio.run(scene())
    assert not caplog.records


def test_a_handler_that_is_cancelled_by_others_has_failed_and_its_worker_goes_on() -> None:
    """Without a word, its message was never done, and the last worker was gone."""
    outcomes: list[str] = []

    async def cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        task.cancel()
        await task

    def work() -> Flow[None]:
        try:
            yield UserCall(cancelled)
        except RuntimeError as error:
            outcomes.append(str(error))
        yield UserCall(lambda: outcomes.append("next"))

    async def scene() -> None:
        driver = driver_here()
        assert await driver.start_workers(work, 1, "downrange-billing").join(10)
        await driver.close()

    asyncio.run(scene())
    assert outcomes == ["it was cancelled, but not by the consumer", "next"]


# ---- waits of workers ------------------------------------------------------------------------


def test_a_signal_wakes_a_worker_in_the_next_turn() -> None:
    answers: list[bool] = []

    async def scene() -> None:
        driver = driver_here()
        signal = Signal()

        def waiting() -> Flow[None]:
            answers.append((yield Wait(signal, driver.clock.now() + 10)))
            answers.append((yield Wait(signal, driver.clock.now() + 10)))  # fired before
            answers.append((yield Wait(Signal(), driver.clock.now())))

        workers = driver.start_workers(waiting, 1, "downrange-billing")
        await asyncio.sleep(0)
        with driver.lock:
            signal.fire()
        assert not answers
        await asyncio.sleep(0)
        assert answers == [True, True, False]
        assert await workers.join(10)
        await driver.close()

    asyncio.run(scene())


def test_a_wait_ends_at_its_deadline_and_by_another_thread() -> None:
    answers: list[bool] = []

    async def scene() -> None:
        driver = driver_here()
        late, fired = Signal(), Signal()

        def fire() -> None:
            with driver.lock:
                fired.fire()

        def waiting() -> Flow[None]:
            answers.append((yield Wait(late, driver.clock.now() + 0.01)))
            threading.Thread(target=fire).start()
            answers.append((yield Wait(fired, driver.clock.now() + 10)))

        assert await driver.start_workers(waiting, 1, "downrange-billing").join(10)
        assert not late._listeners
        await driver.close()
        waits = driver.start_workers(lambda: iter_wait(driver), 1, "downrange-billing")
        assert await waits.join(10)  # the client is closed: it ends quietly

    asyncio.run(scene())
    assert answers == [False, True]


def iter_wait(driver: AioDriver) -> Flow[None]:
    yield Wait(Signal(), driver.clock.now() + 10)


def test_a_worker_that_is_cancelled_stops_to_listen() -> None:
    async def scene() -> None:
        driver = driver_here()
        signal = Signal()

        def waiting() -> Flow[None]:
            yield Wait(signal, driver.clock.now() + 10)

        workers = driver.start_workers(waiting, 1, "downrange-billing")
        await asyncio.sleep(0)
        listeners = list(signal._listeners)
        assert not await workers.join(0.0)
        assert not signal._listeners
        for late in listeners:  # it fired in the same turn
            late()
        await driver.close()

    asyncio.run(scene())
