"""One simple consumer: receives messages by pops, from all brokers of its topics in turn.

`receive` pops the sources that are ready (`pop_sources`), one after the other, and returns the
first messages. Without any it starts a watch per source and waits for the first that is ready. So
nothing is popped that no caller waits for, and there is no buffer: messages are handed out by the
call that popped them. Only a consumer that is closed while a pop is in flight gives them back.

One rule: a source is popped with a short deadline, and only after its broker has answered a watch.
A broker that does not answer delays nothing but itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from downrange.client.flows.consuming.delivery import (
    ACKNOWLEDGED,
    DEAD_LETTER,
    GIVEN_BACK,
    Delivery,
    ack_all,
)
from downrange.client.flows.consuming.offsets import group_offset, max_offset, set_group_offset
from downrange.client.flows.consuming.pop import POP_COUNT_MAX, PopStatus, pop
from downrange.client.flows.consuming.pop_sources import PopSource, SourceHealth, brokers_of, watch
from downrange.client.flows.consuming.pull import EVERYTHING, check_filter
from downrange.client.flows.consuming.receipts import change_invisible
from downrange.client.flows.effects import (
    CALLS_AT_ONCE,
    Flow,
    Gather,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import find_readable, read_queues
from downrange.client.flows.routing.membership import ensure_registered, unregister
from downrange.client.flows.validation import check_group
from downrange.errors import ClientClosed, OptionError, PopNotSupported, RocketMQError
from downrange.wire.bodies import ConsumerMember, Subscription
from downrange.wire.hashes import tag_hash
from downrange.wire.system_names import retry_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.pop_sources import Report
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId
    from downrange.options import SimpleOptions


class SimpleStats(msgspec.Struct, frozen=True):
    """Counters of a simple consumer, in messages.

    Attributes:
        received: Handed out by `receive`, retries included.
        acknowledged: Acknowledged.
        given_back: Given back to be delivered again.
        dead_letters: Moved to the dead letters.
        renewed: Receipts that were replaced, by `extend` or `processing`.
        not_renewed: Renewals of `processing` that failed.
        processing: Blocks of `processing` that run now.
    """

    received: int
    acknowledged: int
    given_back: int
    dead_letters: int
    renewed: int
    not_renewed: int
    processing: int


class SimpleHealth(msgspec.Struct, frozen=True):
    """Whether a simple consumer can receive.

    Attributes:
        is_healthy: Whether it runs, and no broker failed.
        sources: Each broker of each topic.
        processing: Message id of each `processing` block that runs -> its age in seconds.
    """

    is_healthy: bool
    sources: list[SourceHealth]
    processing: dict[str, float]


class _Topic:
    """One subscription, and the route from which its sources were made."""

    def __init__(self, name: str, message_filter: Filter, version: int) -> None:
        self.name = name
        self.message_filter = message_filter
        self.version = version
        self.route: Route | None = None
        self.sources: list[PopSource] = []


class SimpleCore:
    """One simple consumer of a client.

    Args:
        core: The client.
        group: The group, without the namespace.
        options: How it receives.
        spawn: Starts a flow in the background; may be called from any thread.
        report: Tells of brokers that fail, and recover.
        report_renewal: Called with a delivery and the error when a renewal failed, and with None
            when a block takes too long to renew it any more.

    Raises:
        OptionError: The name of the group is not allowed.

    Attributes:
        is_closed: Whether messages cannot be settled any more.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: SimpleOptions,
        spawn: Callable[[Flow[None]], object],
        report: Report,
        report_renewal: Callable[[Delivery, RocketMQError | None], None],
    ) -> None:
        check_group(group)
        self.core = core
        self.group = group
        self.options = options
        self.is_closed = False
        self._spawn = spawn
        self._report = report
        self._report_renewal = report_renewal
        self._topics: dict[str, _Topic] = {}
        self._is_closing = False
        self._turn = 0
        self._receiving = 0
        #: Deliveries in a `processing` block, and when it began.
        self._processing: dict[Delivery, float] = {}
        self._arrival = Signal()
        self._idle = Signal()
        self._counts: dict[str, int] = dict.fromkeys((ACKNOWLEDGED, GIVEN_BACK, DEAD_LETTER), 0)
        self._received = 0
        self._renewed = 0
        self._not_renewed = 0

    # ---- membership --------------------------------------------------------------------------

    @property
    def named_group(self) -> str:
        """The group with the namespace."""
        return with_namespace(self.group, self.core.options.namespace)

    def membership(self) -> ConsumerMember:
        """Return its entry in the heartbeat, as Java's consumer in pop mode sends it."""
        namespace = self.core.options.namespace
        subscriptions = [
            _subscription(with_namespace(topic.name, namespace), topic)
            for topic in self._topics.values()
        ]
        subscriptions.append(Subscription(topic=retry_topic(self.named_group)))
        is_latest = self.options.start == "latest"
        return ConsumerMember(
            group_name=self.named_group,
            consume_from_where=f"CONSUME_FROM_{'LAST' if is_latest else 'FIRST'}_OFFSET",
            subscription_data_set=subscriptions,
        )

    def start(self, topics: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Join the group, and subscribe to topics; for errors see `subscribe`.

        Raises:
            GroupTaken: The client has a consumer of this group.
        """
        self.core.add_consumer(self.named_group, self)
        for topic, message_filter in topics.items():
            yield from self.subscribe(topic, message_filter, deadline)

    def subscribe(self, topic: str, message_filter: Filter, deadline: float) -> Flow[None]:
        """Receive messages of a topic, too, or with another filter from now on.

        Raises:
            PopNotSupported: A broker is older than 5.0.
            RouteNotFound: The topic has no queues to read.
            RocketMQError: A broker refused the filter, or no broker of the topic answered.
        """
        core = self.core
        route = yield from find_readable(
            core, with_namespace(topic, core.options.namespace), deadline
        )
        if message_filter.kind != EVERYTHING.kind:
            yield from check_filter(core, topic, self.group, message_filter, deadline)
        added = _Topic(topic, message_filter, core.clock.wall_ms())
        self._follow(added, route)
        yield from self._try(added.sources)
        if self._is_closing:
            raise self._closed()
        before = self._topics.get(topic)
        self._topics[topic] = added
        core.registered.clear()
        addresses = {
            address for replicas in route.brokers.values() for address in replicas.values()
        }
        yield from ensure_registered(core, sorted(addresses), deadline)
        if self.options.start == "latest" and before is None:
            yield from self._skip_history(topic, deadline)

    def unsubscribe(self, topic: str, deadline: float) -> Flow[None]:
        """Receive no more messages of a topic.

        Raises:
            OptionError: It is not subscribed.
        """
        if topic not in self._topics:
            raise OptionError(
                f"topic {topic!r} is not subscribed; these are: {', '.join(self._topics) or 'none'}"
            )
        core, route = self.core, self._topics.pop(topic).route
        assert route is not None
        core.registered.clear()
        addresses = {
            address for replicas in route.brokers.values() for address in replicas.values()
        }
        yield from ensure_registered(core, sorted(addresses), deadline)

    def topics(self) -> dict[str, Filter]:
        """Return the subscribed topics."""
        return {name: topic.message_filter for name, topic in self._topics.items()}

    def _try(self, sources: Sequence[PopSource]) -> Flow[None]:
        """Ask each broker once, which says whether it has pops.

        Raises:
            PopNotSupported: One does not.
            RocketMQError: None of them answered.
        """
        yield Gather([self._watch(source, until=0.0) for source in sources], CALLS_AT_ONCE)
        failures = [source.failure for source in sources if source.failure is not None]
        refusals = [each for each in failures if isinstance(each, PopNotSupported)]
        if refusals or (failures and len(failures) == len(sources)):
            raise (refusals or failures)[0]

    def _skip_history(self, topic: str, deadline: float) -> Flow[None]:
        """Commit the end of each queue in which the group has no offset.

        A pop can be told to start at the end, but a broker then starts at 0 while the queue's first
        message is in its memory.
        """
        queues = yield from read_queues(self.core, topic, deadline=deadline)
        outcomes: list[object] = yield Gather(
            [self._skip_queue(queue, deadline) for queue in queues], CALLS_AT_ONCE
        )
        failures = [each for each in outcomes if isinstance(each, RocketMQError)]
        if failures:
            raise failures[0]

    def _skip_queue(self, queue: QueueId, deadline: float) -> Flow[None]:
        core, group = self.core, self.group
        known = yield from group_offset(core, group, queue, deadline=deadline)
        if known is None:
            end = yield from max_offset(core, queue, deadline=deadline)
            yield from set_group_offset(core, group, queue, end, deadline=deadline)

    def _follow(self, topic: _Topic, route: Route) -> None:
        """Make the sources of a topic those of a route."""
        if route is topic.route:
            return
        known = {source.broker: source for source in topic.sources}
        topic.route = route
        topic.sources = [
            known.get(broker) or PopSource(topic.name, broker, topic.message_filter)
            for broker in brokers_of(route)
        ]

    def _sources(self) -> list[PopSource]:
        """Return all sources, after the newest routes."""
        sources: list[PopSource] = []
        for topic in self._topics.values():
            name = with_namespace(topic.name, self.core.options.namespace)
            route = self.core.routes.get(name)
            if route is not None:
                self._follow(topic, route)
            sources += topic.sources
        return sources

    # ---- receiving ---------------------------------------------------------------------------

    def receive(self, max_count: int, invisible: float, deadline: float) -> Flow[list[Delivery]]:
        """Return messages as soon as there are any; an empty list at the deadline.

        Args:
            max_count: How many at most.
            invisible: Seconds until they are delivered again, unless they are settled.
            deadline: When to stop waiting. Each broker is asked at least once, which may take
                longer.

        Raises:
            OptionError: Nothing is subscribed.
            ClientClosed: The consumer was closed.
            RocketMQError: No broker can be asked. An error that cannot be retried is raised at
                once, another one at the deadline.
        """
        if not self._topics:
            raise OptionError("nothing is subscribed: give `subscribe`, or call subscribe()")
        self._receiving += 1
        try:
            return (yield from self._receive(max_count, invisible, deadline))
        finally:
            self._receiving -= 1
            self._idle.fire()

    def _receive(self, max_count: int, invisible: float, deadline: float) -> Flow[list[Delivery]]:
        began = self.core.clock.now()
        limit = max(deadline, began + self.core.options.call_timeout)
        while self._may_receive():
            if self._arrival.is_fired:  # before all else: a watch may end while others begin
                self._arrival = Signal()
            sources = self._sources()
            found = yield from self._pop_ready(sources, max_count, invisible)
            if found and self._may_receive():
                self._received += len(found)
                return found
            yield from self._give_back(found)
            yield from self._watch_all(sources, began, deadline)
            if any(source.is_ready for source in sources) or not self._may_receive():
                continue
            failure = _failure(sources)
            now = self.core.clock.now()
            is_asking = any(each.is_watched and each.asked_at >= began for each in sources)
            is_over = now >= limit or (now >= deadline and not is_asking)
            if failure is not None and (is_over or not failure.retryable):
                raise failure
            if is_over:
                return []
            yield Wait(self._arrival, deadline if now < deadline else limit)
        raise self._closed()

    def _may_receive(self) -> bool:
        return not self._is_closing

    def _pop_ready(
        self, sources: Sequence[PopSource], max_count: int, invisible: float
    ) -> Flow[list[Delivery]]:
        """Return messages of the next source that has some."""
        first = self._turn
        for index in range(len(sources)):
            source = sources[(first + index) % len(sources)]
            if not source.is_ready:
                continue
            self._turn = first + index + 1
            found = yield from self._pop(source, max_count, invisible)
            if found:
                return found
        return []

    def _pop(self, source: PopSource, max_count: int, invisible: float) -> Flow[list[Delivery]]:
        """Pop a source until there is enough, or no more; an error ends it, too."""
        core = self.core
        found: list[Delivery] = []
        while len(found) < max_count:
            wanted = min(max_count - len(found), POP_COUNT_MAX)
            try:
                batch = yield from pop(
                    core,
                    self.group,
                    source.topic,
                    source.broker,
                    max_count=wanted,
                    invisible=invisible,
                    message_filter=source.message_filter,
                    deadline=core.clock.now() + core.options.call_timeout,
                    decode_body=self.options.decode_body,
                )
            except RocketMQError as error:
                if source.failure is None:
                    self._report(source, error)
                source.failed(error, self.options)
                break
            now = core.clock.now()
            source.recovered(self._report)
            if batch.status is not PopStatus.FOUND:
                source.missed(now)
                break
            has_more = batch.rest_count > 0 or len(batch.popped) == wanted
            source.found(now, has_more=has_more)
            found += [Delivery(self, each, batch.asked_at, invisible) for each in batch.popped]
            if not has_more:
                break
        return found

    def _watch_all(self, sources: Sequence[PopSource], began: float, deadline: float) -> Flow[None]:
        """Start a watch of each source that has none; at the deadline only if it was not asked."""
        now = self.core.clock.now()
        for source in sources:
            is_due = now < deadline or source.asked_at < began
            if is_due and not source.is_ready and not source.is_watched:
                yield UserCall(self._spawn, (self._watch(source, deadline),))

    def _watch(self, source: PopSource, until: float) -> Flow[None]:
        """Note that a source is watched, and return the flow, which may begin later."""
        source.is_watched = True
        source.asked_at = self.core.clock.now()
        return self._run_watch(source, until)

    def _run_watch(self, source: PopSource, until: float) -> Flow[None]:
        try:
            yield from watch(self.core, self.group, source, until, self.options, self._report)
        finally:
            source.is_watched = False
            self._arrival.fire()

    def _give_back(self, found: Sequence[Delivery]) -> Flow[None]:
        """Make messages visible again that were popped while the consumer was being closed."""
        core = self.core
        deadline = core.clock.now() + core.options.call_timeout
        flows = [
            change_invisible(
                core, self.group, each.message.topic, each.receipt, seconds=0.0, deadline=deadline
            )
            for each in found
        ]
        if flows:
            yield Gather(flows, CALLS_AT_ONCE)  # one that fails is visible again when it is over

    # ---- settling ----------------------------------------------------------------------------

    @property
    def retries(self) -> int:
        """How often a message is delivered again."""
        return self.options.retries

    def settled(self, outcome: str) -> None:
        """Count a message."""
        self._counts[outcome] += 1

    def renewed(self) -> None:
        """Count a receipt that was replaced."""
        self._renewed += 1

    def not_renewed(self, delivery: Delivery, error: RocketMQError | None) -> None:
        """Report that a renewal failed, or that there are no more of them (None)."""
        self._not_renewed += 1
        self._report_renewal(delivery, error)

    def ack(
        self, deliveries: Sequence[Delivery], deadline: float
    ) -> Flow[list[RocketMQError | None]]:
        """Acknowledge many messages; see `ack_all`."""
        return (yield from ack_all(self, deliveries, deadline))

    def begin_processing(self, delivery: Delivery, done: Signal) -> Flow[None]:
        """Note that a block handles a message, and renew its receipt until a signal fires.

        Raises:
            SettleError: It is too late; see `Delivery.check`.
        """
        delivery.check()
        now = self.core.clock.now()
        self._processing[delivery] = now
        renewing = delivery.keep_invisible(done, now + self.options.handle_timeout)
        yield UserCall(self._spawn, (renewing,))

    def end_processing(self, delivery: Delivery, done: Signal) -> None:
        """Note that a block has ended."""
        done.fire()
        self._processing.pop(delivery, None)
        self._idle.fire()

    # ---- closing -----------------------------------------------------------------------------

    def close(self, deadline: float) -> Flow[int]:
        """Receive no more, wait for `processing` blocks, leave the group.

        Returns:
            How many blocks still run.
        """
        self._is_closing = True
        self._arrival.fire()
        while self._receiving or self._processing:
            self._idle = Signal()
            is_in_time: bool = yield Wait(self._idle, deadline)
            if not is_in_time:
                break
        self.is_closed = True
        if self.core.consumers.get(self.named_group) is self:
            yield from unregister(self.core, consumer=self.named_group, deadline=deadline)
            self.core.remove_consumer(self.named_group)
        return len(self._processing)

    def _closed(self) -> ClientClosed:
        return ClientClosed(f"the consumer of group {self.group!r}")

    # ---- state -------------------------------------------------------------------------------

    def stats(self) -> SimpleStats:
        """Return a snapshot of the counters."""
        return SimpleStats(
            received=self._received,
            acknowledged=self._counts[ACKNOWLEDGED],
            given_back=self._counts[GIVEN_BACK],
            dead_letters=self._counts[DEAD_LETTER],
            renewed=self._renewed,
            not_renewed=self._not_renewed,
            processing=len(self._processing),
        )

    def health(self) -> SimpleHealth:
        """Return whether it can receive."""
        now = self.core.clock.now()
        sources = [source.health(now) for source in self._sources()]
        return SimpleHealth(
            is_healthy=not self._is_closing and all(each.failure is None for each in sources),
            sources=sources,
            processing={
                delivery.message.message_id: now - began
                for delivery, began in self._processing.items()
            },
        )


def _subscription(name: str, topic: _Topic) -> Subscription:
    message_filter = topic.message_filter
    tags = sorted(message_filter.tags)
    return Subscription(
        topic=name,
        sub_string=message_filter.text,
        tags_set=tags,
        code_set=[tag_hash(tag) for tag in tags],
        sub_version=topic.version,
        expression_type=message_filter.kind,
    )


def _failure(sources: Sequence[PopSource]) -> RocketMQError | None:
    """Return why no source can be popped; None when at least one has not failed."""
    failures = [source.failure for source in sources]
    known = [failure for failure in failures if failure is not None]
    if not known or len(known) < len(failures):
        return None
    return next((failure for failure in known if failure.retryable), known[0])
