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

    def __init__(
        self,
        producer: AsyncProducer,
        *,
        converters: Iterable[Converter] | None = None,
        default_topic: str | None = None,
    ) -> None:
        super().__init__(converters or (), default_topic)
        # The twins are easily mixed up: a method of the other one returns a coroutine, or blocks.
        if not isinstance(cast("object", producer), AsyncProducer):
            raise OptionError(f"{type(self).__name__} needs an AsyncProducer, not {producer!r}")
        self._producer = producer

    @property
    def producer(self) -> AsyncProducer:
        """The producer that it sends with."""
        return self._producer

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
