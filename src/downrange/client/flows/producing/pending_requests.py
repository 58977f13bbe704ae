"""The requests of a producer that wait for their replies."""

from __future__ import annotations

from typing import Final

import msgspec

from downrange.client.flows.effects import Signal
from downrange.model import ReceivedMessage

#: Requests that were given up are remembered, to tell a late reply from one that was never ours.
_GIVEN_UP_MAX: Final = 1000


class PendingReply(msgspec.Struct):
    """A reply that somebody waits for.

    Attributes:
        arrived: Fires when it is here.
        message: The reply, then.
    """

    arrived: Signal
    message: ReceivedMessage | None = None


class PendingRequests:
    """A producer's requests that wait for their replies, and the last ones that do no more."""

    __slots__ = ("_given_up", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, PendingReply] = {}
        self._given_up: dict[str, None] = {}  # a set that keeps the order

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, correlation_id: str) -> PendingReply:
        """Begin to wait."""
        pending = self._waiting[correlation_id] = PendingReply(Signal())
        return pending

    def close(self, correlation_id: str) -> None:
        """Stop waiting."""
        if self._waiting.pop(correlation_id).message is None:
            if len(self._given_up) >= _GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
            self._given_up[correlation_id] = None

    def has(self, correlation_id: str) -> bool:
        """Whether a request with this id is, or was, one of these."""
        return correlation_id in self._waiting or correlation_id in self._given_up

    def take(self, correlation_id: str, reply: ReceivedMessage) -> bool:
        """Hand a reply over; return whether somebody waits for it."""
        pending = self._waiting.get(correlation_id)
        if pending is None:
            return False
        pending.message = reply
        pending.arrived.fire()
        return True
