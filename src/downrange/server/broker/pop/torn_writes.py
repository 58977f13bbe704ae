"""Writes of pop consumption that a loss of power has torn: what a start does about them.

A revival stores copies of messages and then the acknowledgement of their old delivery. A change of
the invisible time stores a new checkpoint and then the acknowledgement of the old one. Either is
one write, but a loss of power can keep only the beginning of it. Then a message would be delivered
twice, and the second time even after its acknowledgement: the last record is missing that closes
the old checkpoint. Such a write is the last one in the log, so it is found at its end.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.scheduled.timed_messages import timer_queue
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.server.broker.pop.checkpoints import Checkpoint
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import Unit

#: How many copies of messages one revival stores at most: as many as a pop returns.
_COPIES_MAX: Final = 32
#: A copy has the receipt of the delivery that it replaces.
_RECEIPT: Final = str(PropertyKey.POP_CHECKPOINT)


def torn_writes(
    state: BrokerState, copy_topics: Callable[[Checkpoint], Iterable[str]]
) -> list[tuple[Checkpoint, Sequence[int]]]:
    """Return checkpoints with the messages that no longer belong to them.

    Args:
        state: The broker, after a start: all checkpoints are known, none was revived yet.
        copy_topics: Takes a checkpoint; returns the topics that may have copies of its messages.
    """
    if state.store.recovery.was_clean:
        return []
    found = [*_changed(state), *_revived(state, copy_topics)]
    return [(checkpoint, offsets) for checkpoint, offsets in found if offsets]


def _changed(state: BrokerState) -> list[tuple[Checkpoint, Sequence[int]]]:
    """Return older checkpoints of a message whose time was changed by the last record."""
    last = max(state.checkpoints, key=lambda found: found.timer_offset, default=None)
    if last is None or len(last.offsets) != 1:
        return []
    units = timer_queue(state.store).units(last.timer_offset, 1)
    if not units or _end(units[0]) != state.recovered_end:
        return []
    return [
        (found, last.open_offsets())
        for found in state.checkpoints
        if found is not last
        and found.name[:3] == last.name[:3]
        and found.bits_of(last.open_offsets())
    ]


def _revived(
    state: BrokerState, copy_topics: Callable[[Checkpoint], Iterable[str]]
) -> list[tuple[Checkpoint, Sequence[int]]]:
    """Return the messages of which the last records of a topic are copies.

    Other records may stand between them and the end of the log, such as the filler of a segment.
    The receipt alone tells which delivery a copy replaces.
    """
    receipts: set[tuple[str, str]] = set()
    for topic in {topic for found in state.checkpoints for topic in copy_topics(found)}:
        queue = state.store.queue(topic, 0)
        begin = max(queue.max_offset - _COPIES_MAX, queue.min_offset)
        for unit in queue.units(begin, _COPIES_MAX):
            with suppress(RocketMQError):  # a damaged copy replaces nothing
                properties = state.store.read_record(unit).properties()
                receipts.add((topic, properties.get(_RECEIPT, "")))
    if not receipts:
        return []
    return [
        (
            found,
            [
                offset
                for offset in found.open_offsets()
                if any((topic, found.receipt(offset)) in receipts for topic in copy_topics(found))
            ],
        )
        for found in state.checkpoints
    ]


def _end(unit: Unit) -> int:
    return unit.log_offset + unit.size
