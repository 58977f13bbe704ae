"""Where `tail` ends: at the messages that are stored now, at an offset, or at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange import PullConsumer
    from downrange.model import QueueId, ReceivedMessage

#: The end of the messages that are stored now, an offset, or a time; each is exclusive.
End: TypeAlias = Literal["latest"] | int | datetime


class TailEnd:
    """Selects the messages before an end, and decides when all of them were read.

    A time is compared with the store time of each message: brokers of 4.9 find the offset of a time
    only roughly. Once the time has passed, every queue ends at its current end at the latest.

    Args:
        consumer: Reads the queues; they are assigned already.
        end: The end; None reads for ever.
        is_finite: Whether queues end at their current ends, if they do not have the offset yet.
    """

    def __init__(self, consumer: PullConsumer, end: End | None, is_finite: bool) -> None:
        self._consumer = consumer
        self._offset = end if isinstance(end, int) else None
        self._time = end if isinstance(end, datetime) else None
        self._time_ms = None if self._time is None else round(self._time.timestamp() * 1000)
        #: Queues in which a message at or after the time was seen.
        self._passed: set[QueueId] = set()
        self._ends = current_ends(consumer) if is_finite or end == "latest" else None

    def before(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages before the end."""
        if self._offset is not None:
            return [message for message in messages if message.offset < self._offset]
        if self._time_ms is None:
            return list(messages)
        found: list[ReceivedMessage] = []
        for message in messages:
            if message.stored_at_ms < self._time_ms:
                found.append(message)
            else:
                self._passed.add(message.queue)
        return found

    def is_reached(self) -> bool:
        """Return whether all messages before the end were read."""
        if self._time is not None and self._ends is None and current_time() >= self._time:
            self._ends = current_ends(self._consumer)
        ends: Mapping[QueueId, int] | None = self._ends
        if self._offset is not None:
            known = ends or dict.fromkeys(self._consumer.queues(), self._offset)
            ends = {queue: min(end, self._offset) for queue, end in known.items()}
        if ends is None:
            return False
        return all(
            queue in self._passed or _has_reached(self._consumer, queue, end)
            for queue, end in ends.items()
        )


def current_time() -> datetime:
    """Return the time of the system clock."""
    return datetime.now(UTC)


def current_ends(consumer: PullConsumer) -> dict[QueueId, int]:
    """Return the current end of each queue of a consumer."""
    from downrange import Admin

    with Admin(consumer.client) as admin:
        return {queue: admin.max_offset(queue) for queue in consumer.queues()}


def _has_reached(consumer: PullConsumer, queue: QueueId, end: int) -> bool:
    position = consumer.position(queue)
    return position is not None and position >= end
