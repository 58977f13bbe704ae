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

from downrange.client.flows.consuming.commits import LocalCommits
from downrange.client.flows.consuming.delivery_window import DeliveryWindow
from downrange.client.flows.consuming.fetch_loop import fetch
from downrange.client.flows.consuming.group_state import RESTART, GroupState
from downrange.client.flows.consuming.member_requests import serve_member
from downrange.client.flows.consuming.offsets import group_offset
from downrange.client.flows.consuming.pull import EVERYTHING, check_filter
from downrange.client.flows.consuming.queue_locks import lock, unlock
from downrange.client.flows.consuming.rebalance import rebalance, rebalance_loop
from downrange.client.flows.consuming.running_state import running_state
from downrange.client.flows.consuming.send_back import DEAD_LETTER_LEVEL, delay_of, send_back
from downrange.client.flows.consuming.timed_retry import send_timed_retry
from downrange.client.flows.consuming.verdicts import is_used_up
from downrange.client.flows.effects import (
    CALLS_AT_ONCE,
    Flow,
    Gather,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.notices import (
    HandlerStuck,
    LockLost,
    QueueFailed,
    WorkFailed,
)
from downrange.client.flows.routing.lookup import refresh_all
from downrange.client.flows.routing.membership import send_heartbeats, unregister
from downrange.errors import ClientClosed, RocketMQError, SendFailed
from downrange.model import QueueOffset, ReceivedMessage
from downrange.options.consumers import LOCK_TRUST
from downrange.wire.bodies import ConsumeDirectlyBody
from downrange.wire.consumer_bodies import ConsumeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from downrange.client.flows.consuming.delivery_window import Delivery
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.consuming.verdicts import Verdict
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId
    from downrange.wire.consumer_bodies import RunningStateBody

#: How often a tenth of `handle_timeout` is looked at, at least and at most, in seconds.
_WATCH_MIN: Final = 0.5
_WATCH_MAX: Final = 30.0


class GroupMember(GroupState):
    """One member of a consumer group; arguments, attributes and errors: `GroupState`."""

    # ---- life --------------------------------------------------------------------------------

    def enter(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Join the group, and take the first queues.

        A topic without a route is not an error: it may be created later.

        Raises:
            GroupTaken: The client has a consumer of this group.
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            StoreError: The store of offsets failed.
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
            if isinstance(error, Exception):
                yield from self._release_store()
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

    def exit(self, deadline: float) -> Flow[list[DeliveryWindow]]:
        """Leave the group: nothing that was begun is delivered again, unless time runs out.

        Returns:
            The windows whose handlers have not ended at the deadline; their messages will be
            delivered again.
        """
        core = self.core
        self.closing.fire()
        self.changed.fire()
        self.upcoming.fire()
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
        yield from self._set_free(windows, until)
        self._forget()
        yield from unregister(core, consumer=self.named_group, deadline=until)
        for window in windows:
            window.drop()
        self.windows.clear()
        yield from self._release_store()
        return unfinished

    def _release_store(self) -> Flow[None]:
        """Tell the store of offsets, if there is one, that this member does not use it any more.

        If the store fails, that is published: it must not keep the member from leaving.
        """
        if isinstance(self._commits, LocalCommits):
            try:
                until = self.core.clock.now() + self.core.options.call_timeout
                yield from self._commits.release(until)
            except RocketMQError as error:
                what = f"releasing the offsets of group {self.group}"
                self.core.notices.append(WorkFailed(what, error))
                yield from self.core.publish()

    def _set_free(self, windows: Sequence[DeliveryWindow], until: float) -> Flow[None]:
        """Do what `hand_over` does; an unexpected error is reported, and the queues go even so."""
        try:
            yield from self.hand_over(windows, until)
        except Exception as error:
            yield from self.core.report(f"handing over queues of group {self.group}", error)

    def hand_over(self, windows: Sequence[DeliveryWindow], until: float) -> Flow[None]:
        """Commit, and give the queues free for others."""
        if self.is_auto_commit:
            yield from self._find_lost(windows, until)
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
            self.unsaved.pop(queue, None)
            window = self.windows.get(queue)
            if window is not None:
                window.reset_to = QueueOffset(offset)
                yield from self.move(window, window.reset_to, "the group was reset")

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

    # ---- subscriptions -----------------------------------------------------------------------

    def resubscribe(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Read these topics from now on, and no others.

        It waits until the queues have been divided anew: then those of a new topic have a place to
        begin. At the deadline, or if `on_assigned` calls it, that is left to the background. What
        was handed out by an earlier filter ends as usual.

        Raises:
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            RocketMQError: No name server answered.
        """
        if self.is_closing:
            raise ClientClosed(f"the consumer of group {self.group!r}")
        yield from self._check_filters(filters, deadline)
        self.subscriptions.replace(filters, self.core.clock.wall_ms())
        self.unread = {topic: why for topic, why in self.unread.items() if topic in filters}
        registering = self.registering = Signal()
        try:
            # Before a broker knows the new filter: an answer that was made with it may skip what
            # the old one lets pass, and the other way round.
            yield from self.use_filters()
            yield from refresh_all(self.core, self.named_topics())
            self.core.registered.clear()
            yield from send_heartbeats(self.core)
        finally:
            registering.fire()
        upcoming = self.upcoming
        self.changed.fire()
        if not self.is_assigning:
            yield Wait(upcoming, deadline)

    def use_filters(self) -> Flow[None]:
        """Read the queues that it has with the filters that are subscribed now."""
        changed: list[DeliveryWindow] = []
        for window in self.windows.values():
            entry = self.subscriptions.get(window.queue.topic)
            if entry is None:
                continue
            window.room.fire()  # it waits if its topic was not subscribed for a moment
            if window.message_filter == entry.message_filter:
                continue
            if window.is_stopped:
                window.message_filter = entry.message_filter  # of the window in its place
                continue
            window.refilter(entry.message_filter)
            changed.append(window)
        self.settled()
        for window in changed:
            self.arrived(window)
            yield UserCall(self._spawn, (self._fetching(window),))

    def _fetching(self, window: DeliveryWindow) -> Flow[None]:
        what = f"fetching {window.queue}"
        return self.keep_running(what, partial(fetch, self, window, window.epoch))

    def _on_route(self, old: Route | None, new: Route) -> None:
        del old
        if new.topic in self.named_topics():
            self.changed.fire()

    # ---- windows -----------------------------------------------------------------------------

    def open_window(
        self,
        queue: QueueId,
        offset: QueueOffset,
        message_filter: Filter,
        *,
        is_committed: bool,
        locked_until: float | None,
    ) -> Flow[DeliveryWindow]:
        """Begin to read a queue that this member has; see `GroupState.open_window`."""
        now = self.core.clock.now()
        window = DeliveryWindow(queue, message_filter, offset, self.buffer, now)
        window.is_paused = self.is_paused
        if locked_until is not None:
            window.confirm_lock(locked_until)
        if is_committed:
            window.note_saved(offset)
        if window.has_lock and window.locked_until <= now:
            window.doubt_lock()
            self._doubt.fire()
        self.windows[queue] = window
        yield UserCall(self._spawn, (self._fetching(window),))
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
            yield from self._set_free([window], core.clock.now() + core.options.call_timeout)
        if self.is_shared and self.is_auto_commit and window.reset_to is None:
            self._remember_unsaved(window)
        self._remove(window)
        self.changed.fire()

    def _remember_unsaved(self, window: DeliveryWindow) -> None:
        """Remember how far a queue was handled, if the broker may not know."""
        if window.position != window.committed:
            self.unsaved[window.queue] = self.core.clock.now(), window.position

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
        if window.reset_to is not None:  # maybe of a reset that came after this began
            offset = window.reset_to
        what = f"continues at offset {offset}, because {reason}"
        core.notices.append(QueueFailed(self.group, window.queue, None, what))
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
            locked_until=window.locked_until if window.has_lock else None,
        )
        moved.is_paused = window.is_paused

    def _revoked(self, queues: list[QueueId]) -> Flow[None]:
        if self.on_revoked is not None and queues:
            yield from self.call_user("on_revoked", self.on_revoked, queues)

    # ---- what becomes of messages --------------------------------------------------------------

    def begin(self, delivery: Delivery, now: float) -> bool:
        """Look at messages that were just handed out; return whether they are to be handled."""
        del delivery, now
        return True

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note that messages were handled; their offsets are committed later."""

    def read_again(self, delivery: Delivery) -> Flow[None]:
        """Let the messages of a delivery come again, if it is not known what became of them."""
        window = delivery.window
        yield from self.move(window, window.position, "messages are to be read again")

    def give_back(
        self, window: DeliveryWindow, message: ReceivedMessage, verdict: Verdict, deadline: float
    ) -> Flow[float | None]:
        """Have the broker deliver a message again, or keep it as a dead letter.

        Returns:
            The seconds until it is delivered again; None for a dead letter.

        Raises:
            RocketMQError: The broker refused, or did not answer; it may have the message even so.
        """
        if verdict.is_dead or is_used_up(message, self.retries_max):
            yield from self._send_back(window, message, DEAD_LETTER_LEVEL, deadline)
            self.counts.dead += 1
            return None
        seconds = verdict.after
        if not (yield from self._retry_by_timer(window, message, seconds, deadline)):
            yield from self._send_back(window, message, verdict.level, deadline)
            seconds = delay_of(verdict.level, message.delivery_attempts)
        self.counts.sent_back += 1
        return seconds

    def _send_back(
        self, window: DeliveryWindow, message: ReceivedMessage, level: int, deadline: float
    ) -> Flow[None]:
        return send_back(
            self.core,
            self.group,
            message,
            window.queue,
            level,
            self.retries_max,
            is_unit_mode=self.is_unit_mode,
            deadline=deadline,
        )

    def _retry_by_timer(
        self,
        window: DeliveryWindow,
        message: ReceivedMessage,
        after: float | None,
        deadline: float,
    ) -> Flow[bool]:
        """Have a 5.x broker deliver a message after the time that was asked for, if it can."""
        inner = self.inner
        if not after or inner is None or not window.has_timer:
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

    # ---- timers ------------------------------------------------------------------------------

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
            yield Wait(self._doubt, clock.now() + (interval if is_sure else RESTART))
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
        before = self.doubts.copy()
        locked, refused = yield from lock(core, self.lock_group, windows, deadline=deadline)
        kept: list[DeliveryWindow] = []
        doubted: list[DeliveryWindow] = []
        for queue, window in windows.items():
            if queue in locked:
                (kept if window.is_sure else doubted).append(window)
            elif queue in refused and window.has_lock:
                self._lose(window)
        yield from self.release([window for window in windows.values() if window.is_lost])
        kept += yield from self._still_ours(doubted, deadline)
        for window in kept:
            if self.is_doubted(window.queue, before):
                continue  # the broker may have freed its lock after it answered
            window.confirm_lock(core.clock.now() + LOCK_TRUST)
            self.arrived(window)
        yield from self.release([window for window in doubted if window.is_lost])
        yield from core.publish()

    def _find_lost(self, windows: Sequence[DeliveryWindow], deadline: float) -> Flow[None]:
        """Note which windows, of those whose lock is in doubt, another member has read on."""
        doubted = {window.queue: window for window in windows if not window.is_sure}
        if not doubted:
            return
        yield Wait(self._renewal, deadline)
        _, refused = yield from lock(self.core, self.lock_group, doubted, deadline=deadline)
        for queue, window in doubted.items():
            if queue in refused:
                self._lose(window)
        kept = [window for queue, window in doubted.items() if queue not in refused]
        yield from self._still_ours(kept, deadline)
        yield from self.core.publish()

    def _still_ours(
        self, windows: Sequence[DeliveryWindow], deadline: float
    ) -> Flow[list[DeliveryWindow]]:
        """Return the windows whose queue no other member had; that one's commit is to stay.

        A window that was reset, and not committed since, is behind by intention. One whose broker
        does not answer stays in doubt.
        """
        core = self.core
        asked = [window for window in windows if window.is_saved]
        asking = [group_offset(core, self.group, w.queue, deadline=deadline) for w in asked]
        found: list[QueueOffset | RocketMQError | None] = yield Gather(asking, CALLS_AT_ONCE)
        ours = [window for window in windows if not window.is_saved]
        for window, saved in zip(asked, found, strict=True):
            if isinstance(saved, int) and saved > window.position:
                self._lose(window)
            elif not isinstance(saved, Exception):
                ours.append(window)
        return ours

    def _lose(self, window: DeliveryWindow) -> None:
        window.has_lock, window.is_lost, window.locked_until = False, True, 0.0
        self.core.notices.append(LockLost(self.group, window.queue))

    def _on_lost(self, address: str) -> None:
        """Doubt what a broker whose connection ended has: it may have begun anew."""
        self.lost_at[address] = self.core.clock.now()
        routes = self.core.routes
        self.doubt_locks({each for each in routes.brokers() if routes.master_of(each) == address})

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

    # ---- notices -----------------------------------------------------------------------------
