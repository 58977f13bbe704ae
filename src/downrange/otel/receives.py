"""Spans of everything that receives and settles: polls, pops, iteration, acknowledgements, commits.

A receive span is made when messages are handed over, and begins with the call; a call without
messages has none. It has a link to each message's creation context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from downrange.client._async.popped_message import AsyncPoppedMessage
from downrange.client._async.pull_consumer import AsyncPullConsumer
from downrange.client._async.push_consumer import AsyncPushConsumer
from downrange.client._async.simple_consumer import AsyncSimpleConsumer
from downrange.client._async.transaction_producer import AsyncTransaction
from downrange.client._sync.popped_message import PoppedMessage
from downrange.client._sync.pull_consumer import PullConsumer
from downrange.client._sync.push_consumer import PushConsumer
from downrange.client._sync.simple_consumer import SimpleConsumer
from downrange.client._sync.transaction_producer import Transaction
from downrange.model import Outcome, ReceivedMessage
from downrange.otel import names
from downrange.otel.propagation import links_to
from downrange.otel.telemetry import Operation, described, end_span, measured_of, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.util.types import AttributeValue

    from downrange.otel.calls import Replacements
    from downrange.otel.telemetry import Telemetry


class Receive(Operation):
    """One call that returns messages to the program."""

    __slots__ = ("_group",)

    def __init__(self, telemetry: Telemetry, group: str) -> None:
        super().__init__(telemetry)
        self._group = group

    def finish(self, result: Any) -> None:
        """Make the span, if there are messages."""
        messages: Sequence[ReceivedMessage]
        messages = [result] if isinstance(result, ReceivedMessage) else result
        if not messages:
            return
        attributes = described("receive", "receive", messages, self._group)
        self._end(attributes, messages, None)

    def fail(self, error: BaseException) -> None:
        """Make the span of a call that has raised, other than at the end of an iteration."""
        if not isinstance(error, StopIteration | StopAsyncIteration):
            self._end(described("receive", "receive", (), self._group), (), error)

    def _end(
        self,
        attributes: dict[str, AttributeValue],
        messages: Sequence[ReceivedMessage],
        error: BaseException | None,
    ) -> None:
        span = self.telemetry.start_span(
            name_of(attributes),
            SpanKind.CLIENT,
            attributes,
            links=links_to(messages),
            started_ns=self.started_ns,
        )
        end_span(span, error)
        self.telemetry.measure(measured_of(attributes), self.seconds, error, consumed=len(messages))


class Settle(Operation):
    """One call that acknowledges messages, gives them back or commits offsets."""

    __slots__ = ("_attributes", "_span")

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        messages: Sequence[ReceivedMessage],
        group: str | None,
        more: dict[str, AttributeValue] | None = None,
        argument: Any = None,
    ) -> None:
        super().__init__(telemetry, argument)
        attributes = described(name, "settle", messages, group)
        if not messages:
            del attributes[names.BATCH_COUNT]
        if more is not None:
            attributes.update(more)
        self._attributes = attributes
        self._span = telemetry.start_span(
            name_of(attributes), SpanKind.CLIENT, attributes, links=links_to(messages)
        )

    def finish(self, result: Any) -> None:
        """End the span of a call that has returned."""
        self._end(None)

    def fail(self, error: BaseException) -> None:
        """End the span of a call that has raised."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        end_span(self._span, error)
        self.telemetry.measure(measured_of(self._attributes), self.seconds, error)


class ReceiveSpans:
    """Begins the operations of everything that receives and settles."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def install(self, methods: Replacements) -> None:
        """Replace the methods."""
        for puller in (PullConsumer, AsyncPullConsumer):
            methods.wrap(puller, "poll", self._receive, None)
            methods.wrap(puller, "commit", self._commit, None)
        for simple in (SimpleConsumer, AsyncSimpleConsumer):
            methods.wrap(simple, "receive", self._receive, None)
            methods.wrap(simple, "ack", self._ack_many, "messages")
        methods.wrap(PushConsumer, "__next__", self._receive, None)
        methods.wrap(AsyncPushConsumer, "__anext__", self._receive, None)
        for popped in (PoppedMessage, AsyncPoppedMessage):
            for name in ("ack", "retry", "extend", "dead_letter"):
                methods.wrap(popped, name, self._settle_one(name), None)
        for transaction in (Transaction, AsyncTransaction):
            methods.wrap(transaction, "_finish", self._end_transaction, "outcome")

    def _receive(self, consumer: Any, _: Any, __: dict[str, Any]) -> Operation | None:
        telemetry = self._telemetry
        return None if telemetry.is_off else Receive(telemetry, consumer.group)

    def _commit(self, consumer: Any, _: Any, __: dict[str, Any]) -> Operation | None:
        telemetry = self._telemetry
        return None if telemetry.is_off else Settle(telemetry, "commit", (), consumer.group)

    def _ack_many(self, consumer: Any, messages: Any, _: dict[str, Any]) -> Operation | None:
        telemetry = self._telemetry
        if telemetry.is_off or not isinstance(messages, list | tuple) or not messages:
            return None
        if not all(isinstance(message, ReceivedMessage) for message in messages):
            return None
        return Settle(telemetry, "ack", messages, consumer.group, argument=messages)

    def _settle_one(self, name: str) -> Any:
        def begin(message: Any, _: Any, __: dict[str, Any]) -> Operation | None:
            telemetry = self._telemetry
            if telemetry.is_off or message.delivery is None:
                return None
            return Settle(telemetry, name, [message], message._core.group)

        return begin

    def _end_transaction(
        self, transaction: Any, outcome: Outcome, _: dict[str, Any]
    ) -> Operation | None:
        telemetry = self._telemetry
        if telemetry.is_off:
            return None
        more: dict[str, AttributeValue] = {names.DESTINATION: transaction.message.topic}
        if transaction._begun is not None:
            more[names.MESSAGE_ID] = transaction.message_id
        return Settle(telemetry, outcome.name.lower(), (), None, more, argument=outcome)
