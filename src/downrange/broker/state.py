"""Everything a broker knows; handlers read and change it, and nobody else does."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from downrange.broker.clients import Clients
from downrange.broker.delays import DelayedMessages
from downrange.broker.groups import GroupTable
from downrange.broker.half_messages import HalfMessages
from downrange.broker.intake import Intake
from downrange.broker.locks import QueueLocks
from downrange.broker.offsets import GroupOffsets
from downrange.broker.parked import ParkedPulls
from downrange.broker.statistics import Statistics
from downrange.broker.timers import TimedMessages
from downrange.broker.topics import TopicTable, create_system_topics

if TYPE_CHECKING:
    from downrange.options import BrokerOptions
    from downrange.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class StoreHost:
    """Where the broker can be reached, as its records and message ids say.

    Attributes:
        ip: 4 or 16 bytes.
        port: Its TCP port.
        address: The same as text, "host:port".
    """

    ip: bytes
    port: int
    address: str

    @classmethod
    def of(cls, host: str, port: int) -> StoreHost:
        """Make it of a numeric address."""
        packed = ip_address(host).packed
        return cls(packed, port, f"[{host}]:{port}" if len(packed) == 16 else f"{host}:{port}")


class BrokerState:
    """A broker.

    Attributes:
        options: As given, then as changed by request 25.
        host: Where it can be reached.
        store: The log and its indexes.
        intake: What is stored at the end of this turn.
        boot_ms: When it started.
        unwritable: Why nothing is stored at the moment (a full disk, a stop), or None.
        is_checkpoint_wanted: Whether the indexes shall be made durable soon: what was deleted must
            not come back with the next recovery.
    """

    def __init__(
        self, options: BrokerOptions, host: StoreHost, store: MessageStore, now_ms: int
    ) -> None:
        self.options = options
        self.host = host
        self.store = store
        self.boot_ms = now_ms
        self.unwritable: str | None = None
        self.is_checkpoint_wanted = False
        self.intake = Intake()
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = GroupOffsets()
        self.clients = Clients()
        self.locks = QueueLocks()
        self.parked = ParkedPulls(options.parked_pulls_max)
        self.delays = DelayedMessages(options.delay_levels)
        self.timers = TimedMessages()
        self.halves = HalfMessages()
        self.statistics = Statistics(now_ms)

    def prepare(self, now_ms: int) -> None:
        """Create what a broker has from the start; call it when all files are loaded."""
        create_system_topics(self.topics, self.options, now_ms)
        self.groups.create_system_groups(now_ms)
