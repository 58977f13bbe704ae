"""Automatic batching: small messages of many callers travel together.

The flow that opens a batch leads it: it waits until the batch is full or due, sends it, and tells
the others, who wait for that and for nothing else. The one rule: whoever finds a batch without a
leader leads it. So a leader that is given up, before or while it sends, costs the others no more
than a moment:

    leader   opens ── Wait(full) ── given up
    second   joins ── Wait(changed) ──── woken, leads: Wait(full) ── send ── settled
    third    joins ── Wait(changed) ──── woken, waits again ───────────────── woken, has its receipt

A message whose caller is gone leaves the batch, unless that is on its way. When the leader was
given up while it was sending, nobody knows whether the batch is stored; the next leader sends it
again, as any send does after an answer that was lost.

What differs from Java's accumulator: time spent waiting counts into the caller's deadline; a batch
never outgrows one request; messages with a sharding key meet only their like.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.producing.batches import is_delayed, size_in_batch
from downrange.errors import RocketMQError, SendTimedOut
from downrange.model import QueueId, QueueOffset, SendReceipt
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Clock, Flow
    from downrange.model import Message
    from downrange.options import AutoBatch

    #: Sends a batch: its messages, the queue if one was chosen, the deadline.
    SendBatch: TypeAlias = Callable[[list[Message], QueueId | None, float], Flow[SendReceipt]]
    #: Topic, queue, wait_stored, tags, sharding key: what all messages of a batch have in common.
    Key: TypeAlias = tuple[str, QueueId | None, bool, str | None, str | None]

_PRODUCER_GROUP: Final = PropertyKey.PRODUCER_GROUP.value
_CALL_TIMEOUT_CODE: Final = 10002


class Accumulator:
    """The open batches of one producer.

    Args:
        options: How long and how much to hold back.
        clock: The time.
        send: Sends a batch. A list of one is best sent as a message by itself.
        body_bytes_max: What one request may carry.
        size_of: How many bytes a message takes in a batch. It refuses a message that cannot be
            written, before that spoils a batch for others.

    Attributes:
        held_bytes: Bodies of messages whose callers wait, those under way included.
        batches: Batches that were sent, the ones sent again included.
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
        """Whether a message may wait for others; any other is sent directly, as in Java.

        Direct are delayed messages and those for retry topics, which cannot be in a batch; those
        that name a producer group, as half messages do; all, while `total_bytes_max` is held back,
        so that senders feel a slow broker; and all after `close`.

        Calls with a timeout of their own are better sent directly, too: a batch is sent with the
        latest deadline of its messages, which so lie no further apart than `hold_ms`.
        """
        return (
            not self._is_closed
            and self.held_bytes < self._options.total_bytes_max
            and not is_delayed(message)
            and not message.topic.startswith(RETRY_PREFIX)
            and _PRODUCER_GROUP not in message.properties
        )

    def add(self, message: Message, queue: QueueId | None, deadline: float) -> Flow[SendReceipt]:
        """Send a message together with others that go the same way.

        Args:
            message: One that the accumulator `can_hold`.
            queue: Where it goes, if that was chosen.
            deadline: When its caller gives up.

        Returns:
            The message's own receipt; that of the whole batch where a broker gives no more.

        Raises:
            SendTimedOut: The deadline passed. The text says whether the batch was on its way, and
                so may be stored all the same.
            RocketMQError: What the batch ended with.
        """
        size = self._size_of(message)
        body_bytes = len(message.body)
        batch = self._batch_for(message, queue, size, deadline)
        ticket = batch.admit(message, size, deadline)
        self.held_bytes += body_bytes
        if batch.body_bytes > self._options.hold_bytes or batch.size >= self._body_bytes_max:
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
        """Let every batch be sent at once, and hold nothing back from now on."""
        self._is_closed = True
        for batch in list(self._open.values()):
            self._shut(batch)

    def _batch_for(
        self, message: Message, queue: QueueId | None, size: int, deadline: float
    ) -> _Batch:
        """Return the open batch for a message, or a new one where there is none with room."""
        sharding_key = message.sharding_key if queue is None else None
        key = (message.topic, queue, message.wait_stored, message.tags, sharding_key)
        batch = self._open.get(key)
        if batch is not None:
            if batch.size + size <= self._body_bytes_max:
                return batch
            self._shut(batch)
        now = self._clock.now()
        # However long it may be held: half of the caller's time is left for sending.
        hold = min(self._options.hold_ms / 1000, max(0.0, deadline - now) / 2)
        self._open[key] = batch = _Batch(key, now, now + hold)
        return batch

    def _lead(self, batch: _Batch) -> Flow[None]:
        batch.is_led = True
        try:
            if not batch.full.is_fired:
                yield Wait(batch.full, batch.due_at)
            self._shut(batch)
            # Who leaves from here on is gone from the batch, but not from the request.
            tickets, messages = list(batch.messages), list(batch.messages.values())
            self.batches += 1
            self.messages += len(messages)
            batch.is_sent = True
            receipt = yield from self._send(messages, batch.key[1], batch.deadline)
            batch.outcome = dict(zip(tickets, split_receipt(receipt, len(tickets)), strict=True))
        except RocketMQError as error:
            batch.outcome = error
        finally:
            batch.release()

    def _shut(self, batch: _Batch) -> None:
        """Let nobody else join, and wake the leader."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        batch.full.fire()

    def _late(self, batch: _Batch) -> SendTimedOut:
        topic, elapsed = batch.key[0], self._clock.now() - batch.opened_at
        error = SendTimedOut(topic, (), elapsed)
        outcome = (
            "was sent, but not answered yet; it may be stored all the same"
            if batch.is_sent
            else "was not sent yet; it is not stored"
        )
        error.args = (
            f"a message for {topic!r} ran out of time in a batch, opened {elapsed:.3g} s ago, that "
            f"{outcome}",
        )
        error.code = _CALL_TIMEOUT_CODE
        error.retryable = True
        return error


class _Batch:
    """Messages that travel together, and what became of them.

    Attributes:
        key: What they have in common.
        opened_at: When the first one came.
        due_at: When it is sent, full or not.
        deadline: The latest of its messages'.
        messages: By ticket, of callers who are still there.
        size: Their bytes as a request.
        body_bytes: The bytes of their bodies.
        is_led: Whether someone sees to it that it is sent.
        is_sent: Whether it was sent, answered or not.
        full: Fires when it is to be sent at once.
        changed: Fires when the leader is through, or gone.
        outcome: Receipts by ticket, or the error that it ended with; None until then.
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
        """Take a message in; return its ticket. Messages may be equal, tickets are not."""
        ticket = self.tickets
        self.tickets += 1
        self.messages[ticket] = message
        self.size += size
        self.body_bytes += len(message.body)
        if deadline > self.deadline:
            self.deadline = deadline
        return ticket

    def dismiss(self, ticket: int, body_bytes: int, size: int) -> None:
        """Let a message go: its caller has its receipt, or has gone."""
        del self.messages[ticket]
        self.size -= size
        self.body_bytes -= body_bytes

    def release(self) -> None:
        """Say that the leader is through, or gone: everyone looks what is the matter."""
        self.is_led = False
        woken, self.changed = self.changed, Signal()
        woken.fire()

    def receipt_of(self, ticket: int) -> SendReceipt:
        """Return what one of the callers gets.

        Raises:
            RocketMQError: The batch's error. Each caller gets its own: a traceback is written into
                an error when it is raised, and callers may be threads.
        """
        outcome = self.outcome
        assert outcome is not None, "asked for a receipt before there was one"
        if isinstance(outcome, RocketMQError):
            raise copy(outcome).with_traceback(outcome.__traceback__) from outcome.__cause__
        return outcome[ticket]


def split_receipt(receipt: SendReceipt, count: int) -> list[SendReceipt]:
    """Return a receipt for each message of a batch.

    Queues whose brokers store a batch as one record give it one id; then there is nothing to split,
    and everyone gets the whole, as in Java.
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
