"""Templates: values in, messages out; `MessageTemplate` and, for asyncio, `AsyncMessageTemplate`.

    template = MessageTemplate(producer)
    template.convert_and_send("orders:paid", Order(id=7, amount=12.5), keys="o-7")

The manner is that of Spring's template for RocketMQ: a destination is "topic:tag", a converter
makes the body, and the property `contentType` says what it is. A template holds nothing of its own;
what starts and ends is its producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from downrange.client.converters import CONTENT_TYPE, Converter, Converters
from downrange.client.flows.routing.selectors import by_hash
from downrange.client.producer import AsyncProducer, Producer
from downrange.client.transaction import AsyncTransactionProducer, TransactionProducer
from downrange.errors import OptionError
from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from datetime import datetime

    from downrange.client.transaction import AsyncExecute, AsyncTransaction, Execute, Transaction
    from downrange.model import BatchReceipt, ReceivedMessage, SendReceipt, TransactionReceipt

ProducerT = TypeVar("ProducerT", Producer, AsyncProducer)
ValueT = TypeVar("ValueT")


class Details(TypedDict, total=False):
    """What a message can have besides destination and payload; all as in `Message`.

    Attributes:
        keys: Words that it can be looked up by later.
        properties: Your own names and values.
        delay_level: Deliver after the delay of this level.
        deliver_in: Deliver after so many seconds.
        deliver_at: Deliver at this time.
    """

    keys: Iterable[str]
    properties: Mapping[str, str] | None
    delay_level: int | None
    deliver_in: float | None
    deliver_at: datetime | None


class TemplateBase(Generic[ProducerT]):
    """What both templates have in common: everything but how one waits."""

    _producer_class: type[ProducerT]

    def __init__(
        self,
        producer: ProducerT,
        *,
        converters: Iterable[Converter] | None = None,
        default_topic: str | None = None,
    ) -> None:
        # The twins are easily mixed up, and the other one's methods would return coroutines.
        if not isinstance(cast("object", producer), self._producer_class):
            raise OptionError(
                f"{type(self).__name__} needs a {self._producer_class.__name__}, not {producer!r}"
            )
        self._producer: ProducerT = producer
        self._converters = Converters(converters or ())
        self._default_topic = default_topic

    @property
    def producer(self) -> ProducerT:
        """What it sends with."""
        return self._producer

    def message(self, destination: str, payload: object, **details: Unpack[Details]) -> Message:
        """Return the message that would be sent.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            details: Keys, properties, delay.

        Raises:
            OptionError: There is no topic, no converter takes the payload, or a detail makes no
                sense.
        """
        topic, _, tag = destination.partition(":")
        topic = topic or self._default_topic or ""
        if not topic:
            raise OptionError(
                f"destination {destination!r} names no topic; write 'topic:tag', or give the "
                "template a default_topic"
            )
        body, properties = self._converted(payload, details.get("properties"))
        details["properties"] = properties
        return Message(topic, body, tags=tag or None, **details)

    @overload
    def receive(self, message: ReceivedMessage, as_type: None = None) -> Any: ...
    @overload
    def receive(self, message: ReceivedMessage, as_type: type[ValueT]) -> ValueT: ...
    def receive(self, message: ReceivedMessage, as_type: Any = None) -> Any:
        """Return the value that a message holds.

        Args:
            message: A message, whoever sent it.
            as_type: The type that is wanted. Without one, JSON becomes plain values, text a str
                and everything else bytes, as the message's `contentType` says.

        Raises:
            MalformedBody: The body holds no such value.
        """
        return self._converters.receive(message, as_type)

    def _converted(
        self, payload: object, properties: Mapping[str, str] | None = None
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of a value, and the properties that say what it is."""
        body, content_type = self._converters.encode(payload)
        # What the caller says about the content is more to the point than what a converter says.
        return body, {CONTENT_TYPE: content_type, **(properties or {})}

    def _messages(
        self, destination: str, payloads: Iterable[object], properties: Mapping[str, str] | None
    ) -> Iterator[Message]:
        return (self.message(destination, one, properties=properties) for one in payloads)


class MessageTemplate(TemplateBase[Producer]):
    """Sends values instead of messages.

    Args:
        producer: What it sends with; start and close it yourself.
        converters: Your own ones, asked before those for bytes, text, pydantic models and JSON.
        default_topic: Where to send when a destination names no topic.

    Example:
        ```python
        template = MessageTemplate(producer)
        template.convert_and_send("orders:paid", Order(id=7, amount=12.5), keys="o-7")
        ```
    """

    _producer_class = Producer

    def convert_and_send(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> SendReceipt:
        """Send a value and wait until a broker has it.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For the whole call; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            Where it is.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: See `send` of the producer.
        """
        return self._producer.send(self.message(destination, payload, **details), timeout=timeout)

    def convert_and_submit(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> Future[SendReceipt]:
        """Send a value without waiting.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For the whole call; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            A future of the receipt.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
        """
        return self._producer.submit(self.message(destination, payload, **details), timeout=timeout)

    def convert_and_send_oneway(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> None:
        """Hand a value to a broker without waiting for an answer; it may be lost.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For finding and reaching the broker; the producer's unless given.
            details: Keys, properties, delay.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: The broker cannot be found or reached.
        """
        self._producer.send_oneway(self.message(destination, payload, **details), timeout=timeout)

    def convert_and_send_ordered(
        self,
        destination: str,
        payload: object,
        hash_key: str | int,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> SendReceipt:
        """Send a value to the queue of a key: what has the same key keeps its order.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            hash_key: Chooses the queue, the same one as in Java.
            timeout: For the whole call; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            Where it is.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: See `send` of the producer.
        """
        message = self.message(destination, payload, **details)
        return self._producer.send(message, queue=by_hash(hash_key), timeout=timeout)

    def convert_and_send_batch(
        self,
        destination: str,
        payloads: Iterable[object],
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """Send values in as few requests as they fit in.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payloads: Any number of values, converted one by one as they are sent.
            properties: Your own names and values, for each of them.
            timeout: For each request; the producer's unless given.

        Returns:
            One receipt per request.

        Raises:
            OptionError: No converter takes the first ones.
            BatchFailed: Some were sent, then one could not be converted, or a request failed.
            RocketMQError: See `send_batch` of the producer.
        """
        messages = self._messages(destination, payloads, properties)
        return self._producer.send_batch(messages, timeout=timeout)

    def convert_and_send_in_transaction(
        self,
        destination: str,
        payload: object,
        execute: Execute,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> TransactionReceipt:
        """Send a value that consumers see only when local work succeeds, and do that work.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            execute: The local work: given the message and its receipt, returns an `Outcome`.
            timeout: For sending it; the producer's unless given.
            details: Keys and properties; it cannot be delayed.

        Returns:
            The receipt, the outcome, and what `execute` raised.

        Raises:
            OptionError: The producer is not one for transactions, no converter takes the payload,
                or an argument makes no sense.
            RocketMQError: See `send_in_transaction` of the producer.
        """
        producer = self._transaction_producer()
        message = self.message(destination, payload, **details)
        return producer.send_in_transaction(message, execute, timeout=timeout)

    def transaction(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> Transaction:
        """Return a context that sends a value, and commits it when its block succeeds.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For sending it; the producer's unless given.
            details: Keys and properties; it cannot be delayed.

        Raises:
            OptionError: The producer is not one for transactions, no converter takes the payload,
                or an argument makes no sense.
        """
        producer = self._transaction_producer()
        return producer.transaction(self.message(destination, payload, **details), timeout=timeout)

    def send_and_receive(
        self,
        destination: str,
        payload: object,
        reply_type: type[ValueT],
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> ValueT:
        """Send a value as a request and wait for the reply of whoever consumes it.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            reply_type: The type that the reply is read as.
            timeout: For sending and waiting together; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            What the reply holds.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RequestTimedOut: It was sent, but no reply came in time.
            MalformedBody: The reply holds no such value.
            RocketMQError: See `request` of the producer.
        """
        message = self.message(destination, payload, **details)
        reply = self._producer.request(message, timeout=timeout)
        return self.receive(reply, reply_type)

    def convert_and_reply(
        self, request: ReceivedMessage, payload: object, *, timeout: float | None = None
    ) -> SendReceipt:
        """Answer a request that was received with a value.

        Args:
            request: The request.
            payload: What the reply's body holds.
            timeout: For the whole call; the producer's unless given.

        Returns:
            Where the reply is kept.

        Raises:
            OptionError: No converter takes the payload, or the message is no request.
            RocketMQError: See `reply` of the producer.
        """
        body, properties = self._converted(payload)
        return self._producer.reply(request, body, properties=properties, timeout=timeout)

    def _transaction_producer(self) -> TransactionProducer:
        if isinstance(self._producer, TransactionProducer):
            return self._producer
        raise OptionError(f"transactions need a TransactionProducer, not {self._producer!r}")


class AsyncMessageTemplate(TemplateBase[AsyncProducer]):
    """Sends values instead of messages.

    Args:
        producer: What it sends with; start and close it yourself.
        converters: Your own ones, asked before those for bytes, text, pydantic models and JSON.
        default_topic: Where to send when a destination names no topic.

    Example:
        ```python
        template = AsyncMessageTemplate(producer)
        await template.convert_and_send("orders:paid", Order(id=7, amount=12.5), keys="o-7")
        ```
    """

    _producer_class = AsyncProducer

    async def convert_and_send(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> SendReceipt:
        """Send a value and wait until a broker has it.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For the whole call; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            Where it is.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: See `send` of the producer.
        """
        return await self._producer.send(
            self.message(destination, payload, **details), timeout=timeout
        )

    async def convert_and_send_oneway(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> None:
        """Hand a value to a broker without waiting for an answer; it may be lost.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For finding and reaching the broker; the producer's unless given.
            details: Keys, properties, delay.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: The broker cannot be found or reached.
        """
        await self._producer.send_oneway(
            self.message(destination, payload, **details), timeout=timeout
        )

    async def convert_and_send_ordered(
        self,
        destination: str,
        payload: object,
        hash_key: str | int,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> SendReceipt:
        """Send a value to the queue of a key: what has the same key keeps its order.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            hash_key: Chooses the queue, the same one as in Java.
            timeout: For the whole call; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            Where it is.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RocketMQError: See `send` of the producer.
        """
        message = self.message(destination, payload, **details)
        return await self._producer.send(message, queue=by_hash(hash_key), timeout=timeout)

    async def convert_and_send_batch(
        self,
        destination: str,
        payloads: Iterable[object],
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """Send values in as few requests as they fit in.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payloads: Any number of values, converted one by one as they are sent.
            properties: Your own names and values, for each of them.
            timeout: For each request; the producer's unless given.

        Returns:
            One receipt per request.

        Raises:
            OptionError: No converter takes the first ones.
            BatchFailed: Some were sent, then one could not be converted, or a request failed.
            RocketMQError: See `send_batch` of the producer.
        """
        messages = self._messages(destination, payloads, properties)
        return await self._producer.send_batch(messages, timeout=timeout)

    async def convert_and_send_in_transaction(
        self,
        destination: str,
        payload: object,
        execute: AsyncExecute,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> TransactionReceipt:
        """Send a value that consumers see only when local work succeeds, and do that work.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            execute: The local work: given the message and its receipt, returns an `Outcome`.
            timeout: For sending it; the producer's unless given.
            details: Keys and properties; it cannot be delayed.

        Returns:
            The receipt, the outcome, and what `execute` raised.

        Raises:
            OptionError: The producer is not one for transactions, no converter takes the payload,
                or an argument makes no sense.
            RocketMQError: See `send_in_transaction` of the producer.
        """
        producer = self._transaction_producer()
        message = self.message(destination, payload, **details)
        return await producer.send_in_transaction(message, execute, timeout=timeout)

    def transaction(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> AsyncTransaction:
        """Return a context that sends a value, and commits it when its block succeeds.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            timeout: For sending it; the producer's unless given.
            details: Keys and properties; it cannot be delayed.

        Raises:
            OptionError: The producer is not one for transactions, no converter takes the payload,
                or an argument makes no sense.
        """
        producer = self._transaction_producer()
        return producer.transaction(self.message(destination, payload, **details), timeout=timeout)

    async def send_and_receive(
        self,
        destination: str,
        payload: object,
        reply_type: type[ValueT],
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> ValueT:
        """Send a value as a request and wait for the reply of whoever consumes it.

        Args:
            destination: "topic:tag" or "topic"; without a topic it is the default one.
            payload: What the body holds.
            reply_type: The type that the reply is read as.
            timeout: For sending and waiting together; the producer's unless given.
            details: Keys, properties, delay.

        Returns:
            What the reply holds.

        Raises:
            OptionError: No converter takes the payload, or an argument makes no sense.
            RequestTimedOut: It was sent, but no reply came in time.
            MalformedBody: The reply holds no such value.
            RocketMQError: See `request` of the producer.
        """
        message = self.message(destination, payload, **details)
        reply = await self._producer.request(message, timeout=timeout)
        return self.receive(reply, reply_type)

    async def convert_and_reply(
        self, request: ReceivedMessage, payload: object, *, timeout: float | None = None
    ) -> SendReceipt:
        """Answer a request that was received with a value.

        Args:
            request: The request.
            payload: What the reply's body holds.
            timeout: For the whole call; the producer's unless given.

        Returns:
            Where the reply is kept.

        Raises:
            OptionError: No converter takes the payload, or the message is no request.
            RocketMQError: See `reply` of the producer.
        """
        body, properties = self._converted(payload)
        return await self._producer.reply(request, body, properties=properties, timeout=timeout)

    def _transaction_producer(self) -> AsyncTransactionProducer:
        if isinstance(self._producer, AsyncTransactionProducer):
            return self._producer
        raise OptionError(f"transactions need an AsyncTransactionProducer, not {self._producer!r}")
