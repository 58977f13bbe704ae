"""OpenTelemetry: spans and metrics of all clients in this process.

    import downrange as mq

    mq.instrument()

From then on, sends, receives, handlers and acknowledgements have spans after the messaging
conventions, and the context travels in the properties of messages. `instrument` replaces methods of
the public classes, so a program that does not call it pays nothing.

The extra `otel` installs the API of OpenTelemetry; the program sets up the SDK and an exporter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.checks import check_flag
from downrange.errors import ClientStateError
from downrange.extras import require

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from downrange.model import ReceivedMessage
    from downrange.otel.instrumentation import Instrumentation

__all__ = ["instrument", "process_span", "uninstrument"]

_installed: Instrumentation | None = None


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    continue_trace: bool = False,
) -> None:
    """Give all clients of this process spans and metrics; does nothing if they have them.

    Consumers get process spans if they are made after this call.

    Args:
        tracer_provider: Makes the spans; the global one unless given.
        meter_provider: Makes the metrics; the global one unless given.
        continue_trace: Whether the span of a handler belongs to the trace of its message. By
            default it begins a trace of its own, with a link to that of the message, as the
            conventions say. Batches always have links.

    Raises:
        MissingExtra: OpenTelemetry is not installed; the text says how to install it.
        OptionError: `continue_trace` is not a bool.

    Example:
        ```python
        mq.instrument()
        with mq.Producer("127.0.0.1:9876", group="shop") as producer:
            producer.send(mq.Message("orders", b"1"))  # a span "send orders"
        ```
    """
    global _installed
    check_flag("continue_trace", continue_trace)
    require("instrument()", "otel")
    from downrange.otel.instrumentation import Instrumentation

    if _installed is None:
        _installed = Instrumentation(tracer_provider, meter_provider, continue_trace)


def uninstrument() -> None:
    """Take spans and metrics away again; does nothing without `instrument`."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None


def process_span(
    *messages: ReceivedMessage, group: str | None = None
) -> AbstractContextManager[Span]:
    """Return a process span, for messages that the program handles itself after `poll`.

    Handlers, and blocks of `processing`, have such a span without it.

    Args:
        messages: The messages that the block handles.
        group: The consumer group.

    Raises:
        ClientStateError: `instrument` was not called.

    Example:
        ```python
        for message in consumer.poll():
            with process_span(message, group="billing"):
                bill(message)
        ```
    """
    if _installed is None:
        raise ClientStateError("process_span needs instrument(), which was not called")
    return _installed.telemetry.processing(messages, group)
