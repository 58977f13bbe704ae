"""Notices: what happened in a flow that an operator may want to read in a log.

Flows do not log. They append a notice to `ClientCore.notices`, and `ClientCore.publish` hands it to
the client's observer as a `UserCall`, outside the atomic step: a log handler may block, or send a
message with the same client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from downrange.client.flows.routing.health import HealthSnapshot

if TYPE_CHECKING:  # the structs here are never decoded, so their annotations are not evaluated
    from downrange.client.flows.routing.routes import Route  # noqa: TC004
    from downrange.errors import RocketMQError  # noqa: TC004
    from downrange.model import Attempt, QueueId, ReceivedMessage  # noqa: TC004

#: Most notices that wait to be published; then the oldest are dropped.
NOTICES_MAX: Final = 1000


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt to send failed.

    Attributes:
        topic: The topic of the message.
        message_id: Its unique id; the ids of a batch joined by commas.
        number: Which attempt it was, from 1 on.
        attempt: Broker, address, queue, error and time.
    """

    topic: str
    message_id: str
    number: int
    attempt: Attempt


class AttemptRepeated(msgspec.Struct, frozen=True):
    """Another attempt follows one that failed.

    Attributes:
        message_id: The unique id of the message.
        number: Which attempt it is, from 2 on.
        broker: The broker that it goes to.
        address: The broker's address.
        pause: Seconds until it begins.
    """

    message_id: str
    number: int
    broker: str
    address: str
    pause: float


class RouteChanged(msgspec.Struct, frozen=True):
    """A route was found, or differs from the cached one.

    Attributes:
        old: The cached route; None if there was none.
        new: The route that replaces it.
    """

    old: Route | None
    new: Route


class HeartbeatEnded(msgspec.Struct, frozen=True):
    """A heartbeat was answered, or failed.

    Attributes:
        address: The broker's address.
        elapsed: Seconds that it took.
        error: Why it failed; None if it was answered.
    """

    address: str
    elapsed: float
    error: RocketMQError | None = None


class UserCodeFailed(msgspec.Struct, frozen=True):
    """A hook, selector, check, local work or callback of the user raised an exception.

    Attributes:
        where: Which function.
        error: The exception, with its traceback.
    """

    where: str
    error: BaseException


class WorkFailed(msgspec.Struct, frozen=True):
    """Something failed that no caller waits for.

    Attributes:
        what: What was to be done.
        error: Why it failed.
    """

    what: str
    error: RocketMQError


class AssignmentChanged(msgspec.Struct, frozen=True):
    """A member of a group took or lost queues.

    Attributes:
        group: The group.
        taken: New queue -> where it begins, and why there.
        lost: Queues that go to others.
    """

    group: str
    taken: dict[QueueId, tuple[int, str]]
    lost: list[QueueId]


class HandoverEnded(msgspec.Struct, frozen=True):
    """A member took a queue although its former owner may not be done with it.

    Attributes:
        group: The group.
        queue: The queue.
        waited: Seconds that it waited.
    """

    group: str
    queue: QueueId
    waited: float


class QueueFailed(msgspec.Struct, frozen=True):
    """A queue cannot be read, and is tried again; or it continues elsewhere.

    Attributes:
        group: The group.
        queue: The queue.
        error: Why; None when it continues elsewhere.
        what: What happened.
    """

    group: str
    queue: QueueId
    error: RocketMQError | None
    what: str


class QueueRecovered(msgspec.Struct, frozen=True):
    """A queue can be read again.

    Attributes:
        group: The group.
        queue: The queue.
    """

    group: str
    queue: QueueId


class LockLost(msgspec.Struct, frozen=True):
    """Another member has the lock of a queue that is consumed here.

    Attributes:
        group: The group.
        queue: The queue.
    """

    group: str
    queue: QueueId


class CommitFailed(msgspec.Struct, frozen=True):
    """Offsets could not be committed; the next commit tries again.

    Attributes:
        group: The group.
        error: Why.
    """

    group: str
    error: RocketMQError


class HandlerFailed(msgspec.Struct, frozen=True):
    """A handler raised an exception.

    Attributes:
        group: The group.
        message: The message, or the first one of a batch.
        error: The exception, with its traceback.
        plan: What happens to the message now.
    """

    group: str
    message: ReceivedMessage
    error: BaseException
    plan: str


class HandlerStuck(msgspec.Struct, frozen=True):
    """A handler takes longer than `handle_timeout`.

    Attributes:
        group: The group.
        message: The message, or the first one of a batch.
        age: Seconds since it began.
    """

    group: str
    message: ReceivedMessage
    age: float


class SubscriptionsDiffer(msgspec.Struct, frozen=True):
    """Members of one group subscribe to different things, so that messages are missed.

    Attributes:
        group: The group.
        ours: Topic -> expression of this member.
        theirs: The same of another member, as the broker has it.
    """

    group: str
    ours: dict[str, str]
    theirs: dict[str, str]

    @property
    def text(self) -> str:
        """What is wrong, with both subscriptions."""
        return (
            "members subscribe to different things, so messages are missed. This member: "
            f"{_listed(self.ours)}. The broker has, from another member: {_listed(self.theirs)}. "
            "Give all members the same subscriptions, or groups of their own"
        )


def _listed(subscriptions: dict[str, str]) -> str:
    return ", ".join(f"{topic} {text!r}" for topic, text in sorted(subscriptions.items())) or "none"


class TopicUnread(msgspec.Struct, frozen=True):
    """A topic that was subscribed has no queues to read.

    Attributes:
        group: The group.
        topic: The topic.
        problem: Why; it follows the name of the topic.
        next_step: What to do, a sentence without its full stop.
    """

    group: str
    topic: str
    problem: str
    next_step: str


class SharesMissing(msgspec.Struct, frozen=True):
    """The queues of a topic cannot be divided, so that this member gets no new ones.

    Attributes:
        group: The group.
        topic: The topic; others with the same reason have no notice of their own.
        reason: Why.
        error: What the strategy of the user raised; None if it is not the cause.
    """

    group: str
    topic: str
    reason: str
    error: Exception | None = None


class SharesFound(msgspec.Struct, frozen=True):
    """The queues of all topics can be divided again.

    Attributes:
        group: The group.
    """

    group: str


class ClientIdTaken(msgspec.Struct, frozen=True):
    """Another client of the group has the same id, so some queues are read twice or never.

    Attributes:
        group: The group.
        client_id: The id.
        addresses: The connections that have it, as the broker sees them.
    """

    group: str
    client_id: str
    addresses: tuple[str, ...]


ConsumerNotice: TypeAlias = (
    AssignmentChanged
    | HandoverEnded
    | QueueFailed
    | QueueRecovered
    | LockLost
    | CommitFailed
    | HandlerFailed
    | HandlerStuck
    | SubscriptionsDiffer
    | ClientIdTaken
    | TopicUnread
    | SharesMissing
    | SharesFound
)
Notice: TypeAlias = (
    AttemptFailed
    | AttemptRepeated
    | RouteChanged
    | HeartbeatEnded
    | HealthSnapshot
    | UserCodeFailed
    | WorkFailed
    | ConsumerNotice
)
