"""JSON bodies of what brokers ask of a consumer: new offsets, running state, one message.

40    the group's members changed: no body
220   continue from new offsets: `decode_reset`
221   the offsets of the member: answered with `bodies.ConsumerStatusBody`
307   the running state: answered with `RunningStateBody`
309   handle one message now: its record is the body; answered with `bodies.ConsumeDirectlyBody`
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.wire import fastjson
from downrange.wire.bodies import Body, ResetOffsetBody, Subscription, convert_body


class QueueAndOffset(Body):
    """One queue and its new offset (Java: MessageQueueForC)."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsetListBody(Body):
    """New offsets as a list (Java: ResetOffsetBodyForC)."""

    offset_table: list[QueueAndOffset] = field(default_factory=list)


def decode_reset(data: bytes) -> dict[QueueId, int]:
    """Read the new offsets of request 220.

    The tool that resets a group decides about the form, not the consumer: a broker sends a list if
    the request of the tool had the language CPP, and else a map with objects as keys.

    Raises:
        MalformedBody: The bytes are not JSON, or have neither form.
    """
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise MalformedBody("ResetOffsetBody", "it is not an object")
    if not isinstance(value.get("offsetTable"), list):
        return convert_body(ResetOffsetBody, value).offset_table
    entries = convert_body(ResetOffsetListBody, value).offset_table
    return {
        QueueId(entry.topic, entry.broker_name, entry.queue_id): entry.offset for entry in entries
    }


class RunningProperty(StrEnum):
    """Names in `RunningStateBody.properties` that tools read."""

    NAME_SERVERS = "PROP_NAMESERVER_ADDR"
    #: "CONSUME_PASSIVELY" for push, "CONSUME_ACTIVELY" for pull.
    CONSUME_TYPE = "PROP_CONSUME_TYPE"
    #: The name of a release, such as "V5_5_0".
    CLIENT_VERSION = "PROP_CLIENT_VERSION"
    THREADS = "PROP_THREADPOOL_CORE_SIZE"
    #: "true" or "false".
    ORDERLY = "PROP_CONSUMEORDERLY"
    #: In milliseconds.
    STARTED_MS = "PROP_CONSUMER_START_TIMESTAMP"


class QueueRunningState(Body):
    """One queue of a member (Java: ProcessQueueInfo). Times are in milliseconds, or 0.

    Attributes:
        commit_offset: The group's offset, as the member knows it.
        cached_msg_min_offset: First offset of those that wait for the handler or are in it.
        cached_msg_max_offset: Last offset of those.
        cached_msg_count: How many these are.
        cached_msg_size_mib: Their bodies, in MiB.
        transaction_msg_min_offset: First offset of those in the handler of an orderly consumer.
        transaction_msg_max_offset: Last offset of those.
        transaction_msg_count: How many these are.
        locked: Whether an orderly consumer has the queue's lock.
        try_unlock_times: How often it tried to give the lock back.
        last_lock_timestamp: When it was last confirmed.
        droped: Whether the member gave the queue up.
        last_pull_timestamp: When the last pull was sent.
        last_consume_timestamp: When the handler was last called.
    """

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopQueueRunningState(Body):
    """One queue that a member pops from (Java: PopProcessQueueInfo, 5.x)."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumeRates(Body):
    """Rates of one topic (Java: ConsumeStatus): milliseconds, and messages per second.

    `consume_failed_msgs` is a count of the last hour.
    """

    pull_ms: float = field(name="pullRT", default=0.0)
    pull_rate: float = field(name="pullTPS", default=0.0)
    consume_ms: float = field(name="consumeRT", default=0.0)
    consume_ok_rate: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_rate: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class RunningStateBody(Body):
    """The state of a member (Java: ConsumerRunningInfo); 4.9 ignores the members of 5.x.

    Attributes:
        properties: By `RunningProperty`.
        subscription_set: What it reads.
        mq_table: Its queues.
        mq_pop_table: The queues that it pops from (5.x).
        status_table: Rates by topic.
        user_consumer_info: Facts of its own (5.x).
        jstack: Stacks of its threads, if the request asked for them.
    """

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[Subscription] = field(default_factory=list)
    mq_table: dict[QueueId, QueueRunningState] = field(default_factory=dict)
    mq_pop_table: dict[QueueId, PopQueueRunningState] = field(default_factory=dict)
    status_table: dict[str, ConsumeRates] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """Results of `bodies.ConsumeDirectlyBody` (Java: CMResult)."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    #: Only orderly consumers that commit by hand.
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THREW = "CR_THROW_EXCEPTION"
    RETURNED_NULL = "CR_RETURN_NULL"
