"""Pulls that wait for messages: answered when one arrives, or when their time is over.

A pull is held under its queue. An append to that queue wakes those whose filter takes the new
message's tag; every few seconds the queue is looked at again, so that a pull whose filter takes
none of what arrived learns its new offset (Java: PullRequestHoldService).

One rule: nothing here looks at all pulls, except `take_if` and `all`. A queue, a connection and a
time each lead straight to theirs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from downrange.wire.headers import PullRequest

Queue: TypeAlias = tuple[str, int]
_Key = TypeVar("_Key", Queue, int)

#: How many entries of pulls that are gone the heap of times may hold before it is cleared of them,
#: beside one for each that waits.
_GONE_MAX: Final = 1024


class HeldPull:
    """One pull that waits.

    Attributes:
        tag_hashes: What its filter takes; None takes all.
        until_ms: When it is answered with what there is.
    """

    __slots__ = ("header", "peer", "request", "tag_hashes", "until_ms")

    def __init__(
        self,
        request: Command,
        header: PullRequest,
        peer: Peer,
        tag_hashes: frozenset[int] | None,
        until_ms: int,
    ) -> None:
        self.request = request
        self.header = header
        self.peer = peer
        self.tag_hashes = tag_hashes
        self.until_ms = until_ms

    @property
    def queue(self) -> Queue:
        """The queue that it waits for."""
        return self.header.topic, self.header.queue_id


class HeldPulls:
    """All pulls that wait.

    Args:
        pulls_max: How many there may be; beyond it a pull is answered at once.

    Attributes:
        pulls_max: See above.
        checked_ms: When they were last compared with their queues; `handlers.pulling` keeps it.
    """

    def __init__(self, pulls_max: int) -> None:
        self.pulls_max = pulls_max
        self.checked_ms = 0
        # Sets that keep their order: who came first is answered first.
        self._all: dict[HeldPull, None] = {}
        self._by_queue: dict[Queue, dict[HeldPull, None]] = {}
        self._by_connection: dict[int, dict[HeldPull, None]] = {}
        self._times: list[tuple[int, int, HeldPull]] = []  # a heap; the number breaks ties
        self._number = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._all)

    def __contains__(self, queue: Queue) -> bool:
        """Whether anyone waits for a queue."""
        return queue in self._by_queue

    def hold(self, pull: HeldPull) -> bool:
        """Let a pull wait; False when there are too many."""
        if len(self._all) >= self.pulls_max:
            return False
        self._all[pull] = None
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_connection.setdefault(pull.peer.number, {})[pull] = None
        self._number += 1
        heappush(self._times, (pull.until_ms, self._number, pull))
        if len(self._times) > 2 * len(self._all) + _GONE_MAX:
            self._times = [entry for entry in self._times if entry[2] in self._all]
            heapify(self._times)
        return True

    def wake(self, queue: Queue, tag_hashes: AbstractSet[int]) -> list[HeldPull]:
        """Return, and forget, those of a queue whose filter takes one of these tags."""
        return self._forget(
            pull
            for pull in self._by_queue.get(queue, ())
            if pull.tag_hashes is None or not pull.tag_hashes.isdisjoint(tag_hashes)
        )

    def expired(self, now_ms: int) -> list[HeldPull]:
        """Return, and forget, those whose time is over."""
        over: list[HeldPull] = []
        while self._times and self._times[0][0] <= now_ms:
            pull = heappop(self._times)[2]
            if pull in self._all:
                over.append(pull)
        return self._forget(over)

    def take_if(self, is_wanted: Callable[[HeldPull], bool]) -> list[HeldPull]:
        """Return, and forget, those that are wanted."""
        return self._forget(filter(is_wanted, self._all))

    def all(self) -> list[HeldPull]:
        """Return, and forget, everyone."""
        return self._forget(self._all)

    def drop_connection(self, connection: int) -> None:
        """Forget the pulls of a connection that ended."""
        self._forget(self._by_connection.get(connection, ()))

    def _forget(self, pulls: Iterable[HeldPull]) -> list[HeldPull]:
        gone = list(pulls)
        for pull in gone:
            del self._all[pull]
            _remove(self._by_queue, pull.queue, pull)
            _remove(self._by_connection, pull.peer.number, pull)
        return gone


def _remove(groups: dict[_Key, dict[HeldPull, None]], key: _Key, pull: HeldPull) -> None:
    """Take a pull out of its group, and the group away with the last one."""
    group = groups[key]
    del group[pull]
    if not group:
        del groups[key]
