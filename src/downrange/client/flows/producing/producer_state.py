"""The state of one producer, and how it runs flows.

The modules that prepare and send messages take a `ProducerState`; `ProducerCore` adds the ways to
send on top of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from downrange.client.flows.admin.changes import create_missing_topic
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
    from downrange.client.flows.effects import Flow, Signal
    from downrange.client.flows.hooks import Hooks, Report
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
    """

    sent: int = 0
    failed: int = 0
    oneway: int = 0
    retried: int = 0
    late_replies: int = 0
    checked: int = 0
    checks_dropped: int = 0


class ProducerState:
    """One producer of a client: its group, its settings, what is in flight.

    Args:
        client: The state that it shares with other producers and consumers.
        group: The group, without the namespace.
        options: How it sends.
        hooks: User functions to call around every send.
        report: Called with the error of a hook: where it happened, and the error.

    Attributes:
        group: The group with the namespace, as servers know it.
        plain_group: The group without the namespace.
        is_plain: Whether a send is one call: no hooks, no trace, no signature.
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
        report: Report,
    ) -> None:
        check_producer_group(group)
        self.client = client
        self.plain_group = group
        self.group = with_namespace(group, client.options.namespace)
        self.options = options
        self.hooks = hooks
        self.report = report
        self.health = client.health_for(options.fault_tolerance)
        self.picker = QueuePicker(self.health, client.randomness)
        self.permits = Permits(client.clock, options.in_flight_max, options.in_flight_bytes_max)
        self.counts = ProducerCounts()
        self.trace: TraceBuffer | None = None
        if options.trace:
            trace = options.trace if isinstance(options.trace, Trace) else Trace()
            self.trace = TraceBuffer(trace, client.clock)
        has_hooks = bool(hooks.before_send or hooks.after_send or hooks.forbid_send)
        self.is_plain = client.is_plain and not has_hooks and self.trace is None
        self.waiting_rules = SendRules("sync", options.retries, True, False)
        self.async_rules = SendRules("async", options.retries, True, False)
        self.submit_rules = SendRules("async", options.submit_retries, False, True)
        self.oneway_rules = SendRules("oneway", options.retries, False, False)
        self.forms: dict[tuple[QueueId, int], SendForm] = {}
        self.checks: TransactionChecks | None = None
        self.requests = PendingRequests()
        #: Tracked flows that have not ended, and the signal that fires when the last one ends.
        self._active = 0
        self._idle: Signal | None = None
        self._is_closing = False

    def deadline(self, timeout: float | None) -> float:
        """Return when a call that begins now must end; None means the timeout of the options."""
        return self.client.clock.now() + (self.options.timeout if timeout is None else timeout)

    def run_tracked(
        self,
        flow: Flow[Any],
        deadline: float,
        limited_bytes: int | None = None,
        *,
        is_part: bool = False,
    ) -> Flow[Any]:
        """Run a flow that closing the producer waits for.

        Args:
            flow: The flow.
            deadline: When to stop waiting for room.
            limited_bytes: The size that counts against the limits of back-pressure; None for a
                flow that they do not limit.
            is_part: Whether it belongs to a tracked flow, and so may begin while closing.

        Raises:
            ClientClosed: The producer is being closed.
            TooManySends: There was no room before the deadline.
        """
        if self._is_closing and not is_part:
            raise ClientClosed(f"the producer of group {self.plain_group!r}")
        self._active += 1
        try:
            if limited_bytes is None:
                return (yield from flow)
            if not self.permits.try_take(limited_bytes):
                yield from self.permits.take(limited_bytes, deadline)
            try:
                return (yield from flow)
            finally:
                self.permits.give_back(limited_bytes)
        finally:
            self._active -= 1
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
