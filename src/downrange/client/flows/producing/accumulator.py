"""Automatic batching: small messages of many callers are sent in one request.

The flow that opens a batch leads it: it waits until the batch is full or due, sends it, and wakes
the others, which only wait for that. One rule: a flow that finds a batch without a leader leads it.
So when a leader is cancelled, before or during the send, the others lose only a moment:

    leader   opens ── Wait(full) ── cancelled
    second   joins ── Wait(changed) ──── woken, leads: Wait(full) ── send ── done
    third    joins ── Wait(changed) ──── woken, waits again ─────────────── woken, has its receipt

A message whose caller was cancelled leaves the batch, unless the batch is being sent. When the
leader was cancelled during the send, it is unknown whether the batch is stored; the next leader
sends it again, as any send does after a lost reply.

On an event loop, only the leader is a flow. The others `join`: a driver keeps a future in the place
of each, and completes all of them when the batch has ended (`gathered_send`).

As in Java's `ProduceAccumulator`, the queue is a part of the key: a selector or a sharding key
chooses it first, then the message waits for others of that queue. Differences from Java: the time
in a batch counts towards the caller's deadline; a batch never exceeds one request; `send` and
`submit` share batches, unless a queue is chosen: then only `submit` repeats an attempt, and a batch
is sent when the one before it has ended, because a broker of Apache handles requests of one
connection in several threads, and may store them in another order.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.producing.batches import is_delayed, size_in_batch
from downrange.errors import RocketMQError, SendTimedOut
from downrange.model import CompressedMessage, QueueId, QueueOffset, SendReceipt
from downrange.wire.limits import BATCH_MESSAGES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.client.flows.effects import Clock, Flow
    from downrange.model import Message  # noqa: TC004
    from downrange.options import AutoBatch

    #: Sends a batch: its messages, the queue if one was chosen, whether it is sent again to that
    #: queue after a failure, the deadline.
    SendBatch: TypeAlias = Callable[[list[Message], QueueId | None, bool, float], Flow[SendReceipt]]
    #: Topic, queue, wait_stored, tags, is_retried: equal for all messages of a batch.
    Key: TypeAlias = tuple[str, QueueId | None, bool, str | None, bool]

_replace: Final = msgspec.structs.replace
_PRODUCER_GROUP: Final = PropertyKey.PRODUCER_GROUP.value
_CALL_TIMEOUT_CODE: Final = 10002


class Accumulator:
    """The open batches of one producer.

    Args:
        options: How long and how much to hold back.
        clock: The time.
        send: Sends a batch; a list of one message is best sent as a single message.
        body_bytes_max: The most bytes of one request.
        size_of: Returns the bytes of a message in a batch. It raises an error for a message that
            cannot be encoded, before the whole batch fails because of it.

    Attributes:
        held_bytes: Bytes of the bodies whose callers wait, batches in flight included.
        batches: Batches that were sent; a batch that is sent again counts again.
        messages: Messages in them.
    """

    def __init__(
        self,
        options: AutoBatch,
        clock: Clock,
        send: SendBatch,
        *,
        body_bytes_max: int,
        size_of: Callable[[Message], int] = size_in_batch,
    ) -> None:
        self._options = options
        self._clock = clock
        self._send = send
        self.size_of = size_of
        self._body_bytes_max = body_bytes_max
        self._open: dict[Key, Batch] = {}
        #: The newest batch of each chosen queue that has not ended.
        self._newest: dict[Key, Batch] = {}
        self._is_closed = False
        self.held_bytes = 0
        self.batches = 0
        self.messages = 0

    def can_hold(self, message: Message) -> bool:
        """Return whether a message may wait for others; any other is sent directly, as in Java.

        Sent directly are: delayed and compressed messages and messages for retry topics, which
        cannot be in a batch; messages with a producer group, such as half messages; all messages
        while `total_bytes_max` bytes are held back, so that callers notice a slow broker; and all
        messages after `close`.

        Messages with a timeout of their own are better sent directly, too: a batch is sent with the
        latest deadline of its messages. Without such timeouts, deadlines differ by at most
        `hold_ms`.
        """
        return (
            self.has_room_for(message.topic)
            and not is_delayed(message)
            and _PRODUCER_GROUP not in message.properties
            and type(message) is not CompressedMessage
        )

    def has_room_for(self, topic: str) -> bool:
        """Return whether a usual message for a topic may wait for others; see `can_hold`."""
        return (
            not self._is_closed
            and self.held_bytes < self._options.total_bytes_max
            and not topic.startswith(RETRY_PREFIX)
        )

    def add(
        self,
        message: Message,
        queue: QueueId | None,
        deadline: float,
        is_retried: bool = False,
    ) -> Flow[SendReceipt]:
        """Send a message in a batch with others of the same key.

        Args:
            message: A message that the accumulator `can_hold`.
            queue: The queue, if the caller, a selector or a sharding key chose one.
            deadline: When its caller gives up.
            is_retried: Whether attempts to that queue are repeated; see `SendRules`.

        Returns:
            The receipt of the message; that of the batch when the broker gives only one.

        Raises:
            SendTimedOut: The deadline passed. The text says whether the batch was sent, and so may
                be stored anyway.
            RocketMQError: The error of the batch.
        """
        place = Place(message, self.size_of(message), len(message.body), deadline, None, None)
        key = (message.topic, queue, message.wait_stored, message.tags, is_retried)
        self._admit(self._batch_for(key, place.size, deadline), place)
        return (yield from self.wait_for(place))

    def join(self, place: Place) -> bool:
        """Add a message to the open batch of its key, if a flow leads it and it has room.

        The caller needs no flow then: the leader sends the batch, and `Batch.changed` fires.

        Args:
            place: Of a message that the accumulator `can_hold`, without a chosen queue.

        Returns:
            Whether it has joined.
        """
        message = place.message
        batch = self._open.get((message.topic, None, message.wait_stored, message.tags, False))
        if batch is None or not batch.is_led or batch.size + place.size > self._body_bytes_max:
            return False
        self._admit(batch, place)
        return True

    def _admit(self, batch: Batch, place: Place) -> None:
        place.batch = batch
        batch.messages[place] = place.message
        batch.size = size = batch.size + place.size
        batch.body_bytes = body_bytes = batch.body_bytes + place.body_bytes
        if place.deadline > batch.deadline:
            batch.deadline = place.deadline
        self.held_bytes += place.body_bytes
        if (
            body_bytes > self._options.hold_bytes
            or size >= self._body_bytes_max
            or len(batch.messages) >= BATCH_MESSAGES_MAX
            or self._is_closed  # since the selector was asked
        ):
            self.shut(batch)

    def wait_for(self, place: Place) -> Flow[SendReceipt]:
        """Wait for the outcome of a place's batch, then leave; lead it while no other flow does.

        Raises:
            RocketMQError: The error of the batch, or `SendTimedOut`.
        """
        batch = place.batch
        assert batch is not None, "it was admitted"
        try:
            while batch.outcome is None:
                if not batch.is_led:
                    yield from self._lead(batch)
                    continue
                is_in_time: bool = yield Wait(batch.changed, place.deadline)
                if not is_in_time and batch.outcome is None:
                    raise self.late(batch)
            if isinstance(batch.outcome, RocketMQError):
                raise batch.own_error()
            return batch.outcome[place]
        finally:
            self.leave(place)

    def leave(self, place: Place) -> None:
        """Take a place out of its batch: its caller has the outcome, or was cancelled."""
        assert place.batch is not None, "it was admitted"
        self.leave_together(place.batch, (place,))

    def leave_together(self, batch: Batch, places: Sequence[Place]) -> None:
        """Take several places out of their batch."""
        messages = batch.messages
        size = body_bytes = 0
        for place in places:
            del messages[place]
            place.batch = None  # breaks the cycle, so that both are freed at once
            size += place.size
            body_bytes += place.body_bytes
        batch.size -= size
        batch.body_bytes -= body_bytes
        self.held_bytes -= body_bytes
        if not messages:
            self._end(batch)

    def close(self) -> None:
        """Send every batch at once, and hold nothing back from now on."""
        self._is_closed = True
        for batch in list(self._open.values()):
            self.shut(batch)

    def _batch_for(self, key: Key, size: int, deadline: float) -> Batch:
        """Return the open batch for a message, or a new one if there is none with room."""
        batch = self._open.get(key)
        if batch is not None:
            if batch.size + size <= self._body_bytes_max:
                return batch
            self.shut(batch)
        now = self._clock.now()
        # Half of the caller's time stays for sending, however long `hold_ms` is.
        hold = min(self._options.hold_ms / 1000, max(0.0, deadline - now) / 2)
        self._open[key] = batch = Batch(key, now, now + hold)
        if key[1] is not None:
            batch.before = self._newest.get(key)
            self._newest[key] = batch
        return batch

    def _lead(self, batch: Batch) -> Flow[None]:
        """Wait until a batch is full or due, and send it."""
        batch.is_led = True
        try:
            if not batch.full.is_fired:
                yield Wait(batch.full, batch.due_at)
            while batch.before is not None and not batch.before.is_over:
                is_in_time: bool = yield Wait(batch.before.changed, batch.deadline)
                if not is_in_time:
                    break
            batch.before = None
            self.shut(batch)
            # Messages that leave from here on leave the batch, but stay in the request.
            places, messages = list(batch.messages), list(batch.messages.values())
            self.batches += 1
            self.messages += len(messages)
            batch.is_sent = True
            _, queue, _, _, is_retried = batch.key
            receipt = yield from self._send(messages, queue, is_retried, batch.deadline)
            batch.outcome = dict(zip(places, split_receipt(receipt, len(places)), strict=True))
        except RocketMQError as error:
            batch.outcome = error
        finally:
            batch.release()

    def shut(self, batch: Batch) -> None:
        """Close a batch for new messages, and wake its leader."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        batch.full.fire()

    def _end(self, batch: Batch) -> None:
        """Forget a batch that its last message has left, and let the next one go on."""
        self.shut(batch)
        if self._newest.get(batch.key) is batch:
            del self._newest[batch.key]
        batch.release()

    def late(self, batch: Batch) -> SendTimedOut:
        """Return the error for a message whose time ran out in a batch."""
        topic, elapsed = batch.key[0], self._clock.now() - batch.opened_at
        error = SendTimedOut(topic, (), elapsed)
        outcome = (
            "was sent, but has no reply yet; it may have been stored"
            if batch.is_sent
            else "was not sent yet; it is not stored"
        )
        error.args = (
            f"a message for {topic!r} ran out of time in a batch, opened {elapsed:.3g} s ago, that "
            f"{outcome}",
        )
        error.code = _CALL_TIMEOUT_CODE
        error.retryable = True
        error.may_be_stored = batch.is_sent
        return error


class Place(msgspec.Struct, eq=False):
    """The place of one message in a batch.

    Attributes:
        message: The message.
        size: Its bytes in the request.
        body_bytes: The bytes of its body.
        deadline: When its caller gives up.
        batch: The batch, once it was admitted.
        future: What the driver completes with the outcome; None while a flow waits for it.
    """

    message: Message
    size: int
    body_bytes: int
    deadline: float
    batch: Batch | None
    future: Any


class Batch:
    """The messages of one request, and the outcome.

    Attributes:
        key: The key that its messages share.
        opened_at: When the first message was added.
        due_at: When it is sent, full or not.
        deadline: The latest deadline of its messages.
        messages: The messages of callers that still wait, by their places.
        size: Bytes of these messages in the request.
        body_bytes: Bytes of their bodies.
        is_led: Whether a flow leads it.
        is_sent: Whether it was sent, with or without a reply.
        full: Fires when it is to be sent at once.
        changed: Fires when the leader has ended or was cancelled.
        outcome: Receipts by place, or the error; None until then.
        before: The batch for the same queue that is to be sent first.
        watch: The driver's object that completes futures; None if no place has one.
    """

    __slots__ = (
        "before",
        "body_bytes",
        "changed",
        "deadline",
        "due_at",
        "full",
        "is_led",
        "is_sent",
        "key",
        "messages",
        "opened_at",
        "outcome",
        "size",
        "watch",
    )

    def __init__(self, key: Key, opened_at: float, due_at: float) -> None:
        self.key = key
        self.opened_at = opened_at
        self.due_at = due_at
        self.deadline = due_at
        self.messages: dict[Place, Message] = {}
        self.size = 0
        self.body_bytes = 0
        self.is_led = False
        self.is_sent = False
        self.full = Signal()
        self.changed = Signal()
        self.outcome: dict[Place, SendReceipt] | RocketMQError | None = None
        self.before: Batch | None = None
        self.watch: Any = None

    @property
    def is_over(self) -> bool:
        """Whether it has an outcome, or all its callers were cancelled."""
        return self.outcome is not None or not self.messages

    def release(self) -> None:
        """Wake all flows of the batch: the leader has ended or was cancelled."""
        self.is_led = False
        woken, self.changed = self.changed, Signal()
        woken.fire()

    def own_error(self) -> RocketMQError:
        """Return the error of the batch for one caller.

        Each caller gets a copy: raising an error writes a traceback into it, and callers may be
        different threads.
        """
        outcome = self.outcome
        assert isinstance(outcome, RocketMQError), "the batch has failed"
        error = copy(outcome).with_traceback(outcome.__traceback__)
        error.__cause__ = outcome.__cause__
        return error


def split_receipt(receipt: SendReceipt, count: int) -> list[SendReceipt]:
    """Return a receipt for each message of a batch.

    Brokers that store a batch as one record return one id; then every message gets the receipt of
    the batch, as in Java.
    """
    ids = receipt.message_id.split(",")
    if count == 1 or len(ids) != count:
        return [receipt] * count
    offset_ids = receipt.offset_id.split(",")
    if len(offset_ids) != count:
        offset_ids = [receipt.offset_id] * count
    # A `QueueOffset` is an int; to call it costs a third of a receipt.
    offsets = cast("Iterable[QueueOffset]", range(receipt.offset, receipt.offset + count))
    return [
        _replace(receipt, message_id=message_id, offset=offset, offset_id=offset_id)
        for message_id, offset, offset_id in zip(ids, offsets, offset_ids, strict=True)
    ]
