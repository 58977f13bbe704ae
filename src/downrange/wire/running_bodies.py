"""The running state of a consumer as a JSON body (Java: ConsumerRunningInfo), request 307."""

from __future__ import annotations

from msgspec import field

from downrange.model import QueueId
from downrange.wire.bodies import Body, Subscription


class RunningQueue(Body):
    """A queue that a member reads by pull (Java: ProcessQueueInfo); times are ms since 1970."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size: int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False  # sic
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class RunningPopQueue(Body):
    """A queue that a member reads by pop (Java: PopProcessQueueInfo)."""

    wait_ack_count: int = 0
    droped: bool = False  # sic
    last_pop_timestamp: int = 0


class RunningRates(Body):
    """How fast a member reads and consumes a topic (Java: ConsumeStatus)."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class RunningStateBody(Body):
    """What a member of a consumer group does now."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[Subscription] = field(default_factory=list)
    mq_table: dict[QueueId, RunningQueue] = field(default_factory=dict)
    mq_pop_table: dict[QueueId, RunningPopQueue] = field(default_factory=dict)
    status_table: dict[str, RunningRates] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None
