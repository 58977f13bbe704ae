"""The promises of pops in order, and the checks that they hold.

The rules, for each queue:

    - a batch begins with the first message that is not acknowledged: none before it is left out
      unless it is a dead letter, and none comes again after it and all before it were acknowledged
    - a message becomes a dead letter only after as many deliveries as the group allows
    - while a message of a batch is neither acknowledged nor visible again, no other request gets
      a batch; a repeated request, with the same attempt id, gets the batch again
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from downrange.wire.pop_receipts import parse_receipt
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import dead_letter_topic

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """Messages of one queue that one pop in order returned.

    Attributes:
        queue_id: The queue.
        bodies: By offset.
        pop_ms: When it was popped.
        attempt_id: Of the request.
        visible_ms: When each message becomes visible again, by offset.
        acknowledged: The offsets whose acknowledgement was answered in time.
    """

    queue_id: int
    bodies: dict[int, bytes]
    pop_ms: int
    attempt_id: str
    visible_ms: dict[int, float]
    acknowledged: set[int] = field(default_factory=set)


class _QueueOrder:
    """What is known of one queue.

    Attributes:
        batches: That were received.
        sent_ms: When a request to acknowledge was first sent, by offset.
        promised: All offsets before the second number were acknowledged at the first, a time.
        left_out: Offsets before batches, not acknowledged by then: they must be dead letters.
        begin: The first offset that retention has not removed.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.sent_ms: dict[int, float] = {}
        self.promised: list[tuple[int, int]] = []
        self.left_out: set[int] = set()
        self.begin = 0


class OrderLedger:
    """All promises about messages that one group pops in order.

    Attributes:
        topic: The topic.
        group: The group.
        limit: How often a message is delivered again.
        delivered: Bodies that were delivered.
    """

    def __init__(self, topic: str, group: str, queues: int, limit: int) -> None:
        self.topic = topic
        self.group = group
        self.limit = limit
        self.delivered: set[bytes] = set()
        self._queues = [_QueueOrder() for _ in range(queues)]

    # ---- called by members ----

    def on_batch(self, batch: Batch) -> None:
        """Check and record a batch."""
        queue, offsets = self._queues[batch.queue_id], list(batch.bodies)
        assert offsets == list(range(offsets[0], offsets[-1] + 1)), offsets
        for offset in range(queue.begin, offsets[0]):
            if queue.sent_ms.get(offset, math.inf) > batch.pop_ms:
                queue.left_out.add(offset)
        for answered_ms, end in queue.promised:
            assert answered_ms > batch.pop_ms or offsets[0] >= end, f"{batch} repeats before {end}"
        for other in queue.batches:
            first, second = sorted((other, batch), key=lambda each: each.pop_ms)
            for offset in first.bodies if first.attempt_id != second.attempt_id else ():
                is_free = (
                    first.visible_ms[offset] <= second.pop_ms
                    or queue.sent_ms.get(offset, math.inf) <= second.pop_ms
                )
                assert is_free, f"{second} begins, but {offset} of {first} is open"
        queue.batches.append(batch)
        self.delivered.update(batch.bodies.values())

    def on_ack_sent(self, batch: Batch, offset: int, now_ms: int) -> None:
        """Record that a message may be acknowledged from now on."""
        self._queues[batch.queue_id].sent_ms.setdefault(offset, now_ms)

    def on_acknowledged(self, batch: Batch, offset: int, now_ms: int) -> None:
        """Record an answered acknowledgement; one that is too late may have no effect."""
        if offset in batch.bodies and now_ms < batch.visible_ms[offset]:
            batch.acknowledged.add(offset)
            missing = set(batch.bodies) - batch.acknowledged
            end = min(missing, default=max(batch.bodies) + 1)
            self._queues[batch.queue_id].promised.append((now_ms, end))

    # ---- called by the world ----

    def note_begin(self, state: BrokerState) -> None:
        """Note which messages retention has removed."""
        for queue_id, queue in enumerate(self._queues):
            queue.begin = max(queue.begin, state.store.queue(self.topic, queue_id).min_offset)

    def on_start(self, state: BrokerState) -> None:
        """Forget messages that a loss of power removed: others get their offsets."""
        for queue_id, queue in enumerate(self._queues):
            end = state.store.queue(self.topic, queue_id).max_offset
            queue.sent_ms = {at: sent for at, sent in queue.sent_ms.items() if at < end}
            queue.promised = [(at, min(each, end)) for at, each in queue.promised]
            queue.left_out = {at for at in queue.left_out if at < end}
            for batch in queue.batches:
                batch.bodies = {at: body for at, body in batch.bodies.items() if at < end}
            queue.batches = [batch for batch in queue.batches if batch.bodies]

    def check(self, state: BrokerState) -> None:
        """Check that each message that was passed is acknowledged or a dead letter."""
        self.note_begin(state)
        dead = self.dead_letters(state)
        for queue_id, queue in enumerate(self._queues):
            committed = state.offsets.get(self.group, self.topic, queue_id) or 0
            for offset in range(queue.begin, committed):
                is_done = offset in queue.sent_ms or (queue_id, offset) in dead
                assert is_done, f"{offset} of queue {queue_id} is passed over"
            for offset in queue.left_out:
                is_done = offset < queue.begin or (queue_id, offset) in dead
                assert is_done, f"a batch leaves out {offset} of queue {queue_id}"

    def dead_letters(self, state: BrokerState) -> set[tuple[int, int]]:
        """Return queue and offset of the messages that are dead letters."""
        found: set[tuple[int, int]] = set()
        queue = state.store.queue(dead_letter_topic(self.group), 0)
        for unit in queue.walk(queue.min_offset):
            record = state.store.read_record(unit)
            receipt = parse_receipt(record.properties()[PropertyKey.POP_CHECKPOINT])
            times = record.reconsume_times
            assert times > self.limit, f"{receipt} is a dead letter after {times} deliveries"
            found.add((receipt.queue_id, receipt.offset))
        return found

    def unfinished(self, state: BrokerState) -> list[str]:
        """Return what is still to be delivered or acknowledged."""
        missing: list[str] = []
        dead = self.dead_letters(state)  # the replies with such a message may all be lost
        for queue_id, known in enumerate(self._queues):
            queue = state.store.queue(self.topic, queue_id)
            # A crash may bring back messages that retention removed.
            for unit in queue.walk(max(queue.min_offset, known.begin)):
                record = state.store.read_record(unit)
                is_dead = (queue_id, record.queue_offset) in dead
                if record.body not in self.delivered and not is_dead:
                    missing.append(f"not delivered in order: {record.body!r}")
            committed = state.offsets.get(self.group, self.topic, queue_id) or 0
            if max(committed, queue.min_offset) != queue.max_offset:
                missing.append(f"{committed} of {queue.max_offset} in order, queue {queue_id}")
        return missing
