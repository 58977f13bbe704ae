"""Held pops: pops and notifications that found no message and wait for one.

They wait under their topic and group, in the order of arrival. A message for the topic, or for a
retry topic of the group, wakes them. A pop in order can wait for a time as well: when the block of
its queue ends.

The limits are Apache's: per topic, group and requested queue, and in all. A pop beyond a limit is
answered with POLLING_FULL.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.server.outputs import Output, Peer

#: Topic and group, as in the request.
Place: TypeAlias = tuple[str, str]

#: Apache's limits: popPollingSize and maxPopPollingSize.
PER_QUEUE_MAX: Final = 1024
ALL_MAX: Final = 100_000
#: In place of a queue id: all queues of the topic.
ALL_QUEUES: Final = -1
#: How many entries of removed pops the heap of times may hold, besides two for each held pop.
_REMOVED_MAX: Final = 1024


class HeldPop:
    """One request that waits.

    Attributes:
        place: See `Place`.
        queue_id: The requested queue, or `ALL_QUEUES`.
        peer: Who asked.
        until_ms: When it is answered in any case.
        retry: Takes the time; handles the request again and returns its outputs, or None if there
            is still no message.
        give_up: Takes the time; returns the answer without a message.
        wake_ms: When it is worth another look although no message arrived, or None.
    """

    __slots__ = ("give_up", "peer", "place", "queue_id", "retry", "until_ms", "wake_ms")

    def __init__(
        self,
        place: Place,
        queue_id: int,
        peer: Peer,
        until_ms: int,
        retry: Callable[[int], Sequence[Output] | None],
        give_up: Callable[[int], Sequence[Output]],
        wake_ms: int | None = None,
    ) -> None:
        self.place = place
        self.queue_id = queue_id
        self.peer = peer
        self.until_ms = until_ms
        self.retry = retry
        self.give_up = give_up
        self.wake_ms = wake_ms


class HeldPops:
    """All pops and notifications that wait."""

    def __init__(self) -> None:
        # The inner dicts are used as ordered sets.
        self._places: dict[Place, dict[HeldPop, None]] = {}
        self._by_topic: dict[str, dict[Place, None]] = {}
        self._by_connection: dict[int, dict[HeldPop, None]] = {}
        self._counts: dict[tuple[Place, int], int] = {}
        self._times: list[tuple[int, int, HeldPop]] = []  # a heap; the number breaks ties
        self._wakes: list[tuple[int, int, HeldPop]] = []  # a heap, too
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    def count(self, place: Place, queue_id: int) -> int:
        """Return how many wait for a queue."""
        return self._counts.get((place, queue_id), 0)

    def hold(self, pop: HeldPop, topics: Iterable[str]) -> bool:
        """Hold a request; return False if there are too many.

        Args:
            pop: The request.
            topics: The topics whose messages wake it.
        """
        place, queue = pop.place, (pop.place, pop.queue_id)
        count = self._counts.get(queue, 0)
        if count >= PER_QUEUE_MAX or self._count >= ALL_MAX:
            return False
        self._counts[queue] = count + 1
        self._count += 1
        self._places.setdefault(place, {})[pop] = None
        self._by_connection.setdefault(pop.peer.number, {})[pop] = None
        for topic in topics:
            self._by_topic.setdefault(topic, {})[place] = None
        self._number += 1
        heappush(self._times, (pop.until_ms, self._number, pop))
        if pop.wake_ms is not None:
            self.wake_at(pop, pop.wake_ms)
        if len(self._times) > 2 * self._count + _REMOVED_MAX:
            self._times = [entry for entry in self._times if self._is_held(entry[2])]
            heapify(self._times)
        return True

    def places_of(self, topic: str) -> list[Place]:
        """Return the places at which a message of a topic wakes requests."""
        places = self._by_topic.get(topic)
        if places is None:
            return []
        for place in [place for place in places if place not in self._places]:
            del places[place]
        if not places:
            del self._by_topic[topic]
        return list(places)

    def at(self, place: Place) -> list[HeldPop]:
        """Return what waits at a place, in the order of arrival."""
        return list(self._places.get(place, ()))

    def remove(self, pop: HeldPop) -> None:
        """Remove a request that is answered."""
        waiting = self._places[pop.place]
        del waiting[pop]
        if not waiting:
            del self._places[pop.place]
        of_connection = self._by_connection[pop.peer.number]
        del of_connection[pop]
        if not of_connection:
            del self._by_connection[pop.peer.number]
        queue = (pop.place, pop.queue_id)
        self._counts[queue] -= 1
        if not self._counts[queue]:
            del self._counts[queue]
        self._count -= 1

    def wake_at(self, pop: HeldPop, wake_ms: int) -> None:
        """Look at a held request again at a time."""
        self._number += 1
        heappush(self._wakes, (wake_ms, self._number, pop))

    def woken(self, now_ms: int) -> list[HeldPop]:
        """Return the requests that are worth another look now; they stay held."""
        found: list[HeldPop] = []
        while self._wakes and self._wakes[0][0] <= now_ms:
            pop = heappop(self._wakes)[2]
            if self._is_held(pop):
                found.append(pop)
        return found

    def expired(self, now_ms: int) -> list[HeldPop]:
        """Remove and return the requests whose time is over."""
        over: list[HeldPop] = []
        while self._times and self._times[0][0] <= now_ms:
            pop = heappop(self._times)[2]
            if self._is_held(pop):
                self.remove(pop)
                over.append(pop)
        return over

    def all(self) -> list[HeldPop]:
        """Remove and return all requests."""
        waiting = [pop for at_place in self._places.values() for pop in at_place]
        for pop in waiting:
            self.remove(pop)
        return waiting

    def drop_connection(self, connection: int) -> None:
        """Remove the requests of a connection that ended."""
        for pop in list(self._by_connection.get(connection, ())):
            self.remove(pop)

    def _is_held(self, pop: HeldPop) -> bool:
        return pop in self._places.get(pop.place, ())
