# Generated from client/_async/pushed_message.py by scripts/generate_sync.py; do not edit.
"""`PushedMessage`: a message of a `PushConsumer`.

message.reply(b"42")               # to the sender of a request
with message.processing():         # of an iteration: handle it while others are asked for
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.consumed_base import ConsumedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from downrange.client._sync.push_consumer import PushConsumer
    from downrange.model import SendReceipt


class PushedMessage(ConsumedMessage):
    """A message of a `PushConsumer`, with the fields of a `ReceivedMessage`."""

    __slots__ = ()
    _consumer: PushConsumer

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self.delivery_attempts + 1

    def reply(
        self,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`; see `PushConsumer.reply`."""
        return self._consumer.reply(
            self, body, tags=tags, keys=keys, properties=properties, timeout=timeout
        )

    def processing(self) -> AbstractContextManager[PushedMessage]:
        """Return a block in which the message is handled; see `PushConsumer.processing`."""
        return self._consumer.processing(self)
