"""`AsyncPushedMessage`: a message of an `AsyncPushConsumer`.

await message.reply(b"42")               # to the sender of a request
async with message.processing():         # of an iteration: handle it while others are asked for
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.consumed_base import ConsumedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from downrange.client._async.push_consumer import AsyncPushConsumer
    from downrange.model import SendReceipt


class AsyncPushedMessage(ConsumedMessage):
    """A message of an `AsyncPushConsumer`, with the fields of a `ReceivedMessage`."""

    __slots__ = ()
    _consumer: AsyncPushConsumer

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self.delivery_attempts + 1

    async def reply(
        self,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`; see `AsyncPushConsumer.reply`."""
        return await self._consumer.reply(
            self, body, tags=tags, keys=keys, properties=properties, timeout=timeout
        )

    def processing(self) -> AbstractAsyncContextManager[AsyncPushedMessage]:
        """Return a block in which the message is handled; see `AsyncPushConsumer.processing`."""
        return self._consumer.processing(self)
