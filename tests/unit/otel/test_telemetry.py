"""When calls are left alone: there is no SDK, or the context wants no spans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, NoOpTracerProvider, SpanContext

from downrange.model import Message
from downrange.otel.propagation import TRACE_PARENT
from downrange.otel.sends import Send, SendSpans
from downrange.otel.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from downrange.otel.telemetry import Operation

MESSAGE = Message("orders", b"1")
REMOTE = NonRecordingSpan(SpanContext(1, 2, is_remote=True))


def telemetry_of(*providers: Any, continue_trace: bool = False) -> Telemetry:
    tracers, meters = (*providers, None, None)[:2]
    return Telemetry(tracers, meters, continue_trace)


def begin(telemetry: Telemetry, message: Message = MESSAGE) -> Operation | None:
    """Begin to send a message."""
    client = SimpleNamespace(client_id="c", options=SimpleNamespace(namespace=None), routes={})
    core: Any = SimpleNamespace(client=client)
    return SendSpans(telemetry)._of_one(Send, "send", core, message)


@pytest.mark.parametrize("provider", [None, NoOpTracerProvider()])
def test_send_is_left_alone_without_an_sdk(provider: NoOpTracerProvider | None) -> None:
    assert begin(telemetry_of(provider)) is None


def test_send_has_a_span_as_soon_as_an_sdk_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = telemetry_of()
    assert begin(telemetry) is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    operation = begin(telemetry)
    assert operation is not None
    assert TRACE_PARENT in operation.argument.properties


def test_send_is_measured_by_an_sdk_that_has_metrics_only() -> None:
    operation = begin(telemetry_of(None, MeterProvider()))
    assert operation is not None
    assert operation.argument is MESSAGE


def test_context_of_the_program_is_passed_on_without_an_sdk() -> None:
    current = baggage.set_baggage("user", "7", trace.set_span_in_context(REMOTE))
    token = contexts.attach(current)
    try:
        operation = begin(telemetry_of())
    finally:
        contexts.detach(token)
    assert operation is not None
    assert operation.argument.properties == {
        TRACE_PARENT: f"00-{1:032x}-{2:016x}-00",
        "baggage": "user=7",
    }


def test_sends_with_the_same_topic_have_attributes_of_their_own() -> None:
    telemetry = telemetry_of(TracerProvider())
    first: Any = begin(telemetry, Message("orders", b"1", tags="new"))
    second: Any = begin(telemetry)
    assert first.span.attributes.keys() - second.span.attributes.keys() == {
        "messaging.rocketmq.message.tag"
    }
    assert first.span.name == second.span.name == "send orders"


def test_suppressed_calls_are_left_alone() -> None:
    telemetry = telemetry_of(TracerProvider(), continue_trace=True)
    assert begin(telemetry) is not None
    with suppress_instrumentation():
        assert begin(telemetry) is None
        with telemetry.processing([], "billing") as span:
            assert span is INVALID_SPAN


def test_sends_of_an_exporter_are_left_alone() -> None:
    telemetry = telemetry_of(TracerProvider())
    begun: list[Operation | None] = []

    class Sending(SpanExporter):
        """Sends spans as messages."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            """Begin to send."""
            begun.append(begin(telemetry))
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Sending()))
    provider.get_tracer("test").start_span("a").end()
    assert begun == [None]


def test_handler_has_no_span_without_an_sdk() -> None:
    with telemetry_of().processing([], "billing") as span:
        assert span is INVALID_SPAN


def test_handler_continues_a_trace_without_an_sdk() -> None:
    message: Any = SimpleNamespace(
        topic="orders",
        message_id="1",
        queue=SimpleNamespace(number=0),
        tags=None,
        keys=(),
        properties={TRACE_PARENT: f"00-{1:032x}-{2:016x}-01"},
    )
    with telemetry_of(continue_trace=True).processing([message], "billing"):
        assert trace.get_current_span().get_span_context().span_id == 2
