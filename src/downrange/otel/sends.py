"""Spans of everything that sends: messages, batches, requests, replies, transactions.

One span per call, whatever number of attempts it takes. Its context goes into the message, so it is
the message's creation context. A message that has a context keeps it, and the span has a link to
it. No message of the caller is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry.trace import SpanKind

from downrange.client._async.producer import AsyncProducer
from downrange.client._async.push_consumer import AsyncPushConsumer
from downrange.client._async.transaction_producer import AsyncTransaction, AsyncTransactionProducer
from downrange.client._sync.producer import Producer
from downrange.client._sync.push_consumer import PushConsumer
from downrange.client._sync.transaction_producer import Transaction, TransactionProducer
from downrange.client.flows.names import with_namespace
from downrange.client.futures import ProducerFutures
from downrange.model import BatchReceipt, Message, SendReceipt
from downrange.otel import names
from downrange.otel.propagation import (
    context_of,
    creation_span,
    has_context,
    links_to,
    with_context,
)
from downrange.otel.telemetry import Operation, end_span, measured_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.model import QueueId
    from downrange.otel.calls import BeginSend, Replacements
    from downrange.otel.telemetry import Telemetry

_CORRELATION_ID: Final = "CORRELATION_ID"
#: Stands for the first item of an iterable without any.
_NOTHING: Final = object()


class Send(Operation):
    """One call that sends a message, or several.

    Args:
        telemetry: Makes spans and measurements.
        core: The producer's state.
        shared: What it has in common with other sends.
        span: Its span.
        argument: The first argument of the call: what is sent, with the context of the span.
        count: How many messages it sends, as far as that is known before the call.
    """

    __slots__ = ("_core", "_count", "_shared", "span")

    def __init__(
        self,
        telemetry: Telemetry,
        core: ProducerCore,
        shared: _Shared,
        span: Span,
        argument: Any,
        count: int,
    ) -> None:
        # Not by the base class's method: one call less for each message.
        self.telemetry = telemetry
        self.argument = argument
        self.started = perf_counter()
        self._core = core
        self._shared = shared
        self.span = span
        self._count = count

    def finish(self, result: Any) -> None:
        """End the span of a call that has returned."""
        span = self.span
        if span.is_recording():
            if isinstance(result, SendReceipt):
                place = self._place_of(result.queue)
                span.set_attributes({names.MESSAGE_ID: result.message_id, **place})
            elif isinstance(result, BatchReceipt):
                self._count = len(result)
                one_place = result.request_count == 1
                place = self._place_of(result.receipts[0].queue) if one_place else {}
                span.set_attributes({names.BATCH_COUNT: self._count, **place})
        span.end()
        seconds = perf_counter() - self.started
        self.telemetry.measure(self._shared.measured, seconds, None, self._count or 1)

    def fail(self, error: BaseException) -> None:
        """End the span of a call that has raised."""
        end_span(self.span, error)
        self.telemetry.measure(self._shared.measured, self.seconds, error, self._count or 1)

    def _place_of(self, queue: QueueId) -> dict[str, AttributeValue]:
        """Return where it is stored: the queue, and the broker's address."""
        client = self._core.client
        route = client.routes.get(with_namespace(queue.topic, client.options.namespace))
        return _place_at(queue.number, None if route is None else route.masters.get(queue.broker))


class Request(Send):
    """One call that sends a request, and returns the reply."""

    __slots__ = ()

    def finish(self, result: Any) -> None:
        """End the span, with a link to the span of the reply."""
        span = self.span
        if span.is_recording():
            properties = result.properties
            span.set_attribute(names.CONVERSATION_ID, properties.get(_CORRELATION_ID, ""))
            if (replied := creation_span(properties)) is not None:
                span.add_link(replied)
        span.end()
        self.telemetry.measure(self._shared.measured, self.seconds, None, 1)


class InTransaction(Send):
    """One call of `send_in_transaction`, or the begin of a transaction's block."""

    __slots__ = ()

    def finish(self, result: Any) -> None:
        """End the span with the receipt of the half message."""
        super().finish(result.receipt)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the sends of a client to one topic have in common. The dictionaries are not changed.

    Attributes:
        span_name: The name of their spans.
        attributes: Attributes of their spans.
        of_plain: Attributes of a message without tag, keys and the like.
        measured: Attributes of their measurements.
    """

    span_name: str
    attributes: dict[str, AttributeValue]
    of_plain: dict[str, AttributeValue]
    measured: dict[str, AttributeValue]

    def attributes_of(self, message: Message) -> dict[str, AttributeValue]:
        """Return the attributes of the span of one message."""
        if (
            message.tags is None
            and not message.keys
            and message.sharding_key is None
            and message.delay_level is None
            and message.deliver_at is None
            and message.deliver_in is None
        ):
            return self.of_plain
        return {**self.of_plain, **_described(message)}


@lru_cache(maxsize=1024)
def _shared_of(name: str, topic: str, client_id: str, namespace: str | None) -> _Shared:
    attributes: dict[str, AttributeValue] = {
        names.SYSTEM: names.SYSTEM_NAME,
        names.OPERATION_NAME: name,
        names.OPERATION_TYPE: "send",
        names.DESTINATION: topic,
        names.CLIENT_ID: client_id,
    }
    if namespace is not None:
        attributes[names.NAMESPACE] = namespace
    of_plain = {**attributes, names.MESSAGE_TYPE: "normal"}
    return _Shared(name_of(attributes), attributes, of_plain, measured_of(attributes))


@lru_cache(maxsize=4096)
def _place_at(queue_number: int, address: str | None) -> dict[str, AttributeValue]:
    """Return the attributes of a queue of a broker; many sends have the same. Not to be changed."""
    place: dict[str, AttributeValue] = {names.PARTITION: str(queue_number)}
    if address is not None:
        host, _, port = address.rpartition(":")
        place[names.SERVER_ADDRESS] = host
        place[names.SERVER_PORT] = int(port)
    return place


def _described(message: Message) -> dict[str, AttributeValue]:
    """Return what the conventions say about one message."""
    attributes: dict[str, AttributeValue] = {}
    if message.tags is not None:
        attributes[names.MESSAGE_TAG] = message.tags
    if message.keys:
        attributes[names.MESSAGE_KEYS] = message.keys
    if message.sharding_key is not None:
        attributes[names.MESSAGE_GROUP] = message.sharding_key
        attributes[names.MESSAGE_TYPE] = "fifo"
    if message.delay_level is not None:
        attributes[names.DELAY_LEVEL] = message.delay_level
        attributes[names.MESSAGE_TYPE] = "delay"
    elif message.deliver_at is not None:
        attributes[names.DELIVERY_TIMESTAMP] = round(1000 * message.deliver_at.timestamp())
        attributes[names.MESSAGE_TYPE] = "delay"
    elif message.deliver_in is not None:
        attributes[names.MESSAGE_TYPE] = "delay"
    return attributes


class SendSpans:
    """Begins the operations of everything that sends."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def install(self, methods: Replacements) -> None:
        """Replace the methods."""
        send = self._beginning(Send, "send")
        request = self._beginning(Request, "request")
        for producer in (Producer, AsyncProducer):
            methods.wrap_send(producer, "send", send)
            methods.wrap_send(producer, "send_oneway", send)
            methods.wrap_send(producer, "request", request)
            methods.wrap(producer, "send_batch", self._send_batch, "messages")
        for replier in (Producer, AsyncProducer, PushConsumer, AsyncPushConsumer):
            methods.wrap(replier, "reply", self._reply, "request")
        methods.wrap_submit(ProducerFutures, "submit", send)
        methods.wrap_submit(ProducerFutures, "submit_request", request)
        methods.wrap_future(ProducerFutures, "submit_batch", self._send_batch, "messages")
        for transactional in (TransactionProducer, AsyncTransactionProducer):
            methods.wrap(transactional, "send_in_transaction", self._send_in_transaction, "message")
        methods.wrap(Transaction, "__enter__", self._begin_transaction, None)
        methods.wrap(AsyncTransaction, "__aenter__", self._begin_transaction, None)

    def _beginning(self, kind: type[Send], name: str) -> BeginSend:
        """Return a function that begins to send one message."""

        def begin(producer: Any, message: Any) -> Operation | None:
            core = producer._core
            if core is None or producer._state != "running":
                return None
            return self._of_one(kind, name, core, message)

        return begin

    def _send_in_transaction(
        self, producer: Any, message: Any, _: dict[str, Any]
    ) -> Operation | None:
        core = _core_of(producer)
        return None if core is None else self._of_one(InTransaction, "send", core, message, True)

    def _begin_transaction(self, transaction: Any, _: Any, __: dict[str, Any]) -> Operation | None:
        core, message = transaction._core, transaction._message
        operation = self._of_one(InTransaction, "send", core, message, True)
        if operation is not None:
            transaction._message = operation.argument
        return operation

    def _of_one(
        self,
        kind: type[Send],
        name: str,
        core: ProducerCore,
        message: Any,
        is_half: bool = False,
    ) -> Operation | None:
        """Begin to send one message; None if the method itself must refuse the call."""
        telemetry = self._telemetry
        context = telemetry.call_context()
        if context is None or not isinstance(message, Message):
            return None
        client = core.client
        shared = _shared_of(name, message.topic, client.client_id, client.options.namespace)
        attributes = shared.attributes_of(message)
        if is_half:
            attributes = {**attributes, names.MESSAGE_TYPE: "transaction"}
        links = links_to((message,)) if message.properties else ()
        # A message with a context has its create span elsewhere; this one only carries it over.
        span = telemetry.tracer.start_span(
            shared.span_name,
            context,
            SpanKind.CLIENT if links else SpanKind.PRODUCER,
            attributes,
            links,
        )
        argument = with_context(message, context_of(span, context))
        return kind(telemetry, core, shared, span, argument, 1)

    def _of_several(
        self,
        name: str,
        core: ProducerCore,
        topic: str,
        messages: Sequence[Message],
        more: dict[str, AttributeValue],
    ) -> tuple[Send, dict[str, str]]:
        """Begin to send something else than one message; return the properties for it, too."""
        client, telemetry = core.client, self._telemetry
        shared = _shared_of(name, topic, client.client_id, client.options.namespace)
        links = links_to(messages)
        kind = SpanKind.CLIENT if links else SpanKind.PRODUCER
        attributes = {**shared.attributes, **more}
        span = telemetry.start_span(shared.span_name, kind, attributes, links=links)
        carrier = context_of(span, contexts.get_current())
        return Send(telemetry, core, shared, span, None, len(messages)), carrier

    def _send_batch(self, producer: Any, messages: Any, _: dict[str, Any]) -> Operation | None:
        core = _core_of(producer)
        if core is None or self._telemetry.is_off:
            return None
        if not isinstance(messages, list | tuple):
            return self._send_stream(core, messages)
        if not messages or not all(isinstance(each, Message) for each in messages):
            return None
        more: dict[str, AttributeValue] = {names.BATCH_COUNT: len(messages)}
        operation, carrier = self._of_several("send", core, messages[0].topic, messages, more)
        operation.argument = [with_context(message, carrier) for message in messages]
        return operation

    def _send_stream(self, core: ProducerCore, messages: Any) -> Operation | None:
        """Begin to send an iterable, of which only the first message is looked at."""
        try:
            stream: Iterator[Any] = iter(messages)
        except TypeError:
            return None
        first = next(stream, _NOTHING)
        if first is _NOTHING:
            return None
        topic = first.topic if isinstance(first, Message) else ""
        operation, carrier = self._of_several("send", core, topic, (), {})
        operation.argument = _carried(chain((first,), stream), carrier)
        return operation

    def _reply(self, replier: Any, request: Any, named: dict[str, Any]) -> Operation | None:
        core = _core_of(replier)
        properties = getattr(request, "properties", None)
        if core is None or properties is None or self._telemetry.is_off:
            return None
        more: dict[str, AttributeValue] = {}
        if (conversation := properties.get(_CORRELATION_ID)) is not None:
            more[names.CONVERSATION_ID] = conversation
        operation, carrier = self._of_several("reply", core, request.topic, (), more)
        own = named.get("properties") or {}
        if isinstance(own, dict) and not has_context(own):
            named["properties"] = {**own, **carrier}
        operation.argument = request
        return operation


def _carried(messages: Iterable[Any], carrier: dict[str, str]) -> Iterator[Any]:
    for message in messages:
        yield with_context(message, carrier) if isinstance(message, Message) else message


def _core_of(sender: Any) -> ProducerCore | None:
    """Return the state of a producer, or of what a consumer replies with; None if not running."""
    core = sender._core
    if core is None or sender.state != "running":
        return None
    found: ProducerCore = getattr(core, "inner", core)
    return found
