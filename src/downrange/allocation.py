"""How the members of a consumer group share queues: pure functions, for brokers and clients.

Every member computes its own part from the same two lists, so all members must use the same
strategy and see the same lists. Sort both with `in_order` and `members_in_order` first. The results
equal those of Java's classes, because a group may have Java members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from downrange.model import QueueId

#: Takes all queues, all members and one member; returns the queues of that member.
Allocate: TypeAlias = Callable[[Sequence[QueueId], Sequence[str], str], list[QueueId]]


def in_order(queues: Sequence[QueueId]) -> list[QueueId]:
    """Sort queues as Java's `MessageQueue` compares: by topic, broker and number."""
    return sorted(
        queues,
        key=lambda queue: (_java_order(queue.topic), _java_order(queue.broker), queue.number),
    )


def members_in_order(client_ids: Sequence[str]) -> list[str]:
    """Sort client ids as Java compares texts."""
    return sorted(client_ids, key=_java_order)


def allocate_evenly(
    queues: Sequence[QueueId], members: Sequence[str], member: str
) -> list[QueueId]:
    """Give each member a block of consecutive queues; the first members get one more each.

    Java: AllocateMessageQueueAveragely, "AVG".

    Args:
        queues: All queues of the topic, in order.
        members: The client ids of all members, in order.
        member: Whose queues to return; one that is not in the list gets none.
    """
    if member not in members:
        return []
    index = members.index(member)
    size, larger = divmod(len(queues), len(members))
    begin = index * size + min(index, larger)
    return list(queues[begin : begin + size + (index < larger)])


def allocate_in_circle(
    queues: Sequence[QueueId], members: Sequence[str], member: str
) -> list[QueueId]:
    """Deal the queues out in turn, as cards are.

    Java: AllocateMessageQueueAveragelyByCircle, "AVG_BY_CIRCLE". See `allocate_evenly`.
    """
    if member not in members:
        return []
    return list(queues[members.index(member) :: len(members)])


#: Name in requests -> strategy: those that a broker shares queues by.
STRATEGIES: Final[dict[str, Allocate]] = {
    "AVG": allocate_evenly,
    "AVG_BY_CIRCLE": allocate_in_circle,
}


def allocate_for_pop(
    queues: Sequence[QueueId],
    members: Sequence[str],
    member: str,
    allocate: Allocate,
    share_count: int,
) -> list[QueueId]:
    """Return the queues that a member pops from; members share queues.

    Queue number -1 stands for all queues of a broker.

    Args:
        queues: All queues of the topic, in order.
        members: The client ids of all members, in order.
        member: Whose queues to return.
        allocate: The strategy.
        share_count: With how many members, those behind it in the list, a member shares theirs;
            0 or less, or enough for all, means every queue (Java: popShareQueueNum).
    """
    if share_count <= 0 or share_count >= len(members) - 1:
        return [QueueId(*place, -1) for place in dict.fromkeys((q.topic, q.broker) for q in queues)]
    if member not in members:
        return []
    index = members.index(member)
    if len(members) > len(queues):  # every member gets one
        return [queues[index % len(queues)]] if queues else []
    neighbours = [members[(index + step) % len(members)] for step in range(share_count + 1)]
    return [queue for each in neighbours for queue in allocate(queues, members, each)]


def _java_order(text: str) -> bytes:
    """Return a key that sorts like Java's text comparison, which is by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
