"""Which messages of a queue a filter is known not to match, so that they are not compared again.

A notification (200054) does not move its group on. Without this table, each message that wakes it
would make it search all messages behind the group's offset again, and so would each notification of
another group with the same filter.

A range is a fact about stored messages, which do not change. So it never becomes wrong, and may be
forgotten at any time: the next search begins earlier. A topic that is created again has other
`QueueIndex` objects, and so other ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from downrange.server.broker.message_filter import MessageFilter
    from downrange.store.queue_index import QueueIndex

#: How many ranges are kept: those that were used last.
_RANGES_MAX: Final = 16_384


class UnmatchedRanges:
    """For a queue and a filter, one range of offsets whose messages the filter does not match."""

    def __init__(self) -> None:
        # First offset and the offset after the last one; the last used range is the last.
        self._ranges: dict[tuple[QueueIndex, MessageFilter], tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    def end(self, queue: QueueIndex, wanted: MessageFilter, start: int) -> int:
        """Return the offset from which on a search that begins at `start` has to compare."""
        low, high = self._ranges.get((queue, wanted), (start, start))
        return high if low <= start <= high else start

    def add(self, queue: QueueIndex, wanted: MessageFilter, start: int, end: int) -> None:
        """Note that no message from `start` on, and before `end`, matches."""
        if start >= end:
            return
        key = queue, wanted
        low, high = self._ranges.pop(key, (start, end))
        if start <= high and low <= end:
            low, high = min(low, start), max(high, end)
        elif high < start:  # what is searched again is the end of the queue
            low, high = start, end
        self._ranges[key] = low, high
        if len(self._ranges) > _RANGES_MAX:
            del self._ranges[next(iter(self._ranges))]

    def clear(self) -> None:
        """Forget all ranges, so that the queues of a deleted topic are not kept in memory."""
        self._ranges.clear()
