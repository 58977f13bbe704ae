"""The context of a span in a message: a copy carries it, the message of the caller stays.

The default propagator's formats are written and read without it. The tests compare the result with
that of the propagator.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.b3 import B3MultiFormat, B3SingleFormat
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from downrange import CompressedMessage, Message
from downrange.otel import propagation
from downrange.otel.propagation import (
    TRACE_PARENT,
    creation_context,
    creation_span,
    has_context,
    links_to,
    with_context,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT = "00-11112222333344445555666677778888-1111222233334444-01"
CARRIER = {TRACE_PARENT: PARENT}
MESSAGES = [
    Message("orders", b"1"),
    Message(
        *("orders", b"1"),
        tags="new",
        keys=["a", "b"],
        properties={"x": "y"},
        sharding_key="k",
        deliver_in=3.0,
        flag=7,
        wait_stored=False,
    ),
    Message("orders", b"1", delay_level=3),
    Message("orders", b"1", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
    CompressedMessage("orders", b"1", compression="zlib"),
]


class OneField(TextMapPropagator):
    """Writes ids in a format of its own, as B3's propagator does."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
        """Write the field."""
        span = trace.get_current_span(context).get_span_context()
        setter.set(carrier, "one", f"{span.trace_id:x}.{span.span_id:x}")

    def extract(
        self, carrier: Any, context: Any = None, getter: Any = default_getter
    ) -> contexts.Context:
        """Read the field."""
        if not (values := getter.get(carrier, "one")):
            return contexts.Context() if context is None else context
        [value] = values
        ids = [int(part, 16) for part in value.split(".")]
        span = SpanContext(ids[0], ids[1], is_remote=True)
        return trace.set_span_in_context(NonRecordingSpan(span), context)

    @property
    def fields(self) -> set[str]:
        """The fields that it writes."""
        return {"one"}


class Subclass(TraceContextTextMapPropagator):
    """Writes one more field than its base class."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
        """Write the fields."""
        super().inject(carrier, context, setter)
        setter.set(carrier, "more", "1")


@pytest.fixture(autouse=True)
def restored_propagator() -> Iterator[None]:
    """Put the global propagator back after a test."""
    before = propagate.get_global_textmap()
    yield
    propagate.set_global_textmap(before)


def context_of(span: Span) -> dict[str, str]:
    return propagation.context_of(span, contexts.get_current())


def span_of(sampler: Sampler = ALWAYS_ON) -> Span:
    return TracerProvider(sampler=sampler).get_tracer("test").start_span("send orders")


def injected(span: Span) -> dict[str, str]:
    """Return what the global propagator writes."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    return carrier


def traced(trace_id: int, span_id: int, flags: int = 1, **state: str) -> Span:
    context = SpanContext(
        trace_id,
        span_id,
        is_remote=False,
        trace_flags=TraceFlags(flags),
        trace_state=TraceState(list(state.items())),
    )
    return NonRecordingSpan(context)


SPANS = [
    span_of(),
    span_of(ALWAYS_OFF),
    traced(1, 2),
    traced(2**128 - 1, 2**64 - 1, 0xFF),
    traced(3, 4, 0, vendor="a", other="b:c"),
    traced(0, 0),
    traced(0, 5, vendor="a"),
    trace.INVALID_SPAN,
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_with_a_context_is_an_equal_copy_but_for_its_properties(message: Message) -> None:
    own = dict(message.properties)
    carried = with_context(message, CARRIER)
    assert carried.__class__ is message.__class__
    assert message.properties == own
    assert carried.properties == own | CARRIER
    carried.properties = own
    assert carried == message


def test_a_message_that_has_a_context_keeps_it() -> None:
    message = Message("orders", b"1", properties={TRACE_PARENT: "of another span"})
    assert with_context(message, CARRIER) is message


def test_a_message_is_not_copied_for_an_empty_context() -> None:
    message = Message("orders", b"1")
    assert with_context(message, {}) is message


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_context_is_that_of_the_default_propagator(span: Span) -> None:
    assert context_of(span) == injected(span)


def test_sampled_and_unsampled_spans_have_a_context() -> None:
    assert context_of(span_of())[TRACE_PARENT][-2:] in ("01", "03")
    assert context_of(span_of(ALWAYS_OFF))[TRACE_PARENT][-2:] in ("00", "02")
    assert context_of(SPANS[4])["tracestate"] == "vendor=a,other=b:c"


def test_default_formats_are_written_without_the_propagator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inject(*_: object, **__: object) -> None:
        raise AssertionError

    span = span_of()
    expected = injected(span)
    monkeypatch.setattr(CompositePropagator, "inject", inject)
    assert context_of(span) == expected
    monkeypatch.setattr(TraceContextTextMapPropagator, "inject", inject)
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    assert context_of(span) == expected


@pytest.mark.parametrize("entries", [{"user": "é 7", "b": "2"}, {}])
def test_baggage_is_written_by_the_propagator(entries: dict[str, str]) -> None:
    current = contexts.set_value("something", "else")
    for name, value in entries.items():
        current = baggage.set_baggage(name, value, current)
    token = contexts.attach(current)
    try:
        carrier = context_of(SPANS[0])
        assert carrier == injected(SPANS[0])
        assert ("baggage" in carrier) is bool(entries)
        propagate.set_global_textmap(TraceContextTextMapPropagator())
        assert context_of(SPANS[0]) == injected(SPANS[0])
    finally:
        contexts.detach(token)


@pytest.mark.parametrize(
    ("propagator", "fields"),
    [
        (OneField(), {"one"}),
        (CompositePropagator([TraceContextTextMapPropagator(), OneField()]), {TRACE_PARENT, "one"}),
        (CompositePropagator([TraceContextTextMapPropagator()]), {TRACE_PARENT}),
        (Subclass(), {TRACE_PARENT, "more"}),
        (CompositePropagator([Subclass(), W3CBaggagePropagator()]), {TRACE_PARENT, "more"}),
        (W3CBaggagePropagator(), set()),
        (CompositePropagator([]), set()),
    ],
)
def test_a_propagator_that_is_set_at_run_time_is_used_at_once(
    propagator: TextMapPropagator, fields: set[str]
) -> None:
    span, default = span_of(), propagate.get_global_textmap()
    before = context_of(span)
    propagate.set_global_textmap(propagator)
    assert context_of(span).keys() == fields
    assert context_of(span) == injected(span)
    propagate.set_global_textmap(default)
    assert context_of(span) == before


@pytest.mark.parametrize(
    "properties",
    [
        CARRIER,
        {**CARRIER, "tracestate": "vendor=a,other=b:c"},
        {**CARRIER, "tracestate": "not a state"},
        {**CARRIER, "baggage": "user=7"},
        {TRACE_PARENT: f" {PARENT}\t"},
        {TRACE_PARENT: PARENT.replace("00-", "01-", 1) + "-later"},
        {TRACE_PARENT: PARENT + "-later"},
        {TRACE_PARENT: PARENT.replace("00-", "ff-", 1)},
        {TRACE_PARENT: f"00-{0:032x}-{1:016x}-01"},
        {TRACE_PARENT: PARENT.upper().replace("1", "A")},
        {TRACE_PARENT: PARENT + "-" + "x" * 600},
        {TRACE_PARENT: ""},
        {"tracestate": "vendor=a"},
        {},
    ],
    ids=str,
)
def test_span_of_a_message_is_what_the_default_propagator_reads(properties: dict[str, str]) -> None:
    context = propagate.extract(properties, context=contexts.Context())
    expected = trace.get_current_span(context).get_span_context()
    for _ in range(2):  # the second answer is a remembered one
        assert creation_span(properties) == (expected if expected.is_valid else None)


def test_span_of_a_message_is_read_by_the_propagator_that_is_set() -> None:
    properties = {**CARRIER, "one": "a.b"}
    assert creation_span(properties) == SpanContext(
        *(0x11112222333344445555666677778888, 0x1111222233334444),
        is_remote=True,
        trace_flags=TraceFlags(1),
    )
    propagate.set_global_textmap(OneField())
    assert creation_span(properties) == SpanContext(0xA, 0xB, is_remote=True)


# ---- propagators with other formats --------------------------------------------------------------

OTHER_PROPAGATORS = [
    B3SingleFormat(),
    B3MultiFormat(),
    OneField(),
    CompositePropagator([TraceContextTextMapPropagator(), B3SingleFormat()]),
    CompositePropagator([B3MultiFormat(), W3CBaggagePropagator()]),
    Subclass(),
]


@pytest.mark.parametrize("propagator", OTHER_PROPAGATORS)
def test_what_a_propagator_writes_is_a_context_that_links_and_parents_come_from(
    propagator: TextMapPropagator,
) -> None:
    propagate.set_global_textmap(propagator)
    span = span_of()
    sent = with_context(Message("orders", b"1", properties={"mine": "1"}), context_of(span))
    assert has_context(sent.properties)
    [link] = links_to([sent, sent, Message("orders", b"2", properties={"mine": "1"})])
    expected = span.get_span_context()
    assert (link.context.trace_id, link.context.span_id) == (expected.trace_id, expected.span_id)
    parent = trace.get_current_span(creation_context(sent.properties)).get_span_context()
    assert parent == link.context
    assert with_context(sent, context_of(span_of())) is sent


@pytest.mark.parametrize("propagator", OTHER_PROPAGATORS)
@pytest.mark.parametrize(
    "properties", [{}, {"mine": "1"}, {"b3": "", "baggage": "user=7"}], ids=str
)
def test_a_message_that_the_propagator_cannot_read_has_no_context(
    propagator: TextMapPropagator, properties: dict[str, str]
) -> None:
    propagate.set_global_textmap(propagator)
    assert not has_context(properties)
    assert links_to([Message("orders", b"1", properties=properties)]) == []


def test_names_of_another_case_are_found_as_java_writes_them() -> None:
    propagate.set_global_textmap(B3MultiFormat())
    names = ("X-B3-TraceId", "X-B3-SpanId", "X-B3-Sampled")
    span = creation_span(dict(zip(names, (f"{10:032x}", f"{11:016x}", "1"), strict=True)))
    assert span is not None
    assert (span.trace_id, span.span_id, span.trace_flags) == (10, 11, 1)


def test_a_propagator_sees_the_names_of_all_properties() -> None:
    class Prefixed(OneField):
        """Reads each property with a prefix, as Jaeger's does for baggage."""

        def extract(
            self, carrier: Any, context: Any = None, getter: Any = default_getter
        ) -> contexts.Context:
            """Read the fields."""
            for name in getter.keys(carrier):
                if name.startswith("bag-"):
                    context = baggage.set_baggage(name, carrier[name], context)
            return super().extract(carrier, context, getter)

    propagate.set_global_textmap(Prefixed())
    context = creation_context({"one": "a.b", "bag-x": "1", "other": "2"})
    assert baggage.get_all(context) == {"bag-x": "1"}
    assert creation_span({"one": "a.b"}) == SpanContext(0xA, 0xB, is_remote=True)
