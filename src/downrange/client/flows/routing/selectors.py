"""Selectors: how a caller chooses the queue of a message: hash, random, machine room, own function.

A message with a chosen queue is not sent elsewhere when the broker of that queue fails. One rule:
selectors are values; they pickle, compare, and keep no state between messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from downrange.checks import check_text, wrong_type
from downrange.errors import OptionError
from downrange.model import Message, QueueId
from downrange.wire.hashes import java_hash
from downrange.wire.limits import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from downrange.client.flows.effects import Randomness


class ByHash(msgspec.Struct, frozen=True):
    """Picks the queue that Java's hash selector picks; made by `by_hash`."""

    argument: str | int
    hash_code: int

    def __call__(self, queues: Sequence[QueueId], message: Message) -> QueueId:
        """Return the queue."""
        # Java takes the remainder first, then its absolute value; the result is the same.
        return queues[abs(self.hash_code) % len(queues)]


class ByRandom(msgspec.Struct, frozen=True):
    """Picks any queue; made by `by_random`."""

    def choose(
        self, queues: Sequence[QueueId], message: Message, randomness: Randomness
    ) -> QueueId:
        """Return the queue."""
        return queues[randomness.below(len(queues))]


class ByRoom(msgspec.Struct, frozen=True):
    """Picks a queue of the brokers in some machine rooms; made by `by_room`."""

    rooms: tuple[str, ...]
    room_of: Callable[[str], str | None]
    then: Selector | None

    def choose(
        self, queues: Sequence[QueueId], message: Message, randomness: Randomness
    ) -> QueueId:
        """Return the queue."""
        near = [queue for queue in queues if self.room_of(queue.broker) in self.rooms]
        if not near:
            brokers = ", ".join(sorted({queue.broker for queue in queues}))
            raise OptionError(
                f"no queue of {message.topic!r} is in {' or '.join(map(repr, self.rooms))}; its "
                f"brokers are {brokers}; the room of a broker is the part of its name before '@', "
                "or what room_of returns"
            )
        if self.then is not None:
            return select(self.then, near, message, randomness)
        if message.sharding_key is not None:
            return by_sharding_key(message)(near, message)
        return near[randomness.below(len(near))]


#: A user's function: takes the queues and the message, returns one of the queues.
SelectorFunction: TypeAlias = Callable[[Sequence[QueueId], Message], QueueId]
#: How to choose a queue.
Selector: TypeAlias = SelectorFunction | ByHash | ByRandom | ByRoom


def is_selector(value: object) -> bool:
    """Return whether a value can choose a queue: one of this module, or a function."""
    return callable(value) or isinstance(value, ByRandom | ByRoom)


def by_hash(argument: str | int) -> ByHash:
    """Choose by a hash: equal arguments give the same queue, the one that Java producers choose.

    Args:
        argument: A text, or a number. Numbers of 32 bits hash as Java's `Integer`, larger ones as
            `Long`; the two differ only for negative numbers.

    Raises:
        OptionError: The argument is neither, or does not fit 64 bits.

    Example:
        >>> queues = [QueueId("orders", "broker-a", number) for number in range(4)]
        >>> by_hash("customer-7")(queues, Message("orders", b"1")).number
        0
    """
    return ByHash(argument, _hash_code(argument))


def by_random() -> ByRandom:
    """Choose a random queue for each message."""
    return ByRandom()


def by_room(
    *rooms: str,
    room_of: Callable[[str], str | None] | None = None,
    then: Selector | None = None,
) -> ByRoom:
    """Choose among the queues of brokers in these machine rooms.

    Args:
        rooms: The names of the rooms.
        room_of: Returns the room of a broker by its name; without it, names are "room@broker".
        then: Chooses among these queues. Without it the sharding key of the message does; without
            that, the choice is random.

    Raises:
        OptionError: No room is given; or, when a message is sent, no broker of its topic is in
            these rooms.
    """
    if not rooms:
        raise OptionError("by_room needs the name of at least one room")
    for room in rooms:
        check_text("each room of by_room", room)
    if room_of is not None and not callable(room_of):
        raise wrong_type("room_of", room_of, "a function")
    if then is not None and not is_selector(then):
        raise wrong_type("then", then, "a selector such as by_hash(key), or a function")
    return ByRoom(rooms, room_of or _room_before_at, then)


def by_sharding_key(message: Message) -> ByHash:
    """Choose by the hash of the message's sharding key, as `by_hash` does.

    Raises:
        OptionError: The message has none.
    """
    if message.sharding_key is None:
        raise OptionError(f"{message!r} has no sharding_key to choose a queue by")
    return ByHash(message.sharding_key, java_hash(message.sharding_key))


def select(
    selector: Selector, queues: Sequence[QueueId], message: Message, randomness: Randomness
) -> QueueId:
    """Return the queue that a selector chooses.

    Args:
        selector: A selector of this module, or the user's function.
        queues: The queues to choose from, at least one, all of one topic.
        message: The message.
        randomness: For random choices.

    Raises:
        OptionError: The selector did not return a queue of the topic.
        Exception: The error of the user's function.
    """
    if isinstance(selector, ByHash):
        return selector(queues, message)
    if isinstance(selector, ByRandom | ByRoom):
        return selector.choose(queues, message, randomness)
    return check_selected(selector, selector(queues, message), queues)


def selector_failed(selector: Selector, error: Exception) -> OptionError:
    """Return the error for a user's selector that raised an error."""
    return OptionError(f"{selector_name(selector)} raised {type(error).__name__}: {error}")


def selector_name(selector: Selector) -> str:
    """Return the name of a selector, for logs and errors."""
    return f"selector {getattr(selector, '__qualname__', None) or repr(selector)}"


def check_selected(selector: Selector, chosen: object, queues: Sequence[QueueId]) -> QueueId:
    """Return what a user's selector returned, if it is a queue of the topic.

    It need not be one of the given queues, as in Java: the selector may use a newer route.

    Raises:
        OptionError: It is not a queue of the topic.
    """
    topic = queues[0].topic
    if not isinstance(chosen, QueueId) or chosen.topic != topic:
        raise OptionError(
            f"select message queue returned {chosen!r}: {selector_name(selector)} must return "
            f"a QueueId of topic {topic!r}, such as one of the queues it was given"
        )
    return chosen


def _hash_code(argument: object) -> int:
    """Return Java's `hashCode`."""
    if isinstance(argument, str):
        return java_hash(argument)
    if not isinstance(argument, int) or isinstance(argument, bool):
        raise OptionError(
            f"by_hash takes a str or an int, whose hash is the same everywhere, not {argument!r} "
            f"of type {type(argument).__name__}"
        )
    if -INT32_MAX - 1 <= argument <= INT32_MAX:
        return argument
    if not -INT64_MAX - 1 <= argument <= INT64_MAX:
        raise OptionError(f"by_hash({argument}): the number does not fit 64 bits; use a str")
    folded = (argument ^ (argument >> 32)) & 0xFFFFFFFF
    return folded - 2**32 if folded > INT32_MAX else folded


def _room_before_at(broker: str) -> str | None:
    room, at, _ = broker.partition("@")
    return room if at else None
