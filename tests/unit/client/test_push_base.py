"""Checks of handlers."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from downrange.client.push_base import (
    any_handler,
    handler_pool,
    in_pool,
    is_coroutine_handler,
    plain_handler,
)
from downrange.errors import OptionError


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


def test_a_plain_handler_of_an_event_loop_runs_in_a_thread() -> None:
    names: list[str] = []

    def handle(message: Any) -> int:
        names.append(threading.current_thread().name)
        return len(message)

    pool = handler_pool("billing", 1)
    assert asyncio.run(in_pool(pool, handle)("abc")) == 3
    pool.shutdown()
    assert names[0].startswith("downrange-billing")
