"""An answer of the cluster that all viewers share, so that ten of them ask no more than one."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from downrange.console.cluster import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

AnswerT = TypeVar("AnswerT")


class SharedAnswer(Generic[AnswerT]):
    """Asks the cluster at most once per time, whoever needs the answer.

    The time grows with the cost: an answer is used again for at least `limits.SLOW_POLL_REST` times
    as long as it took to get it. So the console never keeps a large cluster busy.

    Args:
        ask: Asks the cluster.
        seconds: How long an answer is used again, at least.
        now: Returns the time in seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[AnswerT]],
        seconds: float = limits.ROW_SECONDS,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._ask = ask
        self._seconds = seconds
        self._now = now
        self._lock = asyncio.Lock()
        self._answer: AnswerT | None = None
        self._fresh_until = float("-inf")

    @property
    def last(self) -> AnswerT | None:
        """The last answer, of any age; None before the first one."""
        return self._answer

    def forget(self) -> None:
        """Ask again the next time, because something was changed."""
        self._fresh_until = float("-inf")

    async def get(self) -> AnswerT:
        """Return the answer; asks the cluster when the last one is too old.

        Raises:
            RocketMQError: The cluster did not answer; the next call asks again.
        """
        async with self._lock:
            if self._answer is None or self._now() >= self._fresh_until:
                began = self._now()
                self._answer = await self._ask()
                cost = self._now() - began
                rest = max(self._seconds, cost * limits.SLOW_POLL_REST)
                self._fresh_until = self._now() + rest
            return self._answer
