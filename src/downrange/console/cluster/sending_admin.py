"""The admin of the console: asks the cluster, and sends messages for all visitors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from downrange import AsyncAdmin, AsyncProducer
from downrange.client.client_base import CLOSE_TIMEOUT

if TYPE_CHECKING:
    from downrange import Message, SendReceipt

#: The producer group of messages that are sent from the console.
PRODUCER_GROUP: Final = "downrange-console"


class SendingAdmin(AsyncAdmin):
    """An admin that also sends messages.

    A client has one producer of a group, so visitors who send at the same time share it. The first
    message starts it: a console that sends nothing is no producer.

    Args:
        arguments: As for `AsyncAdmin`.
        settings: As for `AsyncAdmin`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._producer: AsyncProducer | None = None
        self._start_lock = asyncio.Lock()

    async def send(self, message: Message) -> SendReceipt:
        """Send a message, and wait until a broker has stored it.

        Raises:
            RocketMQError: No broker has stored it.
        """
        producer = await self._started_producer()
        return await producer.send(message)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close the producer, then the admin."""
        if self._producer is not None:
            await self._producer.close(timeout)
        await super().close(timeout)

    async def _started_producer(self) -> AsyncProducer:
        async with self._start_lock:
            if self._producer is None:
                self._producer = await AsyncProducer(self.client, group=PRODUCER_GROUP).start()
            return self._producer
