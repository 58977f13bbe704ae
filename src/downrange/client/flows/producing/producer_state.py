"""The state of one producer, and how it runs flows.

The modules that prepare and send messages take a `ProducerState`; `ProducerCore` adds the ways to
send on top of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from downrange.checks import check_timeout
from downrange.client.flows.admin.changes import create_missing_topic
from downrange.client.flows.effects import Flow, Signal, Wait
from downrange.client.flows.hooks import SendMode
from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.pending_requests import PendingRequests
from downrange.client.flows.producing.permits import Permits
from downrange.client.flows.producing.trace_buffer import TraceBuffer
from downrange.client.flows.routing.lookup import find_writable
from downrange.client.flows.routing.queue_picker import QueuePicker
from downrange.client.flows.validation import check_producer_group
from downrange.errors import ClientClosed
from downrange.options import ProducerOptions, Trace

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.transaction_checks import TransactionChecks
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId
    from downrange.wire.send_commands import SendForm


class SendRules(msgspec.Struct, frozen=True):
    """What differs between the ways to send.

    Attributes:
        mode: The mode that hooks see.
        retries: How many attempts may follow the first.
        is_refusal_retried: Whether a reply with a code of `retry_codes` is followed by an attempt.
        is_retried_when_chosen: Whether attempts are repeated when the caller chose the queue.
    """

    mode: SendMode
    retries: int
    is_refusal_retried: bool
    is_retried_when_chosen: bool


class ProducerCounts(msgspec.Struct):
    """What a producer has done so far, in messages.

    Attributes:
        sent: Stored by a broker.
        failed: Given up.
        oneway: Written without waiting for a reply.
        retried: Attempts beyond the first.
        late_replies: Replies to requests that had timed out.
        checked: Checks of transactions that were answered.
        checks_dropped: Checks of transactions that were not answered; the broker repeats them.
        user_errors: Exceptions of the user's hooks, selectors, checks and local work.
    """

    sent: int = 0
    failed: int = 0
    oneway: int = 0
    retried: int = 0
    late_replies: int = 0
    checked: int = 0
    checks_dropped: int = 0
    user_errors: int = 0


class RouteLine:
    """The flows that wait for the route of a topic, in the order in which they asked.

    Attributes:
        ahead: Flows that have not got the route yet.
        behind: Flows that found the route in the cache, and wait for those ahead.
        gate: Fires when all flows ahead have the route; those behind are ahead then.
    """

    __slots__ = ("ahead", "behind", "gate")

    def __init__(self) -> None:
        self.ahead = 0
        self.behind = 0
        self.gate = Signal()

    def leave(self) -> bool:
        """Let the next flows go on when none is ahead of them; return whether none is left."""
        if self.ahead:
            return False
        if not self.behind:
            return True
        self.ahead, self.behind = self.behind, 0
        gate, self.gate = self.gate, Signal()
        gate.fire()
        return False


class ProducerState:
    """One producer of a client: its group, its settings, what is in flight.

    Args:
        client: The state that it shares with other producers and consumers.
        group: The group, without the namespace.
        options: How it sends.
        hooks: User functions to call around every send.

    Attributes:
        group: The group with the namespace, as servers know it.
        plain_group: The group without the namespace.
        is_plain: Whether a send is one call: no hooks, no trace, no signature.
        is_direct: Whether that call may be made without a flow; see `plain_send`.
        forms: The constant part of send requests, by queue and request code.
        checks: Limits the checks of transactions; None unless it is a transaction producer.
        requests: Requests that wait for their replies.

    Raises:
        OptionError: The name of the group is not allowed.
    """

    def __init__(
        self,
        client: ClientCore,
        group: str,
        options: ProducerOptions,
        hooks: Hooks,
    ) -> None:
        check_producer_group(group)
        self.client = client
        self.plain_group = group
        self.group = with_namespace(group, client.options.namespace)
        self.options = options
        self.hooks = hooks
        self.health = client.health_for(options.fault_tolerance)
        self.picker = QueuePicker(self.health, client.randomness)
        self.permits = Permits(client.clock, options.in_flight_max, options.in_flight_bytes_max)
        self.counts = ProducerCounts()
        self.trace: TraceBuffer | None = None
        if options.trace:
            trace = options.trace if isinstance(options.trace, Trace) else Trace()
            self.trace = TraceBuffer(trace, client.clock, client.options.access_channel)
        has_hooks = bool(hooks.before_send or hooks.after_send or hooks.forbid_send)
        self.is_plain = client.is_plain and not has_hooks and self.trace is None
        self.is_direct = (
            self.is_plain
            and options.auto_batch is None
            and options.attempt_timeout is None
            and not client.options.vip_channel
        )
        self.waiting_rules = SendRules("sync", options.retries, True, False)
        self.async_rules = SendRules("async", options.retries, True, False)
        self.submit_rules = SendRules("async", options.submit_retries, False, True)
        self.oneway_rules = SendRules("oneway", options.retries, False, False)
        self.forms: dict[tuple[QueueId, int], SendForm] = {}
        self.checks: TransactionChecks | None = None
        self.requests = PendingRequests()
        #: Topic -> the flows that wait for its route; see `find_route_in_order`.
        self._lines: dict[str, RouteLine] = {}
        #: Tracked flows that have not ended, and the signal that fires when the last one ends.
        self._active = 0
        self._idle: Signal | None = None
        self._is_closing = False

    def deadline(self, timeout: float | None) -> float:
        """Return when a call that begins now must end; None means the timeout of the options.

        Raises:
            OptionError: The timeout is not a number of seconds above 0.
        """
        if timeout is None:
            return self.client.clock.now() + self.options.timeout
        check_timeout(timeout)
        return self.client.clock.now() + timeout

    def report(self, where: str, error: BaseException) -> Flow[None]:
        """Count an exception of the user's code, and publish it."""
        self.counts.user_errors += 1
        yield from self.client.report(where, error)

    def run_tracked(
        self,
        flow: Flow[Any],
        deadline: float,
        limited_bytes: int | None = None,
        *,
        is_part: bool = False,
        admitted: Signal | None = None,
        must_wait: bool = False,
    ) -> Flow[Any]:
        """Run a flow that closing the producer waits for.

        Args:
            flow: The flow.
            deadline: When to stop waiting for room.
            limited_bytes: The size that counts against the limits of back-pressure; None for a
                flow that they do not limit.
            is_part: Whether it belongs to a tracked flow, and so may begin while closing.
            admitted: Fired when there is room. The flow then yields a `Wait` for it, so that
                another thread can take over.
            must_wait: Whether it waits for room even if `when_full` is "raise".

        Raises:
            ClientClosed: The producer is being closed.
            TooManySends: There was no room before the deadline; or none at once, and `when_full` is
                "raise".
        """
        if self._is_closing and not is_part:
            raise ClientClosed(f"the producer of group {self.plain_group!r}")
        self._active += 1
        try:
            if limited_bytes is None:
                return (yield from flow)
            permits = self.permits
            if not permits.try_take(limited_bytes):
                if self.options.when_full == "raise" and not must_wait:
                    raise permits.refusal()
                yield from permits.take(limited_bytes, deadline)
            try:
                if admitted is not None:
                    admitted.fire()
                    yield Wait(admitted, deadline)  # the engine takes over here
                return (yield from flow)
            finally:
                permits.give_back(limited_bytes)
        finally:
            self._active -= 1
            if self._idle is not None and not self._active:
                self._idle.fire()

    def try_enter(self, limited_bytes: int | None) -> bool:
        """Begin a send without a flow, if there is room for it; it ends with `leave`."""
        if self._is_closing or not (limited_bytes is None or self.permits.try_take(limited_bytes)):
            return False
        self._active += 1
        return True

    def leave(self, limited_bytes: int | None) -> None:
        """End a send that `try_enter` began."""
        if limited_bytes is not None:
            self.permits.give_back(limited_bytes)
        self._active -= 1
        if self._idle is not None and not self._active:
            self._idle.fire()

    def leave_together(self, count: int, limited: int, limited_bytes: int) -> None:
        """End `count` sends that `try_enter` began; of these, `limited` have taken room."""
        if limited:
            self.permits.give_back_together(limited, limited_bytes)
        self._active -= count
        if self._idle is not None and not self._active:
            self._idle.fire()

    def find_route(self, topic: str, deadline: float) -> Flow[Route]:
        """Return a route that can be sent to; a missing topic is treated as `auto_create` says.

        Raises:
            RouteNotFound: There is none.
            RocketMQError: No name server answered, or a broker did not create the topic.
        """
        client, options = self.client, self.options
        if options.auto_create == "balanced" and client.routes.get(topic) is None:
            yield from create_missing_topic(
                client,
                topic,
                options.default_topic_queues,
                deadline,
                default_topic=options.default_topic,
            )
        return (
            yield from find_writable(
                client,
                topic,
                deadline,
                default_topic=None if options.auto_create == "off" else options.default_topic,
                queue_count=options.default_topic_queues,
            )
        )

    def find_route_in_order(self, topic: str, deadline: float) -> Flow[Route]:
        """Return a route that can be sent to, to one flow after the other.

        For messages with a chosen queue, which must not overtake each other: without this, a flow
        that finds the route in the cache goes before flows that have waited for it.

            first    asks the name server ──── has the route
            second        waits for it, too ── has the route
            third                 in the cache: waits ────── goes on

        Raises:
            RouteNotFound, RocketMQError: As `find_route`.
        """
        route = self.client.routes.get(topic)
        line = self._lines.get(topic)
        if line is None:
            if route is not None and route.writable:
                return route
            line = self._lines[topic] = RouteLine()
        gate: Signal | None = None
        try:
            if route is None or not route.writable:
                line.ahead += 1
                return (yield from self.find_route(topic, deadline))
            line.behind += 1
            gate = line.gate
            yield Wait(gate, deadline)
            return route
        finally:
            if gate is None or gate.is_fired:
                line.ahead -= 1
            else:
                line.behind -= 1
            if line.leave():
                del self._lines[topic]
