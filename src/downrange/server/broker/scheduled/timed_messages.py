"""Timed messages: those with a delivery time wait in rmq_sys_wheel_timer, in the order of arrival.

`TimedMessages` reads that queue as a consumer would and keeps in memory when each message is due;
`timed_delivery` stores the ones that are due in their own topics. Records and properties are
Apache's. TIMER_OUT_MS is the full second before the requested time; Apache delivers at the end of
that second. We deliver at the requested time, which other properties of the message still contain.

A message is recalled by a marker in the same queue: a record with TIMER_DEL_UNIQKEY and the same
TIMER_OUT_MS. The order of the log makes a recall as durable as any message. A message that Apache
rolled (it writes far ones again every two days) recalls its older copy in the same way.

Checkpoints and acknowledgements of popped messages are timed messages, too. `HeldRecords` takes
them instead: they are never delivered.

Rules: a message is never delivered early, nor before the whole queue was read, since the last
record may be a marker. Messages are delivered in the order of their times, so three numbers
describe the progress: all messages before offset `read` that were due until a time are delivered,
and no message before offset `low` waits. They are saved in a file of ours, which Apache ignores. So
are the same numbers of the Apache broker that had the store last, if one had: it has handled the
held records that were due before it stopped.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from downrange.errors import RocketMQError
from downrange.server.broker.scheduled.redirect import RETRY_MS, read_number
from downrange.server.broker.tables.event_counts import EventCounts
from downrange.server.outputs import Note, Output
from downrange.wire.bodies import Body, DataVersion, TimedCount, TimedCountsBody, decode_body
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.store.message_store import MessageStore
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.records import Record

PATH: Final = "config/timerProgress.json"

#: The time of one slot of Apache's wheel.
SLOT_MS: Final = 1_000
#: How many records of the queue are read per tick.
TICK_READS_MAX: Final = 1_000

OUT_KEY: Final = str(PropertyKey.TIMER_OUT_MS)
ROLLS_KEY: Final = str(PropertyKey.TIMER_ROLL_TIMES)
RECALLED_KEY: Final = str(PropertyKey.TIMER_DEL_UNIQKEY)
_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_REAL_QUEUE_ID: Final = str(PropertyKey.REAL_QUEUE_ID)
_UNIQUE_KEY: Final = str(PropertyKey.UNIQUE_KEY)
#: In the order of precedence: the property, its unit in ms, whether it counts from the send on.
_TIMES: Final = (
    (str(PropertyKey.TIMER_DELAY_SEC), 1_000, True),
    (str(PropertyKey.TIMER_DELAY_MS), 1, True),
    (str(PropertyKey.TIMER_DELIVER_MS), 1, False),
)

_encode: Final = msgspec.json.Encoder().encode

#: Due time, offset in the queue, and the topic that counts it; a recall is of no topic.
Waiting: TypeAlias = tuple[int, int, str]
#: Identifies a message in recalls: time, topic and unique id, from its properties.
_Name: TypeAlias = tuple[str | None, str | None, str | None]


class TimerProgressBody(Body):
    """The contents of timerProgress.json; the module's docstring describes the numbers."""

    delivered_until_ms: int = 0
    read: int = 0
    low: int = 0
    apache_until_ms: int = 0
    apache_read: int = 0


class HeldRecords(Protocol):
    """Records of the timer's queue that another part of the broker keeps."""

    @property
    def version(self) -> int:
        """The number of changes so far."""
        ...

    def holds(self, topic: str | None) -> bool:
        """Whether timed messages of a topic are such records."""
        ...

    def read(
        self, record: Record, properties: Mapping[str, str], timer_offset: int, revive_queue: int
    ) -> None:
        """Take one."""
        ...

    def first_offset(self) -> int | None:
        """Return the offset of the first one that is still needed, or None."""
        ...


class TimedMessages:
    """All messages that wait for their time.

    Args:
        held: Takes the records that are not delivered.

    Attributes:
        events: Counts the messages that begin to wait, and those that were delivered.
    """

    def __init__(self, held: HeldRecords) -> None:
        self.events = EventCounts()
        self._changes = 0
        self._held = held
        self._read = 0  # offset of the first record that was not read
        self._passed: set[int] = set()  # offsets from there on that need not be read
        self._is_caught_up = False  # whether all records from before the start were read
        self._waiting: list[Waiting] = []  # a heap
        self._under_way: set[Waiting] = set()
        # Messages with this name and a lower offset are recalled; True if a marker does it.
        self._recalled: dict[_Name, tuple[int, bool]] = {}
        # Recalled messages whose marker is still in the heap: that was no recall of nothing.
        self._struck: set[_Name] = set()
        self._counts: dict[str, TimedCount] = {}
        self._counted = 0
        self._counted_ms = 0
        self._delivered_until_ms = 0
        self._retry_ms = 0
        self._before = TimerProgressBody()  # the progress at the start

    @property
    def version(self) -> int:
        """The number of changes since the start."""
        return self._changes + self._held.version

    def __len__(self) -> int:
        """Return how many messages wait, of those that were read."""
        return len(self._waiting) + len(self._under_way)

    def count(self, store: MessageStore) -> int:
        """Return how many messages wait, including records that were not read yet."""
        return len(self) + timer_queue(store).max_offset - self._read

    def next_due_ms(
        self, store: MessageStore, now_ms: int, *, is_writable: bool = True
    ) -> int | None:
        """Return when `fire_due` has something to do, or None."""
        if self.is_behind(store):
            return now_ms
        if not self._waiting or not is_writable:
            return None
        return max(self._waiting[0][0], self._retry_ms)

    # ---- reading the queue ----

    def read_new(self, store: MessageStore) -> list[Output]:
        """Read the next records of the queue; return a note for each that cannot be read."""
        queue = timer_queue(store)
        # Retention may have cut the queue's front, and a crash its end.
        self._read = min(max(self._read, queue.min_offset), queue.max_offset)
        self._before.read = min(self._before.read, queue.max_offset)
        outputs: list[Output] = []
        begun = self._read
        for unit in queue.units(self._read, TICK_READS_MAX):
            if self._read in self._passed:
                self._read += 1
                continue
            try:
                record = store.read_record(unit)
                self._add(self._read, record, record.properties())
            except RocketMQError as error:
                outputs.append(undelivered(self._read, error))
            self._read += 1
        self._changes += self._read - begun
        self._is_caught_up = self._is_caught_up or not self.is_behind(store)
        if self._passed:
            self._passed = {offset for offset in self._passed if offset >= self._read}
        return outputs

    def is_behind(self, store: MessageStore) -> bool:
        """Whether the queue has records that were not read."""
        return self._read < timer_queue(store).max_offset

    def pass_over(self, offset: int, count: int = 1) -> None:
        """Do not read records: they were just stored, and the one that holds them knows them.

        While records from before the start are left, those that follow them are read, too: their
        order matters.
        """
        if self._read == offset:
            self._read += count
            self._changes += 1
        elif self._is_caught_up:
            self._passed.update(range(offset, offset + count))

    def _add(self, offset: int, record: Record, properties: Mapping[str, str]) -> None:
        due_ms = _due_ms(record, properties)
        before = self._before
        if self._held.holds(properties.get(_REAL_TOPIC)):
            if offset >= before.apache_read or due_ms > before.apache_until_ms:
                queue_id = read_number(properties.get(_REAL_QUEUE_ID, "")) or 0
                self._held.read(record, properties, offset, queue_id)
            return
        if offset < before.read and due_ms <= before.delivered_until_ms:
            return
        is_marker = RECALLED_KEY in properties
        if is_marker or ROLLS_KEY in properties:
            self._recalled[_name_of(properties)] = (offset, is_marker)
        topic = properties.get(_REAL_TOPIC, "")
        self._count(topic, -1 if is_marker else 1, record.store_ms)
        if not is_marker and offset >= before.read:  # the others were counted by an earlier run
            self.events.timer_begun(topic, due_ms - record.store_ms)
        heappush(self._waiting, (due_ms, offset, "" if is_marker else topic))

    # ---- delivery ----

    def take_due(self, now_ms: int) -> Waiting | None:
        """Return the next message that is due, and mark it as under way."""
        if not self._waiting or self._waiting[0][0] > now_ms or now_ms < self._retry_ms:
            return None
        taken = heappop(self._waiting)
        self._under_way.add(taken)
        return taken

    def is_recalled(self, offset: int, properties: Mapping[str, str], now_ms: int) -> bool:
        """Whether a record is a recalled message, or the marker itself, which is forgotten now."""
        name = _name_of(properties)
        recalled_before, is_by_marker = self._recalled.get(name, (0, False))
        if recalled_before == offset:
            self._recalled.pop(name, None)
        topic = properties.get(_REAL_TOPIC, "")
        if RECALLED_KEY in properties:
            if name in self._struck:
                self._struck.discard(name)
            else:  # it recalled nothing
                self._count(topic, 1, now_ms)
            return True
        if offset < recalled_before and is_by_marker and name not in self._struck:
            self._struck.add(name)
            self._count(topic, 1, now_ms)  # `finish` counts it, and the marker has done so
        return offset < recalled_before

    def finish(self, taken: Waiting, error: RocketMQError | None, now_ms: int) -> None:
        """Note that a message was stored, or why it was not."""
        self._under_way.discard(taken)
        if error is None:
            self._changes += 1
            self._count(taken[2], -1, now_ms)
        else:
            heappush(self._waiting, taken)
            self._retry_ms = now_ms + RETRY_MS

    def _count(self, topic: str, change: int, now_ms: int) -> None:
        if not topic:
            return
        counted = self._counts.setdefault(topic, TimedCount())
        counted.count += change
        counted.time_stamp = self._counted_ms = now_ms
        self._counted += 1
        if not counted.count:
            del self._counts[topic]

    def counts(self) -> TimedCountsBody:
        """Return how many messages wait, by topic; recalled ones do not count."""
        version = DataVersion(timestamp=self._counted_ms, counter=self._counted, state_version=0)
        waiting = {topic: each for topic, each in self._counts.items() if each.count > 0}
        return TimedCountsBody(timing_count=waiting, data_version=version)

    def note_time(self, now_ms: int) -> None:
        """Note that the whole queue was read and that messages due until now are being taken."""
        self._delivered_until_ms = max(self._delivered_until_ms, now_ms)

    def waiting_from(self, index: int, count: int) -> list[Waiting]:
        """Return up to `count` of the messages that wait, in no special order."""
        return self._waiting[index : index + count]

    def first_due_ms(self) -> int | None:
        """Return when the first message that waits is due, or None."""
        return self._waiting[0][0] if self._waiting else None

    def unread(self, store: MessageStore) -> int:
        """Return how many records of the queue were not read yet."""
        return max(timer_queue(store).max_offset - self._read, 0)

    # ---- progress ----

    def progress(self) -> TimerProgressBody:
        """Return the progress of delivery."""
        # A message may still wait although it is due: a tick is limited, and clocks are set back.
        first_ms = min((due_ms for due_ms, *_ in (*self._waiting[:1], *self._under_way)), default=0)
        until_ms = self._delivered_until_ms
        low = min(
            (offset for _, offset, _ in chain(self._waiting, self._under_way)),
            default=self._read,
        )
        held_low = self._held.first_offset()
        return TimerProgressBody(
            delivered_until_ms=min(first_ms - 1, until_ms) if first_ms else until_ms,
            read=max(self._read, self._before.read),
            low=low if held_low is None else min(low, held_low),
            apache_until_ms=self._before.apache_until_ms,
            apache_read=self._before.apache_read,
        )

    def start_from(self, progress: TimerProgressBody) -> None:
        """Continue from a saved progress; call it before the queue is read."""
        self._before = progress
        self._delivered_until_ms = progress.delivered_until_ms
        self._read = progress.low

    def dump(self) -> bytes:
        """Encode the progress. Messages that it counts as delivered must be durable first."""
        return _encode(self.progress())

    def load(self, data: bytes) -> None:
        """Decode the progress.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        self.start_from(decode_body(TimerProgressBody, data))


def timer_queue(store: MessageStore) -> QueueIndex:
    """Return the queue in which all timed messages wait."""
    return store.queue(TIMER_TOPIC, 0)


def undelivered(offset: int, error: RocketMQError) -> Note:
    """Return the warning about a message that can never be delivered."""
    return Note(f"timed message {offset} is not delivered: {error}", is_warning=True)


def requested_ms(properties: Mapping[str, str], sent_ms: int) -> int | None:
    """Return the delivery time that properties request, or None.

    Raises:
        ValueError: The property is not a number.
    """
    for key, unit_ms, is_relative in _TIMES:
        text = properties.get(key)
        if text is not None:
            number = read_number(text)
            if number is None:
                raise ValueError(text)
            return number * unit_ms + (sent_ms if is_relative else 0)
    return None


def _due_ms(record: Record, properties: Mapping[str, str]) -> int:
    """Return when a record of the timer's queue is due.

    The requested time lies within the second after TIMER_OUT_MS. A marker stays to its end.
    """
    out_ms = read_number(properties.get(OUT_KEY, "")) or 0
    try:
        asked_ms = requested_ms(properties, record.store_ms)
    except ValueError:
        asked_ms = None
    if asked_ms is None or RECALLED_KEY in properties:
        return out_ms + SLOT_MS
    return min(max(asked_ms, out_ms + 1), out_ms + SLOT_MS)


def _name_of(properties: Mapping[str, str]) -> _Name:
    topic = properties.get(_REAL_TOPIC)
    unique_id = properties.get(RECALLED_KEY) or properties.get(_UNIQUE_KEY)
    if unique_id is not None:
        # Apache has an option to write the topic before the id.
        unique_id = unique_id.removeprefix(f"{topic}+")
    return properties.get(OUT_KEY), topic, unique_id
