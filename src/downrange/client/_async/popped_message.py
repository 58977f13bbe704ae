"""`AsyncPoppedMessage`: a message from `AsyncSimpleConsumer.receive`, and how it is settled.

await message.ack()                      # done
await message.retry(after=30)            # not now: deliver it again later
await message.extend(60)                 # not yet: keep it for another minute
await message.dead_letter("unreadable")  # never
async with message.processing():         # renews by itself, acknowledges at the end
...
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from downrange.checks import check_timeout, check_type, check_wait
from downrange.client.flows.effects import Signal
from downrange.client.popped_base import PoppedBase, log_retry
from downrange.errors import DeadLetter, ReceiptMissing, Retry, RocketMQError

if TYPE_CHECKING:
    from types import TracebackType

    from downrange.client._async.client import AsyncClient
    from downrange.client.flows.consuming.delivery import Delivery
    from downrange.client.flows.consuming.simple_core import SimpleCore

_log = logging.getLogger("downrange.client")


class AsyncPoppedMessage(PoppedBase):
    """A received message, invisible to other members of the group until it is settled.

    It has the fields of a `ReceivedMessage`. It is settled once: acknowledged, given back, or moved
    to the dead letters. One that is not settled in time is delivered again, to any member.
    """

    _client: AsyncClient
    _core: SimpleCore

    @classmethod
    def of(cls, delivery: Delivery, client: AsyncClient, core: SimpleCore) -> Self:
        """Return the message of a delivery, for `receive`."""
        self = cls._of(delivery)
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "_core", core)
        return self

    async def ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge the message: the group does not get it again.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            AlreadySettled: It was settled before.
            ReceiptExpired: Its time is over: it is delivered again.
            ClosedUnsettled: The consumer was closed.
            RocketMQError: The broker refused, or did not answer; call again.
        """
        deadline = self._deadline(timeout)
        await self._client.run(self._open().ack(deadline))

    async def retry(self, after: float | None = None, *, timeout: float | None = None) -> None:
        """Give the message back, to be delivered again to any member of the group.

        After `SimpleOptions.retries` deliveries it becomes a dead letter instead.

        Args:
            after: Seconds until then; without, 10 for the first retry, 30 for the second, up to two
                hours. An Apache broker delivers it two to three seconds later than that.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: `after` is not a number from 0 on.
            SettleError: It is too late; see `ack`.
            RocketMQError: The broker refused, or did not answer; call again.
        """
        if after is not None:
            check_wait("after", after)
        deadline = self._deadline(timeout)
        delivery = self._open()
        await self._client.run(delivery.retry(after, deadline))
        log_retry(delivery, self._core.group)

    async def extend(self, seconds: float, *, timeout: float | None = None) -> None:
        """Keep the message invisible to others for so many seconds from now on.

        Args:
            seconds: How long, also if that is shorter than what is left.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: `seconds` is not a number above 0.
            SettleError: It is too late; see `ack`.
            RocketMQError: The broker refused, or did not answer; call again.
        """
        check_timeout(seconds, "seconds")
        deadline = self._deadline(timeout)
        await self._client.run(self._open().extend(seconds, deadline))

    async def dead_letter(self, reason: str, *, timeout: float | None = None) -> None:
        """Move the message to the dead letters of the group, the topic %DLQ%group.

        Args:
            reason: Why; it is logged, as a dead letter cannot carry it.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            SettleError: It is too late; see `ack`.
            RocketMQError: The broker refused, or did not answer; call again.
        """
        check_type("reason", reason, str, "a str")
        deadline = self._deadline(timeout)
        await self._client.run(self._open().dead_letter(deadline))
        group = self._core.group
        _log.info("message %s is now a dead letter of %s: %s", self.message_id, group, reason)

    def processing(self) -> AsyncProcessing:
        """Return a context manager for the time in which the message is handled.

        While the block runs, the receipt is renewed, for at most `SimpleOptions.handle_timeout`. At
        its end the message is acknowledged. An exception gives it back and is raised again; the
        exceptions `Retry` and `DeadLetter` say what to do, and end there. A block that settles the
        message by itself is left alone.

        Raises:
            SettleError: It is too late; see `ack`.

        Example:
            ```python
            async with message.processing():
                await transcode(message.body)
            ```
        """
        return AsyncProcessing(self, self._open(), self._client, self._core)

    def _deadline(self, timeout: float | None) -> float:
        if self.delivery is None:
            raise ReceiptMissing(self.message_id)
        if timeout is not None:
            check_timeout(timeout)
        core = self._core.core
        return core.clock.now() + (core.options.call_timeout if timeout is None else timeout)


class AsyncProcessing:
    """The time in which a message is handled; see `AsyncPoppedMessage.processing`."""

    def __init__(
        self,
        message: AsyncPoppedMessage,
        delivery: Delivery,
        client: AsyncClient,
        core: SimpleCore,
    ) -> None:
        self._message = message
        self._delivery = delivery
        self._client = client
        self._core = core
        self._done = Signal()

    async def __aenter__(self) -> AsyncPoppedMessage:
        """Start to renew the receipt."""
        self._delivery.check()
        await self._client.run(self._core.begin_processing(self._delivery, self._done))
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Settle the message."""
        try:
            return await self._settle(error)
        finally:
            self._end()

    async def _settle(self, error: BaseException | None) -> bool:
        message = self._message
        if message.is_settled:
            return False
        if error is None:
            await message.ack()
        elif isinstance(error, Retry):
            await message.retry(error.after)
        elif isinstance(error, DeadLetter):
            await message.dead_letter(error.reason)
        else:
            await self._give_back()
            return False
        return True

    async def _give_back(self) -> None:
        """Give a message back after an exception, which is raised again in any case."""
        message = self._message
        try:
            await message.retry()
        except RocketMQError as failure:
            _log.warning("message %s was not given back: %s", message.message_id, failure)

    def _end(self) -> None:
        if self._client.state == "running":
            self._client.step(lambda: self._core.end_processing(self._delivery, self._done))
