"""Everything a broker knows; handlers read and change it, and nobody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.held_pulls import HeldPulls
from downrange.server.broker.scheduled.delay_levels import DelayedMessages
from downrange.server.broker.scheduled.timed_messages import TimedMessages
from downrange.server.broker.tables.client_table import Clients
from downrange.server.broker.tables.group_offsets import GroupOffsets
from downrange.server.broker.tables.group_table import GroupTable
from downrange.server.broker.tables.queue_locks import QueueLocks
from downrange.server.broker.tables.statistics import Statistics
from downrange.server.broker.tables.topic_table import READ_WRITE, TopicTable, create_system_topics
from downrange.server.broker.transactions.half_table import HalfMessages
from downrange.server.broker.write_queue import WriteQueue
from downrange.server.outputs import Note
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.send_replies import StoredForm
from downrange.wire.system_names import is_broker_system_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.options import BrokerOptions
    from downrange.server.broker.record_fields import StoreHost
    from downrange.store.message_store import MessageStore

#: Why nothing is stored when an append found no space: whoever looks after the disk takes it back.
DISK_FULL: Final = "the disk is full"


class BrokerState:
    """A broker.

    Attributes:
        options: As given, then as changed by request 25.
        host: Where it can be reached.
        marks: Properties that every message of a producer gets.
        marks_text: The same as they are stored.
        stored_form: What its answers that a message is stored have in common.
        make_unique_id: Returns an id for a message that has none; it is given the time.
        store: The log and its indexes.
        intake: What is stored at the end of this turn.
        boot_ms: When it started.
        unwritable: Why nothing is stored at the moment (a full disk, a stop), or None.
        disk_used: Which part of the disk was in use when it was last looked at, 0 to 1.
        is_checkpoint_wanted: Whether the indexes shall be made durable soon: what was deleted must
            not come back with the next recovery.
    """

    def __init__(
        self,
        options: BrokerOptions,
        host: StoreHost,
        store: MessageStore,
        make_unique_id: Callable[[int], str],
        now_ms: int,
    ) -> None:
        self.host = host
        self.store = store
        self.make_unique_id = make_unique_id
        self._number = 0
        self.boot_ms = now_ms
        self.unwritable: str | None = None
        self.disk_used = 0.0
        self.is_checkpoint_wanted = False
        self.write_queue = WriteQueue()
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = GroupOffsets()
        self.clients = Clients()
        self.locks = QueueLocks()
        self.held_pulls = HeldPulls(options.parked_pulls_max)
        self.delays = DelayedMessages(options.delay_levels)
        self.timers = TimedMessages()
        self.halves = HalfMessages()
        self.statistics = Statistics(now_ms)
        self.change_options(options)

    @property
    def tables_version(self) -> int:
        """The number of changes of topics and groups; `Broker.published` takes such a version."""
        return self.topics.version + self.groups.version

    def change_options(self, options: BrokerOptions) -> None:
        """Go on with other options; delay levels, names and addresses stay as they are."""
        self.options = options
        self.held_pulls.pulls_max = options.parked_pulls_max
        self.broker_properties = {
            str(PropertyKey.REGION): options.region,
            str(PropertyKey.TRACE_ON): "true" if options.is_trace_on else "false",
            str(PropertyKey.CLUSTER): options.cluster,
        }
        self.broker_properties_text = encode_properties(self.broker_properties)
        self.stored_form = StoredForm(
            id_prefix=self.host.id_prefix, is_trace_on=options.is_trace_on, region=options.region
        )

    def next_number(self) -> int:
        """Return a number that grows, for choices that shall go round."""
        self._number += 1
        return self._number

    def prepare(self, now_ms: int) -> list[Note]:
        """Create what a broker has from the start; call it when all files are loaded."""
        notes = self._find_lost_topics(now_ms)
        create_system_topics(self.topics, self.options, now_ms)
        self.groups.create_system_groups(now_ms)
        return notes

    def _find_lost_topics(self, now_ms: int) -> list[Note]:
        """Create the topics of messages that are in the store but in no topic.

        A power failure between a message and the file of topics leaves them so, or somebody who
        deletes that file. A topic that was deleted is not found again: its queues go first.
        """
        if self.store.recovery.was_clean and len(self.topics):
            return []
        queues: dict[str, int] = {}
        for topic, queue_id in self.store.queue_names():
            if self.topics.get(topic) is None and not is_broker_system_topic(topic):
                queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        notes: list[Note] = []
        for topic, count in queues.items():
            self.topics.ensure(topic, count, READ_WRITE, now_ms)
            text = f"topic {topic} has messages but was not saved: created with {count} queue(s)"
            notes.append(Note(text, is_warning=True))
        return notes
