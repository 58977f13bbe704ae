"""A member of a group in pop mode: brokers hand out messages, and the members share all queues.

    watched -> popped -> waiting -> running -> acknowledged, in batches
                                            -> given back, or a dead letter

There is no rebalance, and there are no offsets to commit: every member pops every broker. A source
(one broker of one topic) is popped when it has messages and there is room; a watch, which takes
nothing, waits for them. While a handler runs, the receipts of its messages are renewed.

Two rules: a message whose time is over before its turn is skipped; the broker delivers it again.
And what was popped and will not be handled here is given back at once, also by a member that leaves
while a pop is under way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.client.flows.consuming.delivery import DEAD_LETTER, GIVEN_BACK, ack_all
from downrange.client.flows.consuming.delivery import Delivery as PoppedMessage
from downrange.client.flows.consuming.delivery_window import Buffer, DeliveryWindow
from downrange.client.flows.consuming.fetch_loop import passed_by_hooks
from downrange.client.flows.consuming.first_offset import first_offset
from downrange.client.flows.consuming.group_member import GroupMember
from downrange.client.flows.consuming.missing_shares import no_share
from downrange.client.flows.consuming.offsets import set_group_offset
from downrange.client.flows.consuming.pop import PopStatus, pop, wait_for_messages
from downrange.client.flows.consuming.pop_sources import PopSource, brokers_of, watch
from downrange.client.flows.effects import (
    CALLS_AT_ONCE,
    Flow,
    Gather,
    Pause,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.notices import CommitFailed, QueueFailed, QueueRecovered, WorkFailed
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import heartbeat_failures
from downrange.errors import PopNotSupported, RocketMQError, SettleError
from downrange.model import QueueId, QueueOffset
from downrange.options import SimpleOptions
from downrange.wire.codes import ResponseCode
from downrange.wire.pop_receipts import PLAIN
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import Delivery
    from downrange.client.flows.consuming.pop import PopBatch, Popped
    from downrange.client.flows.consuming.verdicts import Verdict
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.routing.routes import Route
    from downrange.model import ReceivedMessage
    from downrange.options.consumers import ConsumerOptions

#: Messages per request; the most that a broker returns.
_POP_COUNT: Final = 32
#: Seconds that acknowledgements wait for others, to share a request.
_ACK_DELAY: Final = 0.005
#: Seconds until acknowledgements that failed are repeated.
_ACK_PAUSE: Final = 0.5
#: Messages that a member holds: more would be over before their turn (Java: popThresholdForQueue).
_AHEAD: Final = 96
#: The same, for each call of the handler that may run.
_AHEAD_EACH: Final = 3
#: Seconds until a member that does not pop all brokers yet looks again.
_INCOMPLETE: Final = 1.0
#: Seconds between two looks at the receipts of running handlers.
_RENEW_INTERVAL: Final = 1.0
#: The part of its time after which a receipt is renewed.
_RENEWED_AFTER: Final = 0.5
#: Seconds until a broker that holds too many requests is asked again.
_FULL_PAUSE: Final = 1.0
#: Seconds of one watch: a member that leaves must not keep a broker's notice for itself for long.
_WATCH: Final = 5.0
_NO_GROUP: Final = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
_WAIT_MAX: Final = 60.0


class PopMember(GroupMember):
    """A member of a group in pop mode; arguments and errors: `GroupMember`.

    Attributes:
        sources: Topic and broker -> where messages are popped from.
        expired: Messages whose time was over before they were settled.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ConsumerOptions,
        hooks: Hooks,
        spawn: Callable[[Flow[None]], object],
        arrived: Callable[[DeliveryWindow], None],
    ) -> None:
        super().__init__(core, group, options, hooks, spawn, arrived)
        ahead = max(_AHEAD, _AHEAD_EACH * options.concurrency * options.batch)
        self.buffer = Buffer(min(options.buffer_messages, ahead), options.buffer_bytes)
        self.owner = PopOwner(self)
        self.sources: dict[tuple[str, str], PopSource] = {}
        self.expired = 0
        self._begun: set[QueueId] = set()
        self._room = Signal()
        self._pauses = SimpleOptions(
            retry_backoff=options.retry_backoff, retry_backoff_max=options.retry_backoff_max
        )
        #: Identity of a message -> its receipt and time.
        self._popped: dict[int, PoppedMessage] = {}
        self._acks: list[PoppedMessage] = []
        self._ack_due = Signal()
        self._acking = UnderWay()
        self._popping = UnderWay()
        #: Fires when all is acknowledged or given back.
        self._left = Signal()
        self._refusal: PopNotSupported | None = None

    # ---- life --------------------------------------------------------------------------------

    def take_queues(self) -> Flow[bool]:
        """Follow the routes: pop each broker of each topic; return whether all are popped.

        Raises:
            PopNotSupported: A broker is older than 5.0; the others are popped even so.
        """
        self.forget_unsubscribed()
        wanted: set[tuple[str, str]] = set()
        is_complete = True
        for topic in list(self.subscriptions.filters):
            brokers, is_whole = yield from self._brokers_of(topic)
            wanted.update((topic, broker) for broker in brokers)
            is_complete = is_complete and is_whole
        yield from self.core.publish()
        yield from self._close_sources(wanted)
        refusal = None
        for place in sorted(wanted - self.sources.keys()):
            try:
                yield from self._open_source(*place)
            except PopNotSupported as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return is_complete

    def _brokers_of(self, topic: str) -> Flow[tuple[set[str], bool]]:
        """Return the brokers to pop a topic from, and whether these are all."""
        core = self.core
        name = with_namespace(topic, core.options.namespace)
        popped = {broker for each, broker in self.sources if each == topic}
        try:
            deadline = core.clock.now() + core.options.call_timeout
            route = core.routes.get(name) or (yield from refresh_route(core, name, deadline))
        except RocketMQError as error:
            self.missing.note(topic, no_share(error))
            return popped, False
        self.missing.note_found(topic)
        yield from self.note_route(topic, route)
        brokers: set[str] = set()
        late: dict[str, RocketMQError] = {}
        if route is not None:
            brokers = set(brokers_of(route))
            failures = yield from self._begin(route)
            late = {broker: error for broker, error in failures.items() if broker not in popped}
        self._note_late(topic, brokers, late)
        return brokers - late.keys(), route is not None and not late

    def _note_late(self, topic: str, brokers: set[str], late: dict[str, RocketMQError]) -> None:
        """Note why brokers are not popped yet, and which of them can be popped now."""
        for place in [each for each in self.untaken if each.topic == topic]:
            if place.broker not in late:
                del self.untaken[place]
                if place.broker in brokers:
                    self.core.notices.append(QueueRecovered(self.group, place))
        for broker, error in late.items():
            self.note_untaken(QueueId(topic, broker, -1), error)

    def _begin(self, route: Route) -> Flow[dict[str, RocketMQError]]:
        """Commit where the group begins in queues in which it has no offset.

        A broker creates the group when a heartbeat comes. If the first one was lost, it does not
        have the group, and gets another one.

        Returns:
            Broker -> why that failed. A pop of it would begin with the oldest message.
        """
        failures = yield from self._find_starts(route)
        asked = {error.address for error in failures.values() if error.code == _NO_GROUP}
        if not asked:
            return failures
        unregistered = yield from heartbeat_failures(self.core, sorted(filter(None, asked)))
        failures = yield from self._find_starts(route)
        return {
            broker: unregistered.get(error.address or "", error)
            for broker, error in failures.items()
        }

    def _find_starts(self, route: Route) -> Flow[dict[str, RocketMQError]]:
        """Try `_begin` once."""
        core = self.core
        named = [queue for queue in route.readable if queue not in self._begun]
        deadline = core.clock.now() + core.options.call_timeout
        outcomes: list[object] = yield Gather(
            [
                first_offset(
                    core,
                    self.group,
                    shown_queue(queue, core.options.namespace),
                    self.options.start,
                    deadline=deadline,
                )
                for queue in named
            ],
            CALLS_AT_ONCE,
        )
        failures: dict[str, RocketMQError] = {}
        for queue, outcome in zip(named, outcomes, strict=True):
            if isinstance(outcome, RocketMQError):
                failures[route.broker_of(queue) or queue.broker] = outcome
            else:
                self._begun.add(queue)
        return failures

    def _open_source(self, topic: str, broker: str) -> Flow[None]:
        yield from self._try(topic, broker)
        entry = self.subscriptions.get(topic)
        if entry is None or self.is_closing:
            return  # it was given up meanwhile
        source = self.sources[topic, broker] = PopSource(topic, broker, entry.message_filter)
        source.is_ready = True
        loop = self.keep_running(f"popping {topic} of {broker}", partial(self._pop_loop, source))
        yield UserCall(self._spawn, (loop,))

    def _close_sources(self, wanted: set[tuple[str, str]]) -> Flow[None]:
        """Pop other sources no more, and give back what waits of them; what runs may end."""
        for place in self.sources.keys() - wanted:
            del self.sources[place]
        rest: list[PoppedMessage] = []
        for window in list(self.windows.values()):
            assert isinstance(window, PopWindow)
            if window.source not in wanted:
                rest += [self._popped.pop(id(message)) for message in window.leave_out()]
                if not window.running:
                    self._remove(window)
        if rest:
            self._room.fire()
            yield from self._return(rest, self.core.clock.now() + self.core.options.call_timeout)

    def use_filters(self) -> Flow[None]:
        """Pop with the filters that are subscribed now; what was popped is handled."""
        for (topic, _), source in self.sources.items():
            entry = self.subscriptions.get(topic)
            if entry is not None:
                source.message_filter = entry.message_filter
        return
        yield  # a flow

    def reset(self, offsets: dict[QueueId, int]) -> Flow[None]:
        """Commit other offsets: brokers pop from there on. What was popped is handled."""
        core = self.core
        deadline = core.clock.now() + core.options.call_timeout
        for queue, offset in offsets.items():
            if queue.topic in self.subscriptions.filters:
                yield from set_group_offset(
                    core, self.group, queue, QueueOffset(offset), deadline=deadline
                )

    def _try(self, topic: str, broker: str) -> Flow[None]:
        """Ask a broker once, which says whether it has pops.

        Raises:
            PopNotSupported: It does not.
        """
        core = self.core
        deadline = core.clock.now() + core.options.call_timeout
        try:
            yield from wait_for_messages(core, self.group, topic, broker, poll=0, deadline=deadline)
        except PopNotSupported:
            raise
        except RocketMQError:
            return  # the loop tries again, and reports it

    def loops(self) -> dict[str, Callable[[], Flow[None]]]:
        """Return the flows that run until the member leaves."""
        return {
            "sources": self._source_loop,
            "watch": self._watch_loop,
            "acknowledgement": self._ack_loop,
            "receipt renewal": self._renew_loop,
        }

    def hand_over(self, windows: Sequence[DeliveryWindow], until: float) -> Flow[None]:
        """Send all acknowledgements, and give back what was not begun."""
        clock = self.core.clock
        yield from self._popping.end_of_all(until)
        while not (yield from self._send_acks(until)) and clock.now() + _ACK_PAUSE < until:
            yield Pause(_ACK_PAUSE)
        yield from self._acking.end_of_all(until)
        yield from self._send_acks(until)  # those that failed while we waited
        begun = {id(each) for w in windows for d in w.running.values() for each in d.messages}
        rest = [popped for key, popped in self._popped.items() if key not in begun]
        yield from self._return(rest, until)
        self.owner.is_closed = True
        self._left.fire()
        self._ack_due.fire()

    def _return(self, rest: Iterable[PoppedMessage], deadline: float) -> Flow[None]:
        """Let brokers deliver messages to others at once; those that fail, when they are over."""
        yield Gather([popped.leave(deadline) for popped in rest], CALLS_AT_ONCE)

    def _source_loop(self) -> Flow[None]:
        clock, wait = self.core.clock, _INCOMPLETE
        while True:
            yield Wait(self.changed, clock.now() + wait)
            if self.is_closing:
                return
            if self.changed.is_fired:
                self.changed = Signal()
            ended, self.upcoming = self.upcoming, Signal()
            is_complete, refusal = False, None
            try:
                is_complete = yield from self.take_queues()
            except PopNotSupported as error:
                refusal = error
            finally:
                ended.fire()
            if refusal is not None and self._refusal is None:
                self.core.notices.append(WorkFailed(f"popping of group {self.group}", refusal))
                yield from self.core.publish()
            self._refusal = refusal
            interval = self.options.rebalance_interval
            wait = interval if is_complete else min(interval, _INCOMPLETE)

    # ---- popping -----------------------------------------------------------------------------

    def _pop_loop(self, source: PopSource) -> Flow[None]:
        """Pop a source while it is one, and there is room."""
        core, place = self.core, (source.topic, source.broker)
        while not self.is_closing and self.sources.get(place) is source:
            now = core.clock.now()
            if self.buffer.count and self._is_full():
                self._room = Signal()
                yield Wait(self._room, now + _WAIT_MAX)
            elif source.is_ready:
                with self._popping:
                    yield from self._pop_once(source)
            else:
                until = now + min(_WATCH, self.options.suspend)
                yield from watch(core, self.group, source, until, self._pauses, self._report)
                yield from core.publish()

    def _is_full(self) -> bool:
        buffer = self.buffer
        return buffer.count >= buffer.count_max or buffer.bytes >= buffer.bytes_max

    def _pop_once(self, source: PopSource) -> Flow[None]:
        core, options = self.core, self.options
        now = core.clock.now()
        try:
            batch = yield from pop(
                core,
                self.group,
                source.topic,
                source.broker,
                max_count=min(_POP_COUNT, options.pull_batch),
                invisible=options.invisible,
                message_filter=source.message_filter,
                deadline=now + core.options.call_timeout,
                decode_body=options.decode_body,
                message_class=self.message_class,
            )
        except RocketMQError as error:
            if source.failure is None:
                self._report(source, error)
            source.failed(error, self._pauses)
            yield from core.publish()
            return
        source.recovered(self._report)
        now = core.clock.now()
        rates = self.rates_of(source.topic)
        rates.pulled(len(batch.popped), now - batch.asked_at, now)
        if batch.popped:
            source.found(now, has_more=True)
            yield from self._take_in(source, batch)
        else:
            source.missed(now)
            if batch.status is PopStatus.FULL:
                source.pause = _FULL_PAUSE
        yield from core.publish()

    def _take_in(self, source: PopSource, batch: PopBatch) -> Flow[None]:
        self.counts.fetched += len(batch.popped)
        popped = batch.popped
        if self.hooks.filter_message:
            passed = yield from passed_by_hooks(self, [each.message for each in popped])
            wanted = set(map(id, passed))
            self._acknowledge(
                self._delivery(e, batch) for e in popped if id(e.message) not in wanted
            )
            popped = [each for each in popped if id(each.message) in wanted]
        place = (source.topic, source.broker)
        if self.is_closing or self.sources.get(place) is not source:
            deadline = self.core.clock.now() + self.core.options.call_timeout
            yield from self._return([self._delivery(each, batch) for each in popped], deadline)
            return
        windows: dict[QueueId, list[ReceivedMessage]] = {}
        for each in popped:
            message = each.message
            if self.link is not None:
                self.link(message)
            self._popped[id(message)] = self._delivery(each, batch)
            windows.setdefault(_place_of(each), []).append(message)
        for queue, messages in windows.items():
            window = self._window_of(queue, source)
            window.pulled_at = self.core.clock.now()
            window.add(messages, QueueOffset(messages[-1].offset + 1))
            self.arrived(window)

    def _delivery(self, popped: Popped, batch: PopBatch) -> PoppedMessage:
        return PoppedMessage(self.owner, popped, batch.asked_at, self.options.invisible)

    def _window_of(self, queue: QueueId, source: PopSource) -> DeliveryWindow:
        window = self.windows.get(queue)
        if window is None:
            now = self.core.clock.now()
            window = PopWindow(queue, source.message_filter, QueueOffset(0), self.buffer, now)
            window.source = (source.topic, source.broker)
            window.is_paused = True  # nothing fills it but this
            self.windows[queue] = window
        return window

    def settled(self) -> None:
        """Let sources that waited for room look again."""
        self._room.fire()

    # ---- what becomes of messages ------------------------------------------------------------

    def begin(self, delivery: Delivery, now: float) -> bool:
        """Leave out messages whose time is over; return whether any is left to handle."""
        window, left = delivery.window, []
        for message in delivery.messages:
            popped = self._popped.get(id(message))
            if popped is not None and now < popped.expires_at:
                left.append(message)
                continue
            self.expired += 1
            self._popped.pop(id(message), None)
            window.settle(message)
        if len(left) < len(delivery.messages):
            self._room.fire()
        if left:
            delivery.messages = left
        else:
            window.end(delivery, now)
        return bool(left)

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages, soon and together with others."""
        found = [self._popped.pop(id(message), None) for message in messages]
        self._acknowledge(delivery for delivery in found if delivery is not None)

    def _acknowledge(self, deliveries: Iterable[PoppedMessage]) -> None:
        self._acks += deliveries
        self._ack_due.fire()

    def read_again(self, delivery: Delivery) -> Flow[None]:
        """Leave messages to the broker, which delivers them again when their time is over."""
        for message in delivery.messages:
            if self._popped.pop(id(message), None) is not None:
                delivery.window.settle(message)
        self._room.fire()
        return
        yield  # a flow

    def give_back(
        self, window: DeliveryWindow, message: ReceivedMessage, verdict: Verdict, deadline: float
    ) -> Flow[float | None]:
        """Have the broker deliver a message again, or keep it as a dead letter.

        Returns:
            The seconds until it is delivered again; None for a dead letter.

        Raises:
            RocketMQError: The broker refused, or did not answer.
        """
        del window
        popped = self._popped.get(id(message))
        seconds: float | None = 0.0  # if its time is over, the broker delivers it again
        if popped is not None:
            try:
                if verdict.is_dead:
                    yield from popped.dead_letter(deadline)
                    seconds = None
                else:
                    seconds = yield from popped.retry(verdict.after, deadline)
            except SettleError:
                self.expired += 1
            self._popped.pop(id(message), None)
        return seconds

    def _ack_loop(self) -> Flow[None]:
        """Acknowledge until the member has left: running handlers end after it began to leave."""
        core, left = self.core, self._left
        while not left.is_fired:
            yield Wait(self._ack_due, core.clock.now() + _WAIT_MAX)
            if len(self._acks) < _POP_COUNT:
                yield Wait(left, core.clock.now() + _ACK_DELAY)
            self._ack_due = Signal()
            is_done = yield from self._send_acks(core.clock.now() + core.options.call_timeout)
            if not is_done:
                yield Wait(left, core.clock.now() + _ACK_PAUSE)
                self._ack_due.fire()

    def _send_acks(self, deadline: float) -> Flow[bool]:
        """Send what waits; return whether all were taken. Others are tried again."""
        acks, self._acks = self._acks, []
        if not acks:
            return True
        with self._acking:
            outcomes = yield from ack_all(self.owner, acks, deadline)
        failure: RocketMQError | None = None
        for each, outcome in zip(acks, outcomes, strict=True):
            if isinstance(outcome, SettleError):
                self.expired += 1
            elif outcome is not None:
                self._acks.append(each)
                self.counts.commits_failed += 1
                failure = outcome
        is_new = self.last_commit_error is None
        self.last_commit_error = failure
        if failure is not None and is_new:
            self.core.notices.append(CommitFailed(self.group, failure))
            yield from self.core.publish()
        return failure is None

    def _renew_loop(self) -> Flow[None]:
        """Renew the receipts of messages whose handlers run, up to `handle_timeout`."""
        core, invisible = self.core, self.options.invisible
        interval = min(_RENEW_INTERVAL, invisible / 10)
        while not (yield Wait(self._left, core.clock.now() + interval)):
            now = core.clock.now()
            due: list[PoppedMessage] = []
            for window in self.windows.values():
                for delivery in window.running.values():
                    if now - delivery.started_at > self.options.handle_timeout:
                        continue
                    found = [self._popped.get(id(message)) for message in delivery.messages]
                    due += [
                        popped
                        for popped in found
                        if popped is not None
                        and now >= popped.expires_at - invisible * (1 - _RENEWED_AFTER)
                    ]
            deadline = now + core.options.call_timeout
            outcomes: list[object] = yield Gather(
                [popped.extend(invisible, deadline) for popped in due], CALLS_AT_ONCE
            )
            for popped, outcome in zip(due, outcomes, strict=True):
                if isinstance(outcome, RocketMQError):
                    self.owner.not_renewed(popped, outcome)
            yield from core.publish()

    def assigned(self) -> list[QueueId]:
        """Return the brokers that it pops; -1 stands for all their queues."""
        return [QueueId(topic, broker, -1) for topic, broker in sorted(self.sources)]

    def problems(self) -> list[str]:
        """Return what is wrong with the sources."""
        failed = [
            f"{topic} of {broker} cannot be popped: {source.failure}"
            for (topic, broker), source in self.sources.items()
            if source.failure is not None
        ]
        refused = [] if self._refusal is None else [str(self._refusal)]
        return super().problems() + failed + refused

    def _report(self, source: PopSource, error: RocketMQError | None) -> None:
        queue = QueueId(source.topic, source.broker, -1)
        if error is None:
            self.core.notices.append(QueueRecovered(self.group, queue))
        else:
            self.core.notices.append(QueueFailed(self.group, queue, error, "cannot be popped"))


class PopWindow(DeliveryWindow):
    """The popped messages of one queue; there is no offset to commit, so none is kept.

    Attributes:
        source: The topic and the broker that they were popped from.
    """

    __slots__ = ("source",)
    source: tuple[str, str]

    def add(self, messages: Sequence[ReceivedMessage], next_offset: QueueOffset) -> None:
        """Add what a pop returned."""
        super().add(messages, next_offset)
        self._open.clear()

    def finish(self, delivery: Delivery, now: float) -> None:
        """Note that a handler has ended, and that all its messages are done."""
        super().finish(delivery, now)
        self._done.clear()

    def settle(self, message: ReceivedMessage) -> None:
        """Note that a message is done, or left to others."""
        super().settle(message)
        self._done.clear()

    def leave_out(self) -> list[ReceivedMessage]:
        """Forget the messages that were not begun, and return them."""
        left = [*(message for _, message in self.postponed), *self.waiting]
        self.postponed.clear()
        self.waiting.clear()
        for message in left:
            self.settle(message)
        return left


class UnderWay:
    """Counts what is under way, each in a `with` block."""

    def __init__(self) -> None:
        self._count = 0
        self._over = Signal()

    def __enter__(self) -> None:
        if not self._count:
            self._over = Signal()
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._over.fire()

    def end_of_all(self, deadline: float) -> Flow[None]:
        """Wait until nothing is under way."""
        if self._count:
            yield Wait(self._over, deadline)


class PopOwner:
    """What the receipts of a member's messages need; see `delivery.DeliveryOwner`.

    Attributes:
        retries: How often a message is delivered again.
        is_closed: Whether messages cannot be settled any more.
    """

    def __init__(self, member: PopMember) -> None:
        self._member = member
        self.core = member.core
        self.group = member.group
        assert member.retries_max is not None, "only orderly groups have no limit"
        self.retries = member.retries_max
        self.is_closed = False

    def settled(self, outcome: str) -> None:
        """Count a message."""
        counts = self._member.counts
        counts.sent_back += outcome == GIVEN_BACK
        counts.dead += outcome == DEAD_LETTER

    def renewed(self) -> None:
        """Count a receipt that was replaced."""
        self._member.counts.renewed += 1

    def not_renewed(self, delivery: PoppedMessage, error: RocketMQError | None) -> None:
        """Publish that a renewal failed."""
        if error is not None and not isinstance(error, SettleError):
            what = f"renewing the receipt of message {delivery.message.message_id}"
            self.core.notices.append(WorkFailed(what, error))


def _place_of(popped: Popped) -> QueueId:
    """Return the queue of a message: offsets of the retry topic are apart from the topic's own."""
    queue, receipt = popped.message.queue, popped.receipt
    topic = queue.topic if receipt.kind == PLAIN else RETRY_PREFIX + queue.topic
    return QueueId(topic, queue.broker, receipt.queue_id)
