"""What the calls of an admin return: settings, members, lag, resets, dead letters, what waits.

Names have no namespace here. All values are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from downrange.model import QueueId, ReceivedMessage

#: What a group is for: consumers of users, or the servers and their tools.
GroupKind: TypeAlias = Literal["normal", "system"]


class Unanswered(msgspec.Struct, frozen=True):
    """A broker that is missing from a result, and why."""

    broker: str
    address: str
    problem: str


# ---- groups and members --------------------------------------------------------------------------


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer group.

    Attributes:
        group: Its name.
        is_enabled: Whether it may read.
        can_broadcast: Whether members may read in broadcast mode, each all messages.
        retries: How often a message that a consumer sent back is delivered again.
        retry_queues: Queues of its retry topic.
        is_ordered: Whether a 5.x proxy delivers its messages in order.
        attributes: Settings of 5.x.
        brokers: Names of the brokers with these settings.
    """

    group: str
    is_enabled: bool = True
    can_broadcast: bool = True
    retries: int = 16
    retry_queues: int = 1
    is_ordered: bool = False
    attributes: dict[str, str] = {}
    brokers: tuple[str, ...] = ()


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in a list.

    Attributes:
        group: Its name.
        kind: What it is for.
        brokers: The brokers that have it.
        members: How many clients are connected; None when it was not asked.
        lag: Messages that are stored and not consumed; None when it was not asked.
        rate: Messages per second that its members read; None when it was not asked.
        mode: "push", "pull" or "pop"; None without members.
        model: "clustering" or "broadcast"; None without members.
    """

    group: str
    kind: GroupKind = "normal"
    brokers: tuple[str, ...] = ()
    members: int | None = None
    lag: int | None = None
    rate: float | None = None
    mode: str | None = None
    model: str | None = None


class GroupList(list[GroupSummary]):
    """Consumer groups by name.

    Attributes:
        unanswered: Brokers that did not answer: groups that only they have are missing, and so are
            their parts of the figures.
    """

    def __init__(
        self, groups: Iterable[GroupSummary] = (), unanswered: tuple[Unanswered, ...] = ()
    ) -> None:
        super().__init__(groups)
        self.unanswered = unanswered


class TopicFilter(msgspec.Struct, frozen=True, order=True):
    """What a member reads of a topic.

    Attributes:
        topic: The topic.
        expression: Tags such as "new || paid", "*", or an SQL92 expression.
        kind: "TAG" or "SQL92".
    """

    topic: str
    expression: str = "*"
    kind: str = "TAG"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A connected client of a group.

    Attributes:
        client_id: Its id.
        address: Its "host:port", as a broker sees it.
        language: Such as "JAVA"; None when the broker does not know it.
        version: The release of its protocol, such as "5.5.0".
        brokers: The brokers that it is connected to. A consumer should be connected to all.
        filters: What it reads, as it says itself; None when it was not asked or did not answer.
    """

    client_id: str
    address: str
    language: str | None = None
    version: str | None = None
    brokers: tuple[str, ...] = ()
    filters: tuple[TopicFilter, ...] | None = None


class SubscriptionDifference(msgspec.Struct, frozen=True):
    """A topic that the members of a group do not all read in the same way.

    Attributes:
        topic: The topic.
        expressions: Member -> its expression; None for a member that does not read the topic.
    """

    topic: str
    expressions: dict[str, str | None]

    def __str__(self) -> str:
        parts = [
            f"{client} reads {'nothing' if text is None else repr(text)}"
            for client, text in self.expressions.items()
        ]
        return f"topic {self.topic!r}: {', '.join(parts)}"


class GroupMembers(msgspec.Struct, frozen=True, kw_only=True):
    """The connected members of a consumer group.

    Attributes:
        group: The group.
        members: By client id; empty when none is connected.
        mode: "push", "pull" or "pop".
        model: "clustering" or "broadcast".
        start: Where a new group begins, in Java's word.
        filters: What the group reads, as brokers know it from the last heartbeat.
        unanswered: Brokers that did not answer.
    """

    group: str
    members: tuple[Member, ...] = ()
    mode: str | None = None
    model: str | None = None
    start: str | None = None
    filters: tuple[TopicFilter, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()

    @property
    def differences(self) -> tuple[SubscriptionDifference, ...]:
        """Topics that the members read differently; messages may be lost for some of them.

        Only members whose `filters` are known are compared.
        """
        known = {each.client_id: each.filters for each in self.members if each.filters is not None}
        tables = {
            client: {each.topic: _text(each) for each in filters}
            for client, filters in known.items()
        }
        found: list[SubscriptionDifference] = []
        for topic in sorted({topic for table in tables.values() for topic in table}):
            expressions = {client: table.get(topic) for client, table in tables.items()}
            if len(set(expressions.values())) > 1:
                found.append(SubscriptionDifference(topic, expressions))
        return tuple(found)


def _text(each: TopicFilter) -> str:
    """Return an expression in a form that is equal for equal filters."""
    if each.kind != "TAG":
        return f"{each.kind}: {each.expression}"
    return " || ".join(sorted(tag.strip() for tag in each.expression.split("||")))


class MemberQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that a member reads.

    Attributes:
        queue: The queue.
        committed: The offset that the member commits next; None by pop.
        buffered: Messages in its memory; by pop, those that it has not acknowledged.
        oldest: The offset of the first of them; None if there are none, and by pop.
        buffered_mib: Their size in MiB, rounded down.
        is_locked: Whether it holds the lock for reading in order.
        is_given_up: Whether it no longer reads the queue.
        pulled_at: When it asked for messages last.
        consumed_at: When it consumed last.
        by_pop: Whether it reads the queue by pop.
    """

    queue: QueueId
    committed: int | None = None
    buffered: int = 0
    oldest: int | None = None
    buffered_mib: int = 0
    is_locked: bool = False
    is_given_up: bool = False
    pulled_at: datetime | None = None
    consumed_at: datetime | None = None
    by_pop: bool = False


class MemberRates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a member reads and consumes a topic, in the last minute.

    Attributes:
        topic: The topic.
        pulled: Messages per second that it read.
        pull_ms: Milliseconds per pull.
        consumed: Messages per second that its handler consumed.
        consume_ms: Milliseconds per message in its handler.
        failed: Messages per second that its handler refused.
        failed_last_hour: Messages that its handler refused in the last hour.
    """

    topic: str
    pulled: float = 0.0
    pull_ms: float = 0.0
    consumed: float = 0.0
    consume_ms: float = 0.0
    failed: float = 0.0
    failed_last_hour: int = 0


class RunningState(msgspec.Struct, frozen=True, kw_only=True):
    """What a member of a group does now, as it says itself.

    Attributes:
        client_id: The member.
        properties: Its settings by Java's names, such as PROP_CONSUME_TYPE.
        filters: What it reads.
        queues: The queues that it reads.
        rates: How fast it is, by topic.
        stack: What its threads do, if it was asked for and the member gives it.
    """

    client_id: str
    properties: dict[str, str] = {}
    filters: tuple[TopicFilter, ...] = ()
    queues: tuple[MemberQueue, ...] = ()
    rates: tuple[MemberRates, ...] = ()
    stack: str | None = None


class DirectResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a member did with one message that it was told to consume.

    Attributes:
        client_id: The member.
        result: Java's word: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION and others.
        remark: What the member says about it.
        seconds: How long it took.
        is_ordered: Whether its handler is one for messages in order.
    """

    client_id: str
    result: str | None
    remark: str | None = None
    seconds: float = 0.0
    is_ordered: bool = False

    @property
    def is_consumed(self) -> bool:
        """Whether the handler accepted the message."""
        return self.result in ("CR_SUCCESS", "CR_COMMIT")


# ---- progress ------------------------------------------------------------------------------------


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind in a queue.

    Attributes:
        queue: The queue.
        committed: The offset of the next message to consume.
        end: The offset that the next message to be stored will get.
        in_flight: Messages that members have read and not committed; None when not known (4.9).
        consumed_at: When the last committed message was stored. Brokers do not keep the time of
            the commit itself.
        age: How long the oldest message has waited that is not consumed; None without lag.
        owner: The client id of the member that reads the queue; None when not known.
    """

    queue: QueueId
    committed: int
    end: int
    in_flight: int | None = None
    consumed_at: datetime | None = None
    age: timedelta | None = None
    owner: str | None = None

    @property
    def messages(self) -> int:
        """Messages that are stored and not consumed."""
        return max(self.end - self.committed, 0)


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind.

    Attributes:
        group: The group.
        queues: Its queues in all topics that it has read.
        rate: Messages per second that its members read.
        unanswered: Brokers that did not answer; their queues are missing.
    """

    group: str
    queues: tuple[QueueLag, ...] = ()
    rate: float = 0.0
    unanswered: tuple[Unanswered, ...] = ()

    @property
    def messages(self) -> int:
        """Messages in all queues that are stored and not consumed."""
        return sum(queue.messages for queue in self.queues)

    @property
    def age(self) -> timedelta | None:
        """How long the oldest message of all queues has waited; None without lag."""
        return max((queue.age for queue in self.queues if queue.age is not None), default=None)


class TopicProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind in a topic, over all brokers.

    Attributes:
        group: The group.
        topic: The topic; retry topics, too.
        lag: Messages that are stored and not consumed.
        rate: Messages per second that the group reads.
        queues: The queues in which it has offsets.
        consumed_at: When the last message was stored that it has committed.
    """

    group: str
    topic: str
    lag: int = 0
    rate: float = 0.0
    queues: int = 0
    consumed_at: datetime | None = None


class AllProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far all groups are behind in all topics.

    Attributes:
        topics: By group and topic.
        unanswered: Brokers that did not answer; what their queues hold is missing.
    """

    topics: tuple[TopicProgress, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


class Shift(msgspec.Struct, frozen=True):
    """Where to reset a group to: so many messages further, or back if below 0."""

    messages: int


#: Where to reset a group to: "earliest" (the first message), "latest" (skip everything), a time
#: (the first message stored then or later), an offset, so many messages on or back, or an offset
#: per queue.
ResetTarget: TypeAlias = (
    Literal["earliest", "latest"] | datetime | int | Shift | Mapping[QueueId, int]
)


class QueueReset(msgspec.Struct, frozen=True, kw_only=True):
    """The old and the new offset of a group in a queue.

    Attributes:
        queue: The queue.
        old: The committed offset; None when the group has none.
        new: The offset to set.
        first: The offset of the first message in the queue.
        end: The offset that the next message to be stored will get.
        is_cut: Whether `new` is not what was asked for, because the queue does not have it.
    """

    queue: QueueId
    old: int | None
    new: int
    first: int
    end: int
    is_cut: bool = False

    @property
    def change(self) -> int:
        """Messages that will be skipped; below 0, messages that will be consumed again.

        Without a committed offset, a group counts as one at the first message.
        """
        return self.new - (self.first if self.old is None else max(self.old, self.first))


class OffsetReset(msgspec.Struct, frozen=True, kw_only=True):
    """A reset of a group in a topic: a preview, or what was done.

    Attributes:
        group: The group.
        topic: The topic.
        queues: The change in each queue.
        at: The time that was asked for: a `datetime`, "earliest", "latest", or None for offsets.
        is_done: Whether it was applied.
    """

    group: str
    topic: str
    queues: tuple[QueueReset, ...]
    at: datetime | Literal["earliest", "latest"] | None = None
    is_done: bool = False

    @property
    def repeated(self) -> int:
        """Messages that the group consumes again."""
        return -sum(min(queue.change, 0) for queue in self.queues)

    @property
    def skipped(self) -> int:
        """Messages that the group does not consume."""
        return sum(max(queue.change, 0) for queue in self.queues)


# ---- dead letters --------------------------------------------------------------------------------


class DeadMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group failed to consume too often.

    Attributes:
        group: The group.
        message: The message in the dead-letter topic.
        topic: The topic that it was sent to; None when the message does not say it.
        origin_id: The offset id of the message in the topic that it was sent to. Its unique id is
            that of `message`.
    """

    group: str
    message: ReceivedMessage
    topic: str | None
    origin_id: str

    @property
    def died_at(self) -> datetime:
        """When it became a dead letter."""
        return self.message.stored_at


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters of a group, and where to go on.

    Attributes:
        group: The group.
        letters: By queue and offset.
        next: Where the next page begins: queue -> offset.
        is_complete: Whether there are no more.
    """

    group: str
    letters: tuple[DeadMessage, ...] = ()
    next: dict[QueueId, int] = {}
    is_complete: bool = True


class Resent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one dead letter.

    Attributes:
        letter: The dead letter.
        outcome: "sent", "skipped" (an earlier run has sent it), or "failed".
        topic: Where it went.
        message_id: Its new id, the same in every run.
        problem: Why it failed.
    """

    letter: DeadMessage
    outcome: Literal["sent", "skipped", "failed"]
    topic: str
    message_id: str
    problem: str | None = None


# ---- topics --------------------------------------------------------------------------------------


class QueueRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds, and from when.

    Attributes:
        queue: The queue.
        first: The offset of the first message.
        end: The offset that the next message will get.
        first_stored_at: When the first message was stored; None when it is empty.
        last_stored_at: When the last message was stored; None when it is empty.
    """

    queue: QueueId
    first: int
    end: int
    first_stored_at: datetime | None = None
    last_stored_at: datetime | None = None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages went into a topic, or from it to a group.

    Attributes:
        topic: The topic.
        group: The group that reads; None for messages that were sent.
        rate: Messages per second in the last minute.
        minute: Messages in the last minute.
        day: Messages in the last 24 hours. Brokers take a sample every hour, so in the first hour
            after their start it has those of shorter times only.
        mean_bytes: The mean size of these messages in the log; None if it was not asked for, or
            nothing was counted.
    """

    topic: str
    group: str | None = None
    rate: float = 0.0
    minute: int = 0
    day: int = 0
    mean_bytes: float | None = None


class QueueMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a queue from an offset on.

    Attributes:
        queue: The queue.
        messages: In the order of their offsets.
        next: The offset to go on at.
        first: The offset of the first message of the queue.
        end: The offset that the next message to be stored will get.
    """

    queue: QueueId
    messages: tuple[ReceivedMessage, ...] = ()
    next: int = 0
    first: int = 0
    end: int = 0

    @property
    def is_end(self) -> bool:
        """Whether the queue has no more messages."""
        return self.next >= self.end


# ---- servers -------------------------------------------------------------------------------------


class TimedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic that wait in a broker's timer (5.x).

    Attributes:
        topic: The topic that they go to.
        waiting: How many.
        changed_at: When this number changed last; None when it is not known.
    """

    topic: str
    waiting: int
    changed_at: datetime | None = None


class NameServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One of the client's name servers.

    Attributes:
        address: Its address.
        settings: By Java's names; empty when it did not answer.
        problem: Why it did not answer.
    """

    address: str
    settings: dict[str, str] = {}
    problem: str | None = None
