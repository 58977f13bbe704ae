"""One member of a consumer group: what it subscribes to, the queues it has, and their windows.

    enter       subscriptions checked, heartbeats sent, first rebalance
    background  the flows that run until `exit`: rebalance, commits, locks, a watch on handlers
    exit        stop, let handlers end, commit, unlock, unregister

It does not hand out messages: `arrived` tells its owner, such as a `PushCore`, that a window has
some. One rule: a queue is given up in four steps, by `release`: stop, wait for its handlers, commit
by an answered request, unlock. Only then may it go to another member.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.allocation import strategy_of
from downrange.client.flows.consuming.commits import BrokerCommits, LocalCommits, NoCommits
from downrange.client.flows.consuming.consume_rates import TopicRates
from downrange.client.flows.consuming.delivery_window import Buffer, DeliveryWindow
from downrange.client.flows.consuming.fetch_loop import fetch
from downrange.client.flows.consuming.member_requests import serve_member
from downrange.client.flows.consuming.pull import EVERYTHING, check_filter
from downrange.client.flows.consuming.queue_locks import lock, unlock
from downrange.client.flows.consuming.rebalance import rebalance, rebalance_loop
from downrange.client.flows.consuming.running_state import running_state
from downrange.client.flows.consuming.send_back import send_back
from downrange.client.flows.consuming.subscriptions import Subscriptions, member_entry
from downrange.client.flows.consuming.timed_retry import send_timed_retry
from downrange.client.flows.effects import Flow, Pause, Signal, UserCall, Wait
from downrange.client.flows.names import with_namespace
from downrange.client.flows.notices import (
    CommitFailed,
    HandlerStuck,
    LockLost,
    QueueFailed,
    QueueRecovered,
    SubscriptionsDiffer,
)
from downrange.client.flows.routing.lookup import refresh_all
from downrange.client.flows.routing.membership import send_heartbeats, unregister
from downrange.client.flows.validation import check_group
from downrange.errors import ClientClosed, RocketMQError, SendFailed
from downrange.model import QueueOffset, ReceivedMessage
from downrange.options.consumers import LOCK_TRUST
from downrange.wire.bodies import ConsumeDirectlyBody
from downrange.wire.consumer_bodies import ConsumeResult
from downrange.wire.system_names import HANDOVER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.commits import Commits
    from downrange.client.flows.consuming.delivery_window import Delivery
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.consuming.verdicts import Verdict
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId
    from downrange.options.consumers import ConsumerOptions
    from downrange.wire.bodies import ConsumerMember
    from downrange.wire.consumer_bodies import RunningStateBody

#: How often a tenth of `handle_timeout` is looked at, at least and at most, in seconds.
_WATCH_MIN: Final = 0.5
_WATCH_MAX: Final = 30.0
#: Retries of a group whose option gives no number: Java's limit, and none with "orderly".
_RETRIES: Final = 16
#: Seconds until a flow that ended by an unexpected error is started again.
_RESTART: Final = 1.0
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
        dropped_answers: Answers that did not fit into the buffer, and were pulled again.
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


class GroupMember:
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
        on_assigned: Called with new queues, before their first message.
        on_revoked: Called with queues that go, after their handlers have ended, before the commit.
        inner: Sends messages to the retry topic; None leaves that to the broker.
        retries_max: How often a message is delivered again; None for no limit.
        message_class: The class of the messages that are handed out.
        link: Called with each message that was fetched, before a handler sees it.
        is_auto_commit: Whether offsets are committed without a call of the program.
        handle_now: Handles a message out of turn, for tools; None without a handler.
        rates: Topic -> what was done in the last minute.
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
        #: Queue -> since when another member holds its lock.
        self.refused_since: dict[QueueId, float] = {}
        #: Queue -> why this member, although it has the lock, cannot begin to read it.
        self.untaken: dict[QueueId, RocketMQError] = {}
        self.started_ms = 0
        self._spawn = spawn
        #: Windows without room, in the order in which they began to wait.
        self._starved: dict[DeliveryWindow, None] = {}
        self._is_mismatch_told = False
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
            unit_mode=self.core.options.is_unit_mode,
            is_polled=self.is_polled,
        )

    # ---- life --------------------------------------------------------------------------------

    def enter(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Join the group, and take the first queues.

        A topic without a route is not an error: it may be created later.

        Raises:
            GroupTaken: The client has a consumer of this group.
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            RocketMQError: No name server answered.
        """
        core = self.core
        self.started_ms = core.clock.wall_ms()
        yield from self._check_filters(filters, deadline)
        self.subscriptions.replace(filters, core.clock.wall_ms())
        core.add_consumer(self.named_group, self)
        serve_member(core)
        core.routes.on_change.append(self._on_route)
        core.on_lost.append(self._on_lost)
        try:
            if isinstance(self._commits, LocalCommits):
                yield from self._commits.load()
            yield from refresh_all(core, self.named_topics())
            yield from send_heartbeats(core)
            yield from self.take_queues()
        except BaseException as error:
            self._give_up()
            if isinstance(error, Exception) and isinstance(self._commits, LocalCommits):
                yield from self._commits.release()
            raise

    def _give_up(self) -> None:
        """End what a start that failed has begun."""
        self.closing.fire()
        self._forget()
        for window in self.windows.values():
            window.drop()
        self.windows.clear()

    def _check_filters(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        for topic, message_filter in filters.items():
            if message_filter.kind != EVERYTHING.kind:
                yield from check_filter(self.core, topic, self.group, message_filter, deadline)

    def background(self) -> list[Flow[None]]:
        """Return the flows that run until the member leaves."""
        return [self.keep_running(name, loop) for name, loop in self.loops().items()]

    def take_queues(self) -> Flow[bool]:
        """Take the queues of this member; return whether it has all that it should have."""
        return (yield from rebalance(self))

    def loops(self) -> dict[str, Callable[[], Flow[None]]]:
        """Return the flows of `background`, by what they do."""
        loops: dict[str, Callable[[], Flow[None]]] = {
            "rebalance": partial(rebalance_loop, self),
            "watch": self._watch_loop,
        }
        if self.is_auto_commit:
            loops["commit"] = self._commit_loop
        if self.is_shared:
            loops["lock renewal"] = self._lock_loop
        return loops

    def keep_running(self, what: str, make: Callable[[], Flow[None]]) -> Flow[None]:
        """Run a flow until it ends; after an error that nobody expected, report it, start again."""
        while True:
            try:
                yield from make()
            except Exception as error:
                yield from self.core.report(f"{what} of group {self.group}", error)
                yield Pause(_RESTART)
            else:
                return

    def exit(self, deadline: float) -> Flow[list[DeliveryWindow]]:
        """Leave the group: nothing that was begun is delivered again, unless time runs out.

        Returns:
            The windows whose handlers have not ended at the deadline; their messages will be
            delivered again.
        """
        core = self.core
        self.closing.fire()
        self.changed.fire()
        self._doubt.fire()
        windows = list(self.windows.values())
        for window in windows:
            window.stop()
        for window in windows:
            yield Wait(window.idle, deadline)
        unfinished = [window for window in windows if window.running]
        yield from self._revoked([window.queue for window in windows])
        until = core.clock.now() + core.options.call_timeout
        yield Wait(self.rebalancing, until)
        yield from self.hand_over(windows, until)
        self._forget()
        yield from unregister(core, consumer=self.named_group, deadline=until)
        for window in windows:
            window.drop()
        self.windows.clear()
        if isinstance(self._commits, LocalCommits):
            yield from self._commits.release()
        return unfinished

    def hand_over(self, windows: Sequence[DeliveryWindow], until: float) -> Flow[None]:
        """Commit, and give the queues free for others."""
        if self.is_auto_commit:
            yield from self.commit(windows, until)
        yield from self._unlock(windows, until)

    def _forget(self) -> None:
        self.core.remove_consumer(self.named_group)
        if self._on_route in self.core.routes.on_change:
            self.core.routes.on_change.remove(self._on_route)
        if self._on_lost in self.core.on_lost:
            self.core.on_lost.remove(self._on_lost)

    # ---- what brokers ask --------------------------------------------------------------------

    def members_changed(self) -> None:
        """Divide the queues anew."""
        self.changed.fire()

    def reset(self, offsets: dict[QueueId, int]) -> Flow[None]:
        """Continue queues at other offsets, and commit these."""
        for queue, offset in offsets.items():
            window = self.windows.get(queue)
            if window is not None:
                yield from self.move(window, QueueOffset(offset), "the group was reset")

    def positions(self) -> dict[QueueId, int]:
        """Return the first offset of each queue that is not handled."""
        return {queue: window.position for queue, window in self.windows.items()}

    def running_state(self) -> RunningStateBody:
        """Return its state, for tools."""
        return running_state(self)

    def consume_directly(self, message: ReceivedMessage) -> Flow[ConsumeDirectlyBody]:
        """Handle a message now, out of turn; offsets stay as they are."""
        if self.handle_now is None:
            return ConsumeDirectlyBody(
                consume_result=ConsumeResult.THREW.value, remark="this consumer has no handler"
            )
        return (yield from self.handle_now(message))

    def rates_of(self, topic: str) -> TopicRates:
        """Return the counts of a topic."""
        rates = self.rates.get(topic)
        if rates is None:
            rates = self.rates[topic] = TopicRates(self.core.clock)
        return rates

    # ---- subscriptions -----------------------------------------------------------------------

    def named_topics(self) -> list[str]:
        """Return all topics with the namespace."""
        namespace = self.core.options.namespace
        return [with_namespace(topic, namespace) for topic in self.subscriptions.topics]

    def resubscribe(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Read these topics from now on, and no others.

        Raises:
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            RocketMQError: No name server answered.
        """
        if self.is_closing:
            raise ClientClosed(f"the consumer of group {self.group!r}")
        yield from self._check_filters(filters, deadline)
        self.subscriptions.replace(filters, self.core.clock.wall_ms())
        for window in self.windows.values():
            entry = self.subscriptions.get(window.queue.topic)
            if entry is not None:
                window.message_filter = entry.message_filter
        yield from refresh_all(self.core, self.named_topics())
        self.core.registered.clear()
        yield from send_heartbeats(self.core)
        self.changed.fire()

    def _on_route(self, old: Route | None, new: Route) -> None:
        del old
        if new.topic in self.named_topics():
            self.changed.fire()

    # ---- windows -----------------------------------------------------------------------------

    def may_fetch(self, window: DeliveryWindow) -> bool:
        """Return whether a window has room; if not, `settled` fires its signal later."""
        is_free = not window.is_paused and self.buffer.has_room(
            window, len(self.windows), self.options.queue_messages
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

    def open_window(
        self,
        queue: QueueId,
        offset: QueueOffset,
        message_filter: Filter,
        *,
        is_committed: bool,
        is_locked: bool,
    ) -> Flow[DeliveryWindow]:
        """Begin to read a queue that this member has."""
        now = self.core.clock.now()
        namespace = self.core.options.namespace
        window = DeliveryWindow(queue, message_filter, offset, self.buffer, now, namespace)
        if is_locked:
            window.confirm_lock(now + LOCK_TRUST)
        if is_committed:
            window.committed = offset
        self.windows[queue] = window
        fetching = self.keep_running(f"fetching {queue}", partial(fetch, self, window))
        yield UserCall(self._spawn, (fetching,))
        return window

    def release(self, windows: Iterable[DeliveryWindow]) -> Flow[None]:
        """Start to give up windows, each on its own: a slow handler delays only its queue."""
        for window in windows:
            if not window.is_stopped:
                window.stop()
                yield UserCall(self._spawn, (self._release(window),))

    def _release(self, window: DeliveryWindow) -> Flow[None]:
        core = self.core
        yield Wait(window.idle, core.clock.now() + self.options.handover_timeout)
        if self.is_closing:
            return
        yield from self._revoked([window.queue])
        if not window.is_lost:
            yield from self.hand_over([window], core.clock.now() + core.options.call_timeout)
        self._remove(window)
        self.changed.fire()

    def _unlock(self, windows: Sequence[DeliveryWindow], deadline: float) -> Flow[None]:
        """Give locks back; a renewal that is under way ends first, or it would lock them again."""
        if self.is_shared and windows:
            for window in windows:
                window.is_unlocked = True
            yield Wait(self._renewal, deadline)
            queues = [window.queue for window in windows]
            yield from unlock(self.core, self.lock_group, queues, deadline=deadline)

    def _remove(self, window: DeliveryWindow) -> None:
        window.drop()
        self._starved.pop(window, None)
        if self.windows.get(window.queue) is window:
            del self.windows[window.queue]
        self.settled()

    def move(self, window: DeliveryWindow, offset: QueueOffset, reason: str) -> Flow[None]:
        """Continue a queue elsewhere, in a new window, after its handlers have ended."""
        if not window.is_stopped:
            window.stop()
            yield UserCall(self._spawn, (self._move(window, offset, reason),))

    def _move(self, window: DeliveryWindow, offset: QueueOffset, reason: str) -> Flow[None]:
        core = self.core
        yield Wait(window.idle, core.clock.now() + self.options.handover_timeout)
        if self.is_closing or self.windows.get(window.queue) is not window:
            return
        core.notices.append(QueueFailed(self.group, window.queue, None, f"{reason} to {offset}"))
        yield from self.replace_window(window, offset)
        yield from core.publish()

    def replace_window(self, window: DeliveryWindow, offset: QueueOffset) -> Flow[None]:
        """Put a new window in place of one, at another offset; the lock stays."""
        self._remove(window)
        moved = yield from self.open_window(
            window.queue,
            offset,
            window.message_filter,
            is_committed=False,
            is_locked=window.has_lock,
        )
        moved.locked_until = window.locked_until
        moved.is_paused = window.is_paused

    def _revoked(self, queues: list[QueueId]) -> Flow[None]:
        if self.on_revoked is not None and queues:
            yield from self.call_user("on_revoked", self.on_revoked, queues)

    def call_user(
        self, where: str, function: Callable[[list[QueueId]], object], queues: list[QueueId]
    ) -> Flow[None]:
        """Call a function of the user; report its error."""
        try:
            yield UserCall(function, (queues,), may_block=True)
        except Exception as error:
            yield from self.core.report(where, error)

    # ---- what becomes of messages --------------------------------------------------------------

    def begin(self, delivery: Delivery, now: float) -> bool:
        """Look at messages that were just handed out; return whether they are to be handled."""
        del delivery, now
        return True

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note that messages were handled; their offsets are committed later."""

    def give_back(
        self, window: DeliveryWindow, message: ReceivedMessage, verdict: Verdict, deadline: float
    ) -> Flow[None]:
        """Have the broker deliver a message again, or keep it as a dead letter.

        Raises:
            RocketMQError: The broker refused, or did not answer; it may have the message even so.
        """
        if not (yield from self._retry_by_timer(window, message, verdict, deadline)):
            yield from send_back(
                self.core,
                self.group,
                message,
                window.queue,
                verdict.level,
                self.retries_max,
                deadline=deadline,
            )
        if verdict.is_dead:
            self.counts.dead += 1
        else:
            self.counts.sent_back += 1

    def _retry_by_timer(
        self, window: DeliveryWindow, message: ReceivedMessage, verdict: Verdict, deadline: float
    ) -> Flow[bool]:
        """Have a 5.x broker deliver a message after the time that was asked for, if it can."""
        after, inner = verdict.after, self.inner
        if not after or verdict.is_dead or inner is None or not window.has_timer:
            return False
        broker, retries = window.queue.broker, self.retries_max
        try:
            yield from send_timed_retry(
                inner, self.group, message, broker, after, retries, deadline=deadline
            )
        except SendFailed as error:
            if error.may_be_stored:
                raise
            return False  # its timer is switched off, or the time is too long for it
        return True

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
        return refused + [f"{queue} cannot be taken: {why}" for queue, why in self.untaken.items()]

    # ---- timers ------------------------------------------------------------------------------

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

    def _commit_loop(self) -> Flow[None]:
        core, options = self.core, self.options
        while not (yield from self._sleep(options.commit_interval)):
            deadline = core.clock.now() + core.options.call_timeout
            yield from self.commit([w for w in self.windows.values() if w.is_sure], deadline)

    def _lock_loop(self) -> Flow[None]:
        """Renew the locks of all windows, at once after a connection was lost."""
        clock, interval = self.core.clock, self.options.lock_interval
        while True:
            is_sure = all(window.is_sure for window in self.windows.values())
            yield Wait(self._doubt, clock.now() + (interval if is_sure else _RESTART))
            if self.is_closing:
                return
            if self._doubt.is_fired:
                self._doubt = Signal()
            self._renewal = Signal()
            try:
                yield from self._renew_locks()
            finally:
                self._renewal.fire()

    def _renew_locks(self) -> Flow[None]:
        """Renew locks once; a window whose lock another member has is given up."""
        core = self.core
        windows = {queue: w for queue, w in self.windows.items() if not w.is_unlocked}
        deadline = core.clock.now() + core.options.call_timeout
        locked, refused = yield from lock(core, self.lock_group, windows, deadline=deadline)
        for queue, window in windows.items():
            if queue in locked:
                window.confirm_lock(core.clock.now() + LOCK_TRUST)
                self.arrived(window)
            elif queue in refused and window.has_lock:
                window.has_lock, window.is_lost, window.locked_until = False, True, 0.0
                core.notices.append(LockLost(self.group, queue))
        yield from self.release([window for window in windows.values() if window.is_lost])
        yield from core.publish()

    def _on_lost(self, address: str) -> None:
        """Doubt what a broker whose connection ended has: it may have begun anew."""
        self.doubt_locks(lambda broker: self.core.routes.master_of(broker) == address)

    def doubt_locks(self, is_doubted: Callable[[str], bool]) -> None:
        """Doubt what brokers have: they may have lost commits, and given locks to others.

        Their locks are not trusted until they are confirmed, which is tried at once.
        """
        for window in self.windows.values():
            if self.is_shared and is_doubted(window.queue.broker):
                window.committed = None
                window.locked_until = 0.0
                self._doubt.fire()

    def _watch_loop(self) -> Flow[None]:
        """Report handlers that take too long."""
        core, limit = self.core, self.options.handle_timeout
        interval = min(max(limit / 10, _WATCH_MIN), _WATCH_MAX)
        while not (yield from self._sleep(interval)):
            now = core.clock.now()
            for window in self.windows.values():
                for delivery in window.running.values():
                    age, message = now - delivery.started_at, delivery.current
                    if age > limit and message is not None and not delivery.is_reported:
                        delivery.is_reported = True
                        core.notices.append(HandlerStuck(self.group, message, age))
            yield from core.publish()

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
        if theirs == ours:
            self._is_mismatch_told = False
        elif not self._is_mismatch_told:
            self._is_mismatch_told = True
            self.core.notices.append(SubscriptionsDiffer(self.group, ours, dict(theirs)))
            yield from self.core.publish()
