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

As in Java's `ProduceAccumulator`, the queue is a part of the key: a selector or a sharding key
chooses it first, then the message waits for others of that queue. Differences from Java: the time
in a batch counts towards the caller's deadline; a batch never exceeds one request; `send` and
`submit` share batches, unless a queue is chosen: then only `submit` repeats an attempt.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.producing.batches import is_delayed, size_in_batch
from downrange.errors import RocketMQError, SendTimedOut
from downrange.model import CompressedMessage, QueueId, QueueOffset, SendReceipt
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Clock, Flow
    from downrange.model import Message
    from downrange.options import AutoBatch

    #: Sends a batch: its messages, the queue if one was chosen, whether it is sent again to that
    #: queue after a failure, the deadline.
    SendBatch: TypeAlias = Callable[[list[Message], QueueId | None, bool, float], Flow[SendReceipt]]
    #: Topic, queue, wait_stored, tags, is_retried: equal for all messages of a batch.
    Key: TypeAlias = tuple[str, QueueId | None, bool, str | None, bool]

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
        self._size_of = size_of
        self._body_bytes_max = body_bytes_max
        self._open: dict[Key, _Batch] = {}
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
            not self._is_closed
            and self.held_bytes < self._options.total_bytes_max
            and not is_delayed(message)
            and not message.topic.startswith(RETRY_PREFIX)
            and _PRODUCER_GROUP not in message.properties
            and type(message) is not CompressedMessage
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
        size = self._size_of(message)
        body_bytes = len(message.body)
        key = (message.topic, queue, message.wait_stored, message.tags, is_retried)
        batch = self._batch_for(key, size, deadline)
        ticket = batch.admit(message, size, deadline)
        self.held_bytes += body_bytes
        if (
            batch.body_bytes > self._options.hold_bytes
            or batch.size >= self._body_bytes_max
            or self._is_closed  # since the selector was asked
        ):
            self._shut(batch)
        try:
            while batch.outcome is None:
                if not batch.is_led:
                    yield from self._lead(batch)
                    continue
                is_in_time: bool = yield Wait(batch.changed, deadline)
                if not is_in_time and batch.outcome is None:
                    raise self._late(batch)
            return batch.receipt_of(ticket)
        finally:
            self.held_bytes -= body_bytes
            batch.dismiss(ticket, body_bytes, size)
            if not batch.messages:
                self._shut(batch)

    def close(self) -> None:
        """Send every batch at once, and hold nothing back from now on."""
        self._is_closed = True
        for batch in list(self._open.values()):
            self._shut(batch)

    def _batch_for(self, key: Key, size: int, deadline: float) -> _Batch:
        """Return the open batch for a message, or a new one if there is none with room."""
        batch = self._open.get(key)
        if batch is not None:
            if batch.size + size <= self._body_bytes_max:
                return batch
            self._shut(batch)
        now = self._clock.now()
        # Half of the caller's time stays for sending, however long `hold_ms` is.
        hold = min(self._options.hold_ms / 1000, max(0.0, deadline - now) / 2)
        self._open[key] = batch = _Batch(key, now, now + hold)
        return batch

    def _lead(self, batch: _Batch) -> Flow[None]:
        batch.is_led = True
        try:
            if not batch.full.is_fired:
                yield Wait(batch.full, batch.due_at)
            self._shut(batch)
            # Messages that leave from here on leave the batch, but stay in the request.
            tickets, messages = list(batch.messages), list(batch.messages.values())
            self.batches += 1
            self.messages += len(messages)
            batch.is_sent = True
            _, queue, _, _, is_retried = batch.key
            receipt = yield from self._send(messages, queue, is_retried, batch.deadline)
            batch.outcome = dict(zip(tickets, split_receipt(receipt, len(tickets)), strict=True))
        except RocketMQError as error:
            batch.outcome = error
        finally:
            batch.release()

    def _shut(self, batch: _Batch) -> None:
        """Close a batch for new messages, and wake its leader."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        batch.full.fire()

    def _late(self, batch: _Batch) -> SendTimedOut:
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


class _Batch:
    """The messages of one request, and the outcome.

    Attributes:
        key: The key that its messages share.
        opened_at: When the first message was added.
        due_at: When it is sent, full or not.
        deadline: The latest deadline of its messages.
        messages: Ticket -> message, of callers that still wait.
        size: Bytes of these messages in the request.
        body_bytes: Bytes of their bodies.
        is_led: Whether a flow leads it.
        is_sent: Whether it was sent, with or without a reply.
        full: Fires when it is to be sent at once.
        changed: Fires when the leader has ended or was cancelled.
        outcome: Receipts by ticket, or the error; None until then.
    """

    __slots__ = (
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
        "tickets",
    )

    def __init__(self, key: Key, opened_at: float, due_at: float) -> None:
        self.key = key
        self.opened_at = opened_at
        self.due_at = due_at
        self.deadline = due_at
        self.messages: dict[int, Message] = {}
        self.tickets = 0
        self.size = 0
        self.body_bytes = 0
        self.is_led = False
        self.is_sent = False
        self.full = Signal()
        self.changed = Signal()
        self.outcome: dict[int, SendReceipt] | RocketMQError | None = None

    def admit(self, message: Message, size: int, deadline: float) -> int:
        """Add a message; return its ticket. Messages may be equal, tickets are unique."""
        ticket = self.tickets
        self.tickets += 1
        self.messages[ticket] = message
        self.size += size
        self.body_bytes += len(message.body)
        if deadline > self.deadline:
            self.deadline = deadline
        return ticket

    def dismiss(self, ticket: int, body_bytes: int, size: int) -> None:
        """Remove a message whose caller has its receipt, or was cancelled."""
        del self.messages[ticket]
        self.size -= size
        self.body_bytes -= body_bytes

    def release(self) -> None:
        """Wake all flows of the batch: the leader has ended or was cancelled."""
        self.is_led = False
        woken, self.changed = self.changed, Signal()
        woken.fire()

    def receipt_of(self, ticket: int) -> SendReceipt:
        """Return the receipt of one message.

        Raises:
            RocketMQError: The error of the batch. Each caller gets a copy: raising an error writes
                a traceback into it, and callers may be different threads.
        """
        outcome = self.outcome
        assert outcome is not None, "there is no receipt before the batch has ended"
        if isinstance(outcome, RocketMQError):
            raise copy(outcome).with_traceback(outcome.__traceback__) from outcome.__cause__
        return outcome[ticket]


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
    return [
        msgspec.structs.replace(
            receipt,
            message_id=message_id,
            offset=QueueOffset(receipt.offset + index),
            offset_id=offset_id,
        )
        for index, (message_id, offset_id) in enumerate(zip(ids, offset_ids, strict=True))
    ]
