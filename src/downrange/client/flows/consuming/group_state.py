"""The state of one member of a group, and what the parts of its work share.

`GroupMember` adds the work: it joins and leaves, opens and releases windows. The modules that
fetch, divide queues and report take a `GroupState`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.allocation import strategy_of
from downrange.client.flows.consuming.commits import BrokerCommits, LocalCommits, NoCommits
from downrange.client.flows.consuming.consume_rates import TopicRates
from downrange.client.flows.consuming.delivery_window import Buffer, DeliveryWindow
from downrange.client.flows.consuming.missing_shares import MissingShares
from downrange.client.flows.consuming.subscriptions import Subscriptions, member_entry
from downrange.client.flows.effects import Flow, Pause, Signal, UserCall, Wait
from downrange.client.flows.names import with_namespace
from downrange.client.flows.notices import (
    ClientIdTaken,
    CommitFailed,
    QueueFailed,
    QueueRecovered,
    SubscriptionsDiffer,
    TopicUnread,
)
from downrange.client.flows.routing.lookup import missing_route
from downrange.client.flows.validation import check_group
from downrange.errors import BrokerNotFound
from downrange.model import QueueOffset, ReceivedMessage
from downrange.wire.system_names import HANDOVER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.commits import Commits
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.client.flows.routing.routes import Route
    from downrange.errors import RocketMQError
    from downrange.model import QueueId
    from downrange.options.consumers import ConsumerOptions
    from downrange.wire.bodies import ConsumeDirectlyBody, ConsumerMember

#: Retries of a group whose option gives no number: Java's limit, and none with "orderly".
_RETRIES: Final = 16
#: Held pulls of idle queues that end per second, at most, and the longest hold, in seconds.
_POLLS_PER_SECOND: Final = 100
_SUSPEND_MAX: Final = 120.0
#: Seconds until a flow that ended by an unexpected error is started again.
RESTART: Final = 1.0
_FROM_WHERE: Final = {
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
}


class ConsumerCounts(msgspec.Struct):
    """What a consumer has done so far, in messages unless stated otherwise.

    Attributes:
        fetched: Pulled, after the comparison of tags.
        handled: Handled without an error.
        failed: Handled with an error.
        sent_back: Given to the broker for another delivery.
        dead: Given to the broker as dead letters.
        given_up: Dropped after the last attempt, in the model "broadcast".
        dropped_answers: Answers that did not fit into the buffer, or did not follow the one before
            them, and were pulled again.
        commits_failed: Commits that failed; each is repeated.
        rebalances: How often the queues were divided anew.
        renewed: Receipts that were renewed while handlers ran, in the mode "pop".
    """

    fetched: int = 0
    handled: int = 0
    failed: int = 0
    sent_back: int = 0
    dead: int = 0
    given_up: int = 0
    dropped_answers: int = 0
    commits_failed: int = 0
    rebalances: int = 0
    renewed: int = 0


class GroupState(ABC):
    """One member of a consumer group.

    Args:
        core: The client.
        group: The group, without the namespace.
        options: How it consumes.
        hooks: Functions of the user.
        spawn: Starts a flow in the background; may be called from any thread.
        arrived: Called when a window has new messages to hand out, as a part of a step.
        is_polled: Whether the program asks for messages: then there are no retries by the broker.

    Raises:
        OptionError: The name of the group is not allowed.

    Attributes:
        lock_group: The name under which it takes the locks of queues.
        windows: Queue -> its window; also those that are being released.
        changed: Fires when the queues may have to be divided anew.
        closing: Fires when the member leaves.
        rebalancing: Fires when the running rebalance has ended.
        upcoming: Fires when the next rebalance to begin has ended, or when the member leaves.
        registering: Fires when the brokers have been told of changed subscriptions.
        is_assigning: Whether the user's function for new queues runs, for which the rebalance
            waits.
        is_paused: Whether the program paused all queues: those that come are paused, too.
        on_assigned: Called with new queues, before their first message.
        on_revoked: Called with queues that go, after their handlers have ended, before the commit.
        inner: Sends messages to the retry topic; None leaves that to the broker.
        retries_max: How often a message is delivered again; None for no limit.
        message_class: The class of the messages that are handed out.
        link: Called with each message that was fetched, before a handler sees it.
        is_auto_commit: Whether offsets are committed without a call of the program.
        handle_now: Handles a message out of turn, for tools; None without a handler.
        rates: Topic -> what was done in the last minute.
        missing: The topics of which it gets no queues.
        mismatch: Other subscriptions of the group at a broker; None if there are none.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ConsumerOptions,
        hooks: Hooks,
        spawn: Callable[[Flow[None]], object],
        arrived: Callable[[DeliveryWindow], None],
        *,
        is_polled: bool = False,
    ) -> None:
        check_group(group)
        namespace = core.options.namespace
        self.core = core
        self.group = group
        self.named_group = with_namespace(group, namespace)
        self.lock_group = self.named_group
        if options.mode != "orderly":
            self.lock_group += HANDOVER_SUFFIX
        self.options = options
        self.hooks = hooks
        self.strategy = strategy_of(options.strategy)
        self.arrived = arrived
        self.is_unit_mode = core.options.is_unit_mode or options.unit_mode
        self.is_shared = options.model == "clustering"
        self.is_polled = is_polled
        has_retries = self.is_shared and not is_polled
        self.subscriptions = Subscriptions(group, namespace, retry_topic=has_retries)
        self.windows: dict[QueueId, DeliveryWindow] = {}
        self.buffer = Buffer(options.buffer_messages, options.buffer_bytes)
        self.counts = ConsumerCounts()
        self.changed = Signal()
        self.closing = Signal()
        self.rebalancing = Signal()
        self.rebalancing.fire()
        self.upcoming = Signal()
        self.registering = Signal()
        self.registering.fire()
        self.is_assigning = False
        self.is_paused = False
        self.on_assigned: Callable[[list[QueueId]], object] | None = None
        self.on_revoked: Callable[[list[QueueId]], object] | None = None
        self.is_auto_commit = True
        self.retries_max = options.retries
        if options.retries is None and options.mode != "orderly":
            self.retries_max = _RETRIES
        self.inner: ProducerState | None = None
        self.message_class: type[ReceivedMessage] = ReceivedMessage
        self.link: Callable[[ReceivedMessage], None] | None = None
        self.handle_now: Callable[[ReceivedMessage], Flow[ConsumeDirectlyBody]] | None = None
        self.rates: dict[str, TopicRates] = {}
        self.last_commit_error: RocketMQError | None = None
        self.missing = MissingShares(core, group)
        self.mismatch: SubscriptionsDiffer | None = None
        #: Queue -> since when another member holds its lock.
        self.refused_since: dict[QueueId, float] = {}
        #: Queue -> why this member, although it has the lock, cannot begin to read it.
        self.untaken: dict[QueueId, RocketMQError] = {}
        #: Subscribed topic -> why it has no queues to read.
        self.unread: dict[str, str] = {}
        #: Queue -> when it was given up without a commit, and the first offset that was not done.
        self.unsaved: dict[QueueId, tuple[float, QueueOffset]] = {}
        #: Address -> when a connection to it ended, or could not be opened, last.
        self.lost_at: dict[str, float] = {}
        #: Broker -> how often its locks came into doubt.
        self.doubts: Counter[str] = Counter()
        self.started_ms = 0
        self._spawn = spawn
        #: Windows without room, in the order in which they began to wait.
        self._starved: dict[DeliveryWindow, None] = {}
        self._is_clash_told = False
        #: Connections with this client's id that a broker had when it was asked last.
        self._namesakes: tuple[str, ...] = ()
        #: Fires when locks are in doubt, and are to be renewed now.
        self._doubt = Signal()
        #: Fires when the running renewal of locks has ended.
        self._renewal = Signal()
        self._renewal.fire()
        self._commits = self._make_commits()

    def _make_commits(self) -> Commits:
        store = self.options.offset_store
        if self.is_shared:
            return BrokerCommits(self.core, self.group)
        return NoCommits() if store is None else LocalCommits(store, self.named_group)

    @property
    def is_joined(self) -> bool:
        """Whether it is the member of its group that the client's heartbeats name."""
        return self.core.consumers.get(self.named_group) is self

    @property
    def is_closing(self) -> bool:
        """Whether the member leaves, or has left."""
        return self.closing.is_fired

    @property
    def local_offsets(self) -> Mapping[QueueId, QueueOffset] | None:
        """The offsets of the user's store; None where the brokers keep them."""
        commits = self._commits
        return commits.offsets if isinstance(commits, LocalCommits) else None

    def membership(self) -> ConsumerMember:
        """Return its entry in the heartbeat."""
        start = self.options.start
        return member_entry(
            self.named_group,
            self.subscriptions,
            model=self.options.model,
            start=_FROM_WHERE[start] if isinstance(start, str) else "CONSUME_FROM_TIMESTAMP",
            unit_mode=self.is_unit_mode,
            is_polled=self.is_polled,
        )

    # ---- subscriptions, and what tools ask ---------------------------------------------------

    def named_topics(self) -> list[str]:
        """Return all topics with the namespace."""
        namespace = self.core.options.namespace
        return [with_namespace(topic, namespace) for topic in self.subscriptions.topics]

    def rates_of(self, topic: str) -> TopicRates:
        """Return the counts of a topic."""
        rates = self.rates.get(topic)
        if rates is None:
            rates = self.rates[topic] = TopicRates(self.core.clock)
        return rates

    def positions(self) -> dict[QueueId, int]:
        """Return the first offset of each queue that is not handled."""
        return {queue: window.position for queue, window in self.windows.items()}

    def assigned(self) -> list[QueueId]:
        """Return the queues that it has now, in order."""
        return sorted(queue for queue, each in self.windows.items() if not each.is_stopped)

    def problems(self) -> list[str]:
        """Return what is wrong besides the state of single queues."""
        now = self.core.clock.now()
        refused = [
            f"{queue}: another member holds its lock for {now - since:.1f} s"
            for queue, since in self.refused_since.items()
        ]
        untaken = [f"{_place(queue)} cannot be taken: {why}" for queue, why in self.untaken.items()]
        unread = [f"topic {topic} {why}" for topic, why in self.unread.items()]
        return refused + untaken + unread + self.missing.problems()

    def warnings(self) -> list[str]:
        """Return what is wrong, although messages are consumed."""
        return [] if self.mismatch is None else [self.mismatch.text]

    def forget_unsubscribed(self) -> None:
        """Forget what was noted about topics that are not subscribed any more."""
        topics = set(self.subscriptions.topics)
        self.missing.keep(topics)
        for queue in [*self.refused_since, *self.untaken]:
            if queue.topic not in topics:
                self.refused_since.pop(queue, None)
                self.untaken.pop(queue, None)

    # ---- windows -----------------------------------------------------------------------------

    @property
    def suspend(self) -> float:
        """Seconds that a broker holds a pull: longer with many queues: idle ones cost less."""
        return max(self.options.suspend, min(_SUSPEND_MAX, len(self.windows) / _POLLS_PER_SECOND))

    def may_fetch(self, window: DeliveryWindow) -> bool:
        """Return whether a window has room; if not, `settled` fires its signal later."""
        options = self.options
        is_free = not window.is_paused and self.buffer.has_room(
            window, len(self.windows), options.queue_messages, options.queue_bytes
        )
        if is_free:
            self._starved.pop(window, None)
        else:
            self._starved[window] = None
        return is_free

    def settled(self) -> None:
        """Let windows that waited for room look again; call it when messages are done."""
        if self._starved:
            starved, self._starved = self._starved, {}
            for window in starved:
                window.room.fire()

    def doubt_locks(self, brokers: Collection[str]) -> None:
        """Doubt what brokers have: they may have lost commits, and given locks to others.

        Their locks are not trusted until they are confirmed, which is tried at once. An answer to
        a request from before the doubt confirms nothing: see `is_doubted`.
        """
        self.doubts.update(brokers)
        for window in self.windows.values():
            if self.is_shared and window.queue.broker in brokers:
                window.doubt_lock()
                self._doubt.fire()

    def is_doubted(self, queue: QueueId, before: Counter[str]) -> bool:
        """Return whether the lock of a queue came into doubt since `before`, a copy of `doubts`."""
        return self.doubts[queue.broker] != before[queue.broker]

    @abstractmethod
    def open_window(
        self,
        queue: QueueId,
        offset: QueueOffset,
        message_filter: Filter,
        *,
        is_committed: bool,
        locked_until: float | None,
    ) -> Flow[DeliveryWindow]:
        """Begin to read a queue that this member has.

        Args:
            queue: The queue.
            offset: Where to begin.
            message_filter: Which messages are pulled.
            is_committed: Whether the broker, or the offset store, has this offset.
            locked_until: Until when the lock is trusted; 0 if it is in doubt, None without one.
        """

    @abstractmethod
    def release(self, windows: Iterable[DeliveryWindow]) -> Flow[None]:
        """Start to give up windows, each on its own: a slow handler delays only its queue."""

    @abstractmethod
    def move(self, window: DeliveryWindow, offset: QueueOffset, reason: str) -> Flow[None]:
        """Continue a queue elsewhere, in a new window, after its handlers have ended."""

    # ---- work --------------------------------------------------------------------------------

    def commit(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[bool]:
        """Save positions that have changed; return whether all were saved."""
        failures = yield from self._commits.save(list(windows), deadline)
        if not failures:
            self.last_commit_error = None
            return True
        self.counts.commits_failed += len(failures)
        is_new = self.last_commit_error is None
        self.last_commit_error = failures[0]
        if is_new:
            self.core.notices.append(CommitFailed(self.group, failures[0]))
            yield from self.core.publish()
        return False

    def call_user(
        self, where: str, function: Callable[[list[QueueId]], object], queues: list[QueueId]
    ) -> Flow[None]:
        """Call a function of the user; report its error."""
        try:
            yield UserCall(function, (queues,), may_block=True)
        except Exception as error:
            yield from self.core.report(where, error)

    def keep_running(self, what: str, make: Callable[[], Flow[None]]) -> Flow[None]:
        """Run a flow until it ends; report an unexpected error, and start the flow again."""
        while True:
            try:
                yield from make()
            except Exception as error:
                yield from self.core.report(f"{what} of group {self.group}", error)
                yield Pause(RESTART)
            else:
                return

    def _sleep(self, seconds: float) -> Flow[bool]:
        """Wait; return whether the member leaves."""
        is_closing: bool = yield Wait(self.closing, self.core.clock.now() + seconds)
        return is_closing

    # ---- notices -----------------------------------------------------------------------------

    def note_failure(self, window: DeliveryWindow, error: RocketMQError) -> Flow[None]:
        """Publish that a queue cannot be read."""
        self.core.notices.append(QueueFailed(self.group, window.queue, error, "cannot be read"))
        yield from self.core.publish()

    def note_untaken(self, queue: QueueId, error: RocketMQError) -> None:
        """Note that a queue cannot be taken; it is published when that begins."""
        if queue not in self.untaken:
            self.core.notices.append(QueueFailed(self.group, queue, error, "cannot be taken"))
        self.untaken[queue] = error

    def note_route(self, topic: str, route: Route | None) -> Flow[None]:
        """Note whether a subscribed topic has queues to read; why not is published once.

        The retry topic is left out: brokers create it after the first heartbeat.
        """
        if topic == self.subscriptions.retry_topic or (route is not None and route.readable):
            self.unread.pop(topic, None)
            return
        problem, next_step = yield from self._why_unread(topic, route)
        if self.unread.get(topic) != problem:
            self.core.notices.append(TopicUnread(self.group, topic, problem, next_step))
        self.unread[topic] = problem

    def _why_unread(self, topic: str, route: Route | None) -> Flow[tuple[str, str]]:
        """Return why a topic has no queues to read, and the next step."""
        if route is not None:
            return "has no queue that may be read", f"`downrange topic show {topic}` shows why"
        core = self.core
        name = with_namespace(topic, core.options.namespace)
        deadline = core.clock.now() + core.options.call_timeout
        error = yield from missing_route(core, name, deadline, "")
        if isinstance(error, BrokerNotFound):
            step = "Start a broker, or wait until it has registered; `downrange doctor "
            return "has no route: no broker is registered", f"{step}{error.address}` shows more"
        return "does not exist", "`downrange topic list` shows the topics"

    def note_recovery(self, window: DeliveryWindow) -> Flow[None]:
        """Publish that a queue can be read again, if it was published that it cannot."""
        was_told, window.failure = window.failure is not None, None
        window.failing_since = None
        if was_told:
            self.core.notices.append(QueueRecovered(self.group, window.queue))
            yield from self.core.publish()

    def note_mismatch(self, theirs: Mapping[str, str]) -> Flow[None]:
        """Publish, once, that the brokers have other subscriptions for the group than ours."""
        ours = {body.topic: body.sub_string for body in self.subscriptions.bodies()}
        before, self.mismatch = self.mismatch, None
        if theirs == ours:
            return
        self.mismatch = SubscriptionsDiffer(self.group, ours, dict(theirs))
        if before is None:
            self.core.notices.append(self.mismatch)
            yield from self.core.publish()

    def note_connections(self, addresses: tuple[str, ...]) -> Flow[None]:
        """Publish, once, that several clients have this client's id.

        Seen twice in a row: a broker may not have noticed yet that a connection has ended.
        """
        before, self._namesakes = self._namesakes, addresses if len(addresses) > 1 else ()
        if len(set(before) & set(addresses)) > 1 and not self._is_clash_told:
            self._is_clash_told = True
            self.core.notices.append(ClientIdTaken(self.group, self.core.client_id, addresses))
            yield from self.core.publish()
        elif len(addresses) <= 1:
            self._is_clash_told = False


def _place(queue: QueueId) -> str:
    """Return the name of a queue; -1 stands for all queues of a broker."""
    return f"{queue.topic} of {queue.broker}" if queue.number < 0 else str(queue)
