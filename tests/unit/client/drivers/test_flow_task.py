"""Flows on an event loop: every effect, and every state in which a flow can be cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from downrange.client.drivers.flow_task import FlowTask
from downrange.client.flows.effects import Effect, Flow, Gather, Once, Pause, Signal, UserCall, Wait
from downrange.errors import ConnectFailed, NotStarted
from tests.support.waiting import wait_until_async
from tests.unit.client.drivers.peers import PATIENCE, aio_driver

if TYPE_CHECKING:
    from downrange.client.drivers.aio import AioDriver


def one(effect: Effect, log: list[Any] | None = None) -> Flow[Any]:
    """Return a flow of one effect, which records its end."""
    try:
        return (yield effect)
    finally:
        if log is not None:
            log.append("ended")


def run(flow: Flow[Any]) -> Any:
    async def main() -> Any:
        async with aio_driver() as driver:
            return await driver.run(flow)

    return asyncio.run(main())


def later(driver: AioDriver, seconds: float = 0.01) -> float:
    return driver.clock.now() + seconds


# ---- results -------------------------------------------------------------------------------------


def test_a_flow_returns_its_result() -> None:
    def flow() -> Flow[int]:
        for _ in range(3):
            yield Pause(0.0)
        return 7

    assert run(flow()) == 7


def test_a_flow_raises_its_error() -> None:
    def flow() -> Flow[None]:
        yield Pause(0.0)
        raise NotStarted("it")

    with pytest.raises(NotStarted):
        run(flow())


def test_a_flow_handles_the_error_of_an_effect() -> None:
    def flow() -> Flow[str]:
        try:
            yield UserCall(int, ("x",))
        except ValueError:
            return (yield UserCall(str.upper, ("again",)))  # type: ignore[no-any-return]
        return "?"

    assert run(flow()) == "AGAIN"


# ---- waiting for signals -------------------------------------------------------------------------


def test_a_flow_waits_until_a_signal_fires() -> None:
    async def main() -> list[bool]:
        async with aio_driver() as driver:
            signal = Signal()
            driver.loop.call_later(0.005, signal.fire)
            effects = [Wait(signal, later(driver, PATIENCE)), Wait(signal, later(driver))]
            return [await driver.run(one(effect)) for effect in effects]

    assert asyncio.run(main()) == [True, True]


def test_a_signal_may_fire_in_another_thread() -> None:
    async def main() -> Any:
        async with aio_driver() as driver:
            signal = Signal()

            def fire() -> None:
                with driver.lock:
                    signal.fire()

            thread = threading.Thread(target=fire)
            driver.loop.call_later(0.005, thread.start)
            result = await driver.run(one(Wait(signal, later(driver, PATIENCE))))
            thread.join()
            return result

    assert asyncio.run(main()) is True


def test_a_flow_waits_no_longer_than_the_deadline() -> None:
    async def main() -> list[Any]:
        async with aio_driver() as driver:
            signal = Signal()
            results = [
                await driver.run(one(Wait(signal, later(driver)))),
                await driver.run(one(Wait(signal, later(driver, -1.0)))),
            ]
            assert not signal._listeners
            return results

    assert asyncio.run(main()) == [False, False]


def test_a_signal_and_a_deadline_in_one_turn_resume_a_flow_once() -> None:
    async def main() -> int:
        async with aio_driver() as driver:
            signal, steps = Signal(), 0

            def flow() -> Flow[None]:
                nonlocal steps
                yield Wait(signal, later(driver, 0.005))
                steps += 1
                yield Pause(0.01)
                steps += 1

            driver.loop.call_later(0.005, signal.fire)
            await driver.run(flow())
            return steps

    assert asyncio.run(main()) == 2


# ---- functions of the user's ---------------------------------------------------------------------


def test_a_function_answers_with_what_it_returns() -> None:
    assert run(one(UserCall(max, (3, 4)))) == 4


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("oops")


@pytest.mark.parametrize("may_block", [False, True])
def test_a_coroutine_function_is_waited_for(may_block: bool) -> None:
    assert run(one(UserCall(answer, (7,), may_block))) == 7


def test_the_error_of_a_coroutine_is_the_flows() -> None:
    with pytest.raises(KeyError, match="oops"):
        run(one(UserCall(fail)))


def test_a_coroutine_that_is_cancelled_cancels_the_flow() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(one(UserCall(cancelled)))


def test_a_function_that_may_block_runs_in_a_pool() -> None:
    here = threading.get_ident()
    assert run(one(UserCall(threading.get_ident))) == here
    assert run(one(UserCall(threading.get_ident, (), True))) != here


def test_a_function_that_blocks_beyond_its_deadline_is_left_behind() -> None:
    release = threading.Event()

    async def main() -> None:
        async with aio_driver() as driver:
            try:
                call = UserCall(release.wait, (PATIENCE,), True, later(driver))
                with pytest.raises(TimeoutError, match="it did not end in time"):
                    await driver.run(one(call))
            finally:
                release.set()

    asyncio.run(main())


def test_a_coroutine_beyond_its_deadline_is_cancelled() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(TimeoutError, match="it did not end in time"):
        run(one(UserCall(endless, (), deadline=time.monotonic() + 0.01)))
    assert ended == ["cancelled"]


def test_user_code_that_ends_before_its_deadline_is_not_concerned() -> None:
    deadline = time.monotonic() + PATIENCE

    async def late() -> None:
        raise TimeoutError("of the user")

    assert run(one(UserCall(threading.get_ident, (), True, deadline))) != threading.get_ident()
    assert run(one(UserCall(answer, (7,), deadline=deadline))) == 7
    with pytest.raises(TimeoutError, match="of the user"):
        run(one(UserCall(late, deadline=deadline)))


# ---- single flight -------------------------------------------------------------------------------


def test_flows_with_the_same_key_share_one() -> None:
    runs: list[int] = []

    def shared() -> Flow[list[int]]:
        runs.append(1)
        yield Pause(0.005)
        return [len(runs)]

    async def main() -> list[Any]:
        async with aio_driver() as driver:
            wanted = [driver.run(one(Once("key", shared))) for _ in range(3)]
            others = [driver.run(one(Once("other", shared)))]
            results = await asyncio.gather(*wanted, *others)
            results.append(await driver.run(one(Once("key", shared))))  # is over, and runs anew
            assert not driver.scheduler._shared
            return results

    assert asyncio.run(main())[:3] == [[2], [2], [2]]
    assert len(runs) == 3


def test_flows_that_share_an_error_get_one_each() -> None:
    def shared() -> Flow[None]:
        yield Pause(0.0)
        raise ConnectFailed("a:1", "refused")

    async def main() -> list[Any]:
        async with aio_driver() as driver:
            wanted = [driver.run(one(Once("key", shared))) for _ in range(2)]
            return await asyncio.gather(*wanted, return_exceptions=True)

    first, second = asyncio.run(main())
    assert str(first) == str(second) == "a:1: refused"
    assert first is not second


def test_a_shared_flow_that_ends_at_once_resumes_its_waiters() -> None:
    def shared() -> Flow[int]:
        return 7
        yield  # a generator all the same

    assert run(one(Once("key", shared))) == 7


def test_a_task_that_stops_waiting_for_a_shared_flow_does_not_affect_others() -> None:
    def shared() -> Flow[int]:
        yield Pause(0.005)
        return 7

    async def main() -> Any:
        async with aio_driver() as driver:
            gone = asyncio.ensure_future(driver.run(one(Once("key", shared))))
            stays = asyncio.ensure_future(driver.run(one(Once("key", shared))))
            await asyncio.sleep(0)
            gone.cancel()
            return await stays

    assert asyncio.run(main()) == 7


def test_the_first_task_of_a_shared_flow_may_cancel_the_others() -> None:
    def shared() -> Flow[int]:
        yield Pause(0.0)
        return 7

    async def main() -> list[Any]:
        async with aio_driver() as driver:
            results: list[Any] = []

            def first_ends(result: Any, _: Any) -> None:
                results.append(result)
                second.cancel()

            def ends(result: Any, _: Any) -> None:
                results.append(result)

            second = FlowTask(driver.scheduler, one(Once("key", shared)), ends)
            FlowTask(driver.scheduler, one(Once("key", shared)), first_ends).start()
            second.start()
            FlowTask(driver.scheduler, one(Once("key", shared)), ends).start()
            await wait_until_async(lambda: len(results) == 2)
            await asyncio.sleep(0.01)  # there is no third one
            return results

    assert asyncio.run(main()) == [7, 7]


# ---- side by side --------------------------------------------------------------------------------


def test_flows_side_by_side_answer_in_their_order_with_results_or_errors() -> None:
    def flow(number: int) -> Flow[int]:
        yield Pause(0.003 * (3 - number))
        if number == 1:
            raise ConnectFailed("a:1", "refused")
        return number

    first, second, third = run(one(Gather([flow(n) for n in range(3)], 3)))
    assert (first, third) == (0, 2)
    assert isinstance(second, ConnectFailed)


def test_no_more_flows_run_side_by_side_than_allowed() -> None:
    running, most = 0, 0

    def flow() -> Flow[None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        yield Pause(0.001)
        running -= 1

    assert run(one(Gather([flow() for _ in range(7)], 3))) == [None] * 7
    assert most == 3


def test_no_flows_side_by_side_are_over_at_once() -> None:
    assert run(one(Gather([], 3))) == []


def test_flows_side_by_side_that_end_at_once_need_no_turn_of_the_loop() -> None:
    assert run(one(Gather([one(UserCall(int, (n,))) for n in "123"], 2))) == [1, 2, 3]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_error_that_is_not_ours_ends_all_flows_side_by_side(is_late: bool) -> None:
    log: list[str] = []

    def broken() -> Flow[None]:
        if is_late:
            yield Pause(0.001)
        yield UserCall(int, ("x",))

    waiting = one(Pause(PATIENCE), log)
    with pytest.raises(ValueError, match="invalid literal"):
        run(one(Gather([one(Pause(PATIENCE), log), broken(), waiting], 2)))
    assert log == ["ended"]
    assert waiting.gi_frame is None  # type: ignore[attr-defined]


# ---- cancelled -----------------------------------------------------------------------------------

EFFECTS: dict[str, Any] = {
    "pause": lambda: Pause(PATIENCE),
    "wait": lambda: Wait(Signal(), 1e9),
    "ask": lambda: UserCall(asyncio.sleep, (PATIENCE,)),
    "once": lambda: Once("key", lambda: one(Pause(0.0))),
    "gather": lambda: Gather([one(Pause(PATIENCE)), one(Pause(PATIENCE))], 1),
}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS.keys())
def test_cancelling_the_caller_closes_the_flow(effect: Any) -> None:
    log: list[str] = []

    async def main() -> None:
        async with aio_driver() as driver:
            task = asyncio.ensure_future(driver.run(one(effect(), log)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.002)

    asyncio.run(main())
    assert log == ["ended"]


def test_a_cancelled_task_ignores_answers() -> None:
    async def main() -> list[Any]:
        async with aio_driver() as driver:
            ends: list[Any] = []
            task = FlowTask(driver.scheduler, one(Pause(PATIENCE)), lambda *end: ends.append(end))
            task.start()
            task.cancel()
            task.cancel()
            task.resume(7)
            task.resume(error=ConnectFailed("a:1", "late"))
            return ends

    assert asyncio.run(main()) == []


def test_a_flow_that_cannot_be_closed_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stubborn() -> Flow[None]:
        try:
            yield Pause(PATIENCE)
        finally:
            yield Pause(PATIENCE)

    async def main() -> None:
        async with aio_driver() as driver:
            FlowTask(driver.scheduler, flow := stubborn(), lambda *_: None).resume()
            FlowTask(driver.scheduler, flow, lambda *_: None).cancel()

    with caplog.at_level(logging.ERROR, "downrange.drivers"):
        asyncio.run(main())
    assert "a flow cannot be closed" in caplog.text


def test_flows_that_one_signal_wakes_are_resumed_in_one_turn_unless_cancelled() -> None:
    async def main() -> None:
        signal, log = Signal(), list[Any]()
        async with aio_driver() as driver:

            async def wait() -> None:
                log.append(await driver.run(one(Wait(signal, later(driver, PATIENCE)))))

            tasks = [asyncio.create_task(wait()) for _ in range(4)]
            await asyncio.sleep(0)
            scheduler = driver.scheduler
            with patch.object(scheduler, "call_soon", wraps=scheduler.call_soon) as call_soon:
                with driver.lock:
                    signal.fire()
                tasks[1].cancel()
                await asyncio.wait(tasks)
            assert call_soon.call_count == 1
        assert log == [True] * 3
        assert tasks[1].cancelled()

    asyncio.run(main())
