"""How long requests took, by kind of request and of reply, in ms."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from downrange.server.broker.tables.histogram import Histogram
from downrange.wire.codes import RequestCode, ResponseCode, named

#: The bounds of the times of requests, in ms.
LATENCY_BOUNDS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
#: The bounds of the times that creating a topic or a group takes, in ms.
CREATION_BOUNDS: Final = (10, 100, 1_000, 3_000, 5_000)
#: How many kinds are told apart; peers choose the codes of their requests.
_KINDS_MAX: Final = 2_000

#: How a request ended, in Apache's words.
Result: TypeAlias = Literal["success", "oneway"]
#: The code of a request, the code of its reply, whether it waited for messages, and how it ended.
#: It is made per request, so it is a plain tuple.
Kind: TypeAlias = tuple[int, int, bool, Result]

_CREATIONS: Final = {
    int(RequestCode.UPDATE_AND_CREATE_TOPIC): "topic",
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): "group",
}


class RequestTimes:
    """The times of all requests since the start.

    Attributes:
        kinds: The times in ms, by kind.
        creations: The times in ms of creating topics and groups: ("topic", True) has those of
            topics that were created.
    """

    def __init__(self) -> None:
        self.kinds: dict[Kind, Histogram] = {}
        self.creations: dict[tuple[str, bool], Histogram] = {}

    def add(self, kind: Kind, elapsed_ms: float, count: int = 1) -> None:
        """Count a request that was answered, or several that took the same time."""
        times = self.kinds.get(kind)
        if times is None:
            if len(self.kinds) >= _KINDS_MAX:
                return
            times = self.kinds[kind] = Histogram(LATENCY_BOUNDS)
        times.add(elapsed_ms, count)
        if kind[0] in _CREATIONS:
            key = (_CREATIONS[kind[0]], kind[1] == 0)
            self.creations.setdefault(key, Histogram(CREATION_BOUNDS)).add(elapsed_ms)


def request_name(code: int) -> str:
    """Return the name of a request code as a label has it."""
    known = named(RequestCode, code)
    return known.name.lower() if isinstance(known, RequestCode) else "unknown"


def reply_name(code: int) -> str:
    """Return the name of a reply code as a label has it."""
    known = named(ResponseCode, code)
    return known.name.lower() if isinstance(known, ResponseCode) else "unknown"
