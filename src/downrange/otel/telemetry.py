"""What all instrumented calls share: the tracer, the metrics, and how an operation ends."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import version
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from downrange.errors import DeadLetter, Retry, RetrySome, SendFailed, ServerError
from downrange.otel import names
from downrange.otel.propagation import creation_context, links_to
from downrange.wire.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from downrange.model import ReceivedMessage

#: Set by programs, and by the SDK around its exporters, for calls that are to have no spans. The
#: SDK's key has a random part, and its name in the API is a private one.
_SUPPRESSED: Final[tuple[str, ...]] = (
    "suppress_instrumentation",
    getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"),
)
#: Providers of these packages do nothing: the SDK's have other names.
_API: Final = ("opentelemetry.trace", "opentelemetry.metrics")
_CODES: Final = {code.value: code.name for code in ResponseCode}


class Telemetry:
    """Makes spans and measurements.

    Args:
        tracer_provider: Makes the spans; the global one if None.
        meter_provider: Makes the metrics; the global one if None.
        continue_trace: Whether the span of one handled message belongs to the message's trace.

    Attributes:
        tracer: Makes the spans.
        meter: Makes further metrics.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        continue_trace: bool,
    ) -> None:
        self._continue_trace = continue_trace
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._has_sdk = False
        self._release = version("downrange")
        self.tracer = self._get_tracer()
        self.meter = metrics.get_meter(
            names.SCOPE, self._release, meter_provider, schema_url=names.SCHEMA_URL
        )
        self._operation_duration = self.meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Time of a call, from its beginning to its result.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self._process_duration = self.meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Time of a handler.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self._sent = self.meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Messages that were sent, or failed."
        )
        self._consumed = self.meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages that the program was given."
        )

    def call_context(self) -> Context | None:
        """Return the current context, in which a call has spans; None if it is left alone.

        It is left alone if the context wants no spans, or there is nothing to make: without an SDK
        no span is recorded and nothing is measured. A context that is not empty may still have a
        trace or baggage for the message.
        """
        current = contexts.get_current()
        if current:
            return None if _is_suppressed(current) else current
        # An SDK that is set stays, so this is not asked again.
        if not self._has_sdk and not self._find_sdk():
            return None
        return current

    def _find_sdk(self) -> bool:
        """Whether there is an SDK for spans or metrics by now."""
        self._has_sdk = not (
            _is_of_api(self._tracer_provider or trace.get_tracer_provider())
            and _is_of_api(self._meter_provider or metrics.get_meter_provider())
        )
        if self._has_sdk:  # before, the tracer may have been one that only passes calls on
            self.tracer = self._get_tracer()
        return self._has_sdk

    def _get_tracer(self) -> Tracer:
        return trace.get_tracer(
            names.SCOPE, self._release, self._tracer_provider, schema_url=names.SCHEMA_URL
        )

    @property
    def is_off(self) -> bool:
        """Whether a call is left alone; see `call_context`."""
        return self.call_context() is None

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        *,
        links: Sequence[Link] | None = None,
        context: Context | None = None,
        started_ns: int | None = None,
    ) -> Span:
        """Start a span that is not the current one."""
        return self.tracer.start_span(
            name,
            context=context,
            kind=kind,
            attributes=attributes,
            links=links,
            start_time=started_ns,
        )

    @contextmanager
    def processing(
        self,
        messages: Sequence[ReceivedMessage],
        group: str | None,
        more: dict[str, AttributeValue] | None = None,
    ) -> Generator[Span]:
        """Make a process span, the current one in the block; `Retry` and the like are no errors.

        Args:
            messages: The messages that the block handles.
            group: The consumer group.
            more: Further attributes.
        """
        # Without an SDK, a trace that is continued still reaches what the handler calls.
        if _is_suppressed(contexts.get_current()) if self._continue_trace else self.is_off:
            yield trace.INVALID_SPAN
            return
        attributes = described("process", "process", messages, group)
        if more is not None:
            attributes.update(more)
        links, parent = links_to(messages), None
        if self._continue_trace and len(messages) == 1 and links:
            links, parent = [], creation_context(messages[0].properties)
        span = self.start_span(
            name_of(attributes), SpanKind.CONSUMER, attributes, links=links, context=parent
        )
        started, failure = perf_counter(), None
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield span
        except (Retry, DeadLetter, RetrySome) as signal:
            span.add_event(type(signal).__name__, {"reason": str(signal)})
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            contexts.detach(token)
            end_span(span, failure)
            measured = measured_of(attributes)
            if failure is not None:
                measured = _with_error(measured, failure)
            self._process_duration.record(perf_counter() - started, measured)
            self._consumed.add(len(messages), measured)

    def measure(
        self,
        measured: dict[str, AttributeValue],
        seconds: float,
        error: BaseException | None,
        sent: int = 0,
        consumed: int = 0,
    ) -> None:
        """Add a call to the metrics, and the messages that it sent or returned.

        Args:
            measured: What `measured_of` returns; it is not changed.
            seconds: How long the call took.
            error: What it raised.
            sent: How many messages it sent.
            consumed: How many messages it returned.
        """
        if error is not None:
            measured = _with_error(measured, error)
        self._operation_duration.record(seconds, measured)
        if sent:
            self._sent.add(sent, measured)
        if consumed:
            self._consumed.add(consumed, measured)


class Operation:
    """One call of a client's method, while it runs.

    Args:
        telemetry: Makes spans and measurements.

    Attributes:
        argument: The first argument to call the method with.
    """

    __slots__ = ("argument", "started", "telemetry")

    def __init__(self, telemetry: Telemetry, argument: Any = None) -> None:
        self.telemetry = telemetry
        self.argument = argument
        self.started = perf_counter()

    def finish(self, result: Any) -> None:
        """End it: the method has returned."""

    def fail(self, error: BaseException) -> None:
        """End it: the method has raised."""

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return perf_counter() - self.started

    @property
    def started_ns(self) -> int:
        """When it began, in nanoseconds since 1970."""
        return time_ns() - round(1e9 * self.seconds)


def described(
    name: str, kind: str, messages: Sequence[ReceivedMessage], group: str | None
) -> dict[str, AttributeValue]:
    """Return the attributes of an operation on received messages.

    Args:
        name: The name of the operation.
        kind: Its type: "receive", "process" or "settle".
        messages: The messages; with several topics among them, none is named.
        group: The consumer group.
    """
    attributes: dict[str, AttributeValue] = {
        names.SYSTEM: names.SYSTEM_NAME,
        names.OPERATION_NAME: name,
        names.OPERATION_TYPE: kind,
    }
    if group is not None:
        attributes[names.CONSUMER_GROUP] = group
    topics = {message.topic for message in messages}
    if len(topics) == 1:
        attributes[names.DESTINATION] = topics.pop()
    if len(messages) == 1:
        message = messages[0]
        attributes[names.MESSAGE_ID] = message.message_id
        attributes[names.PARTITION] = str(message.queue.number)
        if (tag := message.tags) is not None:
            attributes[names.MESSAGE_TAG] = tag
        if keys := message.keys:
            attributes[names.MESSAGE_KEYS] = keys
    else:
        attributes[names.BATCH_COUNT] = len(messages)
    return attributes


def name_of(attributes: dict[str, AttributeValue]) -> str:
    """Return the name of a span: the operation and, if there is one, the topic."""
    name, topic = str(attributes[names.OPERATION_NAME]), attributes.get(names.DESTINATION)
    return name if topic is None else f"{name} {topic!s}"


def end_span(span: Span, error: BaseException | None) -> None:
    """End a span; with an error its status says so."""
    if error is not None and span.is_recording():
        span.set_attribute(names.ERROR_TYPE, error_type(error))
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def error_type(error: BaseException) -> str:
    """Return the name of a broker's refusal, such as "TOPIC_NOT_EXIST", or of the exception."""
    if isinstance(error, SendFailed) and error.attempts:
        error = error.attempts[-1].error
    if isinstance(error, ServerError) and error.code is not None:
        return _CODES.get(error.code, str(error.code))
    return type(error).__name__


_MEASURED: Final[tuple[str, ...]] = (
    names.SYSTEM,
    names.OPERATION_NAME,
    names.OPERATION_TYPE,
    names.DESTINATION,
    names.CONSUMER_GROUP,
)


def measured_of(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the attributes of measurements: those of the span that have few values."""
    return {name: attributes[name] for name in _MEASURED if name in attributes}


def _with_error(
    measured: dict[str, AttributeValue], error: BaseException
) -> dict[str, AttributeValue]:
    return {**measured, names.ERROR_TYPE: error_type(error)}


def _is_suppressed(context: Context) -> bool:
    """Whether a context wants no spans."""
    return any(map(context.get, _SUPPRESSED))


def _is_of_api(provider: object) -> bool:
    return type(provider).__module__.startswith(_API)
