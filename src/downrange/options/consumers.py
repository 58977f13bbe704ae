"""Options of group consumers. Java's names stand in parentheses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from downrange.allocation import AllocateForGroup, Average, Strategy, strategy_of
from downrange.checks import (
    check_between,
    check_count,
    check_flag,
    check_number,
    check_one_of,
    check_positive,
    check_timeout,
    check_type,
    check_wait,
    wrong_type,
)
from downrange.errors import OptionError
from downrange.options.clients import GroupStart, Trace, check_group_start
from downrange.wire.limits import MIB

if TYPE_CHECKING:
    from downrange.model import QueueId

#: How messages reach the handler: any number at a time; per queue one after the other; or popped,
#: so that members share queues instead of dividing them (5.x).
ConsumeMode: TypeAlias = Literal["concurrent", "orderly", "pop"]
#: Whether a message is for one member of the group, or for every member.
MessageModel: TypeAlias = Literal["clustering", "broadcast"]
#: Seconds between two commits of a consumer that does not say otherwise.
DEFAULT_COMMIT: Final = 5.0
#: Seconds that a lock is trusted after the broker confirmed it; the broker keeps it for 60.
LOCK_TRUST: Final = 30.0
_MODES: Final = get_args(ConsumeMode)


class OffsetStore(Protocol):
    """Keeps the offsets of broadcast consumers.

    A store may also have a method `release(group)`; a consumer calls it when it is closed. What a
    method raises is a `StoreError` for the consumer; a `save` that failed is repeated.
    """

    def load(self, group: str) -> dict[QueueId, int]:
        """Return the offset of each queue at which a group reads on; empty for a new group."""
        ...

    def save(self, group: str, offsets: dict[QueueId, int]) -> None:
        """Keep offsets; those of other queues stay as they are.

        Args:
            group: The group.
            offsets: For each queue, the offset behind the last message that was handled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a member of a consumer group consumes.

    Attributes:
        mode: "concurrent": handlers run side by side, in any order. "orderly": the messages of a
            queue are handled one after the other, in order; a failed one is repeated first. "pop":
            the broker hands out messages one by one, and members share all queues; 5.x.
        model: "clustering": each message is for one member of the group. "broadcast": each is for
            every member; offsets are kept by `offset_store`.
        batch: Most messages per call of the handler; with more than 1 it takes a list
            (consumeMessageBatchMaxSize).
        concurrency: Calls of the handler at a time (consumeThreadMax).
        handle_timeout: A call that takes more seconds is reported as stuck (consumeTimeout). Its
            queue goes on until `span` is reached.
        retries: How often a failed message is delivered again before it becomes a dead letter;
            None is 16, and no limit for "orderly" (maxReconsumeTimes).
        start: Where the group begins in queues in which it has no offset yet: "latest", "earliest"
            or a time (consumeFromWhere). For a group that has consumed before it has no effect.
        strategy: How the members divide the queues; all members must use the same one
            (allocateMessageQueueStrategy).
        pull_batch: Messages per request (pullBatchSize); less if a queue's share of the buffer is
            less. Apache's brokers return at most 32 unless they are configured otherwise.
        suspend: Seconds that a broker holds a request while there is no message. With many queues
            it is a hundredth of their number, up to 120: idle queues cost little, and a reset of
            one at a 5.x broker is noticed after that time.
        buffer_messages: Messages that are fetched and not handled, in all queues together. In the
            mode "pop" at most 96, or three for each call of the handler and message of its batch.
        buffer_bytes: The bytes of their bodies. A further answer is dropped, and fetched again.
        queue_messages: The same as `buffer_messages`, for each queue (pullThresholdForQueue).
        queue_bytes: The same as `buffer_bytes`, for each queue (pullThresholdSizeForQueue).
        span: Most offsets between the first message of a queue that is not handled and the last one
            that was handed out; so that a stuck handler does not let thousands pass that are
            delivered again after a restart (consumeConcurrentlyMaxSpan).
        commit_interval: Seconds between two commits of offsets (persistConsumerOffsetInterval).
        rebalance_interval: Seconds between two looks at the members and queues; changes are usually
            told at once.
        lock_interval: Seconds between two renewals of the locks on queues, less than 30: so long
            a lock is trusted.
        handover_timeout: Seconds that a member which loses a queue lets running handlers end, and
            that the next owner waits for it, and `call_timeout` more for its commit. Then the next
            owner goes on, except with "orderly".
        suspend_queue: Seconds until a failed message of an orderly queue is tried again
            (suspendCurrentQueueTimeMillis).
        invisible: Seconds in which a popped message must be handled; it is extended while its
            handler runs (popInvisibleTime).
        retry_backoff: Seconds until a failed pull is repeated; doubled after each further failure.
        retry_backoff_max: The longest of these pauses, in seconds.
        broadcast_retries: How often a failed message is handled again in the model "broadcast",
            where no broker delivers it again.
        offset_store: Where offsets are kept in the model "broadcast": `FolderOffsets`,
            `MemoryOffsets` or your own.
        messages_max: Most messages that are handed out until the consumer is closed; then it is
            paused, and `resume` has no effect. The others stay for the group. None for no limit.
        trace: Record each delivery in the trace topic.
        decode_body: Whether bodies are decompressed.
        check_subscriptions: Whether to compare the subscriptions with those that the brokers have
            for the group, and to warn when members differ.
        unit_mode: Sent with heartbeats and with messages that are sent back, as by
            `ClientOptions(is_unit_mode=True)` for all that a client does (unitMode).
    """

    mode: ConsumeMode = "concurrent"
    model: MessageModel = "clustering"
    batch: int = 1
    concurrency: int = 20
    handle_timeout: float = 900.0
    retries: int | None = None
    start: GroupStart = "latest"
    strategy: Strategy | AllocateForGroup = field(default_factory=Average)
    pull_batch: int = 256
    suspend: float = 15.0
    buffer_messages: int = 10_000
    buffer_bytes: int = 64 * MIB
    queue_messages: int = 1000
    queue_bytes: int = 64 * MIB
    span: int = 2000
    commit_interval: float = DEFAULT_COMMIT
    rebalance_interval: float = 20.0
    lock_interval: float = 20.0
    handover_timeout: float = 10.0
    suspend_queue: float = 1.0
    invisible: float = 60.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 3.0
    broadcast_retries: int = 3
    offset_store: OffsetStore | None = None
    messages_max: int | None = None
    trace: Trace | bool = False
    decode_body: bool = True
    check_subscriptions: bool = True
    unit_mode: bool = False

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_one_of("mode", self.mode, _MODES)
        check_one_of("model", self.model, get_args(MessageModel))
        check_between(1, 1024, "batch", self.batch)
        check_between(1, 1000, "concurrency", self.concurrency)
        check_between(1, 1024, "pull_batch", self.pull_batch)
        for name in ("handle_timeout", "suspend"):
            check_timeout(getattr(self, name), name)
        limits = ("buffer_messages", "buffer_bytes", "queue_messages", "queue_bytes", "span")
        for name in limits:
            check_count(1, name, getattr(self, name))
        for name in (
            *("commit_interval", "rebalance_interval", "lock_interval"),
            *("retry_backoff", "retry_backoff_max"),
        ):
            check_positive(name, getattr(self, name))
        if self.lock_interval >= LOCK_TRUST:
            raise OptionError(
                f"lock_interval={self.lock_interval} is not less than {LOCK_TRUST:g}: a lock is "
                "trusted for so many seconds after it was renewed"
            )
        check_wait("handover_timeout", self.handover_timeout)
        check_positive("suspend_queue", self.suspend_queue)
        check_number("invisible", self.invisible, "a number of seconds")
        if not 1 <= self.invisible <= 43_200:
            raise OptionError(f"invisible={self.invisible} is not from 1 second to 12 hours")
        if self.retries is not None:
            check_count(0, "retries", self.retries)
        check_count(0, "broadcast_retries", self.broadcast_retries)
        if self.messages_max is not None:
            check_count(1, "messages_max", self.messages_max)
        check_group_start(self.start)
        object.__setattr__(self, "strategy", strategy_of(self.strategy))
        check_type("trace", self.trace, (Trace, bool), "a Trace, True or False")
        check_flag("decode_body", self.decode_body)
        check_flag("check_subscriptions", self.check_subscriptions)
        check_flag("unit_mode", self.unit_mode)
        self._check_model()

    def _check_model(self) -> None:
        store = self.offset_store
        if isinstance(store, type):
            expected, hint = "an object with load() and save()", f"write {store.__qualname__}()"
            raise wrong_type("offset_store", store, expected, hint)
        for name in ("load", "save"):
            if store is not None and not callable(getattr(store, name, None)):
                raise OptionError(f"offset_store={store!r} has no method {name}()")
        if self.model == "clustering" and self.offset_store is not None:
            raise OptionError(
                "offset_store is for model='broadcast'; with 'clustering' the brokers keep offsets"
            )
        if self.model == "broadcast" and self.mode == "pop":
            raise OptionError("mode='pop' shares messages; model='broadcast' gives all to each")
        if self.retry_backoff_max < self.retry_backoff:
            raise OptionError(
                f"retry_backoff_max={self.retry_backoff_max} is less than "
                f"retry_backoff={self.retry_backoff}"
            )
