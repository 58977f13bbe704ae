"""How the members of a consumer group share queues: pure functions, for brokers and clients.

Every member computes its own part from the same two lists, so all members must use the same
strategy and see the same lists. Sort both with `in_order` and `members_in_order` first. The results
equal those of Java's classes, because a group may have Java members.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Final, Protocol, TypeAlias, cast, runtime_checkable

from downrange.checks import check_count, check_texts, check_whole, iterated, wrong_type
from downrange.errors import OptionError
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


# ---- strategies of clients -----------------------------------------------------------------------

#: Takes a group, the client id of one member, all queues of a topic and all members, both in order;
#: returns the queues of that member.
AllocateForGroup: TypeAlias = Callable[
    [str, str, Sequence[QueueId], Sequence[str]], Iterable[QueueId]
]


@runtime_checkable
class Strategy(Protocol):
    """How a group shares the queues of a topic; all members need the same strategy.

    A member that is not in the list gets no queues, and so does every member of a topic without
    queues. Java's classes log the first and raise an error for the second.
    """

    @property
    def name(self) -> str:
        """The name of Java's strategy, or one of your own."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member.

        Args:
            group: The consumer group.
            client_id: The member.
            queues: All queues of a topic, sorted by topic, broker and number.
            members: The client ids of all members, sorted as Java sorts texts.
        """
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """Blocks of consecutive queues; the first members get one more each. Java's default, AVG."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        return allocate_evenly(queues, members, client_id)


@dataclass(frozen=True, slots=True)
class AverageByCircle:
    """Queues dealt out in turn. Java: AVG_BY_CIRCLE."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        return allocate_in_circle(queues, members, client_id)


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """A hash ring: a member that joins or leaves moves few queues. Java: CONSISTENT_HASH.

    The shares differ in size, and a member may get none.

    Args:
        virtual_nodes: Places of each member on the ring; more make the shares more even.
        hash_function: From a text to an int, the same in all members; by default the first four
            bytes of the MD5 digest, as in Java. A function that is pickled must have a name.

    Raises:
        OptionError: An argument is wrong.
    """

    virtual_nodes: int = 10
    hash_function: Callable[[str], int] | None = None
    name = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        check_count(1, "virtual_nodes", self.virtual_nodes)
        if self.hash_function is not None:
            _check_function("hash_function", self.hash_function, "a function from a str to an int")

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        if client_id not in members:
            return []
        ring = self._ring(members)
        places = sorted(ring)
        owned: list[QueueId] = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, "
            place = bisect_left(places, self._hash(f"{text}queueId={queue.number}]"))
            if ring[places[place % len(places)]] == client_id:
                owned.append(queue)
        return owned

    def _ring(self, members: Sequence[str]) -> dict[int, str]:
        """Return the member at each place; of two members with the same place, the last one."""
        ring: dict[int, str] = {}
        for member in members:
            for number in range(self.virtual_nodes):
                ring[self._hash(f"{member}-{number}")] = member
        return ring

    def _hash(self, text: str) -> int:
        if self.hash_function is None:
            # Java encodes half a surrogate pair as a question mark, too.
            digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
            return int.from_bytes(digest[:4], "big")
        value = self.hash_function(text)
        check_whole("the result of hash_function", value)
        return value


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Only queues of brokers in some rooms, shared evenly. Java: MACHINE_ROOM.

    The names of brokers have the form `room@name`; queues of all other brokers go to no member. As
    in Java, the queues that are left over after equal blocks are the last ones of the list.

    Args:
        rooms: The rooms to read from.

    Raises:
        OptionError: There is no room, or it is not a str.
    """

    rooms: frozenset[str]
    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        object.__setattr__(self, "rooms", frozenset(check_texts("rooms", rooms)))
        if not self.rooms:
            raise OptionError("rooms is empty: no member would get a queue; name a room")

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        near = [queue for queue in queues if _room_of_broker(queue.broker) in self.rooms]
        size = len(near) // len(members)
        left_over = near[size * len(members) :]
        return near[index * size : (index + 1) * size] + left_over[index : index + 1]


def _room_of_broker(broker: str) -> str | None:
    """Return the room of `room@name`, or None; Java's `split` ignores empty parts at the end."""
    parts = broker.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Queues go to the members in the same room. Java: MACHINE_ROOM_NEARBY-<inner>.

    The queues of a room without members are shared by all.

    Args:
        inner: The strategy inside a room, or a function of the same form.
        room_of_queue: Returns the room of a queue's broker.
        room_of_client: Returns the room of a member, from its client id.

    Raises:
        OptionError: An argument is wrong. `allocate` raises it for a queue or member without room.
    """

    inner: Strategy
    room_of_queue: Callable[[QueueId], str]
    room_of_client: Callable[[str], str]

    def __init__(
        self,
        inner: Strategy | AllocateForGroup,
        *,
        room_of_queue: Callable[[QueueId], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        object.__setattr__(self, "inner", strategy_of(inner, "inner"))
        _check_function("room_of_queue", room_of_queue, "a function from a QueueId to a room")
        _check_function("room_of_client", room_of_client, "a function from a client id to a room")
        object.__setattr__(self, "room_of_queue", room_of_queue)
        object.__setattr__(self, "room_of_client", room_of_client)

    @property
    def name(self) -> str:
        """The name in Java, with that of the inner strategy."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        if client_id not in members:
            return []
        queues_of: dict[str, list[QueueId]] = {}
        for queue in queues:
            room = _checked_room(self.room_of_queue(queue), "room_of_queue", queue)
            queues_of.setdefault(room, []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            room = _checked_room(self.room_of_client(member), "room_of_client", member)
            members_of.setdefault(room, []).append(member)
        own = next(room for room, inside in members_of.items() if client_id in inside)
        owned: list[QueueId] = []
        if near := queues_of.pop(own, []):
            owned += self.inner.allocate(group, client_id, near, members_of[own])
        for room in sorted(queues_of.keys() - members_of.keys(), key=_java_order):
            owned += self.inner.allocate(group, client_id, queues_of[room], members)
        return owned


def _checked_room(room: object, function: str, argument: object) -> str:
    if not isinstance(room, str) or not room:
        raise OptionError(f"{function}({argument!r}) returned {room!r}; it must return a room")
    return room


@dataclass(frozen=True, slots=True)
class ByConfig:
    """A fixed list of queues for this member. Java: CONFIG.

    No member takes over the queues of another one. A group reads failed messages again only if
    members list the queues of its retry topic, too.

    Java returns the whole list for every topic. This returns the queues that exist in the topic
    which is shared out, so that the member has the same queues in the end.

    Args:
        queues: The queues, of one topic or several.

    Raises:
        OptionError: It is not a list of `QueueId`.
    """

    queues: tuple[QueueId, ...]
    name = "CONFIG"

    def __init__(self, queues: Iterable[QueueId]) -> None:
        listed = tuple(iterated("queues", queues, "a list of QueueId"))
        for queue in listed:
            if not isinstance(queue, QueueId):
                raise wrong_type("each of queues", queue, "a QueueId")
        object.__setattr__(self, "queues", listed)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        existing = frozenset(queues)
        return [queue for queue in self.queues if queue in existing]


@dataclass(frozen=True, slots=True)
class ByFunction:
    """A function of the user as a strategy; its result is checked.

    Raises:
        OptionError: It is not a function, or a coroutine function. `allocate` raises it for a
            result that is not a list of queues of the topic.
    """

    function: AllocateForGroup

    def __post_init__(self) -> None:
        _check_function("strategy", self.function, "a strategy, or a function of the same form")

    @property
    def name(self) -> str:
        """The name of the function, or of its class."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return str(name)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        """Return the queues of one member; see `Strategy.allocate`."""
        result = self.function(group, client_id, queues, members)
        owned = list(iterated(f"the result of {self.name}", result, "a list of QueueId"))
        existing = frozenset(queues)
        for queue in owned:
            if not isinstance(queue, QueueId) or queue not in existing:
                raise OptionError(
                    f"the strategy {self.name} returned {queue!r}, which is not one of the "
                    f"{len(queues)} queues that it was given"
                )
        return owned


def strategy_of(value: object, name: str = "strategy") -> Strategy:
    """Return a strategy as it is, and a function with the arguments of `allocate` as a strategy.

    Raises:
        OptionError: The value is neither.
    """
    if isinstance(value, type):
        raise wrong_type(name, value, "a strategy", f"write {value.__qualname__}()")
    if isinstance(value, Strategy):
        return value
    if callable(value):
        return ByFunction(cast("AllocateForGroup", value))
    raise wrong_type(name, value, "a strategy, or a function of the same form")


def _check_function(name: str, value: object, expected: str) -> None:
    if not callable(value):
        raise wrong_type(name, value, expected)
    if iscoroutinefunction(value):
        raise OptionError(f"{name} is a coroutine function; it must be a plain function")
