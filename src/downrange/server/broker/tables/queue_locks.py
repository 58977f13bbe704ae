"""Locks of queues: which member of a group may read a queue in order.

A lock belongs to one client. It ends when the client leaves the group or disconnects, or expires
if the client does not renew it.

Any client may lock queues for any group, as in Apache, where the group is only a key. So the number
of locks has a limit, and so has the length of what names them. Beyond these nothing new is locked;
locks that exist can be renewed, and those that have expired are free for others.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from downrange.wire import limits
from downrange.wire.system_names import HANDOVER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.model import QueueId

#: How long a lock lasts (Java: `rocketmq.broker.rebalance.lockMaxLiveTime`).
LOCK_MS: Final = 60_000
#: Queues of one request: as many as a topic may have. Those that follow are not locked.
QUEUES_MAX: Final = limits.QUEUES_MAX
#: Locks of all groups together. A lock takes some 400 bytes.
LOCKS_MAX: Final = 200_000
#: Characters of a group's name and of a client id. Both are kept with a lock.
NAME_CHARACTERS_MAX: Final = 1_024


class QueueLocks:
    """The locks of all groups.

    Args:
        locks_max: How many there may be.
    """

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        self._locks_max = locks_max
        self._count = 0
        # Group -> queue -> (client id of the holder, expiry time).
        self._groups: dict[str, dict[QueueId, tuple[str, int]]] = {}

    def __len__(self) -> int:
        """Return the number of locks, with those that have expired and are not removed yet."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueId], now_ms: int
    ) -> list[QueueId]:
        """Lock queues or renew their locks; return those that the client holds now.

        Args:
            group: The group.
            client_id: The client.
            queues: Queues of this broker. Those beyond a limit are not locked.
            now_ms: The time.
        """
        if max(len(group), len(client_id)) > NAME_CHARACTERS_MAX:
            return []
        held = self._groups.get(group, {})
        locked: list[QueueId] = []
        for queue in islice(queues, QUEUES_MAX):
            lock = held.get(queue)
            if lock is None:
                if self._count >= self._locks_max:
                    continue
                self._count += 1
            elif lock[0] != client_id and lock[1] >= now_ms:
                continue
            held[queue] = (client_id, now_ms + LOCK_MS)
            locked.append(queue)
        if held:
            self._groups[group] = held
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueId]) -> None:
        """Unlock those of the queues that the client holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            if queue in held and held[queue][0] == client_id:
                del held[queue]
                self._count -= 1

    def unlock_all(self, group: str, client_id: str) -> None:
        """Unlock all queues that a client holds for a group, also those for handovers."""
        for name in (group, group + HANDOVER_SUFFIX):
            held = self._groups.get(name, {})
            for queue in [queue for queue, (holder, _) in held.items() if holder == client_id]:
                del held[queue]
                self._count -= 1

    def has_locks(self, group: str, now_ms: int) -> bool:
        """Whether a member of a group holds a queue."""
        held = self._groups.get(group)
        return held is not None and any(until_ms >= now_ms for _, until_ms in held.values())

    def expire(self, now_ms: int) -> None:
        """Remove expired locks, so that the table does not grow with clients that disconnected."""
        for group, held in list(self._groups.items()):
            active = {queue: lock for queue, lock in held.items() if lock[1] >= now_ms}
            self._count += len(active) - len(held)
            if active:
                self._groups[group] = active
            else:
                del self._groups[group]
