"""The requests of a producer that wait for their replies."""

from __future__ import annotations

from typing import Final

import msgspec

from downrange.client.flows.effects import Signal
from downrange.model import ReceivedMessage

#: Ids of requests that timed out are kept, to distinguish a late reply from another client's.
_GIVEN_UP_MAX: Final = 1000


class PendingReply(msgspec.Struct):
    """A reply that a flow waits for.

    Attributes:
        arrived: Fires when the reply has arrived.
        message: The reply; None until then.
    """

    arrived: Signal
    message: ReceivedMessage | None = None


class PendingRequests:
    """The requests of a producer that wait for replies, and the last ones that timed out."""

    __slots__ = ("_given_up", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, PendingReply] = {}
        self._given_up: dict[str, None] = {}  # a set that keeps the order

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, correlation_id: str) -> PendingReply:
        """Add a request that waits."""
        pending = self._waiting[correlation_id] = PendingReply(Signal())
        return pending

    def close(self, correlation_id: str) -> None:
        """Remove a request that has its reply, or timed out."""
        if self._waiting.pop(correlation_id).message is None:
            if len(self._given_up) >= _GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
            self._given_up[correlation_id] = None

    def has(self, correlation_id: str) -> bool:
        """Return whether the request with this id waits, or waited recently."""
        return correlation_id in self._waiting or correlation_id in self._given_up

    def take(self, correlation_id: str, reply: ReceivedMessage) -> bool:
        """Deliver a reply; return whether a flow waits for it."""
        pending = self._waiting.get(correlation_id)
        if pending is None:
            return False
        pending.message = reply
        pending.arrived.fire()
        return True
