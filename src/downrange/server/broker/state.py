"""The state of a broker: everything that handlers read and change.

The parts (tables, delays, timers, halves, held pulls, write queue) do not import this module: they
take the store or the offsets they need as arguments. Functions of the whole state stand above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.filters.compiled import CompiledExpressions
from downrange.server.broker.held_pulls import HeldPulls
from downrange.server.broker.pop.checkpoint_records import PopRecords
from downrange.server.broker.pop.checkpoints import Checkpoints
from downrange.server.broker.pop.held_pops import HeldPops
from downrange.server.broker.pop.orders import Orders
from downrange.server.broker.pop.rewinds import Rewinds
from downrange.server.broker.pop.unmatched_ranges import UnmatchedRanges
from downrange.server.broker.route_lookups import RouteLookups
from downrange.server.broker.scheduled.delay_levels import DelayedMessages
from downrange.server.broker.scheduled.timed_messages import TimedMessages, timer_queue
from downrange.server.broker.settings import ChangedSettings, Settings
from downrange.server.broker.tables.client_table import Clients
from downrange.server.broker.tables.filter_table import FilterTable
from downrange.server.broker.tables.group_offsets import GroupOffsets
from downrange.server.broker.tables.group_table import GroupTable
from downrange.server.broker.tables.queue_locks import QueueLocks
from downrange.server.broker.tables.request_modes import RequestModes
from downrange.server.broker.tables.statistics import Statistics
from downrange.server.broker.tables.topic_table import (
    READ,
    READ_WRITE,
    WRITE,
    TopicTable,
    create_system_topics,
)
from downrange.server.broker.transactions.half_table import HalfMessages
from downrange.server.broker.write_queue import WriteQueue
from downrange.server.outputs import Note
from downrange.store.retention import RetentionOptions
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.send_replies import StoredForm
from downrange.wire.system_names import is_broker_system_topic, revive_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.options import BrokerOptions
    from downrange.server.broker.record_fields import StoreHost
    from downrange.store.message_store import MessageStore
    from downrange.wire.bodies import TopicTableBody

#: The value of `BrokerState.unwritable` after an append found no space. The driver, which watches
#: the disk, resets it.
DISK_FULL: Final = "the disk is full"


class BrokerState:
    """A broker without I/O of its own except for the store.

    Attributes:
        options: As given, then as changed by request 25.
        retention: How long messages are kept; changed in the same way.
        settings: The changes, as they are saved.
        fixed_settings: Settings of the whole server that cannot be changed, by Java's names, as
            request 26 shows them.
        accepts_sends: Whether clients may send (`BrokerOptions.permission`).
        accepts_pulls: Whether clients may pull.
        host: Its address in records and message ids.
        broker_properties: Properties that the broker adds to every message of a producer.
        broker_properties_text: The same as a property string.
        stored_form: The fields that all replies to stored messages have in common.
        make_unique_id: Takes the time and returns an id for a message that has none.
        store: The log and its indexes.
        expressions: Compiled SQL92 expressions of pulls and subscriptions.
        filters: The SQL92 expressions of consumer groups, from their heartbeats.
        write_queue: Records that are stored at the end of this turn.
        boot_ms: When it started.
        recovered_end: The end of the log at that time.
        unwritable: Why nothing is stored at the moment (a full disk, a stop), or None.
        disk_used: The used part of the disk at the last look, 0 to 1.
        disk_space: Its free and its total bytes at that time.
        is_pop_loaded: Whether all checkpoints of the last run are known; see `pop/revival.py`.
        is_checkpoint_due: Whether the indexes must be made durable soon, so that the next recovery
            does not bring back deleted messages.
    """

    def __init__(
        self,
        options: BrokerOptions,
        host: StoreHost,
        store: MessageStore,
        make_unique_id: Callable[[int], str],
        now_ms: int,
        *,
        retention: RetentionOptions | None = None,
        fixed_settings: Mapping[str, str] | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.host = host
        self.retention = retention or RetentionOptions()
        self.fixed_settings = dict(fixed_settings or {})
        self.settings = ChangedSettings(Settings(options, self.retention), self._apply)
        self.store = store
        self.make_unique_id = make_unique_id
        self._number = 0
        self.boot_ms = now_ms
        self.recovered_end = store.log.end
        self.unwritable: str | None = None
        self.disk_used = 0.0
        self.disk_space: tuple[int, int] = (0, 0)
        self.is_checkpoint_due = False
        self.write_queue = WriteQueue()
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = GroupOffsets()
        self.clients = Clients()
        self.expressions = CompiledExpressions()
        self.filters = FilterTable(self.expressions)
        self.locks = QueueLocks()
        self.request_modes = RequestModes()
        self.route_lookups = RouteLookups()
        self.held_pulls = HeldPulls(options.parked_pulls_max)
        self.delays = DelayedMessages(options.delay_levels)
        self.checkpoints = Checkpoints(self.offsets)
        self.rewinds = Rewinds()
        self.pop_records = PopRecords(
            host,
            options.name,
            revive_topic(options.cluster),
            self.checkpoints,
            self.rewinds,
            self._is_older,
        )
        self.held_pops = HeldPops()
        self.unmatched = UnmatchedRanges()
        self.orders = Orders()
        self.is_pop_loaded = False
        self.timers = TimedMessages(self.pop_records)
        self.halves = HalfMessages()
        self.statistics = statistics or Statistics(now_ms)
        self.timers.events = self.statistics.events
        self.change_options(options)

    @property
    def tables_version(self) -> int:
        """The number of changes of confirmed tables; see `Broker.published`."""
        return (
            self.topics.version
            + self.groups.version
            + self.settings.version
            + self.request_modes.version
            + self.orders.version
            + self.rewinds.version
        )

    def announced_topics(self) -> TopicTableBody:
        """Return all topics as name servers get them: with the broker's permission at most."""
        return self.topics.table(self.options.permission)

    def change_settings(self, texts: Mapping[str, str], now_ms: int) -> None:
        """Put new values of settings into force and keep them; create topics they allow.

        Args:
            texts: New values by Java's name; each name is one of `settings.SETTINGS`.
            now_ms: The time.

        Raises:
            OptionError: A value is refused; nothing has changed.
        """
        permission = self.options.permission
        if texts:
            self.settings.change(Settings(self.options, self.retention), texts, now_ms)
        if self.options.permission != permission:
            self.topics.change_all(now_ms)
        create_system_topics(self.topics, self.options, now_ms)

    def _apply(self, settings: Settings) -> None:
        self.retention = settings.retention
        self.change_options(settings.broker)

    def change_options(self, options: BrokerOptions) -> None:
        """Replace the options; delay levels, names and addresses keep their first values."""
        self.options = options
        self.accepts_sends = bool(options.permission & WRITE)
        self.accepts_pulls = bool(options.permission & READ)
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
        """Return the next number of a counter, for choices in rotation."""
        self._number += 1
        return self._number

    def prepare(self, now_ms: int) -> list[Note]:
        """Create missing topics and system groups; call it after all files are loaded."""
        notes = [*self.settings.prepare(), *self._find_lost_topics(now_ms)]
        create_system_topics(self.topics, self.options, now_ms)
        self.groups.create_system_groups(now_ms)
        self.filters.prepare(now_ms)
        for (topic, group, queue_id), offset in self.rewinds.unsaved():
            self.offsets.commit(group, topic, queue_id, offset)
        self.rewinds.cut(timer_queue(self.store).max_offset)
        self.pop_records.read_left(self.store, self.offsets)
        if self.pop_records.left_ends:  # these have no offset in the timer's queue
            self.rewinds.drop_nothing()
        for (topic, group, queue_id), offset in self.orders.committed(self._end_of):
            if offset > (self.offsets.get(group, topic, queue_id) or 0):
                self.offsets.commit(group, topic, queue_id, offset)
        return notes

    def set_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, is_reset: bool = False
    ) -> None:
        """Set how far a group has read a queue, at the request of a client; pops go on there.

        If a reset or a commit sets a group back, `rewinds` changes, and so does `tables_version`.
        Not if a group commits that does not pop, as consumers that pull do all the time. While
        records of earlier pops are not read, nobody knows how far they go: each reset is kept.
        """
        place = (topic, group, queue_id)
        is_early = is_reset and not self.is_pop_loaded
        is_back = offset < (self.checkpoints.next_offset(*place) or 0)
        if is_early or (is_back and (is_reset or self._may_pop(*place))):
            timer_end = timer_queue(self.store).max_offset
            self.rewinds.add(place, offset, timer_end, drops_unread=is_early)
        self.offsets.commit(group, topic, queue_id, offset)
        self.checkpoints.reset(*place, offset)
        self.orders.reset(place)

    def forget_topic(self, topic: str) -> None:
        """Forget how far groups have read a topic that was deleted."""
        self.offsets.delete_topic(topic)
        self.checkpoints.forget(lambda name, _: name == topic)
        self.rewinds.forget(lambda name, _: name == topic)
        self.orders.forget(lambda name, _: name == topic)

    def forget_group(self, group: str) -> None:
        """Forget how far a group that was deleted has read."""
        self.offsets.delete_group(group)
        self.checkpoints.forget(lambda _, name: name == group)
        self.rewinds.forget(lambda _, name: name == group)
        self.orders.forget(lambda _, name: name == group)

    def _may_pop(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group has popped from a queue, as far as is known."""
        return not self.is_pop_loaded or self.checkpoints.has_popped(topic, group, queue_id)

    def _end_of(self, topic: str, queue_id: int) -> int:
        return self.store.queue(topic, queue_id).max_offset

    def _is_older(self, topic: str, queue_id: int, offset: int, log_offset: int) -> bool:
        """Whether a message exists and was stored before a position in the log."""
        if self.topics.get(topic) is None:
            return False
        units = self.store.queue(topic, queue_id).units(offset, 1)
        return bool(units) and units[0].log_offset < log_offset

    def _find_lost_topics(self, now_ms: int) -> list[Note]:
        """Create topics that have messages in the store but no entry in the table.

        That happens when power fails after a message was stored and before the file of topics was
        written, or when that file was removed. A deleted topic does not come back: its queues are
        deleted first.
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
