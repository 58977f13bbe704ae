"""Delay levels: messages with one wait in SCHEDULE_TOPIC_XXXX, in one queue per level.

All messages of a level wait equally long, so a queue is in the order of delivery, and the tag hash
of a unit is the time when its message is due. `delayOffset.json` holds the next message of each
level. `delayed_delivery` stores the messages that are due.

Rules: a message is never delivered early. It counts as delivered when it is stored, so after a
crash some messages are delivered again and none is lost; without a crash, none is delivered twice.

If the clock is set back, messages would wait longer by that time. Their wait is capped: no message
waits longer than its level's delay from the moment when the broker notices that the clock is back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.options import delays_of
from downrange.server.broker.scheduled.redirect import RETRY_MS, TICK_BYTES_MAX, TICK_RECORDS_MAX
from downrange.wire.bodies import DataVersion, DelayOffsetsBody, decode_body
from downrange.wire.hashes import tag_hash
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from downrange.errors import RocketMQError
    from downrange.store.message_store import MessageStore, UnitTag
    from downrange.store.queue_index import QueueIndex, Unit

PATH: Final = "config/delayOffset.json"

_TOPIC: Final = SCHEDULE_TOPIC.encode()

_encode: Final = msgspec.json.Encoder().encode


class DelayLevel:
    """One level: its queue, and the progress of its delivery.

    Attributes:
        delay_ms: How long its messages wait.
        queue_id: Its queue in SCHEDULE_TOPIC_XXXX.
        taken: Offset of the first message whose delivery has not begun.
        under_way: Offsets of messages that are being stored.
        failed: Offsets of messages that could not be stored; they go first.
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
        # When the message at `taken` is due, and for which (taken, end) and time that was found.
        self._head_ms = 0
        self._seen = (0, 0)
        self._seen_ms = 0
        # (offset after the last message that the cap is for, latest due time of these messages)
        self._caps: deque[tuple[int, int]] = deque()

    @property
    def next_offset(self) -> int:
        """Offset of the first message that may not be delivered yet."""
        return min((*self.under_way, *self.failed), default=self.taken)

    def next_due_ms(self, queue: QueueIndex, now_ms: int) -> int | None:
        """Return when the next message is due; None while no message waits."""
        if self.failed:
            return self.retry_ms
        self._find_start(queue)
        if self.taken >= queue.max_offset:
            return None
        seen = (self.taken, queue.max_offset)
        if seen != self._seen or now_ms < self._seen_ms:  # else the answer is the same
            self._cap(queue, now_ms)
            (head,) = queue.units(self.taken, 1)
            self._seen, self._head_ms = seen, self._due_ms(self.taken, head)
        self._seen_ms = now_ms
        return self._head_ms

    def take_due(self, queue: QueueIndex, now_ms: int) -> list[tuple[int, Unit]]:
        """Return the next messages to deliver, with their offsets, and mark them as under way."""
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
        """Note that a message was stored, or why it was not."""
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
        """Keep `taken` within the queue: retention may have cut its front, a crash its end."""
        self.taken = min(max(self.taken, queue.min_offset), queue.max_offset)

    def _due_ms(self, offset: int, unit: Unit) -> int:
        caps = self._caps
        while caps and caps[0][0] <= offset:
            caps.popleft()
        return min(unit.tag_hash, caps[0][1]) if caps else unit.tag_hash

    def _cap(self, queue: QueueIndex, now_ms: int) -> None:
        """Add a cap if the clock was set back since the last message was stored or capped."""
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
    """All delay levels.

    Args:
        levels: Their delays, such as "1s 5s 2h", from level 1 on.

    Attributes:
        levels: By queue id in SCHEDULE_TOPIC_XXXX: level 1 has queue 0.
        version: The number of changes since the start.
    """

    def __init__(self, levels: str) -> None:
        self.levels = [DelayLevel(*numbered) for numbered in enumerate(delays_of(levels))]
        self.version = 0
        self._changed_ms = 0
        self._others: dict[int, int] = {}  # offsets of levels that no longer exist

    def next_due_ms(
        self, store: MessageStore, now_ms: int, *, is_writable: bool = True
    ) -> int | None:
        """Return when `deliver_due` can deliver the next message, or None."""
        if not is_writable:
            return None
        return min(
            (
                due_ms
                for level in self.levels
                if (due_ms := level.next_due_ms(queue_of(store, level), now_ms)) is not None
            ),
            default=None,
        )

    def note_change(self, now_ms: int) -> None:
        """Note that a level made progress."""
        self.version += 1
        self._changed_ms = now_ms

    def dump(self) -> bytes:
        """Encode delayOffset.json. Messages that it counts as delivered must be durable first."""
        offsets = {level.queue_id + 1: level.next_offset for level in self.levels}
        changed = DataVersion(timestamp=self._changed_ms, counter=self.version, state_version=0)
        table = {number: offset for number, offset in offsets.items() if offset}
        return _encode({"dataVersion": changed, "offsetTable": self._others | table})

    def load(self, data: bytes) -> None:
        """Decode delayOffset.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        for number, offset in decode_body(DelayOffsetsBody, data).offset_table.items():
            if 1 <= number <= len(self.levels):
                self.levels[number - 1].taken = offset
            else:
                self._others[number] = offset


def queue_of(store: MessageStore, level: DelayLevel) -> QueueIndex:
    """Return the queue in which a level's messages wait."""
    return store.queue(SCHEDULE_TOPIC, level.queue_id)


def unit_tag_of(levels: str) -> UnitTag:
    """Return the function for the tag hashes of queue units: due times of delayed messages."""
    delays = delays_of(levels)
    last = len(delays) - 1

    def unit_tag(topic: bytes, queue_id: int, store_ms: int, tag: str | None) -> int:
        if topic != _TOPIC:
            return tag_hash(tag)
        return store_ms + delays[min(queue_id, last)]

    return unit_tag
