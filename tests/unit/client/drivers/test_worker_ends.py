from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.drivers import workers
from downrange.client.drivers.workers import AioWorkers, ThreadWorkers
from downrange.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Flow


class Odd(BaseException):
    """Neither an `Exception` nor one that Python itself raises."""


class Flows:
    """Makes flows that raise errors in turn, and then end."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.made = 0

    def make(self) -> Flow[None]:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return
        yield


class ThreadsStub:
    """A driver that steps flows without effects."""

    def run(self, flow: Flow[None]) -> None:
        list(flow)


class LoopStub:
    """The same, on an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_stuck = False

    async def run_here(self, flow: Flow[None]) -> None:
        list(flow)
        if self.is_stuck:
            await asyncio.sleep(3600)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_RESTART", 0.0)


def in_threads(flows: Callable[[], Flow[None]], count: int = 1) -> ThreadWorkers:
    driver: Any = ThreadsStub()
    return ThreadWorkers(driver, flows, count, "jobs")


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(), Odd()])
def test_a_thread_that_ends_with_an_error_is_replaced(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    flows = Flows(error, error)
    assert in_threads(flows.make).join(20.0)
    assert flows.made == 3
    assert caplog.text.count("worker jobs-1 ended with an error; another one") == 2


def test_a_thread_ends_quietly_with_its_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    flows = Flows(ClientClosed("the client"))
    assert in_threads(flows.make).join(20.0)
    assert (flows.made, caplog.text) == (1, "")


def test_threads_that_do_not_end_are_not_waited_for() -> None:
    may_end, found = threading.Event(), list[bool]()

    def make() -> Flow[None]:
        found.append(started.is_current)
        may_end.wait(20.0)
        return
        yield

    started: ThreadWorkers
    ready = threading.Event()

    def wait_then_make() -> Flow[None]:
        ready.wait(20.0)
        return make()

    started = in_threads(wait_then_make, 2)
    assert not started.is_current
    ready.set()
    before = time.monotonic()
    assert not started.join(0.05)
    assert time.monotonic() - before < 10
    may_end.set()
    assert started.join(20.0)
    assert found == [True, True]


def in_tasks(*errors: BaseException, count: int = 1) -> tuple[AioWorkers, Flows, LoopStub]:
    driver: Any = LoopStub()
    flows = Flows(*errors)
    return AioWorkers(driver, flows.make, count, "jobs"), flows, driver


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), Odd()])
def test_a_task_that_ends_with_an_error_is_replaced(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        started, flows, _ = in_tasks(error, error)
        assert await started.join(20.0)
        assert flows.made == 3

    asyncio.run(check())
    assert caplog.text.count("worker jobs-1 ended with an error; another one") == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_an_exit_in_a_task_ends_the_loop(error: BaseException) -> None:
    async def check() -> None:
        started, _, _ = in_tasks(error)
        await started.join(20.0)

    with pytest.raises(type(error)):
        asyncio.run(check())


def test_a_task_ends_quietly_with_its_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def check() -> None:
        started, flows, _ = in_tasks(ClientClosed("the client"))
        assert await started.join(20.0)
        assert not started.is_current
        assert flows.made == 1

    asyncio.run(check())
    assert caplog.text == ""


def test_tasks_that_do_not_end_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        started, flows, driver = in_tasks(count=2)
        driver.is_stuck = True
        assert not await started.join(0.01)
        assert flows.made == 2
        assert all(task.cancelled() for task in started._tasks)
        none, _, _ = in_tasks(count=0)
        assert await none.join(1.0)

    asyncio.run(check())
    assert caplog.text == ""
