"""Process spans: around handlers of push consumers, and around blocks of `processing`.

The span is the current one while the handler runs, in its thread or task, so that what it calls has
its place below.
"""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from downrange.client._async.popped_message import AsyncPoppedMessage
from downrange.client._async.push_consumer import AsyncPushConsumer
from downrange.client._sync.popped_message import PoppedMessage
from downrange.client._sync.push_consumer import PushConsumer
from downrange.client.push_base import check_handler, is_coroutine_handler
from downrange.errors import OptionError
from downrange.otel import names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from opentelemetry.util.types import AttributeValue

    from downrange.model import ReceivedMessage
    from downrange.otel.calls import Replacements
    from downrange.otel.telemetry import Telemetry


class ProcessSpans:
    """Puts process spans around handlers and blocks."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def install(self, methods: Replacements) -> None:
        """Replace the methods."""
        for consumer in (PushConsumer, AsyncPushConsumer):
            methods.replace(consumer, "__init__", self._with_handler(consumer.__init__))
        methods.replace(PushConsumer, "processing", self._block(PushConsumer.processing))
        methods.replace(PoppedMessage, "processing", self._block(PoppedMessage.processing))
        methods.replace(
            AsyncPushConsumer, "processing", self._async_block(AsyncPushConsumer.processing)
        )
        methods.replace(
            AsyncPoppedMessage, "processing", self._async_block(AsyncPoppedMessage.processing)
        )

    def _with_handler(self, original: Any) -> Any:
        @functools.wraps(original)
        def init(consumer: Any, *args: Any, **settings: Any) -> None:
            handler, group = settings.get("handler"), settings.get("group")
            if isinstance(group, str) and _is_allowed(handler):
                options = settings.get("options")
                settings["handler"] = self._handler(handler, group, _model_of(options))
            original(consumer, *args, **settings)

        return init

    def _handler(
        self, handler: Callable[[Any], Any], group: str, more: dict[str, AttributeValue]
    ) -> Callable[[Any], Any]:
        """Return a handler that makes a process span; a coroutine function if it was one."""
        telemetry = self._telemetry
        if is_coroutine_handler(handler):

            @functools.wraps(handler)
            async def handle_async(argument: Any) -> Any:
                with telemetry.processing(_listed(argument), group, more):
                    return await handler(argument)

            return handle_async

        @functools.wraps(handler)
        def handle(argument: Any) -> Any:
            with telemetry.processing(_listed(argument), group, more):
                return handler(argument)

        return handle

    def _block(self, original: Any) -> Any:
        telemetry = self._telemetry

        @functools.wraps(original)
        def processing(owner: Any, *args: Any, **named: Any) -> Any:
            return block(original(owner, *args, **named), *_subject_of(owner, args, named))

        @contextmanager
        def block(inner: Any, message: ReceivedMessage, group: str) -> Generator[Any]:
            with inner as entered, telemetry.processing([message], group):
                yield entered

        return processing

    def _async_block(self, original: Any) -> Any:
        telemetry = self._telemetry

        @functools.wraps(original)
        def processing(owner: Any, *args: Any, **named: Any) -> Any:
            return block(original(owner, *args, **named), *_subject_of(owner, args, named))

        @asynccontextmanager
        async def block(inner: Any, message: ReceivedMessage, group: str) -> AsyncGenerator[Any]:
            async with inner as entered:
                with telemetry.processing([message], group):
                    yield entered

        return processing


def _is_allowed(handler: Any) -> TypeGuard[Callable[[Any], Any]]:
    """Return whether consumers accept a handler; one that is wrapped always looks good to them."""
    try:
        check_handler(handler)
    except OptionError:
        return False
    return True


def _listed(argument: Any) -> list[ReceivedMessage]:
    """Return the messages of a handler's argument: one, or a list of them."""
    return argument if isinstance(argument, list) else [argument]


def _subject_of(owner: Any, args: Any, named: Any) -> tuple[ReceivedMessage, str]:
    """Return the message and the group of a block, which a message or a consumer has made."""
    if (group := getattr(owner, "group", None)) is not None:
        return (args[0] if args else named["message"]), group
    return owner, owner._core.group


def _model_of(options: Any) -> dict[str, AttributeValue]:
    model = getattr(options, "model", "clustering")
    is_broadcast = model == "broadcast"
    return {names.CONSUMPTION_MODEL: "broadcasting" if is_broadcast else "clustering"}
