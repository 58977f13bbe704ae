"""The part of `PushConsumer` and `AsyncPushConsumer` that never waits: checks of handlers."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.consuming.delivery_window import Delivery

#: Seconds that `close` of a group consumer may take unless it is told otherwise.
DRAIN_TIMEOUT: Final = 30.0
#: Seconds of one wait for a signal, after which it is looked at again.
LONG_WAIT: Final = 3600.0


def is_coroutine_handler(handler: Any) -> bool:
    """Return whether calling a handler gives a coroutine, also for methods and objects."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - the method itself is looked at
    )


def any_handler(handler: Any) -> Callable[[Any], Any]:
    """Return a handler for tasks, which may be a coroutine function.

    Raises:
        OptionError: It cannot be called.
    """
    if not callable(handler):
        raise OptionError(f"handler={handler!r} cannot be called; give a function of one message")
    return handler  # type: ignore[no-any-return]


def plain_handler(handler: Any) -> Callable[[Any], Any]:
    """Return a handler that a thread can call.

    Raises:
        OptionError: It cannot be called, or it is a coroutine function.
    """
    if is_coroutine_handler(handler):
        raise OptionError(
            "handler is a coroutine function, which a PushConsumer cannot await in its threads; "
            "use AsyncPushConsumer, or give a plain function"
        )
    return any_handler(handler)


def handle_run(handler: Callable[[Any], Any], delivery: Delivery) -> None:
    """Call a handler with each message of a run, until it ends or is taken away."""
    rest, window, begin = delivery.rest, delivery.window, delivery.messages.append
    assert rest is not None
    while rest and not window.is_stopped:
        try:
            message = rest.popleft()
        except IndexError:  # another worker took the last one
            return
        begin(message)
        handler(message)


async def handle_run_async(handler: Callable[[Any], Any], delivery: Delivery) -> None:
    """Do the same as `handle_run`, with a coroutine function."""
    rest, window, begin = delivery.rest, delivery.window, delivery.messages.append
    assert rest is not None
    while rest and not window.is_stopped:
        message = rest.popleft()
        begin(message)
        await handler(message)


def handler_pool(group: str, concurrency: int) -> ThreadPoolExecutor:
    """Return threads for a plain handler of a consumer on an event loop."""
    return ThreadPoolExecutor(concurrency, thread_name_prefix=f"downrange-{group}")


def in_pool(pool: ThreadPoolExecutor, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coroutine function that calls a plain handler in a thread."""

    def call_here(argument: Any) -> object:
        try:
            return handler(argument)
        except (StopIteration, KeyboardInterrupt) as error:
            # No future can hold the first one, and the second one would end the event loop.
            raise RuntimeError(f"the handler raised {type(error).__name__}") from error

    async def call(argument: Any) -> object:
        return await asyncio.get_running_loop().run_in_executor(pool, call_here, argument)

    return call
