"""The promises of pop consumption, and the checks that they hold.

A message is identified by its body: a body is sent once, so it is stored once or not at all. The
rules, for each group:

    - a message is delivered, or becomes a dead letter after as many deliveries as the group allows
    - a message is not delivered again after its acknowledgement was answered in time
    - two deliveries of a message do not overlap: each begins when the one before has ended
    - the committed offset passes a message only if it was acknowledged, or has an open checkpoint
      or a copy in a retry or dead-letter topic
    - at the end no checkpoint is open, and all offsets are at the ends of their queues

A loss of power under "async" ends promises whose records were not flushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from downrange.wire.system_names import dead_letter_topic, pop_retry_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.broker.state import BrokerState
    from downrange.wire.pop_receipts import Receipt
    from downrange.wire.records import Record


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """One delivery of a message to a group.

    Attributes:
        body: Identifies the message.
        topic: The topic that was popped from.
        group: The group.
        pop_ms: When it was popped.
        receipt: Its receipt; another one after a change of its time.
        visible_ms: When the message becomes visible again.
        reconsume_times: How often it was delivered before, as the broker counts.
        log_end: The end of the log when the receipt was received.
        is_certain: Whether the receipt is valid until `visible_ms`.
    """

    body: bytes
    topic: str
    group: str
    pop_ms: int
    receipt: Receipt
    visible_ms: int
    reconsume_times: int
    log_end: int
    is_certain: bool = True


class PopLedger:
    """All promises about popped messages of one run.

    Attributes:
        limits: How often a message is delivered again, by group.
        topic: The topic that is popped.
        acknowledged: When a request to acknowledge was first sent, by group and body.
        done: When it was answered in time and where the log ended then, by group and body.
        deliveries: By group and body.
        first: Messages before this position in the log were removed by retention. A crash may
            bring some of them back.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.limits: dict[str, int] = {}
        self.acknowledged: dict[tuple[str, bytes], int] = {}
        self.done: dict[tuple[str, bytes], tuple[int, int]] = {}
        self.deliveries: dict[tuple[str, bytes], list[Delivery]] = {}
        self.first = 0
        self._returned: set[tuple[str, bytes]] = set()
        self._bodies: dict[int, bytes] = {}  # by position in the log

    # ---- called by members ----

    def on_delivery(self, delivery: Delivery, log_offset: int) -> None:
        """Check and record a delivery.

        Args:
            delivery: The delivery.
            log_offset: The position of the record in the log.
        """
        key, pop_ms = (delivery.group, delivery.body), delivery.pop_ms
        if log_offset < self.first:  # it was removed, and a crash has brought it back
            self._returned.add(key)
        if key in self._returned:
            self.done.pop(key, None)
            self.deliveries[key] = [delivery]
            return
        done = self.done.get(key)
        assert done is None or pop_ms < done[0], (
            f"{key} was acknowledged at {done} and popped at {pop_ms}"
        )
        assert delivery.reconsume_times <= self.limits[delivery.group], key
        for other in self.deliveries.setdefault(key, []):
            first, second = sorted((other, delivery), key=lambda each: each.pop_ms)
            assert not first.is_certain or first.visible_ms <= second.pop_ms, (
                f"{first} is not over at {second}"
            )
        self.deliveries[key].append(delivery)

    def on_ack_sent(self, delivery: Delivery, now_ms: int) -> None:
        """Record that a message may be acknowledged from now on."""
        self.acknowledged.setdefault((delivery.group, delivery.body), now_ms)

    def on_acknowledged(self, delivery: Delivery, now_ms: int, log_end: int) -> None:
        """Record an answered acknowledgement; one that is too late has no effect."""
        key = (delivery.group, delivery.body)
        if delivery.is_certain and now_ms < delivery.visible_ms and key not in self._returned:
            self.done.setdefault(key, (now_ms, log_end))

    # ---- called by the world ----

    def drop_from(self, log_end: int) -> None:
        """Drop promises beyond a position: power was lost, and "async" promises no durability."""
        self.done = {key: done for key, done in self.done.items() if done[1] <= log_end}
        for deliveries in self.deliveries.values():
            for delivery in deliveries:
                delivery.is_certain &= delivery.log_end <= log_end

    def check(self, state: BrokerState) -> None:
        """Check that no committed offset has passed a message that would be lost."""
        self.note_first(state)
        if not state.is_pop_loaded or state.timers.is_behind(state.store):
            return
        for group in self.limits:
            retry = pop_retry_topic(group, self.topic)
            copies: set[bytes] = {body for _, _, body in _dead(state, group)}
            if state.topics.get(retry) is not None:
                # From the last one to the first: a message may have a later copy behind it.
                for _, offset, body in reversed(list(self._messages(state, retry))):
                    self._check_passed(state, group, retry, 0, offset, body, copies)
                    copies.add(body)
            for queue_id, offset, body in self._messages(state, self.topic):
                self._check_passed(state, group, self.topic, queue_id, offset, body, copies)

    def _check_passed(
        self,
        state: BrokerState,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        body: bytes,
        copies: set[bytes],
    ) -> None:
        committed = state.offsets.get(group, topic, queue_id) or 0
        if offset >= committed or (group, body) in self.acknowledged or body in copies:
            return
        place = (topic, group, queue_id)
        assert any(
            offset in checkpoint.open_offsets()
            for checkpoint in state.checkpoints
            if checkpoint.name[:3] == place
        ), f"{place} is committed up to {committed}, but {offset}, {body!r}, is nowhere"

    def unfinished(self, state: BrokerState) -> list[str]:
        """Return what is still to be delivered or acknowledged."""
        missing = [f"open: {checkpoint.name}" for checkpoint in state.checkpoints]
        for group in self.limits:
            dead = {body for _, _, body in _dead(state, group)}
            for _, _, body in self._messages(state, self.topic):
                if (group, body) not in self.deliveries and body not in dead:
                    missing.append(f"not delivered to {group}: {body!r}")
            for topic in (self.topic, pop_retry_topic(group, self.topic)):
                config = state.topics.get(topic)
                for queue_id in range(0 if config is None else config.read_queue_nums):
                    queue = state.store.queue(topic, queue_id)
                    committed = state.offsets.get(group, topic, queue_id) or 0
                    if max(committed, queue.min_offset) != queue.max_offset:
                        end = queue.max_offset
                        missing.append(f"{group} is at {committed} of {end} in {topic}")
        return missing

    def _messages(self, state: BrokerState, topic: str) -> Iterator[tuple[int, int, bytes]]:
        """Yield queue id, offset and body of all messages of a topic."""
        config = state.topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            queue = state.store.queue(topic, queue_id)
            for offset, unit in enumerate(queue.walk(queue.min_offset), queue.min_offset):
                if unit.log_offset >= self.first:
                    body = self._bodies.get(unit.log_offset)
                    if body is None:
                        body = state.store.read_record(unit).body
                        self._bodies[unit.log_offset] = body
                    yield queue_id, offset, body

    def on_start(self) -> None:
        """Forget what is where in the log: a loss of power may have removed its end."""
        self._bodies.clear()

    def note_first(self, state: BrokerState) -> None:
        """Note which messages retention has removed."""
        self.first = max(self.first, state.store.log.first)

    def check_dead_letters(self, state: BrokerState) -> int:
        """Check that dead letters were delivered often enough; return their number."""
        count = 0
        for group, limit in self.limits.items():
            for times, _, body in _dead(state, group):
                assert times == limit + 1, f"{body!r} is a dead letter after {times} deliveries"
                count += 1
        return count

    def popped_after(self, time_ms: int) -> list[Delivery]:
        """Return the deliveries by pops after a time."""
        every = (delivery for found in self.deliveries.values() for delivery in found)
        return [delivery for delivery in every if delivery.pop_ms > time_ms]

    def repeated(self) -> list[tuple[str, bytes]]:
        """Return the messages that were delivered more than once, with their groups."""
        return [key for key, deliveries in self.deliveries.items() if len(deliveries) > 1]


def _dead(state: BrokerState, group: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield delivery count, offset and body of the dead letters of a group."""
    for record in _records(state, dead_letter_topic(group), 0):
        yield record.reconsume_times, record.queue_offset, record.body


def _records(state: BrokerState, topic: str, queue_id: int) -> Iterator[Record]:
    queue = state.store.queue(topic, queue_id)
    for unit in queue.walk(queue.min_offset):
        yield state.store.read_record(unit)
