"""A search for messages that match an SQL92 filter, in bounded steps.

Tags stand in the units of a queue; properties stand in the records, so this search reads the log.
What one search examines is limited in messages, in comparisons and in bytes: a filter that matches
nothing holds the broker's loop for a few milliseconds only. The consumer continues at `next_offset`
(code 20). Apache examines 800 messages per pull.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.wire.records import properties_at

if TYPE_CHECKING:
    from downrange.filters.match import Expression
    from downrange.store.message_store import MessageStore
    from downrange.store.queue_index import QueueIndex

#: Limits of one search. `EXAMINED_MIN` messages are examined whatever they cost.
EXAMINED_MAX: Final = 2_000
EXAMINED_MIN: Final = 32
COMPARED_MAX: Final = 20_000
READ_BYTES_MAX: Final = 4 * 1024 * 1024

_STEP_MAX: Final = 256
_STEP_BYTES: Final = 1024 * 1024


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


def examined_max(expression: Expression) -> int:
    """Return how many messages one search examines for an expression."""
    return min(EXAMINED_MAX, max(EXAMINED_MIN, COMPARED_MAX // max(expression.terms, 1)))


def scan(
    store: MessageStore,
    queue: QueueIndex,
    offset: int,
    expression: Expression,
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
        units = list(queue.numbers(offset, min(step, end - offset)))
        count, parts = store.read_range(units, _STEP_BYTES)
        if not count:
            skipped = 0 if found else max(len(units), 1)
            return Scan(found, offset + skipped, is_removed=True)
        data = b"".join(parts)
        at = 0
        for number, (_, size, _) in enumerate(units[:count], offset):
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
