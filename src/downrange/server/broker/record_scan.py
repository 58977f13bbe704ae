"""A search for messages that match a filter, in bounded steps; for pulls and pops.

Tags stand in the units of a queue; properties stand in the records, so a search by SQL92 reads the
log. What one search examines is limited, by SQL92 in messages, in comparisons and in bytes: a
filter that matches nothing holds the broker's loop for a few milliseconds only. The consumer
continues at `next_offset` (code 20 in a pull). Apache examines 800 messages per pull.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from downrange.store.unit_runs import UNIT, UNIT_BYTES, tagged
from downrange.wire.records import properties_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.store.message_store import MessageStore
    from downrange.store.queue_index import QueueIndex

#: Limits of one search. `EXAMINED_MIN` messages are examined whatever they cost.
EXAMINED_MAX: Final = 2_000
EXAMINED_MIN: Final = 32
COMPARED_MAX: Final = 20_000
READ_BYTES_MAX: Final = 4 * 1024 * 1024

#: How many units one search by tags examines.
TAGS_EXAMINED_MAX: Final = 16_000

_STEP_MAX: Final = 256
_STEP_BYTES: Final = 1024 * 1024


class Condition(Protocol):
    """A condition on the properties of a message, such as a compiled SQL92 expression."""

    @property
    def terms(self) -> int:
        """How many comparisons it has."""
        ...

    def matches(self, properties: Mapping[str, str], /) -> bool:
        """Whether a message with these properties is delivered."""
        ...


class Scan(NamedTuple):
    """The result of a search.

    Attributes:
        found: Queue offsets and records of the messages that match, in order.
        next_offset: The offset after the last message that was examined.
        is_removed: Whether the search ended at a message that was deleted meanwhile.
    """

    found: list[tuple[int, bytes]]
    next_offset: int
    is_removed: bool = False


class Tagged(NamedTuple):
    """The result of a search by tags.

    Attributes:
        offsets: Queue offsets of the messages that match, in order.
        units: Their units, packed.
        next_offset: The offset after the last message that was examined.
    """

    offsets: list[int]
    units: bytes
    next_offset: int


def examined_max(expression: Condition) -> int:
    """Return how many messages one search examines for an expression."""
    return min(EXAMINED_MAX, max(EXAMINED_MIN, COMPARED_MAX // max(expression.terms, 1)))


def scan(
    store: MessageStore,
    queue: QueueIndex,
    offset: int,
    expression: Condition,
    count_max: int,
    bytes_max: int,
) -> Scan:
    """Search a queue from an offset on.

    Args:
        store: The store.
        queue: A queue of it.
        offset: Where to begin: an offset that the queue has.
        expression: The filter.
        count_max: How many messages to find at most.
        bytes_max: The limit of the found messages together; the first one is found in any case.
    """
    found: list[tuple[int, bytes]] = []
    end = min(offset + examined_max(expression), queue.max_offset)
    matches = expression.matches
    step, total, was_read = min(count_max, _STEP_MAX), 0, 0  # one step is enough if all match
    while offset < end and was_read < READ_BYTES_MAX:
        units = queue.packed(offset, min(step, end - offset))
        count, parts = store.read_range(units, _STEP_BYTES)
        if not count:
            skipped = 0 if found else max(len(units) // UNIT_BYTES, 1)
            return Scan(found, offset + skipped, is_removed=True)
        data = b"".join(parts)
        at = 0
        read = UNIT.iter_unpack(units[: count * UNIT_BYTES])
        for number, (_, size, _) in enumerate(read, offset):
            if matches(properties_at(data, at, at + size)):
                total += size
                if found and total > bytes_max:
                    return Scan(found, number)
                found.append((number, data[at : at + size]))
                if len(found) >= count_max:
                    return Scan(found, number + 1)
            at += size
        offset += count
        was_read += len(data)
        step = min(step * 2, _STEP_MAX)
    return Scan(found, offset)


def scan_tags(
    queue: QueueIndex,
    offset: int,
    hashes: frozenset[int],
    count_max: int,
    bytes_max: int,
    examined_max: int | None = None,
) -> Tagged:
    """Search a queue for tags from an offset on.

    Args:
        queue: The queue.
        offset: Where to begin.
        hashes: The hashes of the tags.
        count_max: How many messages to find at most.
        bytes_max: When the found messages are larger than this together, the search ends. They may
            exceed it.
        examined_max: How many messages to examine at most; None for `TAGS_EXAMINED_MAX`.
    """
    offsets: list[int] = []
    units, total = b"", 0
    limit = TAGS_EXAMINED_MAX if examined_max is None else examined_max
    end = min(offset + limit, queue.max_offset)
    step = count_max  # one step is enough if the filter matches everything
    while offset < end and len(offsets) < count_max and total <= bytes_max:
        step = min(step, _STEP_MAX, end - offset)
        positions, found, size = tagged(queue.packed(offset, step), hashes)
        offsets += [offset + position for position in positions]
        units += found
        total += size
        offset += step
        step *= 2
    if len(offsets) >= count_max:
        del offsets[count_max:]
        offset = offsets[-1] + 1
    return Tagged(offsets, units[: count_max * UNIT_BYTES], offset)
