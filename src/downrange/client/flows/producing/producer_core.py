"""One producer: its group, its settings, what it has under way, and each way to send as a flow.

What a method here does before it returns its flow happens in the caller's hands, without the core's
lock: checking, compressing, writing properties. The flow does the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.client.flows.admin.changes import create_missing_topic
from downrange.client.flows.effects import Flow, Signal, UserCall, Wait
from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.accumulator import Accumulator
from downrange.client.flows.producing.batches import check_batch, checked, size_in_batch, split
from downrange.client.flows.producing.permits import Permits
from downrange.client.flows.producing.prepare import Outgoing, prepare, prepare_checked_batch
from downrange.client.flows.producing.request_reply import PendingRequests
from downrange.client.flows.producing.retry_loop import SendRules, attempt_oneway, send_with_retries
from downrange.client.flows.producing.trace_buffer import (
    BODY_BYTES_MAX,
    SEND_TIMEOUT,
    TraceBuffer,
    flush_trace,
    trace_loop,
)
from downrange.client.flows.routing.membership import send_heartbeats, unregister
from downrange.client.flows.routing.queue_picker import QueuePicker, RoundRobin
from downrange.client.flows.validation import check_message, check_producer_group
from downrange.errors import BatchFailed, ClientClosed, RocketMQError
from downrange.model import BatchReceipt, Message, QueueId, SendReceipt
from downrange.options import ProducerOptions, Trace
from downrange.wire.limits import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.transactions import Checks
    from downrange.client.flows.routing.selectors import Selector
    from downrange.wire.send_commands import SendForm

#: The producer of traces is one of its own: short of nothing that the traced one has.
_TRACE_OPTIONS: Final = ProducerOptions(
    timeout=SEND_TIMEOUT, body_bytes_max=BODY_BYTES_MAX, compress_over_bytes=BODY_BYTES_MAX
)
#: How Java names the group that sends a group's traces.
_TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER-{}-PRODUCE-1"
_NO_MORE: Final[list[Message]] = []


class ProducerCounts(msgspec.Struct):
    """What a producer has done so far, in messages.

    Attributes:
        sent: Taken by a broker.
        failed: Given up.
        oneway: Handed over without an answer.
        retried: Attempts beyond the first.
        late_replies: Replies to requests that nobody waited for any more.
        checked: Questions about transactions that were answered.
        checks_dropped: Questions about transactions that were not; the broker asks again.
    """

    sent: int = 0
    failed: int = 0
    oneway: int = 0
    retried: int = 0
    late_replies: int = 0
    checked: int = 0
    checks_dropped: int = 0


class ProducerCore:
    """One producer of a client.

    Args:
        client: What it shares with others.
        group: Its group.
        options: How it sends.
        hooks: Functions of the user's around every send.
        report: Told of a hook's error: where, and what.

    Attributes:
        group: The group as servers know it, namespace included.
        plain_group: The group as the user named it.

    Raises:
        OptionError: The group's name breaks a rule.
    """

    def __init__(
        self,
        client: ClientCore,
        group: str,
        options: ProducerOptions,
        hooks: Hooks,
        report: Callable[[str, Exception], None],
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
        self._tracer: ProducerCore | None = None
        if options.trace:
            trace = options.trace if isinstance(options.trace, Trace) else Trace()
            self.trace = TraceBuffer(trace, client.clock)
            # Cut where it would be too long for a group: brokers only show it.
            room = GROUP_BYTES_MAX - len(_TRACE_GROUP.format(""))
            inner = _TRACE_GROUP.format(group[:room])
            self._tracer = ProducerCore(client, inner, _TRACE_OPTIONS, type(hooks)(), report)
        has_hooks = bool(hooks.before_send or hooks.after_send or hooks.forbid_send)
        #: Whether a send is a call and nothing else.
        self.is_plain = client.is_plain and not has_hooks and self.trace is None
        self.waiting_rules = SendRules("sync", options.retries, True, False)
        self.async_rules = SendRules("async", options.retries, True, False)
        self.submit_rules = SendRules("async", options.submit_retries, False, True)
        #: What requests to each queue have in common, by queue and request code.
        self.forms: dict[tuple[QueueId, int], SendForm] = {}
        self._round_robin = RoundRobin()
        self.accumulator: Accumulator | None = None
        if options.auto_batch is not None:
            self.accumulator = Accumulator(
                options.auto_batch,
                client.clock,
                self._send_gathered,
                body_bytes_max=options.body_bytes_max,
            )
        #: Answers questions about transactions; of transaction producers only.
        self.checks: Checks | None = None
        self.requests = PendingRequests()
        #: Flows under way, and what fires when the last one has ended.
        self._active = 0
        self._idle: Signal | None = None
        self._is_closing = False

    # ---- life --------------------------------------------------------------------------------

    def background(self) -> list[Flow[None]]:
        """Return the flows that run as long as the producer does."""
        if self.trace is None:
            return []
        return [trace_loop(self.trace, self._send_trace)]

    def enter(self) -> Flow[None]:
        """Become known to the brokers that are known already.

        Raises:
            GroupTaken: The client has a producer of this group.
        """
        self.client.add_producer(self.group, self)
        yield from send_heartbeats(self.client)

    def exit(self, deadline: float) -> Flow[None]:
        """Finish what was accepted, as far as there is time, and say goodbye to the brokers."""
        self._is_closing = True
        if self.accumulator is not None:
            self.accumulator.close()
        if self._active:
            self._idle = Signal()
            yield Wait(self._idle, deadline)
        if self.trace is not None:
            yield from flush_trace(self.trace, partial(self._send_trace, until=deadline), deadline)
        if self.client.producers.get(self.group) is self:
            yield from unregister(self.client, producer=self.group, deadline=deadline)
            self.client.remove_producer(self.group)

    def run_tracked(
        self, flow: Flow[Any], deadline: float, limited_bytes: int | None = None
    ) -> Flow[Any]:
        """Run a flow that `exit` waits for; with a size, also when back-pressure lets it.

        Raises:
            ClientClosed: `exit` has begun.
            TooManySends: There was no room before the deadline.
        """
        if self._is_closing:
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

    def deadline(self, timeout: float | None) -> float:
        """Return when a call that begins now must end."""
        return self.client.clock.now() + (self.options.timeout if timeout is None else timeout)

    # ---- ways to send ------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        round_robin: RoundRobin,
        rules: SendRules,
        target: QueueId | Selector | None = None,
        timeout: float | None = None,
        *,
        is_limited: bool = False,
    ) -> Flow[SendReceipt]:
        """Return the flow that sends one message, by itself or gathered with others.

        A message with a timeout of its own, or with a selector, is never gathered, as in Java.

        Raises:
            InvalidMessage: The message breaks a rule.
        """
        deadline = self.deadline(timeout)
        gathering = self.accumulator
        if (
            gathering is not None
            and timeout is None
            and (target is None or isinstance(target, QueueId))
            and (target is not None or message.sharding_key is None)
            and gathering.can_hold(message)
        ):
            check_message(message, self.options.body_bytes_max, self.client.options.namespace)
            flow = gathering.add(message, target, deadline)
        else:
            outgoing = prepare(self, message)
            flow = send_with_retries(self, outgoing, round_robin, deadline, rules, target)
        return self.run_tracked(flow, deadline, len(message.body) if is_limited else None)

    def send_oneway(
        self,
        message: Message,
        round_robin: RoundRobin,
        target: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> Flow[None]:
        """Return the flow that hands one message over without waiting for an answer.

        Raises:
            InvalidMessage: The message breaks a rule.
        """
        deadline = self.deadline(timeout)
        outgoing = prepare(self, message)
        return self.run_tracked(
            attempt_oneway(self, outgoing, round_robin, deadline, target), deadline
        )

    def send_batch(
        self,
        messages: Iterable[Message],
        round_robin: RoundRobin,
        rules: SendRules,
        target: QueueId | Selector | None = None,
        timeout: float | None = None,
        *,
        is_limited: bool = False,
    ) -> Flow[BatchReceipt]:
        """Return the flow that sends a list of messages in as few requests as they fit in.

        Each request has the whole timeout. The list may be as long as it likes: it is taken in
        parts.
        """
        if isinstance(messages, list | tuple):
            check_batch(messages)  # before any of them is sent
        else:
            messages = checked(messages)
        parts = split(messages, self.options.body_bytes_max, size_in_batch)
        return self.run_tracked(
            self._send_parts(parts, round_robin, rules, target, timeout, is_limited),
            self.deadline(timeout),
        )

    def _send_parts(
        self,
        parts: Iterator[list[Message]],
        round_robin: RoundRobin,
        rules: SendRules,
        target: QueueId | Selector | None,
        timeout: float | None,
        is_limited: bool,
    ) -> Flow[BatchReceipt]:
        receipts: list[SendReceipt] = []
        counts: list[int] = []
        while True:
            part: list[Message] = []
            try:
                # Taking messages from the user's iterable is the user's code.
                part = yield UserCall(next, (parts, _NO_MORE))
                if part is _NO_MORE:
                    return BatchReceipt(tuple(receipts), tuple(counts))
                outgoing: Outgoing = yield UserCall(prepare_checked_batch, (self, part))
                receipt = yield from self.send_prepared(
                    outgoing, round_robin, rules, target, self.deadline(timeout), is_limited
                )
            except RocketMQError as error:
                if not receipts:
                    raise
                stored = BatchReceipt(tuple(receipts), tuple(counts))
                raise BatchFailed(error, stored=stored, unsent=part) from error
            receipts.append(receipt)
            counts.append(len(part))

    def send_prepared(
        self,
        outgoing: Outgoing,
        round_robin: RoundRobin,
        rules: SendRules,
        target: QueueId | Selector | None,
        deadline: float,
        is_limited: bool,
    ) -> Flow[SendReceipt]:
        """Send what is ready, as a part of an accepted flow; limited ones wait for their turn."""
        if not is_limited:
            return (
                yield from send_with_retries(self, outgoing, round_robin, deadline, rules, target)
            )
        size = len(outgoing.body)
        if not self.permits.try_take(size):
            yield from self.permits.take(size, deadline)
        try:
            return (
                yield from send_with_retries(self, outgoing, round_robin, deadline, rules, target)
            )
        finally:
            self.permits.give_back(size)

    def _send_gathered(
        self, messages: list[Message], queue: QueueId | None, deadline: float
    ) -> Flow[SendReceipt]:
        """Send what the accumulator has gathered; a lone message goes by itself."""
        outgoing: Outgoing
        if len(messages) == 1:
            outgoing = yield UserCall(prepare, (self, messages[0]))
        else:
            outgoing = yield UserCall(prepare_checked_batch, (self, messages))
        return (
            yield from send_with_retries(
                self, outgoing, self._round_robin, deadline, self.waiting_rules, queue
            )
        )

    def _send_trace(self, message: Message, until: float | None = None) -> Flow[SendReceipt]:
        assert self._tracer is not None
        tracer = self._tracer
        deadline = tracer.deadline(None)
        if until is not None:
            deadline = min(deadline, until)
        outgoing: Outgoing = yield UserCall(prepare, (tracer, message))
        return (
            yield from send_with_retries(
                tracer, outgoing, tracer._round_robin, deadline, tracer.waiting_rules
            )
        )

    def create_balanced(self, topic: str, deadline: float) -> Flow[None]:
        """Create a missing topic on every master before the first message goes there."""
        yield from create_missing_topic(
            self.client,
            topic,
            self.options.default_topic_queues,
            deadline,
            default_topic=self.options.default_topic,
        )
