"""A broker with virtual time, for messages that wait: put, tick, stop and start again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.options import BrokerOptions
from downrange.server.broker.record_fields import StoreHost, join_properties
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.scheduled.delayed_delivery import deliver_due
from downrange.server.broker.scheduled.timed_delivery import fire_due
from downrange.server.broker.state import BrokerState
from downrange.server.broker.store_message import store_message
from downrange.store.files import MemoryFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.codes import SysFlag
from downrange.wire.records import Record, decode_record
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from downrange.errors import RocketMQError
    from downrange.server.outputs import Output
    from downrange.store.files import Files
    from downrange.wire.command import Command

#: A full second, so that tests can tell what is rounded.
START_MS = 1_800_000_000_000
SIZES = StoreOptions(
    log_segment_bytes=8 * 1024 * 1024, queue_segment_units=3000, key_slots=7, key_entries=2000
)
OPTIONS = BrokerOptions(delay_levels="1s 5s 2m")


class World:
    """A broker without handlers.

    Args:
        options: How it decides.
        files: Its store's folder; one in memory unless given.
        sizes: Sizes of the store's files.

    Attributes:
        now_ms: The time, which the test moves on.
        outputs: What deliveries and finished stores wanted done.
        error: What storing shall fail with.
    """

    def __init__(
        self,
        options: BrokerOptions = OPTIONS,
        files: Files | None = None,
        sizes: StoreOptions = SIZES,
    ) -> None:
        self.files = files or MemoryFiles()
        self._sizes = sizes
        self.options = options
        self.now_ms = START_MS
        self.outputs: list[Output] = []
        self.error: RocketMQError | None = None
        self.state = self._open()

    def _open(self) -> BrokerState:
        unit_tag = unit_tag_of(self.options.delay_levels)
        store = MessageStore(self.files, self._sizes, unit_tag=unit_tag)
        host = StoreHost.of("10.0.0.2", 10911)
        return BrokerState(self.options, host, store, lambda now_ms: f"id{now_ms}", self.now_ms)

    def restart(self, *, delays: bytes | None = None, timers: bytes | None = None) -> None:
        """Start again on the same store, with what was saved of the progress."""
        self.state.store.close()
        self.state = self._open()
        if delays is not None:
            self.state.delays.load(delays)
        if timers is not None:
            self.state.timers.load(timers)

    def put(
        self, body: str, topic: str = "T", queue_id: int = 0, /, **properties: str
    ) -> Command | None:
        """Have a message stored, as sending would; return the refusal."""
        record = Record(
            topic_bytes=topic.encode(),
            queue_id=queue_id,
            body=body.encode(),
            flag=5,
            born_ms=START_MS - 7,
            born_ip=bytes(15) + b"\x01",
            born_port=50_000,
            sys_flag=int(SysFlag.BORN_HOST_V6),
            store_ip=self.state.host.ip,
            store_port=self.state.host.port,
            reconsume_times=3,
            property_bytes=join_properties(properties),
        )
        refused = store_message(self.state, record, properties, self.now_ms)
        self.commit()
        return refused

    def tick(self, forward_ms: int = 0) -> None:
        """Move time on and do what it demands."""
        self.now_ms += forward_ms
        self.outputs += deliver_due(self.state, self.now_ms)
        self.outputs += fire_due(self.state, self.now_ms)
        self.commit()

    def commit(self) -> None:
        """Store what came, each message on its own."""
        for write in self.state.write_queue.take():
            if self.error is None:
                self.state.store.append(write.records, self.now_ms, write.properties)
            self.outputs += write.on_stored(self.error, self.now_ms)

    def damage(self, record: Record) -> None:
        """Turn a bit of a stored body."""
        whole = self.state.store.log.read(record.log_offset, record.size)
        at = record.log_offset + whole.index(record.body)
        flipped = bytes([record.body[0] ^ 1])
        self.files.open("commitlog/00000000000000000000").write(at, [flipped])

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return what a queue holds."""
        queue = self.state.store.queue(topic, queue_id)
        units = queue.units(queue.min_offset, 10_000)
        return [decode_record(self.state.store.read(unit)) for unit in units]

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[str]:
        """Return the bodies of what a queue holds."""
        return [record.body.decode() for record in self.records(topic, queue_id)]

    def scheduled(self, level: int) -> list[Record]:
        """Return what was stored for a delay level."""
        return self.records(SCHEDULE_TOPIC, level - 1)
