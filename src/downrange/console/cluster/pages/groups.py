"""Groups: the list, one group in detail, and the preview of a reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Missing, Note, Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A consumer group in the list.

    Attributes:
        group: Its name.
        kind: "normal" or "system".
        topics: Topics in which it has offsets, with retry topics.
        members: Connected clients; None when it is not known.
        mode: "push", "pull" or "pop"; None without members.
        model: "clustering" or "broadcast"; None without members.
        lag: Messages that are stored and not consumed.
        rate: Messages per second that it reads.
        consumed_at: When the last message was stored that it has consumed.
        brokers: The brokers that have it.
        problem: Why figures are missing.
    """

    group: str
    kind: str
    topics: int
    members: int | None
    mode: str | None
    model: str | None
    lag: int | None
    rate: float | None
    consumed_at: datetime | None
    brokers: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPage:
    """A page of the list of groups.

    Attributes:
        paging: Which part it is. Columns: "name", "lag", "rate", "topics", "consumed_at".
        rows: The groups. Members are asked for the rows of this page only.
        notes: What is not known.
    """

    paging: Paging
    rows: tuple[GroupRow, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A connected member of a group.

    Attributes:
        client_id: Its id.
        address: Its "host:port".
        language: Such as "JAVA" or "PYTHON".
        version: The release of its protocol.
        brokers: Brokers that it is connected to; a consumer should be connected to all.
        reads: What it reads, as it says itself: topic -> expression; None if it did not answer.
        queues: How many queues it reads; None if it did not answer.
    """

    client_id: str
    address: str
    language: str | None
    version: str | None
    brokers: tuple[str, ...]
    reads: dict[str, str] | None
    queues: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRow:
    """What the members of a group read of one topic.

    Attributes:
        topic: The topic.
        expressions: Client id -> its expression; None for a member that does not read the topic.
            Members that did not answer are left out.
        is_same: Whether all members read it in the same way. If not, messages get lost for some.
        known: The expression that brokers know from the last heartbeat.
    """

    topic: str
    expressions: dict[str, str | None]
    is_same: bool
    known: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """How far a group is behind in a queue.

    Attributes:
        topic: The topic.
        broker: The broker.
        queue: The number of the queue.
        committed: The offset of the next message to consume.
        end: The offset that the next message to be stored gets.
        lag: Messages that are stored and not consumed.
        in_flight: Messages that members have read and not committed; None when not known (4.9).
        age: How long, in seconds, the oldest message has waited that is not consumed.
        consumed_at: When the last committed message was stored. Brokers do not keep the time of
            the commit itself.
        owner: The client id of the member that reads it.
    """

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int
    in_flight: int | None
    age: float | None
    consumed_at: datetime | None
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettingsRow:
    """The settings of a group on one broker."""

    broker: str
    is_enabled: bool
    can_broadcast: bool
    retries: int
    retry_queues: int
    is_ordered: bool
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """One consumer group.

    Attributes:
        group: Its name.
        settings: On each broker; empty while one is down.
        mode: "push", "pull" or "pop"; None without members.
        model: "clustering" or "broadcast".
        start: Where a new group begins, in Java's word.
        members: The connected clients.
        subscriptions: What they read, topic by topic; those that differ first.
        queues: How far it is behind, queue by queue; the first `limits.QUEUE_ROWS_MAX`.
        topics: The topics in which it has offsets, without retry topics.
        lag: Messages that are stored and not consumed.
        age: Seconds that the oldest message has waited.
        rate: Messages per second that it reads.
        dead_letters: Dead letters that are stored.
        missing: Brokers that did not answer.
        notes: What is not known.
    """

    group: str
    settings: tuple[GroupSettingsRow, ...]
    mode: str | None
    model: str | None
    start: str | None
    members: tuple[MemberRow, ...]
    subscriptions: tuple[SubscriptionRow, ...]
    queues: tuple[GroupQueue, ...]
    topics: tuple[str, ...]
    lag: int
    age: float | None
    rate: float
    dead_letters: int | None
    missing: tuple[Missing, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetQueue:
    """What a reset changes in one queue.

    Attributes:
        topic: The topic.
        broker: The broker.
        queue: The number of the queue.
        old: The committed offset; None when the group has none.
        new: The offset to set.
        first: The offset of the first message.
        end: The offset that the next message gets.
        change: Messages that are skipped; below 0, messages that are consumed again.
        is_cut: Whether `new` is not what was asked for, because the queue does not have it.
    """

    topic: str
    broker: str
    queue: int
    old: int | None
    new: int
    first: int
    end: int
    change: int
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPreview:
    """What a reset, a skip or a clone of offsets would change, or has changed.

    Attributes:
        group: The group that changes.
        queues: The change in each queue.
        repeated: Messages that the group consumes again.
        skipped: Messages that it does not consume.
        is_done: Whether it was applied.
        command: The equal command line.
    """

    group: str
    queues: tuple[ResetQueue, ...]
    repeated: int
    skipped: int
    is_done: bool
    command: str
