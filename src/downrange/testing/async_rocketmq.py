"""`AsyncRocketMQ`: the methods of `RocketMQ` that wait, for tests that run on an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from downrange.model import MessageDetails, ReceivedMessage, SendReceipt
    from downrange.testing.rocketmq import RocketMQ

ResultT = TypeVar("ResultT")


class AsyncRocketMQ:
    """Waits in another thread, so that the event loop goes on; `rocketmq.aio` is one.

    Args:
        rocketmq: What it waits with.
    """

    def __init__(self, rocketmq: RocketMQ) -> None:
        self._rocketmq = rocketmq

    async def send(
        self, topic: str, body: str | bytes, **details: Unpack[MessageDetails]
    ) -> SendReceipt:
        """Send a message; see `RocketMQ.send`."""
        return await asyncio.to_thread(self._rocketmq.send, topic, body, **details)

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return the messages of a topic; see `RocketMQ.messages`."""
        return await asyncio.to_thread(self._rocketmq.messages, topic)

    async def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: float = 5.0,
        matching: Callable[[ReceivedMessage], bool] | None = None,
    ) -> list[ReceivedMessage]:
        """Wait for messages; see `RocketMQ.wait_for`. `matching` is called in another thread.

        Raises:
            WaitFailed: There are too few messages; the text lists them.
        """
        __tracebackhide__ = True
        return await _in_thread(
            lambda stop: self._rocketmq.wait_with(stop, topic, count, timeout, matching)
        )

    async def wait_until_consumed(self, group: str, timeout: float = 15.0) -> None:
        """Wait until a group has consumed everything; see `RocketMQ.wait_until_consumed`.

        Raises:
            WaitFailed: Something is left; the text says what.
        """
        __tracebackhide__ = True
        await _in_thread(lambda stop: self._rocketmq.wait_consumed_with(stop, group, timeout))


async def _in_thread(wait: Callable[[threading.Event], ResultT]) -> ResultT:
    """Wait in a thread, which ends soon if this task is cancelled."""
    __tracebackhide__ = True
    stop = threading.Event()
    try:
        return await asyncio.to_thread(wait, stop)
    finally:
        stop.set()
