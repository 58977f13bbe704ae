"""Topics: the list, and one topic in detail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Missing, Note, Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """A group that reads a topic.

    Attributes:
        group: The group.
        lag: Messages that are stored and not consumed; None where the brokers did not tell it.
        rate: Messages per second that it reads.
        consumed_at: When the last message was stored that it has consumed.
    """

    group: str
    lag: int | None
    rate: float | None
    consumed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list.

    Attributes:
        topic: Its name.
        kind: "normal", "retry", "dead-letter" or "system".
        queues: Its queues on all brokers.
        messages: Messages that it holds.
        stored_bytes: About how many bytes they have in the logs: brokers do not tell it, so it is
            their number by the mean size of those of the last 24 hours, or of the newest ones.
            None where these cannot be read.
        sent_rate: Messages per second that were sent to it in the last minute.
        sent_day: Messages that were sent to it in the last 24 hours.
        first_stored_at: When its oldest message was stored; None when it is empty.
        last_stored_at: When its newest message was stored.
        span: Seconds between the two: the time that it goes back.
        groups: Groups that read it, the largest lag first.
        lag: The largest lag of its groups; 0 without a group.
        problem: Why figures are missing, such as a broker that does not answer.
    """

    topic: str
    kind: str
    queues: int | None = None
    messages: int | None = None
    stored_bytes: float | None = None
    sent_rate: float | None = None
    sent_day: int | None = None
    first_stored_at: datetime | None = None
    last_stored_at: datetime | None = None
    span: float | None = None
    groups: tuple[TopicGroup, ...] = ()
    lag: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsPage:
    """A page of the list of topics.

    Attributes:
        paging: Which part it is. Columns: "name", "lag", "groups", "messages", "sent_rate",
            "last_stored_at".
        rows: The topics. Their figures are read for this page.
        notes: For example that an order by rate uses figures of an earlier time, because brokers
            can only be asked topic by topic.
    """

    paging: Paging
    rows: tuple[TopicRow, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueue:
    """A queue of a topic.

    Attributes:
        broker: Its broker.
        queue: Its number.
        first: The offset of its first message.
        end: The offset that the next message gets.
        messages: Messages that it holds.
        first_stored_at: When the first message was stored; None when it is empty.
        last_stored_at: When the last message was stored.
        span: Seconds between the two.
    """

    broker: str
    queue: int
    first: int
    end: int
    messages: int
    first_stored_at: datetime | None
    last_stored_at: datetime | None
    span: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The part of a topic's route on one broker.

    Attributes:
        broker: The broker.
        cluster: Its cluster; empty where the name server does not tell it.
        addresses: Replica id -> address; 0 is the master.
        read_queues: Queues that consumers read.
        write_queues: Queues that producers send to.
        permission: "rw", "r", "w" or "".
    """

    broker: str
    cluster: str
    addresses: dict[int, str]
    read_queues: int
    write_queues: int
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettingsRow:
    """The settings of a topic on one broker; for the form that alters it."""

    broker: str
    read_queues: int
    write_queues: int
    permission: str
    is_ordered: bool
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetail:
    """One topic.

    Attributes:
        row: Its line of the list.
        queues: What each queue holds.
        route: Where it is.
        settings: Its settings on each broker; empty when a broker did not answer.
        groups: The groups that read it, connected or not.
        missing: Brokers that did not answer.
        notes: What is not known.
    """

    row: TopicRow
    queues: tuple[TopicQueue, ...]
    route: tuple[TopicRoute, ...]
    settings: tuple[TopicSettingsRow, ...]
    groups: tuple[TopicGroup, ...]
    missing: tuple[Missing, ...] = ()
    notes: tuple[Note, ...] = ()
