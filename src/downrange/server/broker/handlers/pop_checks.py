"""Checks that pops, peeks, notifications and counts of polls have in common, and their remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import ensure_group
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import Output, Peer, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.limits import ATTEMPT_ID_BYTES_MAX, INVISIBLE_MS_MAX
from downrange.wire.pop_headers import PopReply
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import TopicConfig
    from downrange.wire.command import Command

NO_MESSAGE: Final = "NO_MESSAGE_IN_QUEUE"
#: Apache writes it into replies that it gives no remark.
NO_REMARK: Final = "not set any response code"
#: A request that is older than its waiting time and this much more is not answered with messages:
#: its sender has given up.
_LATE_MS: Final = 500


def is_late(born_ms: int, poll_ms: int, now_ms: int) -> bool:
    """Whether the sender of a request no longer waits for the answer."""
    return born_ms > 0 and now_ms - born_ms - poll_ms > _LATE_MS


def invisible_within(invisible_ms: int) -> int:
    """Return an invisible time that a client gave, or the limit that it exceeds."""
    return min(max(invisible_ms, 0), INVISIBLE_MS_MAX)


def check_age(state: BrokerState, born_ms: int, poll_ms: int, now_ms: int) -> Command | None:
    """Refuse a request whose sender no longer waits for the answer."""
    if not is_late(born_ms, poll_ms, now_ms):
        return None
    remark = f"the broker[{state.host.host}] pop message is timeout too much"
    return refusal(ResponseCode.POLLING_TIMEOUT, remark)


def check_permission(state: BrokerState) -> Command | None:
    """Refuse what only looks at messages if the broker may not be read."""
    if state.accepts_pulls:
        return None
    remark = f"the broker[{state.host.host}] peeking message is forbidden"
    return refusal(ResponseCode.NO_PERMISSION, remark)


def check_attempt(attempt_id: str | None) -> Command | None:
    """Refuse a long attempt id, since the broker keeps it."""
    size = 0 if attempt_id is None else len(attempt_id.encode())
    if size <= ATTEMPT_ID_BYTES_MAX:
        return None
    remark = f"attemptId has {size} bytes, and at most {ATTEMPT_ID_BYTES_MAX} are allowed"
    return refusal(ResponseCode.INVALID_PARAMETER, remark)


def check_topic(state: BrokerState, name: str, queue_id: int, peer: Peer) -> Command | None:
    """Refuse a topic that does not exist or is not readable, and a queue that it does not have."""
    topic = state.topics.get(name)
    if topic is None:
        remark = f"topic[{name}] not exist, apply first please! {FAQ}"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not topic.perm & READ:
        remark = f"the topic[{name}] peeking message is forbidden"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    return _check_queue(topic, queue_id, peer)


def _check_queue(topic: TopicConfig, queue_id: int, peer: Peer) -> Command | None:
    if ALL_QUEUES <= queue_id < topic.read_queue_nums:
        return None
    remark = (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
    )
    return refusal(ResponseCode.INVALID_PARAMETER, remark)


def check_group(
    state: BrokerState, name: str, now_ms: int, outputs: list[Output]
) -> Command | None:
    """Refuse a group that cannot be created or is switched off.

    Args:
        state: The broker.
        name: The group's name.
        now_ms: The time.
        outputs: Gets a `TablesChanged` if the group was created.
    """
    group = ensure_group(state, name, now_ms, outputs)
    if group is None:
        remark = f"subscription group [{name}] does not exist, {FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group.consume_enable:
        remark = f"subscription group no permission, {name}"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    return None


def with_zeros(refused: Command) -> Command:
    """Add the fields that every reply to a pop or a peek has."""
    refused.fields = PopReply().to_fields()
    return refused
