"""Held pulls: pulls that found no message and wait for one, or until their time is over.

A pull is held under its queue. An append to that queue wakes the pulls whose filter matches the new
message. Every few seconds all queues are compared again, so that a pull whose filter matches none
of the new messages gets its new offset (Java: PullRequestHoldService).

One rule: only `take_if` and `all` walk over all pulls. Pulls are found directly by queue, by
connection and by time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from downrange.server.broker.message_filter import MessageFilter
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from downrange.wire.headers import PullRequest

Queue: TypeAlias = tuple[str, int]
_Key = TypeVar("_Key", Queue, int)

#: How many entries of removed pulls the heap of times may hold, besides two for each held pull,
#: before it is rebuilt.
_REMOVED_MAX: Final = 1024


class HeldPull:
    """One pull that waits.

    Attributes:
        message_filter: Which messages it waits for.
        until_ms: When it is answered, with messages or without.
        next_offset: Up to where its queue was examined for it: no message before it matches.
    """

    __slots__ = ("header", "message_filter", "next_offset", "peer", "request", "until_ms")

    def __init__(
        self,
        request: Command,
        header: PullRequest,
        peer: Peer,
        message_filter: MessageFilter,
        until_ms: int,
    ) -> None:
        self.request = request
        self.header = header
        self.peer = peer
        self.message_filter = message_filter
        self.until_ms = until_ms
        self.next_offset = header.queue_offset

    @property
    def queue(self) -> Queue:
        """The queue that the pull reads."""
        return self.header.topic, self.header.queue_id


class HeldPulls:
    """All pulls that wait.

    Args:
        pulls_max: The limit; a pull beyond it is answered at once.

    Attributes:
        pulls_max: See above.
        checked_ms: When they were last compared with their queues; `handlers.pull` sets it.
    """

    def __init__(self, pulls_max: int) -> None:
        self.pulls_max = pulls_max
        self.checked_ms = 0
        # Used as ordered sets: pulls are answered in the order of arrival.
        self._all: dict[HeldPull, None] = {}
        self._by_queue: dict[Queue, dict[HeldPull, None]] = {}
        self._by_connection: dict[int, dict[HeldPull, None]] = {}
        self._times: list[tuple[int, int, HeldPull]] = []  # a heap; the number breaks ties
        self._number = 0

    def __len__(self) -> int:
        """Return the number of held pulls."""
        return len(self._all)

    def __contains__(self, queue: Queue) -> bool:
        """Whether a pull waits for a queue."""
        return queue in self._by_queue

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; return False if there are too many."""
        if len(self._all) >= self.pulls_max:
            return False
        self._all[pull] = None
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_connection.setdefault(pull.peer.number, {})[pull] = None
        self._number += 1
        heappush(self._times, (pull.until_ms, self._number, pull))
        if len(self._times) > 2 * len(self._all) + _REMOVED_MAX:
            self._times = [entry for entry in self._times if entry[2] in self._all]
            heapify(self._times)
        return True

    def wake(self, queue: Queue, tag_hashes: AbstractSet[int]) -> list[HeldPull]:
        """Remove and return the pulls of a queue whose filter matches one of these tags.

        Pulls with an SQL92 filter stay; see `filtered_by_sql`.
        """
        return self._remove_all(
            pull
            for pull in self._by_queue.get(queue, ())
            if _matches_tags(pull.message_filter, tag_hashes)
        )

    def filtered_by_sql(self, queue: Queue) -> list[HeldPull]:
        """Return the pulls of a queue that have an SQL92 filter."""
        pulls = self._by_queue.get(queue, ())
        return [pull for pull in pulls if pull.message_filter.sql is not None]

    def take(self, pulls: Iterable[HeldPull]) -> list[HeldPull]:
        """Remove and return these pulls, which are all held."""
        return self._remove_all(pulls)

    def of_group(self, queue: Queue, group: str) -> list[HeldPull]:
        """Return the pulls of a queue by the members of a group."""
        pulls = self._by_queue.get(queue, ())
        return [pull for pull in pulls if pull.header.consumer_group == group]

    def take_group(self, queue: Queue, group: str) -> list[HeldPull]:
        """Remove and return the pulls of a queue by the members of a group."""
        return self._remove_all(self.of_group(queue, group))

    def expired(self, now_ms: int) -> list[HeldPull]:
        """Remove and return the pulls whose time is over."""
        over: list[HeldPull] = []
        while self._times and self._times[0][0] <= now_ms:
            pull = heappop(self._times)[2]
            if pull in self._all:
                over.append(pull)
        return self._remove_all(over)

    def take_if(self, is_taken: Callable[[HeldPull], bool]) -> list[HeldPull]:
        """Remove and return the pulls for which a function is true."""
        return self._remove_all(filter(is_taken, self._all))

    def all(self) -> list[HeldPull]:
        """Remove and return all pulls."""
        return self._remove_all(self._all)

    def drop_connection(self, connection: int) -> None:
        """Remove the pulls of a connection that ended."""
        self._remove_all(self._by_connection.get(connection, ()))

    def _remove_all(self, pulls: Iterable[HeldPull]) -> list[HeldPull]:
        removed = list(pulls)
        for pull in removed:
            del self._all[pull]
            _remove(self._by_queue, pull.queue, pull)
            _remove(self._by_connection, pull.peer.number, pull)
        return removed


def _matches_tags(message_filter: MessageFilter, tag_hashes: AbstractSet[int]) -> bool:
    hashes, expression = message_filter
    if hashes is None:
        return expression is None
    return not hashes.isdisjoint(tag_hashes)


def _remove(groups: dict[_Key, dict[HeldPull, None]], key: _Key, pull: HeldPull) -> None:
    """Remove a pull from its group, and the group once it is empty."""
    group = groups[key]
    del group[pull]
    if not group:
        del groups[key]
