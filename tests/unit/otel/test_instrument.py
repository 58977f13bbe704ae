"""Switching the instrumentation on and off, and how programs find it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN

import downrange as mq
from downrange import otel
from downrange.errors import ClientStateError, MissingExtra, OptionError
from downrange.model import Message
from downrange.otel.calls import Replacements
from downrange.otel.propagation import context_of, creation_span, links_to, with_context
from downrange.otel.telemetry import Operation, error_type
from downrange.wire.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_methods_are_the_clients_own_before_and_after() -> None:
    classes = (mq.Producer, mq.AsyncProducer, mq.PushConsumer, mq.SimpleConsumer, mq.PoppedMessage)
    before = [dict(vars(each)) for each in classes]
    mq.instrument(tracer_provider=TracerProvider())
    mq.instrument()  # a second time does nothing
    assert [dict(vars(each)) for each in classes] != before
    mq.uninstrument()
    mq.uninstrument()
    assert [dict(vars(each)) for each in classes] == before


def generator(message: object) -> Iterator[object]:
    yield message


class Handler:
    def __init__(self, message: object) -> None: ...


@pytest.mark.parametrize("kind", [mq.PushConsumer, mq.AsyncPushConsumer])
@pytest.mark.parametrize("handler", [generator, Handler, lambda: None, 7])
def test_handlers_are_refused_as_without_instrumentation(kind: Any, handler: Any) -> None:
    def refusal() -> str:
        with pytest.raises(OptionError) as refused:
            kind("h:1", group="billing", subscribe="orders", handler=handler)
        return str(refused.value)

    before = refusal()
    mq.instrument(tracer_provider=TracerProvider())
    try:
        assert refusal() == before
    finally:
        mq.uninstrument()


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match="otel"):
        mq.instrument()


def test_bad_setting_is_refused() -> None:
    with pytest.raises(OptionError, match="continue_trace"):
        mq.instrument(continue_trace="yes")  # type: ignore[arg-type]


def test_process_span_needs_instrument() -> None:
    with pytest.raises(ClientStateError, match="instrument"):
        otel.process_span()


def test_opentelemetry_finds_the_instrumentor() -> None:
    [point] = entry_points(group="opentelemetry_instrumentor", name="downrange")
    instrumentor = point.load()()
    assert instrumentor.instrumentation_dependencies() == ()
    before = mq.Producer.send
    instrumentor.instrument(tracer_provider=TracerProvider())
    assert mq.Producer.send is not before
    instrumentor.uninstrument()
    assert mq.Producer.send is before


def test_message_is_copied_unless_it_has_a_context() -> None:
    message = Message("t", b"1", properties={"a": "1"}, tags="x")
    carried = with_context(message, {"traceparent": PARENT})
    assert carried is not message
    assert carried.properties == {"a": "1", "traceparent": PARENT}
    assert (carried.tags, carried.body, message.properties) == ("x", b"1", {"a": "1"})
    assert with_context(carried, {"traceparent": "other"}) is carried


def test_contexts_that_cannot_be_read_are_no_links() -> None:
    assert creation_span({}) is None
    assert creation_span({"traceparent": "nonsense"}) is None
    good = Message("t", b"1", properties={"traceparent": PARENT})
    assert len(links_to([good, good, Message("t", b"2")])) == 1
    many = [
        Message("t", b"", properties={"traceparent": f"00-{1:032x}-{span:016x}-01"})
        for span in range(1, 200)
    ]
    assert len(links_to(many)) == 128


def test_span_that_is_not_recorded_has_no_context() -> None:
    assert context_of(INVALID_SPAN, Context()) == {}


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError(), "ValueError"),
        (mq.ServerError(int(ResponseCode.SYSTEM_BUSY), None, "a:1"), "SYSTEM_BUSY"),
        (mq.ServerError(9999, None, "a:1"), "9999"),
    ],
)
def test_error_type_is_the_code_or_the_class(error: Exception, name: str) -> None:
    assert error_type(error) == name


def test_operation_that_begins_with_none_leaves_the_call_alone() -> None:
    class Thing:
        def act(self, value: int) -> int:
            return value + 1

    methods = Replacements()
    seen: list[object] = []

    def begin(_: object, first: object, __: object) -> Operation | None:
        seen.append(first)
        return None

    methods.wrap(Thing, "act", begin, "value")
    assert (Thing().act(1), Thing().act(value=2)) == (2, 3)
    assert seen == [1, 2]
    methods.restore()
    assert Thing().act(1) == 2
    assert len(seen) == 2
