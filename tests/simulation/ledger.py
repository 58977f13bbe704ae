"""The promises of the broker, and the checks that they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from downrange.wire.records import decode_record
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC
from tests.simulation.names import name_of

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.wire.records import Record


#: How many messages every check looks up by key.
_LOOKUPS = 40


@dataclass(slots=True, kw_only=True)
class Place:
    """The position of an acknowledged message."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    log_offset: int


class Ledger:
    """All promises of one run.

    Attributes:
        delivery: Messages that must be delivered: body -> position in the log.
        places: Messages that must be found at the position that the broker returned.
        tried: Bodies of all messages that were sent, acknowledged or not.
        due_ms: Body -> the time before which it must not be delivered.
        forbidden: Bodies that must not be delivered: rolled back, or recalled.
        returned: Messages that a consumer sent back, and must get again: body -> position in the
            log.
        topics: Topics that must exist, with their number of queues.
        deleted: Topics that must not exist.
        groups: Consumer groups that must exist.
        seen: Bodies that were delivered, by reader: "*" to consumers of all tags, "A" to those of
            this tag, "again" to those of the retry topic.
    """

    def __init__(self) -> None:
        self.delivery: dict[bytes, int] = {}
        self.places: list[Place] = []
        self.tried: set[bytes] = set()
        self.due_ms: dict[bytes, int] = {}
        self.forbidden: set[bytes] = set()
        self.returned: dict[bytes, int] = {}
        self.topics: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.groups: set[str] = set()
        self.seen: dict[str, set[bytes]] = {}

    # ---- called by clients ----

    def on_message(self, reader: str, record: Record) -> None:
        """Check and record a delivered message."""
        body = record.body
        assert body in self.tried, f"{body!r} was never sent"
        assert body not in self.forbidden, f"{body!r} was rolled back or recalled"
        assert record.is_intact
        early_ms = self.due_ms.get(body, 0) - record.store_ms
        assert early_ms <= 0, f"{body!r} came {early_ms} ms early"
        self.seen.setdefault(reader, set()).add(body)

    def forbid(self, body: bytes) -> None:
        """Record that a message must not be delivered."""
        assert body not in self.seen.get("*", set()), f"{body!r} was delivered"
        self.forbidden.add(body)

    def drop_topic(self, topic: str) -> None:
        """Drop the promises of a topic that is about to be deleted."""
        self.topics.pop(topic, None)
        self.places = [place for place in self.places if place.topic != topic]

    # ---- called by the world ----

    def drop_from(self, log_offset: int) -> None:
        """Drop promises beyond a position: power was lost, and "async" promises no durability."""
        self.returned.clear()  # their new positions in the log are unknown
        # The first send to a topic waits until the topic is saved, the second one does not.
        self.topics = {name: count for name, count in self.topics.items() if "auto" not in name}
        self.places = [place for place in self.places if place.log_offset < log_offset]
        self.delivery = {body: at for body, at in self.delivery.items() if at < log_offset}

    def drop_before(self, log_offset: int) -> None:
        """Drop promises before a position: retention removed this part of the log.

        A crash may bring parts of it back.
        """
        self.places = [place for place in self.places if place.log_offset >= log_offset]
        self.delivery = {body: at for body, at in self.delivery.items() if at >= log_offset}
        self.returned = {body: at for body, at in self.returned.items() if at >= log_offset}

    def undelivered(self, state: BrokerState) -> list[str]:
        """Return the messages that are still to be delivered."""
        self.drop_before(state.store.log.first)
        missing = set(self.delivery)
        everything = missing - self.seen.get("*", set())
        tagged = {body for body in missing if body.startswith(b"A")} - self.seen.get("A", set())
        again = set(self.returned) - self.seen.get("again", set())
        return sorted(body.decode().rstrip(".") for body in everything | tagged | again)

    def check(self, state: BrokerState) -> None:
        """Compare all promises with the broker's state."""
        self.drop_before(state.store.log.first)
        self._check_tables(state)
        self._check_places(state)
        check_queues(state)

    def _check_tables(self, state: BrokerState) -> None:
        for topic, queues in self.topics.items():
            config = state.topics.get(topic)
            assert config is not None, f"topic {topic} is gone"
            assert config.write_queue_nums >= queues, topic
        for topic in self.deleted:
            assert state.topics.get(topic) is None, f"topic {topic} is back"
        for group in self.groups:
            assert state.groups.get(group) is not None, f"group {group} is gone"

    def _check_places(self, state: BrokerState) -> None:
        for place in self.places:
            queue = state.store.queue(place.topic, place.queue_id)
            units = queue.units(place.offset, 1)
            assert units, f"{place} was acknowledged and is lost"
            assert units[0].log_offset == place.log_offset, place
            record = decode_record(state.store.read(units[0]))
            assert record.body == place.body, place
        for place in self.places[-_LOOKUPS:]:
            key = name_of(place.body)
            found = state.store.find(place.topic, key, begin_ms=0, end_ms=2**62, found_max=64)
            assert place.log_offset in found.log_offsets, f"{place} is not found by {key}"


def check_queues(state: BrokerState) -> None:
    """Check that the queues index every record of the log, without gaps, and nothing else."""
    store = state.store
    counts: dict[tuple[str, int], int] = {}
    for record in store.log.walk(store.log.first):
        queue = store.queue(record.topic, record.queue_id)
        if not queue.min_offset <= record.queue_offset < queue.max_offset:
            continue  # its topic was deleted, and maybe created again
        (unit,) = queue.units(record.queue_offset, 1)
        if unit.log_offset == record.log_offset:
            key = (record.topic, record.queue_id)
            counts[key] = counts.get(key, 0) + 1
    for topic, queue_id in store.queue_names():
        queue = store.queue(topic, queue_id)
        assert counts.get((topic, queue_id), 0) == queue.max_offset - queue.min_offset, topic
        for offset, unit in enumerate(queue.walk(queue.min_offset), queue.min_offset):
            record = decode_record(store.read(unit))
            found = (record.topic, record.queue_id, record.queue_offset)
            assert found == (topic, queue_id, offset)
    halves, ops = store.queue(HALF_TOPIC, 0), store.queue(HALF_DONE_TOPIC, 0)
    assert ops.max_offset <= halves.max_offset, "more half messages ended than began"
