"""The context of a span in the properties of a message: `traceparent`, `tracestate`, `baggage`.

Java's instrumentation of RocketMQ writes the same properties, so traces cross languages. A message
that has a context already keeps it: whoever made the message, or a column of a Spark job, decided
where it belongs.

The global propagator decides what is written and read. The default one handles the W3C formats, and
its own code takes several times as long as the code here, which writes the same bytes. Any other
propagator, and any context with baggage, is left to the propagator's code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import DEFAULT_TRACE_STATE, INVALID_SPAN_CONTEXT
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanContext

    from downrange.model import ReceivedMessage

#: The property of the W3C formats that names the span.
TRACE_PARENT: Final = "traceparent"
_TRACE_STATE: Final = "tracestate"
#: How many messages of a batch a span has links to. The SDK keeps as many by default.
_LINKS_MAX: Final = 128
_NO_CONTEXT: Final = Context()
_W3C_TRACES: Final = TraceContextTextMapPropagator()

#: The propagator that was asked about last, and whether it writes the W3C formats and no other.
_decided: tuple[TextMapPropagator | None, bool] = (None, False)


def context_of(span: Span, current: Context) -> dict[str, str]:
    """Return the properties that carry the context of a span; none if the span has no context.

    Args:
        span: The span.
        current: The context of the call, whose baggage goes along.
    """
    # An empty context has no baggage; to ask it takes longer than to see that it is empty.
    if _is_w3c(propagate.get_global_textmap()) and not (current and baggage.get_all(current)):
        return _trace_context_of(span.get_span_context())
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span, current))
    return carrier


def _is_w3c(propagator: TextMapPropagator) -> bool:
    """Whether a propagator writes the W3C trace context, and besides it at most baggage."""
    global _decided
    # One tuple holds both, so that a thread never sees the answer for another propagator.
    known, answer = _decided
    if propagator is not known:
        parts = [propagator]
        if type(propagator) is CompositePropagator:
            parts = getattr(propagator, "_propagators", parts)
        # Subclasses may write something else.
        kinds = set(map(type, parts))
        answer = TraceContextTextMapPropagator in kinds and kinds <= {
            TraceContextTextMapPropagator,
            W3CBaggagePropagator,
        }
        _decided = propagator, answer
    return answer


def _trace_context_of(context: SpanContext) -> dict[str, str]:
    """Return what `TraceContextTextMapPropagator` writes."""
    if context == INVALID_SPAN_CONTEXT:
        return {}
    # A span's context is a tuple. Its properties, and the parts of an f-string, take twice as long.
    trace_id, span_id, _, flags, state, _ = context
    carrier = {TRACE_PARENT: "00-%032x-%016x-%02x" % (trace_id, span_id, flags)}  # noqa: UP031
    if state is not DEFAULT_TRACE_STATE and state:
        carrier[_TRACE_STATE] = state.to_header()
    return carrier


def has_context(properties: Mapping[str, str]) -> bool:
    """Whether a message with these properties has a context, which it keeps."""
    if not properties:
        return False
    if _is_w3c(propagate.get_global_textmap()):
        return TRACE_PARENT in properties
    return creation_span(properties) is not None


def with_context(message: Message, carrier: Mapping[str, str]) -> Message:
    """Return a copy of a message with a context; the message itself, if it has one already."""
    properties = message.properties
    if not carrier or has_context(properties):
        return message
    changed = _copy(message)
    changed.properties = {**properties, **carrier}
    return changed


def _copy(message: Message) -> Message:
    """Return a copy of a message, but for its properties.

    A loop over the names takes eight times as long, `copy.copy` more than thirty times.
    """
    if message.__class__ is not Message:
        return copy.copy(message)
    copied = Message.__new__(Message)
    copied.topic = message.topic
    copied.body = message.body
    copied.tags = message.tags
    copied.keys = message.keys
    copied.sharding_key = message.sharding_key
    copied.delay_level = message.delay_level
    copied.deliver_at = message.deliver_at
    copied.deliver_in = message.deliver_in
    copied.flag = message.flag
    copied.wait_stored = message.wait_stored
    return copied


class _PropertyGetter(Getter[Mapping[str, str]]):
    """Finds a property for a propagator, which may write the name in another case.

    Propagators are made for the headers of HTTP, where upper and lower case are the same: Java
    writes `X-B3-TraceId` where Python reads `x-b3-traceid`.
    """

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        """Return the value of a property, as a list of one."""
        value = carrier.get(key)
        if value is None:
            wanted = key.lower()
            value = next((carrier[name] for name in carrier if name.lower() == wanted), None)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        """Return the names of all properties."""
        return list(carrier)


_GETTER: Final = _PropertyGetter()


def creation_context(properties: Mapping[str, str]) -> Context:
    """Return the context that a message carries; an empty one if it has none."""
    return propagate.extract(properties, context=_NO_CONTEXT, getter=_GETTER)


def creation_span(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the span in which a message was made, if it names one."""
    if not _is_w3c(propagate.get_global_textmap()):
        return _span_in(creation_context(properties)) if properties else None
    parent = properties.get(TRACE_PARENT)
    return None if parent is None else _parsed(parent, properties.get(_TRACE_STATE))


@lru_cache(maxsize=512)
def _parsed(parent: str, state: str | None) -> SpanContext | None:
    """Return the span of a W3C trace context.

    The messages of a batch name the same span, and a message is looked at when it is received, when
    it is handled and when it is acknowledged.
    """
    carrier = {TRACE_PARENT: parent}
    if state is not None:
        carrier[_TRACE_STATE] = state
    return _span_in(_W3C_TRACES.extract(carrier, _NO_CONTEXT))


def _span_in(context: Context) -> SpanContext | None:
    span = trace.get_current_span(context).get_span_context()
    return span if span.is_valid else None


def links_to(messages: Iterable[Message | ReceivedMessage]) -> list[Link]:
    """Return links to the spans in which messages were made, each span once."""
    links: dict[tuple[int, int], Link] = {}
    for message in messages:
        span = creation_span(message.properties)
        if span is not None:
            links.setdefault((span.trace_id, span.span_id), trace.Link(span))
            if len(links) == _LINKS_MAX:
                break
    return list(links.values())
