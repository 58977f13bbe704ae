"""Replace methods of the public classes with ones that have an operation around each call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.otel.telemetry import Operation

#: Begins an operation: called with the object, the first argument (or `MISSING`), and the other
#: arguments by name, which it may change. None leaves the call alone.
Begin: TypeAlias = "Callable[[Any, Any, dict[str, Any]], Operation | None]"

#: Begins an operation that sends one message: called with the object and the message.
BeginSend: TypeAlias = "Callable[[Any, Any], Operation | None]"

#: Stands for a first argument that was not given; the method itself then complains.
MISSING: Final = object()


class Replacements:
    """Methods that were replaced, and what they were before."""

    def __init__(self) -> None:
        self._before: list[tuple[type, str, Any]] = []

    def replace(self, owner: type, name: str, method: Any) -> None:
        """Put a method into a class."""
        self._before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, method)

    def wrap(self, owner: type, name: str, begin: Begin, parameter: str | None) -> None:
        """Put an operation around each call of a method, which may be a coroutine function.

        Args:
            owner: The class.
            name: The method.
            begin: Begins the operation.
            parameter: The name of the first argument; None for a method without one to look at.
        """
        original = owner.__dict__[name]
        around = _around_coroutine if _is_coroutine(original) else _around_function
        self.replace(owner, name, around(original, begin, parameter))

    def wrap_future(self, owner: type, name: str, begin: Begin, parameter: str) -> None:
        """Do the same for a method that returns a future, with which the operation ends."""
        self.replace(owner, name, _around_future(owner.__dict__[name], begin, parameter))

    def wrap_send(self, owner: type, name: str, begin: BeginSend) -> None:
        """Do the same for a method that has the parameters of `send`, or is a coroutine function.

        Such methods are called for each message. With parameters that are known, nothing has to be
        packed into a tuple and a dictionary, and unpacked again.
        """
        original = owner.__dict__[name]
        around = _around_awaited_send if _is_coroutine(original) else _around_send
        self.replace(owner, name, around(original, begin))

    def wrap_submit(self, owner: type, name: str, begin: BeginSend) -> None:
        """Do the same for a method that has the parameters of `send`, and returns a future."""
        self.replace(owner, name, _around_submit(owner.__dict__[name], begin))

    def restore(self) -> None:
        """Put back what was there before."""
        for owner, name, method in reversed(self._before):
            setattr(owner, name, method)
        self._before.clear()


def _is_coroutine(function: Any) -> bool:
    return bool(function.__code__.co_flags & 0x80)  # CO_COROUTINE


def _around_function(original: Any, begin: Begin, parameter: str | None) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        operation = begin(self, _first(args, named, parameter), named)
        if operation is None:
            return original(self, *args, **named)
        try:
            result = original(self, *_changed(args, named, parameter, operation), **named)
        except BaseException as error:
            operation.fail(error)
            raise
        operation.finish(result)
        return result

    return call


def _around_coroutine(original: Any, begin: Begin, parameter: str | None) -> Any:
    @functools.wraps(original)
    async def call(self: Any, *args: Any, **named: Any) -> Any:
        operation = begin(self, _first(args, named, parameter), named)
        if operation is None:
            return await original(self, *args, **named)
        try:
            result = await original(self, *_changed(args, named, parameter, operation), **named)
        except BaseException as error:  # a cancelled task, too
            operation.fail(error)
            raise
        operation.finish(result)
        return result

    return call


def _around_future(original: Any, begin: Begin, parameter: str) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        operation = begin(self, _first(args, named, parameter), named)
        if operation is None:
            return original(self, *args, **named)
        try:
            future = original(self, *_changed(args, named, parameter, operation), **named)
        except BaseException as error:
            operation.fail(error)
            raise
        future.add_done_callback(functools.partial(_ended, operation))
        return future

    return call


def _around_send(original: Any, begin: BeginSend) -> Any:
    @functools.wraps(original)
    def call(self: Any, message: Any, *, queue: Any = None, timeout: Any = None) -> Any:
        operation = begin(self, message)
        if operation is None:
            return original(self, message, queue=queue, timeout=timeout)
        try:
            result = original(self, operation.argument, queue=queue, timeout=timeout)
        except BaseException as error:
            operation.fail(error)
            raise
        operation.finish(result)
        return result

    return call


def _around_awaited_send(original: Any, begin: BeginSend) -> Any:
    @functools.wraps(original)
    async def call(self: Any, message: Any, *, queue: Any = None, timeout: Any = None) -> Any:
        operation = begin(self, message)
        if operation is None:
            return await original(self, message, queue=queue, timeout=timeout)
        try:
            result = await original(self, operation.argument, queue=queue, timeout=timeout)
        except BaseException as error:  # a cancelled task, too
            operation.fail(error)
            raise
        operation.finish(result)
        return result

    return call


def _around_submit(original: Any, begin: BeginSend) -> Any:
    @functools.wraps(original)
    def call(self: Any, message: Any, *, queue: Any = None, timeout: Any = None) -> Any:
        operation = begin(self, message)
        if operation is None:
            return original(self, message, queue=queue, timeout=timeout)
        try:
            future = original(self, operation.argument, queue=queue, timeout=timeout)
        except BaseException as error:
            operation.fail(error)
            raise
        future.add_done_callback(functools.partial(_ended, operation))
        return future

    return call


def _ended(operation: Operation, future: Any) -> None:
    if future.cancelled():
        operation.fail(_cancelled())
    elif (error := future.exception()) is not None:
        operation.fail(error)
    else:
        operation.finish(future.result())


def _cancelled() -> BaseException:
    from concurrent.futures import CancelledError

    return CancelledError("the future was cancelled")


def _first(args: tuple[Any, ...], named: dict[str, Any], parameter: str | None) -> Any:
    if parameter is None:
        return MISSING
    return args[0] if args else named.get(parameter, MISSING)


def _changed(
    args: tuple[Any, ...], named: dict[str, Any], parameter: str | None, operation: Operation
) -> tuple[Any, ...]:
    """Return the positional arguments, with the operation's in place of the first one."""
    if parameter is None:
        return args
    if args:
        return (operation.argument, *args[1:])
    named[parameter] = operation.argument
    return args
