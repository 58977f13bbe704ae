"""Why a member of a group gets no queues of a topic, and when that is published.

A failed division is tried again by each rebalance, so it is published once, and once more when it
is over. One rule: what may pass by itself, such as a broker that does not know the member yet, is
published only when it lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.notices import SharesFound, SharesMissing
from downrange.wire.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Collection

    from downrange.client.flows.client_core import ClientCore
    from downrange.errors import RocketMQError

#: The broker does not know the member, yet: the heartbeat is on the way, or was lost.
_NOT_REGISTERED: Final = {
    int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
    int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
    int(ResponseCode.CONSUMER_NOT_ONLINE),
}
#: Seconds in which that is normal: after a start, and after a broker's restart.
REGISTER_GRACE: Final = 10.0


class NoShare(msgspec.Struct, frozen=True):
    """Why a member gets no queues of a topic.

    Attributes:
        reason: The text for the log and for the health of the consumer.
        may_pass: Whether it may pass by itself.
        error: What the strategy of the user raised; None if it is not the cause.
    """

    reason: str
    may_pass: bool
    error: Exception | None = None


def no_share(error: RocketMQError, what: str = "") -> NoShare:
    """Return the reason for an error; `what` comes before its text."""
    return NoShare(f"{what}{error}", error.retryable or error.code in _NOT_REGISTERED)


class _Missing(msgspec.Struct):
    """A topic of which the member gets no queues now.

    Attributes:
        since: When that began.
        why: The newest reason.
        is_told: Whether it lasts, so that it is a problem.
    """

    since: float
    why: NoShare
    is_told: bool = False


class MissingShares:
    """The topics of which one member gets no queues.

    Args:
        core: The client.
        group: The group, without the namespace.
    """

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self._group = group
        self._topics: dict[str, _Missing] = {}

    def note(self, topic: str, why: NoShare) -> None:
        """Note that a topic could not be divided; another topic's equal reason is not repeated."""
        now = self._core.clock.now()
        missing = self._topics.setdefault(topic, _Missing(now, why))
        missing.why = why
        if missing.is_told or (why.may_pass and now - missing.since < REGISTER_GRACE):
            return
        told = {each.why.reason for each in self._topics.values() if each.is_told}
        missing.is_told = True
        if why.reason not in told:
            notice = SharesMissing(self._group, topic, why.reason, why.error)
            self._core.notices.append(notice)

    def note_found(self, topic: str) -> None:
        """Note that a topic was divided."""
        missing = self._topics.pop(topic, None)
        is_last = not any(each.is_told for each in self._topics.values())
        if missing is not None and missing.is_told and is_last:
            self._core.notices.append(SharesFound(self._group))

    def forget(self, topic: str) -> None:
        """Forget a topic that has no queues now."""
        self._topics.pop(topic, None)

    def keep(self, topics: Collection[str]) -> None:
        """Forget topics that are not subscribed any more."""
        self._topics = {topic: each for topic, each in self._topics.items() if topic in topics}

    def problems(self) -> list[str]:
        """Return what is wrong, a sentence for each reason."""
        topics: dict[str, list[str]] = {}
        for topic, missing in self._topics.items():
            if missing.is_told:
                topics.setdefault(missing.why.reason, []).append(topic)
        return [
            f"the queues of {', '.join(names)} cannot be divided among the members: {reason}"
            for reason, names in topics.items()
        ]
