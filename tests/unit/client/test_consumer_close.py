"""Whatever fails while a consumer leaves its group: its workers and its own client end."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from downrange.client.flows.consuming.poll_core import PollCore
from downrange.client.flows.effects import Signal
from downrange.errors import ClientClosed, ConnectionLost
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeClient:
    """A client whose flows fail.

    Attributes:
        error: What `run` raises.
        is_closed: Whether it was closed.
        spawned: What was started in the background.
    """

    state = "running"
    core: Any = None

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.is_closed = False
        self.spawned: list[Any] = []

    def run(self, _: object) -> object:
        raise self.error

    def check_loop(self, what: str) -> None:
        """Accept any loop."""

    def step(self, function: Callable[[], Any]) -> Any:
        return function()

    def spawn(self, flow: Any) -> None:
        if isinstance(self.error, ClientClosed):
            raise self.error
        self.spawned.append(flow)

    def close(self, timeout: float = 0.0) -> None:
        self.is_closed = True


class AsyncFakeClient(FakeClient):
    async def close(self, timeout: float = 0.0) -> None:  # type: ignore[override]
        self.is_closed = True


class FakeWorkers:
    is_current = False

    def __init__(self) -> None:
        self.joined: list[float] = []

    def join(self, timeout: float) -> bool:
        self.joined.append(timeout)
        return True


class AsyncFakeWorkers(FakeWorkers):
    async def join(self, timeout: float) -> bool:  # type: ignore[override]
        return super().join(timeout)


def running(kind: type[Any], error: BaseException) -> Any:
    """Return a consumer whose client fails."""
    is_async = kind.__name__.startswith("Async")
    settings = {"subscribe": "orders"} if "Push" in kind.__name__ else {}
    consumer: Any = kind("h:1", group="billing", **settings)
    consumer._client = AsyncFakeClient(error) if is_async else FakeClient(error)
    consumer._workers = AsyncFakeWorkers() if is_async else FakeWorkers()
    consumer._core = core_of(kind)
    consumer._state = "running"
    return consumer


def core_of(kind: type[Any]) -> Any:
    """Return what the flows of a consumer are made from; they never run."""
    core: Any = SimpleNamespace() if "Pull" not in kind.__name__ else PollCore.__new__(PollCore)
    core.core = SimpleNamespace(clock=FakeClock())
    core.ended = Signal()
    core.end_workers = core.ended.fire
    core.exit = core.close = lambda deadline: None
    core.fail = lambda delivery, error: (delivery, error)
    core.fail_to_its_end = core.fail
    core.is_closed = False
    return core


def close(consumer: Any) -> None:
    """Close a consumer of either kind."""
    closing = consumer.close()
    if closing is not None:
        asyncio.run(closing)


BOTH = [PushConsumer, AsyncPushConsumer]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("error", [OSError("bad"), KeyboardInterrupt()], ids=repr)
def test_a_push_consumer_ends_its_workers_and_its_client_whatever_fails(
    kind: type[Any], error: BaseException
) -> None:
    consumer = running(kind, error)
    with pytest.raises(type(error)):
        close(consumer)
    assert consumer._core.ended.is_fired
    assert consumer._workers.joined == [1.0]
    assert consumer._client.is_closed
    assert consumer.state == "closed"


@pytest.mark.parametrize("kind", BOTH)
def test_a_failed_request_is_logged_and_the_push_consumer_is_closed(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = running(kind, ConnectionLost("a:1", "cut"))
    close(consumer)
    assert consumer._core.ended.is_fired
    assert consumer._client.is_closed
    assert "while closing" in caplog.text


@pytest.mark.parametrize(
    "kind", [PullConsumer, AsyncPullConsumer, SimpleConsumer, AsyncSimpleConsumer]
)
def test_other_consumers_close_their_client_whatever_fails(kind: type[Any]) -> None:
    consumer = running(kind, OSError("bad"))
    with pytest.raises(OSError, match="bad"):
        close(consumer)
    assert consumer._client.is_closed
    assert consumer.state == "closed"
    assert consumer._core.is_closed == ("Simple" in kind.__name__)


# ---- blocks of an iteration ------------------------------------------------------------------


def leave(block: Any, error: BaseException) -> None:
    """Raise an error in a block of either kind."""

    async def enter(waiting: AbstractAsyncContextManager[Any]) -> None:
        async with waiting:
            raise error

    if isinstance(block, AbstractContextManager):
        with block:
            raise error
    asyncio.run(enter(block))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_block_that_is_interrupted_has_failed(kind: type[Any], *, is_closed: bool) -> None:
    """Else its message would stay with the consumer, which neither retries nor commits it."""
    error = ClientClosed("the client") if is_closed else ConnectionLost("a:1", "not called")
    consumer = running(kind, error)
    message = object()
    delivery = SimpleNamespace(messages=[message])
    consumer._last = {id(message): delivery}
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        leave(consumer.processing(message), interrupt)
    assert consumer._client.spawned == ([] if is_closed else [(delivery, interrupt)])
