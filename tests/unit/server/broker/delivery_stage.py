"""The state of a broker in virtual time, for delayed and timed messages: store, tick, restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.options import BrokerOptions
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.delayed_delivery import deliver_due
from downrange.server.broker.scheduled.timed_delivery import fire_due
from downrange.server.broker.store_message import store_message
from downrange.store.files import MemoryFiles
from downrange.wire.codes import SysFlag
from downrange.wire.records import Record
from downrange.wire.system_names import SCHEDULE_TOPIC
from tests.unit.server.broker.broker_stage import SIZES, damage_body, open_state, records_of

if TYPE_CHECKING:
    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output
    from downrange.store.files import Files
    from downrange.store.message_store import StoreOptions
    from downrange.wire.command import Command

#: A full second, so that rounding is visible in tests.
START_MS = 1_800_000_000_000
OPTIONS = BrokerOptions(delay_levels="1s 5s 2m")


class DeliveryStage:
    """A broker's state without `Broker` and handlers.

    Args:
        options: The broker's options.
        files: The store's folder; one in memory by default.
        sizes: Sizes of the store's files.

    Attributes:
        now_ms: The time; tests change it.
        outputs: The outputs of deliveries and callbacks.
        error: If set, storing fails with it.
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
        return open_state(self.options, self.files, sizes=self._sizes, now_ms=self.now_ms)

    def restart(self, *, delays: bytes | None = None, timers: bytes | None = None) -> None:
        """Start again on the same store, with saved progress."""
        self.state.store.close()
        self.state = self._open()
        if delays is not None:
            self.state.delays.load(delays)
        if timers is not None:
            self.state.timers.load(timers)

    def put(
        self, body: str, topic: str = "T", queue_id: int = 0, /, **properties: str
    ) -> Command | None:
        """Store a message as a send does; return the refusal."""
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
        """Advance the time and deliver what is due."""
        self.now_ms += forward_ms
        self.outputs += deliver_due(self.state, self.now_ms)
        self.outputs += fire_due(self.state, self.now_ms)
        self.commit()

    def commit(self) -> None:
        """Store all pending writes, each on its own."""
        for write in self.state.write_queue.take():
            if self.error is None:
                self.state.store.append(write.records, self.now_ms, write.properties)
            self.outputs += write.on_stored(self.error, self.now_ms)

    def damage(self, record: Record) -> None:
        """Flip a bit in a stored body."""
        damage_body(self.state, self.files, record)

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return the records of a queue."""
        return records_of(self.state, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[str]:
        """Return the bodies of the records of a queue."""
        return [record.body.decode() for record in self.records(topic, queue_id)]

    def scheduled(self, level: int) -> list[Record]:
        """Return the records that wait in a delay level."""
        return self.records(SCHEDULE_TOPIC, level - 1)
