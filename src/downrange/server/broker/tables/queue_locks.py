"""Locks of queues: which member of a group may read a queue in order.

A lock belongs to one client. It ends when the client leaves the group or disconnects, or expires
if the client does not renew it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.wire.system_names import HANDOVER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.model import QueueId

#: How long a lock lasts (Java: `rocketmq.broker.rebalance.lockMaxLiveTime`).
LOCK_MS: Final = 60_000


class QueueLocks:
    """The locks of all groups."""

    def __init__(self) -> None:
        # Group -> queue -> (client id of the holder, expiry time).
        self._groups: dict[str, dict[QueueId, tuple[str, int]]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueId], now_ms: int
    ) -> list[QueueId]:
        """Lock queues or renew their locks; return those that the client holds now."""
        held = self._groups.setdefault(group, {})
        locked: list[QueueId] = []
        for queue in queues:
            holder, until_ms = held.get(queue, (client_id, 0))
            if holder == client_id or until_ms < now_ms:
                held[queue] = (client_id, now_ms + LOCK_MS)
                locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueId]) -> None:
        """Unlock those of the queues that the client holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            if queue in held and held[queue][0] == client_id:
                del held[queue]

    def unlock_all(self, group: str, client_id: str) -> None:
        """Unlock all queues that a client holds for a group, also those for handovers."""
        for name in (group, group + HANDOVER_SUFFIX):
            held = self._groups.get(name, {})
            for queue in [queue for queue, (holder, _) in held.items() if holder == client_id]:
                del held[queue]

    def has_locks(self, group: str, now_ms: int) -> bool:
        """Whether a member of a group holds a queue."""
        held = self._groups.get(group)
        return held is not None and any(until_ms >= now_ms for _, until_ms in held.values())

    def expire(self, now_ms: int) -> None:
        """Remove expired locks, so that the table does not grow with clients that disconnected."""
        for group, held in list(self._groups.items()):
            active = {queue: lock for queue, lock in held.items() if lock[1] >= now_ms}
            if active:
                self._groups[group] = active
            else:
                del self._groups[group]
