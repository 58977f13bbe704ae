"""Delayed messages, timed messages, and halves of transactions, as far as brokers tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Missing, Note


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayLevel:
    """A level of delay on one broker.

    Attributes:
        broker: The broker.
        level: Its number, from 1.
        delay: Its seconds; None when the broker's settings do not name the level.
        stored: Messages in its queue that are still in the log, delivered or not.
        delivered: The offset up to which the broker has delivered; None when it is not told.
        waiting: Messages that are not yet delivered; None when it is not told.
        last_stored_at: When the last message of this level was stored.
    """

    broker: str
    level: int
    delay: float | None
    stored: int
    delivered: int | None
    waiting: int | None
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTopic:
    """Timed messages (5.x) of one topic on one broker: those with a delivery time of their own.

    Attributes:
        broker: The broker.
        topic: The topic that they go to.
        waiting: Messages that are not yet delivered.
        changed_at: When the number changed last.
    """

    broker: str
    topic: str
    waiting: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerRow:
    """The timer of one broker (5.x).

    Attributes:
        broker: The broker.
        waiting: Messages that wait in the timer; None when it is not told.
        read_behind: Seconds that deliveries are behind their time; None when it is not told.
        unread: Timed messages that are stored and not yet in the timer; None when it is not told.
        stored: Timed messages that the log holds, delivered or not.
        last_stored_at: When the last timed message was stored.
    """

    broker: str
    waiting: int | None
    read_behind: float | None
    unread: int | None
    stored: int | None
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessageRow:
    """A message that is delivered later.

    Attributes:
        broker: The broker.
        topic: The topic that it goes to.
        level: Its delay level; None if it has a delivery time of its own.
        due_at: When it is delivered; None when the broker's settings do not name the level.
        message_id: Its unique id.
        stored_in: The topic in which the broker keeps it.
        offset_id: Its id by place, to find it there.
        stored_at: When it was stored.
        keys: Its keys.
        preview: The start of its body, on one line; or why it cannot be decompressed.
    """

    broker: str
    topic: str
    level: int | None
    due_at: datetime | None
    message_id: str
    stored_in: str
    offset_id: str
    stored_at: datetime
    keys: tuple[str, ...]
    preview: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfRow:
    """Halves of transactions on one broker.

    Attributes:
        broker: The broker.
        stored: Halves that the log holds, ended or not. A check of a half stores it once more.
        ended: Records of ends (commits and rollbacks) that the log holds; None when they cannot be
            counted. A record of 5.x may end several halves.
        last_stored_at: When the last half was stored.
    """

    broker: str
    stored: int
    ended: int | None
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessageRow:
    """One of the newest halves, once.

    Attributes:
        broker: The broker.
        offset: Its offset in the queue of halves.
        topic: The topic that it goes to.
        group: The producer group that is asked for its outcome.
        message_id: Its unique id.
        stored_at: When it was stored.
        checks: How often the producer was asked for its outcome.
        is_ended: Whether it was committed or rolled back, by the newest records of ends; None when
            they cannot be read, or do not go back so far. Brokers of 5.x write them some seconds
            later.
        preview: The start of its body, on one line; or why it cannot be decompressed.
    """

    broker: str
    offset: int
    topic: str
    group: str
    message_id: str
    stored_at: datetime
    checks: int
    is_ended: bool | None
    preview: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPage:
    """What waits in the brokers to be delivered or to be ended.

    Attributes:
        levels: Delay levels that hold messages.
        timers: The timer of each broker.
        timed: Timed messages by topic, most first; only where a release tells it.
        delayed: The next messages of each delay level, and the newest timed ones that are not due
            yet, by delivery time.
        halves: Halves of transactions.
        newest_halves: The newest halves that can be read.
        missing: Brokers that did not answer.
        notes: What the releases of these brokers do not tell.
    """

    levels: tuple[DelayLevel, ...]
    timers: tuple[TimerRow, ...]
    timed: tuple[TimedTopic, ...]
    delayed: tuple[DelayedMessageRow, ...]
    halves: tuple[HalfRow, ...]
    newest_halves: tuple[HalfMessageRow, ...]
    missing: tuple[Missing, ...] = ()
    notes: tuple[Note, ...] = ()
