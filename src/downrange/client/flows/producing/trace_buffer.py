"""Tracing: records of sends, transactions and recalls, buffered and sent to the trace topic.

Sends and transactions add a record to a `TraceBuffer`, which is cheap and never fails; `trace_loop`
empties it in the background, or `dispatch_loop` if the user gave a dispatcher. One rule: tracing
never delays or fails a message. A full buffer drops records, a failed send of traces loses them,
and both are only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from downrange.client.flows.effects import Flow, Gather, Signal, UserCall, Wait
from downrange.client.flows.hooks import MessageType
from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubBeforeTrace,
    encode_contexts,
    index_keys,
)
from downrange.errors import RocketMQError
from downrange.model import Message, SendReceipt, SendStatus
from downrange.wire.codes import TransactionFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import CLOUD_TRACE_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.effects import Clock
    from downrange.client.flows.hooks import EndTransactionContext, Report
    from downrange.client.flows.producing.trace_records import TraceRecord
    from downrange.options.clients import AccessChannel, Trace, TraceDispatcher

#: The largest body of a trace message (Java's dispatcher has the same).
BODY_BYTES_MAX: Final = 128_000
#: The region when the broker gives none.
DEFAULT_REGION: Final = "DefaultRegion"
#: Timeout in seconds for sending a trace message.
SEND_TIMEOUT: Final = 5.0

# All properties of a message together have 32,767 bytes; the ids of a large batch are more.
_KEYS_BYTES_MAX: Final = 30_000
_SENDS_AT_ONCE: Final = 4
# Records to encode in one step: about a millisecond of work.
_TAKEN_MAX: Final = 100
_STATE_NAMES: Final = {
    TransactionFlag.COMMIT: "COMMIT_MESSAGE",
    TransactionFlag.ROLLBACK: "ROLLBACK_MESSAGE",
}
_STATE_UNKNOWN: Final = "UNKNOW"  # as Java spells it

Send: TypeAlias = Callable[[Message], Flow[SendReceipt]]


class TraceBuffer:
    """Trace records that wait to be sent.

    Args:
        options: The topic, the size of batches, the longest wait, and the size of the buffer.
        clock: The time.
        channel: "cloud" sends the records of each region to the trace topic of that region.

    Attributes:
        ready: Fires when there are enough records for a message; replaced after it has fired.
        dropped_count: Records that found the buffer full, or were too large for a message.
        sent_count: Trace messages that were sent; records, with a dispatcher.
        failed_count: Trace messages whose send failed; failed calls, with a dispatcher.
        under_way: Trace messages that are being sent now.
        settled: Fires when no trace message is being sent; closing makes a new one to wait for.
        is_closing: Whether the dispatcher is being closed.
    """

    __slots__ = (
        *("_enough", "_is_cloud", "_oldest_at", "_options", "_waiting"),
        *("clock", "dropped_count", "failed_count", "ready", "sent_count"),
        *("is_closing", "settled", "under_way"),
    )

    def __init__(self, options: Trace, clock: Clock, channel: AccessChannel = "local") -> None:
        self.ready = Signal()
        self.settled = Signal()
        self.is_closing = False
        self.dropped_count = self.failed_count = self.sent_count = self.under_way = 0
        self._options = options
        self.clock = clock
        self._is_cloud = channel == "cloud"
        self._enough = min(options.batch_count, options.queue_max)
        if options.dispatcher is not None:
            self._enough = 1
        self._waiting: list[_Waiting] = []
        self._oldest_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def traces_topic(self, topic: str) -> bool:
        """Return whether messages of this topic are traced: all but the trace topic's."""
        prefix = CLOUD_TRACE_PREFIX if self._is_cloud else self._options.topic
        return not topic.startswith(prefix)

    @property
    def is_cloud(self) -> bool:
        """Whether records go to the trace topic of their region."""
        return self._is_cloud

    @property
    def dispatcher(self) -> TraceDispatcher | None:
        """The user's object that takes the records; None when they are sent to a topic."""
        return self._options.dispatcher

    @property
    def flush_interval(self) -> float:
        """Seconds between two calls of `flush` of the dispatcher."""
        return self._options.flush_interval

    def add(
        self,
        record: TraceRecord,
        keys: Iterable[str] | None = None,
        *,
        region: str | None = None,
    ) -> None:
        """Add a record, or drop it when the buffer is full.

        Args:
            record: The record.
            keys: The keys to find it by; the ids and keys of the message unless given.
            region: The region of a record that does not name it, a `SubAfterTrace`.
        """
        count = len(self._waiting)
        if count >= self._options.queue_max:
            self.dropped_count += 1
            return
        if not count:
            self._oldest_at = self.clock.now()
        self._waiting.append(_Waiting(record, keys, region))
        if count + 1 == self._enough:
            self.ready.fire()

    def due_in(self, now: float) -> float:
        """Return the seconds until the oldest record, or one added now, has waited long enough."""
        since = self._oldest_at if self._waiting else now
        return max(0.0, since + self._options.flush_interval - now)

    def take(self, now: float) -> list[Message]:
        """Return trace messages if there are enough records, or one has waited long enough.

        From a long buffer only the first records are taken, because encoding them blocks all other
        flows; `ready` stays fired for the rest.
        """
        if len(self._waiting) >= self._enough or self.due_in(now) == 0.0:
            return self._take(_TAKEN_MAX)
        return []

    def take_all(self) -> list[Message]:
        """Return trace messages of all records; for closing."""
        return self._take(len(self._waiting))

    def take_records(self, count: int) -> list[_Waiting]:
        """Remove and return the first records, each with what was given for it."""
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        if self.ready.is_fired and len(self._waiting) < self._enough:
            self.ready = Signal()
        return taken

    def _take(self, count: int) -> list[Message]:
        """Encode the first records; as in Java, a message has records of one region and topic."""
        taken = self.take_records(count)
        parcels: dict[tuple[str | None, ...], list[_Parcel]] = {}
        for record, given, region in taken:
            line = encode_contexts((record,))
            if len(line) > BODY_BYTES_MAX:
                self.dropped_count += 1
                continue
            keys = index_keys(record) if given is None else _words(given)
            group = parcels.setdefault(_group_of(record, region), [])
            if not group or not group[-1].take(line, keys, self._options.batch_count):
                group.append(_Parcel(line, keys))
        return [
            parcel.seal(self._topic_of(group))
            for group, sealed in parcels.items()
            for parcel in sealed
        ]

    def _topic_of(self, group: tuple[str | None, ...]) -> str:
        if not self._is_cloud:
            return self._options.topic
        region = group[0] if group else None
        return f"{CLOUD_TRACE_PREFIX}{region or DEFAULT_REGION}"


class _Waiting(NamedTuple):
    """A record that waits, with its keys and its region if they were given."""

    record: TraceRecord
    keys: Iterable[str] | None
    region: str | None


class _Parcel:
    """Records of one trace message; too many keys of the first record are cut."""

    __slots__ = ("_body_bytes", "_keys", "_keys_bytes", "_lines")

    def __init__(self, line: bytes, keys: list[str]) -> None:
        while (keys_bytes := _bytes_of(keys)) > _KEYS_BYTES_MAX:
            keys = keys[: len(keys) // 2]
        self._lines = [line]
        self._body_bytes = len(line)
        self._keys = dict.fromkeys(keys)  # a set that keeps the order
        self._keys_bytes = keys_bytes

    def take(self, line: bytes, keys: list[str], count_max: int) -> bool:
        """Add one more record, or return False when there is no room for it."""
        body_bytes = self._body_bytes + len(line)
        keys_bytes = self._keys_bytes + _bytes_of(keys)
        if (
            len(self._lines) >= count_max
            or body_bytes > BODY_BYTES_MAX
            or keys_bytes > _KEYS_BYTES_MAX
        ):
            return False
        self._lines.append(line)
        self._body_bytes = body_bytes
        self._keys.update(dict.fromkeys(keys))
        self._keys_bytes = keys_bytes
        return True

    def seal(self, topic: str) -> Message:
        """Return the trace message."""
        return Message(topic, b"".join(self._lines), keys=self._keys)


def _bytes_of(keys: list[str]) -> int:
    return len(" ".join(keys).encode(errors="replace")) + 1  # the blank before the next one


def _words(keys: Iterable[str]) -> list[str]:
    return [word for key in keys for word in key.split()]


def _group_of(record: TraceRecord, region: str | None) -> tuple[str | None, ...]:
    match record:
        case PubTrace() | EndTransactionTrace() | RecallTrace():
            return record.region, record.topic
        case SubBeforeTrace():
            return (record.region,)
        case _:
            return () if region is None else (region,)


# ---- flows ---------------------------------------------------------------------------------------


def trace_loop(buffer: TraceBuffer, send: Send) -> Flow[None]:
    """Send trace messages whenever the buffer has enough records, or one waited long enough.

    Args:
        buffer: The buffer.
        send: Sends one message without tracing it; its errors are counted.
    """
    clock = buffer.clock
    while True:
        now = clock.now()
        yield Wait(buffer.ready, now + buffer.due_in(now))
        yield from _send_all(buffer, buffer.take(clock.now()), send)


def flush_trace(buffer: TraceBuffer, send: Send, deadline: float) -> Flow[None]:
    """Send all records of the buffer, and wait for those that the loop sends; for closing."""
    yield from _send_all(buffer, buffer.take_all(), send)
    if buffer.under_way:
        buffer.settled = Signal()
        yield Wait(buffer.settled, deadline)


def _send_all(buffer: TraceBuffer, messages: list[Message], send: Send) -> Flow[None]:
    if not messages:
        return
    buffer.under_way += len(messages)
    try:
        outcomes: list[SendReceipt | RocketMQError] = yield Gather(
            [send(message) for message in messages], _SENDS_AT_ONCE
        )
    finally:
        buffer.under_way -= len(messages)
        if not buffer.under_way:
            buffer.settled.fire()
    failed = sum(isinstance(outcome, RocketMQError) for outcome in outcomes)
    buffer.failed_count += failed
    buffer.sent_count += len(outcomes) - failed


def dispatch_loop(buffer: TraceBuffer, dispatcher: TraceDispatcher, report: Report) -> Flow[None]:
    """Pass records to a dispatcher of the user as they come, and let it flush them in time.

    It ends with `close_dispatcher`, which waits for the call that is running.
    """
    clock = buffer.clock
    flush_at: float | None = None
    while True:
        idle_until = clock.now() + buffer.flush_interval
        yield Wait(buffer.ready, idle_until if flush_at is None else flush_at)
        if buffer.is_closing:
            return
        buffer.under_way = 1
        try:
            if (yield from _dispatch(buffer, dispatcher, report)) and flush_at is None:
                flush_at = clock.now() + buffer.flush_interval
            if flush_at is not None and clock.now() >= flush_at:
                flush_at = None
                yield from _call(buffer, "flush", dispatcher.flush, report, None)
        finally:
            buffer.under_way = 0
            buffer.settled.fire()


def close_dispatcher(
    buffer: TraceBuffer, dispatcher: TraceDispatcher, report: Report, deadline: float
) -> Flow[None]:
    """Pass the rest of the records to a dispatcher, flush it and close it, before the deadline.

    Its methods are called one at a time, so a call that does not end is the last one.
    """
    buffer.is_closing = True
    if buffer.under_way:
        buffer.settled = Signal()
        is_settled: bool = yield Wait(buffer.settled, deadline)
        if not is_settled:
            buffer.failed_count += 1
            error = TimeoutError("a call before it did not end in time, so it was not called")
            yield from report("close() of the trace dispatcher", error)
            return
    yield from _dispatch(buffer, dispatcher, report, deadline)
    if (yield from _call(buffer, "flush", dispatcher.flush, report, deadline)):
        yield from _call(buffer, "close", dispatcher.close, report, deadline)


def _dispatch(
    buffer: TraceBuffer,
    dispatcher: TraceDispatcher,
    report: Report,
    deadline: float | None = None,
) -> Flow[bool]:
    """Pass all records on; return whether there were any."""
    taken = buffer.take_records(len(buffer))
    for record, _, _ in taken:
        try:
            is_taken: object = yield UserCall(dispatcher.append, (record,), deadline=deadline)
        except Exception as error:  # the user's code may raise anything
            buffer.failed_count += 1
            yield from report("append() of the trace dispatcher", error)
        else:
            buffer.sent_count += is_taken is not False
            buffer.dropped_count += is_taken is False
    return bool(taken)


def _call(
    buffer: TraceBuffer,
    name: str,
    method: Callable[[], object],
    report: Report,
    deadline: float | None,
) -> Flow[bool]:
    """Call a method that may block; return whether it has ended, also with an error."""
    try:
        yield UserCall(method, (), may_block=True, deadline=deadline)
    except Exception as error:  # the user's code may raise anything
        buffer.failed_count += 1
        yield from report(f"{name}() of the trace dispatcher", error)
        return deadline is None or buffer.clock.now() < deadline
    return True


# ---- records -------------------------------------------------------------------------------------


def trace_of_send(
    receipt: SendReceipt,
    *,
    group: str,
    topic: str,
    tags: str | None,
    keys: Iterable[str],
    address: str,
    body_bytes: int,
    message_type: MessageType,
    time_ms: int,
    cost_ms: int,
) -> PubTrace:
    """Return the record of a send with a reply; check `receipt.is_traced` first.

    Args:
        receipt: The receipt.
        group: The producer's group, without a namespace.
        topic: The topic, without a namespace.
        tags: Tags of the message; None for a batch.
        keys: Keys of the message; none for a batch.
        address: The broker's address.
        body_bytes: The size of the body in the request.
        message_type: Normal, half or delayed.
        time_ms: When the attempt began, in milliseconds since 1970.
        cost_ms: How long it took.
    """
    return PubTrace(
        time_ms=time_ms,
        region=receipt.region,
        group=group,
        topic=topic,
        message_id=receipt.message_id,
        tags=tags,
        keys=" ".join(keys) or None,
        address=address,
        body_bytes=body_bytes,
        cost_ms=cost_ms,
        message_type=message_type,
        offset_id=receipt.offset_id,
        is_success=receipt.status is SendStatus.STORED,
    )


def trace_of_end_transaction(
    context: EndTransactionContext, *, group: str, topic: str, time_ms: int
) -> EndTransactionTrace:
    """Return the record of a transaction's end.

    Args:
        context: The context of the hooks.
        group: The producer's group, without a namespace.
        topic: The topic, without a namespace.
        time_ms: When, in milliseconds since 1970.
    """
    message = context.message
    return EndTransactionTrace(
        time_ms=time_ms,
        region=message.properties.get(PropertyKey.REGION) or DEFAULT_REGION,
        group=group,
        topic=topic,
        message_id=context.message_id,
        tags=message.tags,
        keys=" ".join(message.keys) or None,
        address=context.address,
        message_type=MessageType.COMMIT,
        transaction_id=context.transaction_id,
        state=_STATE_NAMES.get(context.outcome, _STATE_UNKNOWN),
        is_from_check=context.is_from_check,
    )


def trace_of_recall(
    *, group: str, topic: str, message_id: str, is_success: bool, region: str | None, time_ms: int
) -> RecallTrace:
    """Return the record of a recall.

    Args:
        group: The producer's group, without a namespace.
        topic: The topic, without a namespace.
        message_id: The unique id, from the recall handle.
        is_success: Whether the broker deleted the message.
        region: The region in the broker's reply.
        time_ms: When, in milliseconds since 1970.
    """
    return RecallTrace(
        time_ms=time_ms,
        region=region or DEFAULT_REGION,
        group=group,
        topic=topic,
        message_id=message_id,
        is_success=is_success,
    )
