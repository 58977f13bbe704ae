"""The part of `PushConsumer` and `AsyncPushConsumer` that never waits: checks of handlers."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from downrange.client.flows.consuming.verdicts import check_answer
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


def check_handler(handler: Any) -> None:
    """Refuse what is not a function of one argument, before the first message fails by it.

    Raises:
        OptionError: It cannot be called, or not with one argument, or it makes an object or a
            generator.
    """
    if not callable(handler):
        raise OptionError(f"handler={handler!r} cannot be called; give a function of one message")
    if isinstance(handler, type):
        raise OptionError(
            f"handler is the class {handler.__name__}; give a function of one message, or an "
            "object that can be called"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise OptionError("handler has a yield, so a call does not run it; give a plain function")
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return  # some functions that are written in C do not tell their form
    try:
        signature.bind(None)
    except TypeError as error:
        raise OptionError(
            f"handler={handler!r} cannot be called with one message, or with one list if batch is "
            f"above 1: {error}"
        ) from None


def any_handler(handler: Any) -> Callable[[Any], Any]:
    """Return a handler for tasks, which may be a coroutine function.

    Raises:
        OptionError: It cannot be called with one argument, or would not do its work then.
    """
    check_handler(handler)
    if is_coroutine_handler(handler) and not inspect.iscoroutinefunction(handler):
        handler = handler.__call__  # which drivers know as a coroutine function
    return handler  # type: ignore[no-any-return]


def plain_handler(handler: Any) -> Callable[[Any], Any]:
    """Return a handler that a thread can call.

    Raises:
        OptionError: It is a coroutine function, or not a function of one argument.
    """
    check_handler(handler)
    if is_coroutine_handler(handler):
        raise OptionError(
            "handler is a coroutine function, which a PushConsumer cannot await in its threads; "
            "use AsyncPushConsumer, or give a plain function"
        )
    return handler  # type: ignore[no-any-return]


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
        if (answer := handler(message)) is not None:
            check_answer(answer)


async def handle_run_async(handler: Callable[[Any], Any], delivery: Delivery) -> None:
    """Do the same as `handle_run`, with a coroutine function."""
    rest, window, begin = delivery.rest, delivery.window, delivery.messages.append
    assert rest is not None
    while rest and not window.is_stopped:
        message = rest.popleft()
        begin(message)
        if (answer := await handler(message)) is not None:
            check_answer(answer)


def handler_pool(group: str, concurrency: int) -> ThreadPoolExecutor:
    """Return threads for a plain handler of a consumer on an event loop."""
    return ThreadPoolExecutor(concurrency, thread_name_prefix=f"downrange-{group}")


def in_pool(pool: ThreadPoolExecutor, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coroutine function that calls a plain handler in a thread.

    What it returns is awaited on the event loop, if it is a coroutine.
    """

    def call_here(argument: Any) -> object:
        try:
            return handler(argument)
        except (StopIteration, KeyboardInterrupt) as error:
            # No future can hold the first one, and the second one would end the event loop.
            raise RuntimeError(f"the handler raised {type(error).__name__}") from error

    async def call(argument: Any) -> object:
        answer = await asyncio.get_running_loop().run_in_executor(pool, call_here, argument)
        return await answer if inspect.isawaitable(answer) else answer

    return call
