"""Counts of events that are rare beside sends and pulls: ends of transactions, timers, revivals.

They are for metrics only (`server/metrics`). Each table has a limit; an event of a topic or group
beyond it is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.server.broker.tables.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import TypeVar

    KeyT = TypeVar("KeyT", bound=Hashable)

#: How many topics, or pairs of topic and group, a table counts.
EVENT_KEYS_MAX: Final = 10_000
#: The bounds of the time from a half message to its end, in seconds.
FINISH_BOUNDS: Final = (5, 60, 600, 3_600, 43_200, 86_400)
#: The bounds of the delay that a timed message asks for, in seconds.
DELAY_BOUNDS: Final = (60, 600, 3_600, 43_200, 86_400, 259_200)

TopicAndGroup: TypeAlias = tuple[str, str]


class EventCounts:
    """Counts since the start.

    Attributes:
        committed: Transactions that were committed, by topic.
        rolled_back: Transactions that were rolled back, by topic.
        finish_seconds: The times from a half message to its commit, by topic.
        dead_letters: Messages that became dead letters, by topic and group.
        revived: Popped messages that were delivered again, by topic and group.
        timers_begun: Messages that began to wait for their time, by topic.
        timers_ended: Messages that were delivered at their time, by topic.
        delay_seconds: The delays that were asked for, by topic.
    """

    __slots__ = (
        "committed",
        "dead_letters",
        "delay_seconds",
        "finish_seconds",
        "revived",
        "rolled_back",
        "timers_begun",
        "timers_ended",
    )

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.rolled_back: dict[str, int] = {}
        self.finish_seconds: dict[str, Histogram] = {}
        self.dead_letters: dict[TopicAndGroup, int] = {}
        self.revived: dict[TopicAndGroup, int] = {}
        self.timers_begun: dict[str, int] = {}
        self.timers_ended: dict[str, int] = {}
        self.delay_seconds: dict[str, Histogram] = {}

    def transaction_ended(self, topic: str, *, is_commit: bool, open_ms: int) -> None:
        """Count a commit or a rollback.

        Args:
            topic: The topic of the message.
            is_commit: Whether it was committed.
            open_ms: The time since the message was born.
        """
        if is_commit:
            _count(self.committed, topic)
            _add(self.finish_seconds, topic, max(open_ms // 1000, 0), FINISH_BOUNDS)
        else:
            _count(self.rolled_back, topic)

    def dead_letter(self, topic: str, group: str) -> None:
        """Count a message that a group could not handle."""
        _count(self.dead_letters, (topic, group))

    def messages_revived(self, topic: str, group: str, count: int) -> None:
        """Count popped messages that are delivered again."""
        _count(self.revived, (topic, group), count)

    def timer_begun(self, topic: str, delay_ms: int) -> None:
        """Count a message that begins to wait."""
        _count(self.timers_begun, topic)
        _add(self.delay_seconds, topic, max(delay_ms // 1000, 0), DELAY_BOUNDS)

    def timer_ended(self, topic: str) -> None:
        """Count a message that was delivered at its time."""
        _count(self.timers_ended, topic)

    def drop_topic(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        for table in (self.committed, self.rolled_back, self.timers_begun, self.timers_ended):
            table.pop(topic, None)
        for histograms in (self.finish_seconds, self.delay_seconds):
            histograms.pop(topic, None)
        self._drop_pairs(0, topic)

    def drop_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        self._drop_pairs(1, group)

    def _drop_pairs(self, part: int, name: str) -> None:
        for table in (self.dead_letters, self.revived):
            for key in [key for key in table if key[part] == name]:
                del table[key]


def _count(table: dict[KeyT, int], key: KeyT, count: int = 1) -> None:
    counted = table.get(key)
    if counted is not None or len(table) < EVENT_KEYS_MAX:
        table[key] = (counted or 0) + count


def _add(table: dict[str, Histogram], key: str, value: float, bounds: tuple[int, ...]) -> None:
    histogram = table.get(key)
    if histogram is None:
        if len(table) >= EVENT_KEYS_MAX:
            return
        histogram = table[key] = Histogram(bounds)
    histogram.add(value)
