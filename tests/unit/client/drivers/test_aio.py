"""The driver for asyncio: background flows, connections that idle, and the end."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest
import uvloop

from downrange.client.drivers import aio
from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.aio_connection import Connection
from downrange.client.drivers.flow_task import AwaitedTask
from downrange.client.flows.effects import Flow, Pause, UserCall
from downrange.errors import (
    CallTimeout,
    ClientClosed,
    ConnectionLost,
    ForkedClient,
    WrongEventLoop,
)
from downrange.options import ClientOptions
from tests.support.timing import shortest
from tests.support.waiting import wait_until_async
from tests.unit.client.drivers.peers import (
    PATIENCE,
    FakeDialer,
    aio_driver,
    asking,
    real_core,
    refused,
    silence,
    with_driver,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# ---- in the background ---------------------------------------------------------------------------


def test_background_flows_end_with_the_driver() -> None:
    log: list[str] = []

    def forever() -> Flow[None]:
        try:
            while True:
                yield Pause(0.001)
        finally:
            log.append("ended")

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        driver.spawn(forever())
        await asyncio.sleep(0.003)
        assert not log

    with_driver(main)
    assert log == ["ended"]


def test_errors_in_the_background_are_logged_by_severity(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        dialer.failure = refused()
        driver.spawn(asking(driver))
        driver.spawn(one_error())
        driver.spawn(asking_nothing())
        await wait_until_async(lambda: not driver._background)

    def one_error() -> Flow[Any]:
        return (yield UserCall(int, ("x",)))

    def asking_nothing() -> Flow[Any]:
        return (yield UserCall(int, ("1",)))

    with caplog.at_level(logging.DEBUG, "downrange.drivers"):
        with_driver(main)
    levels = [(record.levelname, record.message) for record in caplog.records]
    assert ("DEBUG", "in the background: a:1: connection refused") in levels
    assert ("DEBUG", "no connection to a:1: connection refused") in levels
    assert ("ERROR", "a background flow ended") in levels
    assert len(levels) == 3


# ---- the end -------------------------------------------------------------------------------------


def test_a_connection_that_was_not_used_for_long_is_closed() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        assert driver.addresses()
        await wait_until_async(lambda: not driver.addresses())
        await wait_until_async(dialer.peers[0].is_ended.is_set)
        await driver.run(asking(driver))

    # Longer than a reply takes on a busy machine.
    with_driver(main, options=ClientOptions(idle_timeout=0.5))


def test_a_connection_that_a_request_waits_on_is_not_closed() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, timeout=0.05))

    with_driver(main, FakeDialer(silence), ClientOptions(idle_timeout=0.01))


def test_closing_fails_calls_in_flight_and_refuses_new_ones() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        waiting = asyncio.ensure_future(driver.run(asking(driver)))
        await wait_until_async(lambda: driver.addresses() == {"a:1": 1})
        await driver.close()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await waiting
        with pytest.raises(ClientClosed):
            await driver.run(asking(driver))
        with pytest.raises(ClientClosed):
            driver.connection("a:1")
        await driver.close()  # harmless

    with_driver(main, FakeDialer(silence))


def test_a_connection_may_be_closed_while_it_is_being_made() -> None:
    class Slow(FakeDialer):
        async def open(self, loop: Any, protocol: Any, address: str) -> None:
            await asyncio.sleep(PATIENCE)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        waiting = asyncio.ensure_future(driver.run(asking(driver)))
        await asyncio.sleep(0)
        await driver.close()
        with pytest.raises(ConnectionLost):
            await waiting

    with_driver(main, Slow())


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_closing_is_quick_in_every_state_of_a_connection(
    turns: int, loops: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> float:
        async with aio_driver(FakeDialer(silence)) as driver:
            waiting = asyncio.ensure_future(driver.run(asking(driver)))
            for _ in range(turns):
                await asyncio.sleep(0)
            started = driver.clock.now()
            await driver.close()
            took = driver.clock.now() - started
            await asyncio.wait([waiting])
            assert waiting.exception() is not None
            return took

    with asyncio.Runner(loop_factory=loops) as runner:
        assert shortest(lambda: runner.run(main()), 0.4) < 0.4


def test_a_connection_that_does_not_end_does_not_delay_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio, "_CLOSE_TIMEOUT", 0.01)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        connection = driver.connection("a:1")
        transport: Any = connection._transport
        connection._transport = Mock()
        async with asyncio.timeout(PATIENCE):
            await driver.close()
        transport.abort()

    with_driver(main)


def test_a_connection_that_opens_after_it_was_ended_is_aborted() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        connection = driver.connection("a:1")
        connection.close("for the test")
        await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        await driver.loop.create_connection(lambda: connection, sock=ours)
        assert not connection.is_open
        await wait_until_async(lambda: connection.is_gone)
        theirs.close()

    with_driver(main)


def test_a_connection_that_takes_too_long_to_close_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio, "_CLOSE_TIMEOUT", 0.01)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        connection = driver.connection("a:1")
        transport: Any = connection._transport

        class Lingering:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            def close(self) -> None:
                """As if the peer did not say goodbye."""

        connection._transport = Lingering()  # type: ignore[assignment]
        await driver.close()
        assert connection.is_gone

    with_driver(main)


def test_an_abandoned_driver_closes_itself() -> None:
    async def main() -> tuple[AioDriver, FakeDialer]:
        dialer = FakeDialer()
        driver = AioDriver(real_core(), dialer)
        await driver.run(asking(driver))
        driver.abandon()
        await wait_until_async(dialer.peers[0].is_ended.is_set)
        return driver, dialer

    driver, dialer = asyncio.run(main())
    dialer.close()
    driver.abandon()  # harmless when its loop is closed


def test_the_result_of_a_flow_whose_caller_was_cancelled_in_the_same_turn_is_dropped() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        future: asyncio.Future[int] = driver.loop.create_future()
        task = AwaitedTask(driver.scheduler, asking(driver), future=future)
        future.cancel()
        task.finish(7, None)
        assert future.cancelled()
        task.cancel()

    with_driver(main)


def test_a_connection_that_ends_after_it_was_replaced_leaves_the_new_one() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        old = driver.connection("a:1")
        fresh = driver._connections["a:1"] = Connection(driver, "a:1")
        old.close("for the test")
        assert driver.connection("a:1") is fresh
        assert (await driver.run(asking(driver, b"7"))).body == b"7"

    with_driver(main)


def test_a_connection_without_a_transport_has_nothing_to_cut() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        connection = driver.connection("a:1")
        assert isinstance(connection, Connection)
        connection.abort()
        assert (connection.is_open, connection.in_flight) == (False, 0)

    with_driver(main)


@pytest.mark.parametrize(("size", "writes"), [(10, 1), (40_000, 3)])
def test_requests_of_one_turn_are_joined_unless_they_are_large(size: int, writes: int) -> None:
    async def main(driver: AioDriver, _: FakeDialer) -> None:
        await driver.run(asking(driver))
        transport = driver.connection("a:1")._transport
        assert transport is not None
        bodies = [bytes([number]) * size for number in range(3)]
        with patch.object(transport, "write", wraps=transport.write) as write:
            replies = await asyncio.gather(*(driver.run(asking(driver, body)) for body in bodies))
        assert [reply.body for reply in replies] == bodies
        assert write.call_count == writes

    with_driver(main)


def test_a_forked_driver_refuses_flows_and_leaves_connections_alone() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        driver._fork_guard.is_forked = True
        with pytest.raises(ForkedClient):
            await driver.run(asking(driver))
        with pytest.raises(ForkedClient):
            driver.spawn(asking(driver))
        with pytest.raises(ForkedClient):
            driver.step(lambda: None)
        await driver.close()
        driver.abandon()
        assert driver.connections() == {"a:1": 1}
        driver._fork_guard.is_forked = False

    with_driver(main)


def test_a_driver_runs_flows_on_its_own_event_loop_only() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        def elsewhere() -> None:
            with pytest.raises(WrongEventLoop, match=r"the client .* in thread 'MainThread'; use"):
                asyncio.run(driver.run(asking(driver)))
            with pytest.raises(WrongEventLoop, match="shop was started on another"):
                driver.check_loop("shop")

        await asyncio.to_thread(elsewhere)
        driver.check_loop()
        driver._fork_guard.is_forked = True
        await asyncio.to_thread(driver.check_loop)  # a forked child gets another error
        driver._fork_guard.is_forked = False

    with_driver(main)


def test_a_driver_whose_event_loop_has_ended_says_so() -> None:
    async def start() -> AioDriver:
        async with aio_driver() as driver:
            return driver

    driver = asyncio.run(start())
    with pytest.raises(WrongEventLoop, match="loop that has ended; start, use and close it in one"):
        driver.check_loop()


def test_plain_functions_that_may_block_run_in_the_executor_of_the_user() -> None:
    async def main() -> str:
        with ThreadPoolExecutor(1, "mine") as executor:
            async with aio_driver(options=ClientOptions(callback_executor=executor)) as driver:

                def name() -> str:
                    return threading.current_thread().name

                def flow() -> Flow[str]:
                    return (yield UserCall(name, may_block=True))  # type: ignore[no-any-return]

                return await driver.run(flow())

    assert asyncio.run(main()) == "mine_0"


def test_a_step_is_one_call_with_the_lock_held() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        assert driver.step(driver.lock.locked)
        await driver.close()
        with pytest.raises(ClientClosed):
            driver.step(lambda: None)

    with_driver(main)
