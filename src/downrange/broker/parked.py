"""Pulls that wait for messages: answered when one arrives, or when their time is over.

A pull is parked under its queue. An append to that queue wakes those whose filter takes the new
message's tag; every few seconds the queue is looked at again, so that a pull whose filter takes
none of what arrived learns its new offset (Java: PullRequestHoldService).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.handling import Peer
    from downrange.wire.command import Command
    from downrange.wire.headers import PullRequest

    _Test: TypeAlias = Callable[["ParkedPull"], bool]

Queue: TypeAlias = tuple[str, int]


class ParkedPull:
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


class ParkedPulls:
    """All pulls that wait.

    Args:
        pulls_max: How many there may be; beyond it a pull is answered at once.
    """

    def __init__(self, pulls_max: int) -> None:
        self._pulls_max = pulls_max
        self._by_queue: dict[Queue, list[ParkedPull]] = {}
        #: When parked pulls were last compared with their queues; `handlers.pulling` keeps it.
        self.checked_ms = 0
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    def __contains__(self, queue: Queue) -> bool:
        """Whether anyone waits for a queue."""
        return queue in self._by_queue

    def park(self, pull: ParkedPull) -> bool:
        """Let a pull wait; False when there are too many."""
        if self._count >= self._pulls_max:
            return False
        self._by_queue.setdefault((pull.header.topic, pull.header.queue_id), []).append(pull)
        self._count += 1
        return True

    def wake(self, queue: Queue, tag_hash: int) -> list[ParkedPull]:
        """Return, and forget, those of a queue whose filter takes a tag."""
        return self._take(
            queue, lambda pull: pull.tag_hashes is None or tag_hash in pull.tag_hashes
        )

    def expired(self, now_ms: int) -> list[ParkedPull]:
        """Return, and forget, those whose time is over."""
        return [
            pull
            for queue in list(self._by_queue)
            for pull in self._take(queue, lambda pull: pull.until_ms <= now_ms)
        ]

    def all(self) -> list[ParkedPull]:
        """Return, and forget, everyone."""
        pulls = [pull for waiting in self._by_queue.values() for pull in waiting]
        self._by_queue.clear()
        self._count = 0
        return pulls

    def lose(self, connection: int) -> None:
        """Forget the pulls of a connection that ended."""
        for queue in list(self._by_queue):
            self._take(queue, lambda pull: pull.peer.number == connection)

    def _take(self, queue: Queue, is_wanted: _Test) -> list[ParkedPull]:
        waiting = self._by_queue.get(queue, [])
        taken = [pull for pull in waiting if is_wanted(pull)]
        if len(taken) == len(waiting):
            self._by_queue.pop(queue, None)
        elif taken:
            self._by_queue[queue] = [pull for pull in waiting if not is_wanted(pull)]
        self._count -= len(taken)
        return taken
