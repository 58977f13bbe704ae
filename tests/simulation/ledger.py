"""What the broker promised, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from downrange.wire.records import decode_record
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC
from tests.simulation.names import name_of

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.wire.records import Record


#: How many messages are looked up by key in every check.
_LOOKED_UP = 40


@dataclass(slots=True, kw_only=True)
class Place:
    """Where an acknowledged message is."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    log_offset: int


class Ledger:
    """All promises of one story.

    Attributes:
        delivery: By body: where messages in the log are that consumers must see, sooner or later.
        places: Messages that must be found where the broker said they are.
        tried: Bodies that somebody tried to send.
        due_ms: By body: before this time nobody may see it.
        forbidden: Bodies that nobody may see: rolled back, or taken back.
        returned: By body: where messages were that a consumer gave back, and must see again.
        topics: Topics that there must be, with their number of queues.
        deleted: Topics that there must not be.
        groups: Consumer groups that there must be.
        seen: Bodies that consumers saw: "*" all of them, "A" those who want this tag, and "again"
            those who read what was given back.
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

    # ---- what clients tell ----

    def saw(self, reader: str, record: Record) -> None:
        """Hear what a consumer got."""
        body = record.body
        assert body in self.tried, f"nobody sent {body!r}"
        assert body not in self.forbidden, f"{body!r} was rolled back or taken back"
        assert record.is_intact
        early_ms = self.due_ms.get(body, 0) - record.store_ms
        assert early_ms <= 0, f"{body!r} came {early_ms} ms early"
        self.seen.setdefault(reader, set()).add(body)

    def forbid(self, body: bytes) -> None:
        """Hear that nobody may see a message."""
        assert body not in self.seen.get("*", set()), f"{body!r} was seen"
        self.forbidden.add(body)

    def forget_topic(self, topic: str) -> None:
        """Hear that somebody wants a topic deleted: its messages may go."""
        self.topics.pop(topic, None)
        self.places = [place for place in self.places if place.topic != topic]

    # ---- what the story knows ----

    def forget_from(self, log_offset: int) -> None:
        """Hear that power was lost before the log was durable, and nobody had promised it was."""
        self.returned.clear()  # nobody knows where they are in the log
        # The first one to send to a topic waits until it is saved, the second one does not.
        self.topics = {name: count for name, count in self.topics.items() if "auto" not in name}
        self.places = [place for place in self.places if place.log_offset < log_offset]
        self.delivery = {body: at for body, at in self.delivery.items() if at < log_offset}

    def forget_before(self, log_offset: int) -> None:
        """Hear that retention dropped the log's front; a crash may bring parts of it back."""
        self.places = [place for place in self.places if place.log_offset >= log_offset]
        self.delivery = {body: at for body, at in self.delivery.items() if at >= log_offset}
        self.returned = {body: at for body, at in self.returned.items() if at >= log_offset}

    def unseen(self, state: BrokerState) -> list[str]:
        """Return what consumers still have to see."""
        self.forget_before(state.store.log.first)
        missing = set(self.delivery)
        everything = missing - self.seen.get("*", set())
        tagged = {body for body in missing if body.startswith(b"A")} - self.seen.get("A", set())
        again = set(self.returned) - self.seen.get("again", set())
        return sorted(body.decode().rstrip(".") for body in everything | tagged | again)

    def check(self, state: BrokerState) -> None:
        """Compare all promises with the broker."""
        self.forget_before(state.store.log.first)
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
        for place in self.places[-_LOOKED_UP:]:
            key = name_of(place.body)
            found = state.store.find(place.topic, key, begin_ms=0, end_ms=2**62, found_max=64)
            assert place.log_offset in found.log_offsets, f"{place} is not found by {key}"


def check_queues(state: BrokerState) -> None:
    """Find every record of the log in its queue, and nothing else, without a gap."""
    store = state.store
    counts: dict[tuple[str, int], int] = {}
    for record in store.log.walk(store.log.first):
        queue = store.queue(record.topic, record.queue_id)
        if not queue.min_offset <= record.queue_offset < queue.max_offset:
            continue  # of a topic that was deleted, and maybe made again
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
    assert ops.max_offset <= halves.max_offset, "more halves were ended than begun"
