"""Delayed messages: those with a delay level wait in SCHEDULE_TOPIC_XXXX, a queue per level.

All messages of a level wait equally long, so its queue is in the order of delivery, and a unit's
tag hash is the time when its message is due. `delayOffset.json` says how far each level has come.

Rules: nothing is delivered early. A message counts as delivered when it is stored, so a crash
delivers a little again and loses nothing; without one, nothing is delivered twice.

A clock that is set back would leave messages waiting for as long as it was set back. They are
capped: nobody waits longer than the level's delay from when we saw that the clock is behind.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.errors import RocketMQError, StoreError
from downrange.options import delays_of
from downrange.server.broker.scheduled.redirect import (
    RETRY_MS,
    TICK_BYTES_MAX,
    TICK_RECORDS_MAX,
    read_number,
    redirect,
    undo_redirect,
)
from downrange.server.outputs import Note, Output, refusal
from downrange.wire.bodies import DataVersion, DelayOffsetsBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.hashing import tag_hash
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex, Unit
    from downrange.wire.command import Command
    from downrange.wire.records import Record

PATH: Final = "config/delayOffset.json"

_TOPIC: Final = SCHEDULE_TOPIC.encode()
_DELAY: Final = str(PropertyKey.DELAY)
_TIMER_KEYS: Final = tuple(
    map(
        str,
        (PropertyKey.TIMER_DELAY_SEC, PropertyKey.TIMER_DELAY_MS, PropertyKey.TIMER_DELIVER_MS),
    )
)

_encode: Final = msgspec.json.Encoder().encode


class DelayLevel:
    """One level: its queue, and how far delivery has come.

    Attributes:
        delay_ms: How long its messages wait.
        queue_id: Its queue in SCHEDULE_TOPIC_XXXX.
        taken: The first message that delivery was not begun of.
        under_way: Those that are being stored.
        failed: Those that could not be stored; they go first.
        retry_ms: When to try these again.
    """

    __slots__ = (
        "_caps",
        "_head_ms",
        "_seen",
        "_seen_ms",
        "delay_ms",
        "failed",
        "queue_id",
        "retry_ms",
        "taken",
        "under_way",
    )

    def __init__(self, queue_id: int, delay_ms: int) -> None:
        self.queue_id = queue_id
        self.delay_ms = delay_ms
        self.taken = 0
        self.under_way: set[int] = set()
        self.failed: list[int] = []
        self.retry_ms = 0
        #: When the first one that waits is due, as of which place, end and time we looked.
        self._head_ms = 0
        self._seen = (0, 0)
        self._seen_ms = 0
        #: (number behind the last message it holds for, when these are due at the latest)
        self._caps: deque[tuple[int, int]] = deque()

    @property
    def next_offset(self) -> int:
        """The first message that is not known to be delivered."""
        return min((*self.under_way, *self.failed), default=self.taken)

    def next_due_ms(self, queue: QueueIndex, now_ms: int) -> int | None:
        """Return when there is something to deliver; None while nothing waits."""
        if self.failed:
            return self.retry_ms
        self._find_start(queue)
        if self.taken >= queue.max_offset:
            return None
        seen = (self.taken, queue.max_offset)
        if seen != self._seen or now_ms < self._seen_ms:  # nothing else can change the answer
            self._cap(queue, now_ms)
            (head,) = queue.units(self.taken, 1)
            self._seen, self._head_ms = seen, self._due_ms(self.taken, head)
        self._seen_ms = now_ms
        return self._head_ms

    def take_due(self, queue: QueueIndex, now_ms: int) -> list[tuple[int, Unit]]:
        """Return the next messages to deliver, with their numbers, and count them as under way."""
        due_ms = self.next_due_ms(queue, now_ms)
        if due_ms is None or due_ms > now_ms:
            return []
        if self.failed:
            offsets, self.failed = self.failed, []
            kept = [offset for offset in offsets if offset >= queue.min_offset]
            taken = [(offset, queue.units(offset, 1)[0]) for offset in kept]
        else:
            taken = self._take_from_queue(queue, now_ms)
        self.under_way.update(offset for offset, _ in taken)
        return taken

    def finish(self, offset: int, error: RocketMQError | None, now_ms: int) -> None:
        """Hear whether a message was stored."""
        self.under_way.discard(offset)
        if error is not None:
            self.failed.append(offset)
            self.retry_ms = now_ms + RETRY_MS

    def _take_from_queue(self, queue: QueueIndex, now_ms: int) -> list[tuple[int, Unit]]:
        taken: list[tuple[int, Unit]] = []
        size = 0
        for unit in queue.units(self.taken, TICK_RECORDS_MAX):
            if self._due_ms(self.taken, unit) > now_ms or size > TICK_BYTES_MAX:
                break
            taken.append((self.taken, unit))
            self.taken += 1
            size += unit.size
        return taken

    def _find_start(self, queue: QueueIndex) -> None:
        """Stay within the queue: retention may have cut its front, a crash its end."""
        self.taken = min(max(self.taken, queue.min_offset), queue.max_offset)

    def _due_ms(self, offset: int, unit: Unit) -> int:
        caps = self._caps
        while caps and caps[0][0] <= offset:
            caps.popleft()
        return min(unit.tag_hash, caps[0][1]) if caps else unit.tag_hash

    def _cap(self, queue: QueueIndex, now_ms: int) -> None:
        """See whether the clock was set back since the last message was stored, or capped."""
        caps, end = self._caps, queue.max_offset
        latest_ms = now_ms + self.delay_ms
        last_ms = (
            caps[-1][1] if caps and caps[-1][0] == end else queue.units(end - 1, 1)[0].tag_hash
        )
        if last_ms > latest_ms:
            while caps and caps[-1][1] > latest_ms:
                caps.pop()
            caps.append((end, latest_ms))


class DelayedMessages:
    """All levels.

    Args:
        levels: Their delays, such as "1s 5s 2h"; level 1 comes first.

    Attributes:
        levels: By their queues in SCHEDULE_TOPIC_XXXX: level 1 is number 0.
        version: How many changes there were since the start.
    """

    def __init__(self, levels: str) -> None:
        self.levels = [DelayLevel(*numbered) for numbered in enumerate(delays_of(levels))]
        self.version = 0
        self._changed_ms = 0
        self._others: dict[int, int] = {}  # offsets of levels that there are no more

    def next_due_ms(self, state: BrokerState, now_ms: int) -> int | None:
        """Return when `deliver_due` has something to do, or None."""
        if state.unwritable is not None:
            return None
        return min(
            (
                due_ms
                for level in self.levels
                if (due_ms := level.next_due_ms(_queue_of(state, level), now_ms)) is not None
            ),
            default=None,
        )

    def note_change(self, now_ms: int) -> None:
        """Note that a level has come farther."""
        self.version += 1
        self._changed_ms = now_ms

    def dump(self) -> bytes:
        """Write delayOffset.json. What it counts as delivered must be durable before it is."""
        offsets = {level.queue_id + 1: level.next_offset for level in self.levels}
        changed = DataVersion(timestamp=self._changed_ms, counter=self.version, state_version=0)
        table = {number: offset for number, offset in offsets.items() if offset}
        return _encode({"dataVersion": changed, "offsetTable": self._others | table})

    def load(self, data: bytes) -> None:
        """Read delayOffset.json as we or Java wrote it.

        Raises:
            MalformedBody: It cannot be read.
        """
        for number, offset in decode_body(DelayOffsetsBody, data).offset_table.items():
            if 1 <= number <= len(self.levels):
                self.levels[number - 1].taken = offset
            else:
                self._others[number] = offset


def unit_tag_of(levels: str) -> Callable[[Record, str | None], int]:
    """Return what a store calls for each queue unit's tag hash: due times for delayed messages."""
    delays = delays_of(levels)
    last = len(delays) - 1

    def unit_tag(record: Record, tag: str | None) -> int:
        if record.topic_bytes != _TOPIC:
            return tag_hash(tag)
        return record.store_ms + delays[min(record.queue_id, last)]

    return unit_tag


def delay_message(state: BrokerState, record: Record, properties: dict[str, str]) -> Command | None:
    """Send a message with a delay level on its detour, or return the refusal.

    A level below 1 is none, and one beyond the last is the last. A level wins over timer
    properties, which are removed.
    """
    text = properties.get(_DELAY)
    if text is None:
        return None
    level = read_number(text)
    if level is None:
        return refusal(ResponseCode.SYSTEM_ERROR, f"the delay level {text[:40]!r} is no number")
    if level <= 0:
        return None
    last = len(state.delays.levels)
    if level > last:
        level = last
        properties[_DELAY] = str(last)
    for key in _TIMER_KEYS:
        properties.pop(key, None)
    redirect(record, properties, _TOPIC, level - 1)
    return None


def deliver_due(state: BrokerState, now_ms: int) -> list[Output]:
    """Have the messages that are due stored at the end of this turn.

    It is a bounded number; `DelayedMessages.next_due_ms` says whether there are more.
    """
    outputs: list[Output] = []
    if state.unwritable is None:
        for level in state.delays.levels:
            for offset, unit in level.take_due(_queue_of(state, level), now_ms):
                outputs += _deliver(state, level, offset, unit, now_ms)
    return outputs


def _queue_of(state: BrokerState, level: DelayLevel) -> QueueIndex:
    return state.store.queue(SCHEDULE_TOPIC, level.queue_id)


def _deliver(
    state: BrokerState, level: DelayLevel, offset: int, unit: Unit, now_ms: int
) -> Iterable[Output]:
    """Store one message where it belongs; one that cannot be delivered at all is reported."""

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is not None and not isinstance(error, StoreError):
            return drop(error, now_ms)
        level.finish(offset, error, now_ms)
        state.delays.note_change(now_ms)
        return ()

    def drop(error: RocketMQError, now_ms: int) -> Iterable[Output]:
        level.finish(offset, None, now_ms)
        state.delays.note_change(now_ms)
        text = f"message {offset} of delay level {level.queue_id + 1} is not delivered: {error}"
        return [Note(text, is_warning=True)]

    try:
        record = state.store.read_record(unit)
        properties = record.properties()
        undo_redirect(state, record, properties)
    except RocketMQError as error:
        return drop(error, now_ms)
    state.write_queue.add([record], [properties], on_stored)
    return ()
