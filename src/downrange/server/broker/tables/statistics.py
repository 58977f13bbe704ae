"""Counters of stored and pulled messages: totals, rates, and figures per topic and group.

Counting is a few additions per record or pull. `sample` keeps the totals of each second, which give
the rates of the last ten seconds, minute and ten minutes, and the totals of each midnight. The
figures that tools read by name (Java: BrokerStatsManager) are in `counters`.

Latencies are not counted: a handler takes no time of its own by the broker's clock.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.server.broker.tables.counters import PERIOD_MS, Counter, Counters, due_spans
from downrange.server.broker.tables.event_counts import EventCounts
from downrange.wire.records import Record
from downrange.wire.system_names import is_broker_system_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.wire.batches import RecordRun
    from downrange.wire.bodies import CountsBody

SAMPLE_MS: Final = 1_000
#: The spans that tools show, in seconds.
SPANS: Final = (10, 60, 600)
#: Separates topic and group in the name of a counter; a topic's name cannot contain it.
_SEPARATOR: Final = "@"


class Totals(NamedTuple):
    """The counters at a time.

    Attributes:
        now_ms: The time.
        messages_stored: All records, those of the broker's own topics included.
        bytes_stored: Their bytes.
        messages_pulled: Messages that were handed out.
        bytes_pulled: Their bytes.
        pulls_found: Pulls that found messages.
        pulls_missed: Pulls that found none.
        user_messages_stored: Records of topics that are not the broker's own.
        user_messages_pulled: Messages that were handed out, of such topics.
    """

    now_ms: int
    messages_stored: int
    bytes_stored: int
    messages_pulled: int
    bytes_pulled: int
    pulls_found: int
    pulls_missed: int
    user_messages_stored: int
    user_messages_pulled: int


class Statistics:
    """Counters since the start.

    Args:
        now_ms: The time of the start.

    Attributes:
        today: The totals at the last midnight, or at the start if that was later.
        yesterday: The totals at the midnight before.
        events: Counts of rare events.
    """

    __slots__ = (
        "_broker",
        "_day",
        "_groups",
        "_period",
        "_samples",
        "_sent_back",
        "_start_ms",
        "_system_pulled",
        "_system_stored",
        "_topics",
        "bytes_pulled",
        "bytes_stored",
        "events",
        "messages_pulled",
        "messages_stored",
        "pulls_found",
        "pulls_missed",
        "today",
        "yesterday",
    )

    def __init__(self, now_ms: int) -> None:
        self.messages_stored = 0
        self.bytes_stored = 0
        self.messages_pulled = 0
        self.bytes_pulled = 0
        self.pulls_found = 0
        self.pulls_missed = 0
        self._system_stored = 0
        self._system_pulled = 0
        self._samples: deque[Totals] = deque([self.totals(now_ms)], maxlen=SPANS[-1] + 1)
        self._day = _day(now_ms)
        self.today = self.yesterday = self._samples[0]
        self._start_ms = now_ms
        self._period = 0
        self._topics: Counters[bytes] = Counters()
        self._groups: Counters[tuple[str, str]] = Counters()  # by topic and group
        self._sent_back: Counters[tuple[str, str]] = Counters()
        self.events = EventCounts()
        # Counters of the whole broker, in which Apache does not count requests.
        self._broker = {
            "BROKER_PUT_NUMS": Counter(),
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": Counter(),
            "BROKER_GET_NUMS": Counter(),
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": Counter(),
        }

    # ---- counting ----

    def stored(self, entries: Sequence[Record | RecordRun]) -> None:
        """Count records that were stored."""
        count = self._count_stored
        for entry in entries:
            if isinstance(entry, Record):
                count(entry.topic_bytes, 1, 1, entry.size)
                continue
            is_batch = entry.requests == 1
            totals = zip(entry.queues, entry.counts, entry.queue_bytes, strict=True)
            for (topic, _), messages, size in totals:
                count(topic, 1 if is_batch else messages, messages, size)

    def _count_stored(self, topic: bytes, times: int, messages: int, size: int) -> None:
        counter = self._topics.get(topic)
        if counter is None:
            is_system = is_broker_system_topic(topic.decode(errors="replace"))
            counter = self._topics.add(topic, is_system=is_system)
        counter.times += times
        counter.messages += messages
        counter.size += size
        self.messages_stored += messages
        self.bytes_stored += size
        if counter.is_system:
            self._system_stored += messages

    def stored_run(self, topic: bytes, messages: int, size: int) -> None:
        """Count records of the broker that were stored together in one of its own topics."""
        counter = self._topics.get(topic)
        if counter is None:
            counter = self._topics.add(topic, is_system=True)
        counter.times += messages
        counter.messages += messages
        counter.size += size
        self.messages_stored += messages
        self.bytes_stored += size
        self._system_stored += messages

    def consumed(
        self,
        group: str,
        topic: str,
        messages: int,
        size: int,
        queue_id: int | None = None,
        next_offset: int = 0,
    ) -> None:
        """Count messages that a consumer group got by one request.

        Args:
            group: The group.
            topic: The topic from which the messages were read.
            messages: How many.
            size: Their bytes.
            queue_id: The queue; None if its offset is not to be kept.
            next_offset: The offset behind the last message.
        """
        counter = self._groups.get((topic, group))
        if counter is None:
            counter = self._groups.add((topic, group), is_system=is_broker_system_topic(topic))
        counter.times += 1
        counter.messages += messages
        counter.size += size
        if queue_id is not None:
            counter.offsets[queue_id] = next_offset
        self.pulls_found += 1
        self.messages_pulled += messages
        self.bytes_pulled += size
        if counter.is_system:
            self._system_pulled += messages

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a group sent back to get it again.

        Args:
            group: The group.
            topic: The topic to which the message was sent at first.
        """
        counter = self._sent_back.get((topic, group)) or self._sent_back.add((topic, group))
        counter.times += 1
        counter.messages += 1

    def drop_topic(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        name = topic.encode()
        self._topics.drop(lambda key: key == name)
        for table in (self._groups, self._sent_back):
            table.drop(lambda key: key[0] == topic)
        self.events.drop_topic(topic)

    def drop_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        for table in (self._groups, self._sent_back):
            table.drop(lambda key: key[1] == group)
        self.events.drop_group(group)

    # ---- figures ----

    def totals(self, now_ms: int) -> Totals:
        """Return the totals so far."""
        return Totals(
            now_ms,
            self.messages_stored,
            self.bytes_stored,
            self.messages_pulled,
            self.bytes_pulled,
            self.pulls_found,
            self.pulls_missed,
            self.messages_stored - self._system_stored,
            self.messages_pulled - self._system_pulled,
        )

    def sample(self, now_ms: int) -> None:
        """Keep the totals of this second; cheap to call more often."""
        if now_ms - self._samples[-1].now_ms < SAMPLE_MS:
            return
        totals = self.totals(now_ms)
        self._samples.append(totals)
        day = _day(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday, self.today = self.today, totals
        period = (now_ms - self._start_ms) // PERIOD_MS
        if period != self._period:
            spans = due_spans(self._period, period)
            self._period = period
            self._sample_counters(totals, spans)

    def _sample_counters(self, totals: Totals, spans: tuple[int, ...]) -> None:
        counts = (
            totals.messages_stored,
            totals.user_messages_stored,
            totals.messages_pulled,
            totals.user_messages_pulled,
        )
        for counter, messages in zip(self._broker.values(), counts, strict=True):
            counter.messages = messages
            counter.sample(spans, totals.now_ms)
        self._topics.sample(spans, totals.now_ms)
        self._groups.sample(spans, totals.now_ms)
        self._sent_back.sample(spans, totals.now_ms)

    def rates(self, name: str) -> list[float]:
        """Return a counter's rate per second over each of `SPANS`, as far as samples reach."""
        last = self._samples[-1]
        found: list[float] = []
        for span in SPANS:
            first = self._samples[max(0, len(self._samples) - 1 - span)]
            seconds = (last.now_ms - first.now_ms) / 1000
            grown: int = getattr(last, name) - getattr(first, name)
            found.append(grown / seconds if seconds else 0.0)
        return found

    def counts(self, name: str, key: str, cluster: str) -> CountsBody | None:
        """Return the figures of a counter by Java's name and key, or None if it does not exist.

        Args:
            name: Such as GROUP_GET_NUMS.
            key: A topic, `topic@group`, or the cluster for counters of the broker.
            cluster: The cluster of this broker.
        """
        topic, _, group = key.partition(_SEPARATOR)
        counter: Counter | None = None
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            counter = self._topics.get(key.encode(errors="replace"))
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            counter = self._groups.get((topic, group))
        elif name == "SNDBCK_PUT_NUMS":
            counter = self._sent_back.get((topic, group))
        elif key == cluster:
            counter = self._broker.get(name)
        return None if counter is None else counter.counts(is_of_size=name.endswith("_SIZE"))

    def topics(self) -> list[tuple[bytes, Counter]]:
        """Return the counters of stored messages, by topic."""
        return self._topics.items()

    def groups(self) -> list[tuple[tuple[str, str], Counter]]:
        """Return the counters of messages that groups got, by topic and group."""
        return self._groups.items()

    def stored_rate(self, topic: str) -> float:
        """Return the messages per second that a topic got in the last minute."""
        counter = self._topics.get(topic.encode())
        return 0.0 if counter is None else counter.rate()

    def consumed_rate(self, group: str, topic: str) -> float:
        """Return the messages per second that a group got of a topic in the last minute."""
        counter = self._groups.get((topic, group))
        return 0.0 if counter is None else counter.rate()

    def next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset behind the last message that a group got of a queue, or 0."""
        counter = self._groups.get((topic, group))
        return 0 if counter is None else counter.offsets.get(queue_id, 0)


def _day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()  # in local time, for the operator
