"""`AsyncMessageTemplate`: sends values, which converters turn into messages.

    template = AsyncMessageTemplate(producer)
    await template.convert_and_send("orders:paid", Order(id=7, amount=12.5), keys="o-7")

Modelled on Spring's template for RocketMQ: a destination is "topic:tag", a converter makes the
body, and the property `contentType` says what it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, Unpack, cast

from downrange.client._async.producer import AsyncProducer
from downrange.client._async.transaction_producer import AsyncTransactionProducer
from downrange.client.flows.routing.selectors import by_hash

# sync: from downrange.client.futures import TemplateFutures
from downrange.client.template_base import TemplateBase
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client._async.transaction_producer import AsyncExecute, AsyncTransaction
    from downrange.client.converters import Converter
    from downrange.client.template_base import Details
    from downrange.model import BatchReceipt, ReceivedMessage, SendReceipt, TransactionReceipt

ValueT = TypeVar("ValueT")


class AsyncMessageTemplate(TemplateBase):  # sync: class MessageTemplate(TemplateFutures):
    """Sends values, which converters turn into messages.

    Args:
        producer: The producer to send with; start and close it yourself.
        converters: Your own converters, tried before those for bytes, text, pydantic models and
            JSON.
        default_topic: The topic of destinations without one.

    Raises:
        OptionError: The producer is of the other kind.

    Example:
        ```python
        template = AsyncMessageTemplate(producer)
        await template.convert_and_send("orders:paid", Order(id=7, amount=12.5), keys="o-7")
        ```
    """

    def __init__(
        self,
        producer: AsyncProducer,
        *,
        converters: Iterable[Converter] | None = None,
        default_topic: str | None = None,
    ) -> None:
        super().__init__(() if converters is None else converters, default_topic)
        # The twins are easily mixed up: a method of the other one returns a coroutine, or blocks.
        if not isinstance(cast("object", producer), AsyncProducer):
            raise OptionError(f"{type(self).__name__} needs an AsyncProducer, not {producer!r}")
        self._producer = producer

    @property
    def producer(self) -> AsyncProducer:
        """The producer that it sends with."""
        return self._producer

    def __repr__(self) -> str:
        topic = "" if self._default_topic is None else f", default_topic={self._default_topic!r}"
        return f"<{type(self).__name__} of {self._producer!r}{topic}>"

    async def convert_and_send(
        self,
        destination: str,
        payload: object,
        *,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> SendReceipt:
        """Send a value and wait until a broker has stored it.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            timeout: For the whole call; the producer's option unless given.
            details: Keys, properties, delay.

        Returns:
            The queue and offset of the message.

        Raises:
            OptionError: No converter takes the payload, or an argument is invalid.
            RocketMQError: As `send` of the producer.
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
        """Send a value without an answer from the broker; it may be lost.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            timeout: For finding and reaching the broker; the producer's option unless given.
            details: Keys, properties, delay.

        Raises:
            OptionError: No converter takes the payload, or an argument is invalid.
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
        """Send a value to the queue of a key: values with the same key keep their order.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            hash_key: Chooses the queue, as the Java client does.
            timeout: For the whole call; the producer's option unless given.
            details: Keys, properties, delay.

        Returns:
            The queue and offset of the message.

        Raises:
            OptionError: No converter takes the payload, or an argument is invalid.
            RocketMQError: As `send` of the producer.
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
        """Send values in as few requests as possible.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payloads: Any number of values, converted one by one as they are sent.
            properties: Your own names and values, for each message.
            timeout: For each request; the producer's option unless given.

        Returns:
            One receipt per request.

        Raises:
            OptionError: No converter takes a value of the first request.
            BatchFailed: A later value could not be converted, or a later request failed.
            RocketMQError: As `send_batch` of the producer.
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
        """Send a value that consumers see only if local work succeeds, and do that work.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            execute: The local work: called with the message and its receipt, returns an `Outcome`.
            timeout: For sending the message; the producer's option unless given.
            details: Keys and properties; a delay is not allowed.

        Returns:
            The receipt, the outcome, and the exception of `execute`, if any.

        Raises:
            OptionError: The producer is not an `AsyncTransactionProducer`, no converter takes the
                payload, or an argument is invalid.
            RocketMQError: As `send_in_transaction` of the producer.
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
        """Return a context manager that sends a value, and commits it when its block succeeds.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            timeout: For sending the message; the producer's option unless given.
            details: Keys and properties; a delay is not allowed.

        Raises:
            OptionError: The producer is not an `AsyncTransactionProducer`, no converter takes the
                payload, or an argument is invalid.
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
        """Send a value as a request and wait for the reply of its consumer.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            reply_type: The type to convert the reply to.
            timeout: For sending and waiting together; the producer's option unless given.
            details: Keys, properties, delay.

        Returns:
            The value in the reply.

        Raises:
            OptionError: No converter takes the payload, or an argument is invalid.
            RequestTimedOut: The request was stored, but no reply arrived in time.
            MalformedBody: The reply does not hold such a value.
            RocketMQError: As `request` of the producer.
        """
        message = self.message(destination, payload, **details)
        reply = await self._producer.request(message, timeout=timeout)
        return self.receive(reply, reply_type)

    async def convert_and_reply(
        self, request: ReceivedMessage, payload: object, *, timeout: float | None = None
    ) -> SendReceipt:
        """Reply to a request with a value.

        Args:
            request: A received message that was sent as a request.
            payload: The value to convert into the body of the reply, or an `Envelope` of it.
            timeout: For the whole call; the producer's option unless given.

        Returns:
            The receipt of the reply.

        Raises:
            OptionError: No converter takes the payload, or the message is not a request.
            RocketMQError: As `reply` of the producer.
        """
        body, details = self._reply(payload)
        return await self._producer.reply(request, body, timeout=timeout, **details)

    def _transaction_producer(self) -> AsyncTransactionProducer:
        if isinstance(self._producer, AsyncTransactionProducer):
            return self._producer
        raise OptionError(f"transactions need an AsyncTransactionProducer, not {self._producer!r}")
