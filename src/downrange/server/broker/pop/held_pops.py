"""Held pops: pops and notifications that found no message and wait for one.

They wait under their topic and group, in the order of arrival. A message for the topic, or for a
retry topic of the group, wakes them. A place can be woken at a time as well: when the block of a
queue that is popped in order ends.

A search by a filter is made in steps. A place whose search is not at its end stands in a line. Each
tick serves the first places of the line, until their searches together have made a limited number
of comparisons; a place that is still not at its end joins the line again, behind the others.
Messages that wake places between two ticks have the same limit; a place beyond it joins the line,
and a place in the line waits for its turn.

The limits are Apache's: per topic, group and requested queue, and in all. A pop beyond a limit is
answered with POLLING_FULL.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.server.broker.record_scan import COMPARED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from downrange.server.outputs import Output, Peer

#: Topic and group, as in the request.
Place: TypeAlias = tuple[str, str]

#: Apache's limits: popPollingSize and maxPopPollingSize.
PER_QUEUE_MAX: Final = 1024
ALL_MAX: Final = 100_000
#: In place of a queue id: all queues of the topic.
ALL_QUEUES: Final = -1
#: How many places are looked at again in one tick: each may search thousands of messages.
_WOKEN_MAX: Final = 16
#: How many entries of removed pops the heap of times may hold, besides two for each held pop.
_REMOVED_MAX: Final = 1024


class HeldPop:
    """One request that waits.

    Attributes:
        place: See `Place`.
        queue_id: The requested queue, or `ALL_QUEUES`.
        peer: Who asked.
        until_ms: When it is answered in any case.
        is_filtered: Whether it searches by a filter.
        retry: Takes the time; handles the request again and returns its outputs, or None if there
            is still no message.
        give_up: Takes the time; returns the answer without a message.
    """

    __slots__ = ("give_up", "is_filtered", "peer", "place", "queue_id", "retry", "until_ms")

    def __init__(
        self,
        place: Place,
        queue_id: int,
        peer: Peer,
        until_ms: int,
        retry: Callable[[int], Sequence[Output] | None],
        give_up: Callable[[int], Sequence[Output]],
        *,
        is_filtered: bool = False,
    ) -> None:
        self.place = place
        self.queue_id = queue_id
        self.peer = peer
        self.until_ms = until_ms
        self.retry = retry
        self.give_up = give_up
        self.is_filtered = is_filtered


class HeldPops:
    """All pops and notifications that wait.

    Attributes:
        comparisons_left: How many comparisons searches may still make until the next tick, or in
            this one. The last search may exceed it.
    """

    def __init__(self) -> None:
        # The inner dicts are used as ordered sets.
        self._places: dict[Place, dict[HeldPop, None]] = {}
        self._by_topic: dict[str, dict[Place, None]] = {}
        self._topics: dict[Place, set[str]] = {}  # the same, by place
        self._wake_ms: dict[Place, int] = {}
        self._by_connection: dict[int, dict[HeldPop, None]] = {}
        self._counts: dict[tuple[Place, int], int] = {}
        self._times: list[tuple[int, int, HeldPop]] = []  # a heap; the number breaks ties
        self._number = 0
        self._count = 0
        self._line: dict[Place, None] = {}  # an ordered set
        self.comparisons_left = COMPARED_MAX

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
            self._topics.setdefault(place, set()).add(topic)
        self._number += 1
        heappush(self._times, (pop.until_ms, self._number, pop))
        if len(self._times) > 2 * self._count + _REMOVED_MAX:
            self._times = [entry for entry in self._times if self._is_held(entry[2])]
            heapify(self._times)
        return True

    def places_of(self, topic: str) -> list[Place]:
        """Return the places at which a message of a topic wakes requests."""
        return list(self._by_topic.get(topic, ()))

    def at(self, place: Place) -> list[HeldPop]:
        """Return what waits at a place, in the order of arrival."""
        return list(self._places.get(place, ()))

    def remove(self, pop: HeldPop) -> None:
        """Remove a request that is answered."""
        waiting = self._places[pop.place]
        del waiting[pop]
        if not waiting:
            self._remove_place(pop.place)
        of_connection = self._by_connection[pop.peer.number]
        del of_connection[pop]
        if not of_connection:
            del self._by_connection[pop.peer.number]
        queue = (pop.place, pop.queue_id)
        self._counts[queue] -= 1
        if not self._counts[queue]:
            del self._counts[queue]
        self._count -= 1

    def _remove_place(self, place: Place) -> None:
        del self._places[place]
        self._wake_ms.pop(place, None)
        self._line.pop(place, None)
        for topic in self._topics.pop(place):
            places = self._by_topic[topic]
            del places[place]
            if not places:
                del self._by_topic[topic]

    def wake_at(self, place: Place, wake_ms: int) -> None:
        """Look at the requests of a place again at a time, or earlier if that is planned."""
        if place in self._places:
            self._wake_ms[place] = min(wake_ms, self._wake_ms.get(place, wake_ms))

    def wake_all(self, now_ms: int) -> None:
        """Look at all requests again."""
        for place in self._places:
            self.wake_at(place, now_ms)

    def search_on(self, place: Place) -> None:
        """Let a place join the line: the search of one of its requests is not at its end."""
        if place in self._places:
            self._line[place] = None

    def is_searching(self, place: Place) -> bool:
        """Whether a place stands in the line."""
        return place in self._line

    def turns(self) -> Iterator[Place]:
        """Yield the places of the line whose turn is in this tick, each once.

        A place leaves the line with its turn. It joins it again if its search is not at its end.
        """
        for place in list(islice(self._line, _WOKEN_MAX)):
            if self.comparisons_left <= 0:
                break
            del self._line[place]
            yield place

    def is_behind(self, now_ms: int) -> bool:
        """Whether a place is worth another look now."""
        return bool(self._line) or any(wake_ms <= now_ms for wake_ms in self._wake_ms.values())

    def woken(self, now_ms: int) -> list[Place]:
        """Return some of the places that are worth another look now, each once."""
        due = (place for place, wake_ms in self._wake_ms.items() if wake_ms <= now_ms)
        found = list(islice(due, _WOKEN_MAX))
        for place in found:
            del self._wake_ms[place]
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
