"""Statistics that also count the sizes of messages, for a broker whose metrics are shown.

Sizes take a little time per message, so other brokers use the plain `Statistics`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from downrange.server.broker.tables.counters import COUNTERS_MAX
from downrange.server.broker.tables.histogram import Histogram
from downrange.server.broker.tables.statistics import Statistics
from downrange.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.wire.batches import RecordRun

#: The bounds of the sizes of stored messages, in bytes.
SIZE_BOUNDS: Final = (1 << 10, 1 << 12, 1 << 19, 1 << 20, 1 << 21, 1 << 22)
#: A unit of a queue's index, of which only the size of the record is of interest.
_UNIT: Final = Struct(">8xi8x")


class MeasuredStatistics(Statistics):
    """Counters since the start, and the sizes of the stored messages.

    Attributes:
        sizes: The sizes by topic; at most as many topics as have counters.
    """

    __slots__ = ("sizes",)

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.sizes: dict[bytes, Histogram] = {}

    def stored(self, entries: Sequence[Record | RecordRun]) -> None:
        """Count records that were stored."""
        super().stored(entries)
        for entry in entries:
            if isinstance(entry, Record):
                self._histogram(entry.topic_bytes).add(entry.size)
                continue
            for (topic, _), units in zip(entry.queues, entry.queue_units(), strict=True):
                histogram = self._histogram(topic)
                for (size,) in _UNIT.iter_unpack(units):
                    histogram.add(size)

    def stored_run(self, topic: bytes, messages: int, size: int) -> None:
        """Count records of the broker, which are small and of nearly the same size."""
        super().stored_run(topic, messages, size)
        if messages:
            self._histogram(topic).add(size / messages, messages)

    def drop_topic(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        super().drop_topic(topic)
        self.sizes.pop(topic.encode(), None)

    def _histogram(self, topic: bytes) -> Histogram:
        histogram = self.sizes.get(topic)
        if histogram is None:
            if len(self.sizes) >= COUNTERS_MAX:
                del self.sizes[next(iter(self.sizes))]
            histogram = self.sizes[topic] = Histogram(SIZE_BOUNDS)
        return histogram
