"""Single messages that wait: delayed ones, timed ones, and which halves of transactions have ended.

They are read from the topics in which brokers keep them. Delays are in the order of delivery there,
timed messages in the order of storing. A broker ends a half by a record with its offset.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from downrange.console.cluster.bodies import preview_of
from downrange.console.cluster.message_search import Budget
from downrange.console.cluster.pages.waiting import DelayedMessageRow
from downrange.console.cluster.scan import read_end
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import is_broker_system_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange import AsyncAdmin, QueueState, ReceivedMessage
    from downrange.console.cluster.pages.waiting import DelayLevel

#: Messages that are read of each delay level, and of the timer of each broker.
_READ_MAX: Final = 20
#: Messages that are shown.
_SHOWN_MAX: Final = 50
#: The newest records of ends that are read, of each broker.
_ENDS_READ: Final = 500


# ---- delayed and timed ---------------------------------------------------------------------------


async def delayed_messages(
    admin: AsyncAdmin, levels: Iterable[DelayLevel], states: Iterable[QueueState]
) -> list[DelayedMessageRow]:
    """Return the messages of each delay level that are delivered next.

    Args:
        admin: Asks the cluster.
        levels: The levels.
        states: The queues of the topic of delayed messages.

    Raises:
        RocketMQError: A server did not answer.
    """
    known = {(level.broker, level.level): level for level in levels if level.waiting}

    async def read(state: QueueState) -> list[DelayedMessageRow]:
        level = known.get((state.queue.broker, state.queue.number + 1))
        if level is None:
            return []
        offset = max(level.delivered or 0, state.min_offset)
        batch = await admin.read_queue(state.queue, offset, max_count=_READ_MAX, decode_body=False)
        return [
            _delayed(message, level.level, _after(message, level.delay))
            for message in batch.messages
        ]

    return [row for rows in await asyncio.gather(*map(read, states)) for row in rows]


async def timed_messages(
    admin: AsyncAdmin, states: list[QueueState], now: datetime
) -> list[DelayedMessageRow]:
    """Return those of the newest timed messages that are not due yet.

    Raises:
        RocketMQError: A server did not answer.
    """
    messages, _ = await read_end(admin, states, _READ_MAX, Budget())
    rows = [_delayed(message, None, _out_time(message)) for message in messages]
    # Brokers keep pops there, too, and store a message with a long delay once more.
    waiting = {
        row.message_id: row
        for row in rows
        if row.due_at is not None and row.due_at > now and not is_broker_system_topic(row.topic)
    }
    return list(waiting.values())


def by_due_time(rows: Iterable[DelayedMessageRow]) -> tuple[DelayedMessageRow, ...]:
    """Return the first messages to be delivered; those without a time come last."""
    end = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(rows, key=lambda row: (row.due_at or end, row.message_id))[:_SHOWN_MAX])


def _after(message: ReceivedMessage, delay: float | None) -> datetime | None:
    return None if delay is None else message.stored_at + timedelta(seconds=delay)


def _out_time(message: ReceivedMessage) -> datetime | None:
    text = message.properties.get(PropertyKey.TIMER_OUT_MS, "")
    try:
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _delayed(
    message: ReceivedMessage, level: int | None, due_at: datetime | None
) -> DelayedMessageRow:
    return DelayedMessageRow(
        broker=message.queue.broker,
        topic=message.properties.get(PropertyKey.REAL_TOPIC, ""),
        level=level,
        due_at=due_at,
        message_id=message.message_id,
        stored_in=message.topic,
        offset_id=message.offset_id,
        stored_at=message.stored_at,
        keys=tuple(message.keys),
        preview=preview_of(message),
    )


# ---- halves --------------------------------------------------------------------------------------


class EndedHalves:
    """Which halves have ended, as far as the newest records of ends tell.

    Args:
        ends: The records that were read.
        counts: Broker -> how many records it holds.
    """

    def __init__(self, ends: Iterable[ReceivedMessage], counts: Mapping[str, int]) -> None:
        self._offsets: dict[str, set[int]] = {broker: set() for broker in counts}
        self._first: dict[str, datetime] = {}
        read = dict.fromkeys(counts, 0)
        for end in ends:
            broker = end.queue.broker
            read[broker] += 1
            self._offsets[broker].update(_offsets_in(end.body))
            self._first[broker] = min(self._first.get(broker, end.stored_at), end.stored_at)
        self._complete = {broker for broker, count in counts.items() if read[broker] >= count}

    def has_ended(self, half: ReceivedMessage) -> bool | None:
        """Return whether a half has ended; None if its end may be older than what was read."""
        broker = half.queue.broker
        if half.offset in self._offsets.get(broker, ()):
            return True
        first = self._first.get(broker)
        is_known = broker in self._complete or (first is not None and first < half.stored_at)
        return False if is_known else None


async def read_ends(admin: AsyncAdmin, states: list[QueueState]) -> EndedHalves:
    """Read the newest records of ends.

    Raises:
        RocketMQError: A server did not answer.
    """
    ends, _ = await read_end(admin, states, _ENDS_READ, Budget())
    counts: dict[str, int] = {}
    for state in states:
        counts[state.queue.broker] = counts.get(state.queue.broker, 0) + state.count
    return EndedHalves(ends, counts)


def _offsets_in(body: bytes) -> list[int]:
    """Return the offsets of a record of ends: "12", or "12,15,16," of 5.x."""
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) < 20]
