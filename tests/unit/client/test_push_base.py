"""Checks of handlers."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from downrange import (
    AsyncPushConsumer,
    AsyncPushedMessage,
    ConsumerOptions,
    PushConsumer,
    PushedMessage,
)
from downrange.client.push_base import (
    any_handler,
    handler_pool,
    in_pool,
    is_coroutine_handler,
    plain_handler,
)
from downrange.errors import NotStarted, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.model import ReceivedMessage


class Handlers:
    def plain(self, message: Any) -> None:
        """Handle a message."""

    async def waiting(self, message: Any) -> None:
        """Handle a message."""


class Callable:
    async def __call__(self, message: Any) -> None:
        """Handle a message."""


def test_functions_methods_partials_and_objects() -> None:
    handlers = Handlers()
    assert not is_coroutine_handler(handlers.plain)
    assert not is_coroutine_handler(partial(handlers.plain))
    assert is_coroutine_handler(handlers.waiting)
    assert is_coroutine_handler(partial(handlers.waiting))
    assert is_coroutine_handler(Callable())
    assert any_handler(handlers.waiting) == handlers.waiting
    assert plain_handler(handlers.plain) == handlers.plain


def test_a_coroutine_function_needs_an_event_loop() -> None:
    with pytest.raises(OptionError, match="handler is a coroutine function, which a PushConsumer"):
        plain_handler(Handlers().waiting)
    with pytest.raises(OptionError, match="handler=5 cannot be called"):
        plain_handler(5)


class Bill:
    def __init__(self, message: Any) -> None:
        """Make an object, and handle nothing."""


def make_bill(message: Any) -> Any:
    yield message


async def make_bills(message: Any) -> Any:
    yield message


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (lambda: None, "cannot be called with one message, .*: too many positional arguments"),
        (lambda one, two: None, "cannot be called with one message, .* argument: 'two'"),
        (lambda *, message: None, "cannot be called with one message"),
        (partial(print, file=None), None),
        (lambda message, times=1: None, None),
        (print, None),
        (max, None),
        (Bill, "handler is the class Bill; give a function of one message, or an object"),
        (make_bill, "handler has a yield, so a call does not run it; give a plain function"),
        (make_bills, "handler has a yield"),
    ],
)
def test_a_handler_is_a_function_of_one_argument(handler: Any, problem: str | None) -> None:
    for check in (any_handler, plain_handler):
        if problem is None:
            assert check(handler) is handler
        else:
            with pytest.raises(OptionError, match=problem):
                check(handler)


def test_handlers_are_type_checked() -> None:
    """By mypy and pyright: an unused `type: ignore` is an error, and so is a missing one."""

    def one(message: ReceivedMessage) -> None: ...

    def replying(message: PushedMessage) -> None: ...

    def many(messages: list[ReceivedMessage]) -> None: ...

    def several(messages: Sequence[PushedMessage]) -> None: ...

    async def later(message: AsyncPushedMessage) -> None: ...

    def text(message: str) -> None: ...

    group, topic, options = "billing", "orders", ConsumerOptions(batch=8)
    PushConsumer("h:1", group=group, subscribe=topic)
    PushConsumer("h:1", group=group, subscribe=topic, handler=one)
    PushConsumer("h:1", group=group, subscribe=topic, handler=replying)
    PushConsumer("h:1", group=group, subscribe=topic, handler=many, options=options)
    PushConsumer("h:1", group=group, subscribe=topic, handler=several, options=options)
    PushConsumer("h:1", group=group, subscribe=topic, handler=partial(one))
    AsyncPushConsumer("h:1", group=group, subscribe=topic, handler=one)
    AsyncPushConsumer("h:1", group=group, subscribe=topic, handler=later)
    PushConsumer("h:1", group=group, subscribe=topic, handler=many)  # type: ignore[arg-type]
    PushConsumer("h:1", group=group, subscribe=topic, handler=text)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="coroutine function"):
        PushConsumer("h:1", group=group, subscribe=topic, handler=later)  # type: ignore[arg-type]


def test_messages_of_an_iteration_are_type_checked() -> None:
    """By mypy and pyright: `assert_type` refuses any other class."""

    def iterate(consumer: PushConsumer) -> None:
        for message in consumer:
            assert_type(message, PushedMessage)
            with message.processing() as same:
                assert_type(same, PushedMessage)

    async def iterate_async(consumer: AsyncPushConsumer) -> None:
        async for message in consumer:
            assert_type(message, AsyncPushedMessage)
            async with message.processing() as same:
                assert_type(same, AsyncPushedMessage)

    with pytest.raises(NotStarted):
        iterate(PushConsumer("h:1", group="billing", subscribe="orders"))
    with pytest.raises(NotStarted):
        asyncio.run(iterate_async(AsyncPushConsumer("h:1", group="billing", subscribe="orders")))


def test_a_plain_handler_of_an_event_loop_runs_in_a_thread() -> None:
    names: list[str] = []

    def handle(message: Any) -> int:
        names.append(threading.current_thread().name)
        return len(message)

    pool = handler_pool("billing", 1)
    assert asyncio.run(in_pool(pool, handle)("abc")) == 3
    pool.shutdown()
    assert names[0].startswith("downrange-billing")
