"""The overview: rates, storage, brokers, lags and dead letters, and the history of rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import ClusterState, Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Figures over time, one column per figure; ready to be drawn.

    Attributes:
        step: Seconds between two points.
        times: Unix seconds of each point, rising.
        columns: Name of the figure -> its value at each time; None where nothing was known. Names:
            "sent" and "received" (messages per second), "lag" (messages of all groups), "stored"
            (bytes).
    """

    step: float
    times: tuple[float, ...]
    columns: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker in a list.

    Attributes:
        name: Its name.
        cluster: Its cluster.
        address: The address of its master; of the first replica where there is no master.
        replicas: How many replicas are registered, with the master.
        is_up: Whether it answered the last poll, even if with an error.
        since: Since when it is so.
        problem: Why it did not answer; or the error that it answered with, and then its figures
            are not known.
        version: Its release.
        sent_rate: Messages per second that it stored, since the poll before.
        received_rate: Messages per second that clients read from it, since the poll before.
        sent_total: Messages that it stored since its start.
        received_total: Messages that clients read since its start.
        stored_bytes: Size of its commit log.
        disk_used: Used part of the disk that has the commit log, 0 to 1.
        started_at: When it was started.
    """

    name: str
    cluster: str
    address: str
    replicas: int
    is_up: bool
    since: datetime | None
    problem: str | None = None
    version: str | None = None
    sent_rate: float | None = None
    received_rate: float | None = None
    sent_total: int | None = None
    received_total: int | None = None
    stored_bytes: int | None = None
    disk_used: float | None = None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """A group that is behind in a topic.

    Attributes:
        group: The group.
        topic: The topic.
        messages: Messages that are stored and not consumed.
        rate: Messages per second that the group reads from the topic.
        consumed_at: When the last message was stored that it has consumed.
    """

    group: str
    topic: str
    messages: int
    rate: float
    consumed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """How many messages of a group died in the last hour.

    Attributes:
        group: The group.
        last_hour: Messages that became dead letters in the last hour.
        total: Dead letters that are stored.
        last_at: When the last one died.
    """

    group: str
    last_hour: int
    total: int
    last_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The overview of a cluster, as of the last poll.

    Attributes:
        state: Whether the cluster answers. If not, the other figures are the last known ones.
        at: When the figures were read; None before the first poll.
        poll_seconds: How often the cluster is asked.
        sent_rate: Messages per second of all brokers; None before the second poll.
        received_rate: Messages per second of all brokers.
        stored_bytes: Size of all commit logs.
        disk_used: The fullest disk, 0 to 1.
        brokers_up: Brokers that answer.
        brokers: All brokers, by name.
        topic_count: Topics of users.
        group_count: Groups that have offsets.
        lag: Messages that are stored and not consumed, over all groups.
        largest_lags: The groups that are most behind.
        dead_letters: Groups with dead letters of the last hour, most first.
        dead_letters_last_hour: Their number.
        recent: The last 15 minutes.
        day: The last 24 hours, with a coarser step; the mean of each step.
        notes: What is not known.
    """

    state: ClusterState
    at: datetime | None
    poll_seconds: float
    sent_rate: float | None
    received_rate: float | None
    stored_bytes: int | None
    disk_used: float | None
    brokers_up: int
    brokers: tuple[BrokerRow, ...]
    topic_count: int | None
    group_count: int | None
    lag: int | None
    largest_lags: tuple[LagRow, ...]
    dead_letters: tuple[DeadLetterCount, ...]
    dead_letters_last_hour: int | None
    recent: Series
    day: Series
    notes: tuple[Note, ...] = ()
