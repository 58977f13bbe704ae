"""One producer: every way to send, each as a flow, and how it opens and closes.

Work that a method does before it returns its flow runs in the caller's thread, without the core's
lock: validation, compression, encoding of properties. The flow does the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.checks import iterated
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, UserCall, Wait
from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.accumulator import Accumulator
from downrange.client.flows.producing.batches import (
    bare_bytes,
    check_batch,
    checked,
    size_in_batch,
    split,
    usual_batch_bytes,
)
from downrange.client.flows.producing.gathered_send import GatheredSend
from downrange.client.flows.producing.plain_send import PlainSend
from downrange.client.flows.producing.prepare import Outgoing, prepare, prepare_checked_batch
from downrange.client.flows.producing.producer_state import ProducerState
from downrange.client.flows.producing.retry_loop import (
    choose_queue,
    send_oneway,
    send_with_retries,
)
from downrange.client.flows.producing.trace_buffer import (
    BODY_BYTES_MAX,
    SEND_TIMEOUT,
    close_dispatcher,
    dispatch_loop,
    flush_trace,
    trace_loop,
)
from downrange.client.flows.routing.membership import send_heartbeats, unregister
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.client.flows.validation import (
    check_is_message,
    check_list,
    check_message,
    check_target,
    check_target_topic,
)
from downrange.errors import BatchFailed, RocketMQError
from downrange.model import BatchReceipt, Message, QueueId, SendReceipt
from downrange.options import ProducerOptions
from downrange.wire.limits import BATCH_MESSAGES_MAX, GROUP_BYTES_MAX
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.producer_state import SendRules
    from downrange.client.flows.routing.routes import Route
    from downrange.client.flows.routing.selectors import Selector

#: Traces are sent by a producer of their own, with its own permits and timeout.
_TRACE_OPTIONS: Final = ProducerOptions(
    timeout=SEND_TIMEOUT, body_bytes_max=BODY_BYTES_MAX, compress_over_bytes=BODY_BYTES_MAX
)
#: Java's name for the group that sends the traces of a group.
_TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER-{}-{}-1"
_NO_MORE: Final[list[Message]] = []


def producers_of(client: ClientCore) -> dict[str, ProducerCore]:
    """Return the open producers of a client by group, namespace included."""
    return {
        group: producer
        for group, producer in client.producers.items()
        if isinstance(producer, ProducerCore)
    }


class ProducerCore(ProducerState):
    """One producer of a client; arguments and errors: `ProducerState`.

    `trace_kind` is a part of the name of the group that sends its traces.

    Attributes:
        accumulator: Gathers messages of many callers into batches; None without `auto_batch`.
    """

    def __init__(
        self,
        client: ClientCore,
        group: str,
        options: ProducerOptions,
        hooks: Hooks,
        *,
        trace_kind: str = "PRODUCE",
    ) -> None:
        super().__init__(client, group, options, hooks)
        self._tracer: ProducerCore | None = None
        if self.trace is not None and self.trace.dispatcher is None:
            # Cut to the length limit of groups: brokers only display the name.
            room = GROUP_BYTES_MAX - len(_TRACE_GROUP.format("", trace_kind))
            inner = _TRACE_GROUP.format(group[:room], trace_kind)
            self._tracer = ProducerCore(client, inner, _TRACE_OPTIONS, type(hooks)())
        self._round_robin = RoundRobin()
        self.accumulator: Accumulator | None = None
        if options.auto_batch is not None:
            self.accumulator = Accumulator(
                options.auto_batch,
                client.clock,
                self._send_gathered,
                body_bytes_max=options.body_bytes_max,
            )

    # ---- opening and closing -----------------------------------------------------------------

    def background(self) -> list[Flow[None]]:
        """Return the flows that run as long as the producer does."""
        trace = self.trace
        if trace is None:
            return []
        if trace.dispatcher is not None:
            return [dispatch_loop(trace, trace.dispatcher, self.report)]
        return [trace_loop(trace, self._send_trace)]

    def load_routes(self, topics: Iterable[str]) -> Flow[dict[str, RocketMQError]]:
        """Look up the routes of topics as the first send to each would; return what failed.

        `enter` then registers the group at their brokers (Java: DefaultMQProducerImpl's
        initTopicRoute).
        """
        names = list(dict.fromkeys(topics))
        namespace, deadline = self.client.options.namespace, self.deadline(None)
        outcomes: list[Route | RocketMQError] = yield Gather(
            [self.find_route(with_namespace(name, namespace), deadline) for name in names],
            CALLS_AT_ONCE,
        )
        return {
            name: outcome
            for name, outcome in zip(names, outcomes, strict=True)
            if isinstance(outcome, RocketMQError)
        }

    def enter(self) -> Flow[None]:
        """Add the producer to its client, and its group to the brokers of all cached routes.

        Raises:
            GroupTaken: The client has a producer of this group.
        """
        self.client.add_producer(self.group, self)
        yield from send_heartbeats(self.client)

    def exit(self, deadline: float) -> Flow[None]:
        """Finish the tracked flows and the trace before the deadline, then unregister the group."""
        self._is_closing = True
        if self.accumulator is not None:
            self.accumulator.close()
        if self._active:
            self._idle = Signal()
            yield Wait(self._idle, deadline)
        trace = self.trace
        if trace is not None and trace.dispatcher is not None:
            yield from close_dispatcher(trace, trace.dispatcher, self.report, deadline)
        elif trace is not None:
            yield from flush_trace(trace, partial(self._send_trace, until=deadline), deadline)
        if self.client.producers.get(self.group) is self:
            yield from unregister(self.client, producer=self.group, deadline=deadline)
            self.client.remove_producer(self.group)

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
        admitted: Signal | None = None,
    ) -> Flow[SendReceipt]:
        """Return the flow that sends one message, alone or in a batch of the accumulator.

        A message with a timeout of its own is sent alone, as in Java. With `is_limited` the flow
        waits for room under the limits of back-pressure, then fires `admitted`.

        Raises:
            InvalidMessage: The message is not valid.
        """
        deadline = self.deadline(timeout)
        if target is not None:
            check_target(target)
        gathering = self.accumulator
        if gathering is not None:
            check_is_message(message)
        if gathering is not None and timeout is None and gathering.can_hold(message):
            check_message(message, self.options.body_bytes_max, self.client.options.namespace)
            if target is None and message.sharding_key is None:
                flow = gathering.add(message, None, deadline)
            else:
                flow = self._gather_by_queue(gathering, message, target, rules, deadline)
        else:
            outgoing = prepare(self, message)
            flow = send_with_retries(self, outgoing, round_robin, deadline, rules, target)
        return self.run_tracked(
            flow, deadline, len(message.body) if is_limited else None, admitted=admitted
        )

    def direct_send(
        self,
        message: Message,
        round_robin: RoundRobin,
        rules: SendRules,
        timeout: float | None = None,
        *,
        is_limited: bool = False,
    ) -> PlainSend | GatheredSend | None:
        """Return a send without a chosen queue that usually needs no flow; None if it needs one.

        With `is_limited` the limits of back-pressure apply.

        Raises:
            InvalidMessage: The message is not valid.
        """
        if self.is_direct:
            deadline = self.deadline(timeout)
            outgoing = prepare(self, message)
            size = len(message.body) if is_limited else None
            return PlainSend(self, outgoing, round_robin, rules, deadline, size)
        gathering = self.accumulator
        if gathering is None or timeout is not None:
            return None
        bytes_max, namespace = self.options.body_bytes_max, self.client.options.namespace
        item_bytes = bare_bytes(message, bytes_max)
        if item_bytes is None:
            item_bytes = usual_batch_bytes([message], bytes_max)
        if item_bytes is not None:
            if not gathering.has_room_for(message.topic):
                return None
            check_target_topic(message.topic, namespace)
        else:
            check_is_message(message)
            if message.sharding_key is not None or not gathering.can_hold(message):
                return None
            check_message(message, bytes_max, namespace)
            item_bytes = gathering.size_of(message)
        deadline = self.client.clock.now() + self.options.timeout
        # By position: names would cost as much again.
        return GatheredSend(
            message,
            item_bytes,
            len(message.body),
            deadline,
            None,
            None,
            self,
            gathering,
            is_limited,
        )

    def send_oneway(
        self,
        message: Message,
        round_robin: RoundRobin,
        target: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> Flow[None]:
        """Return the flow that sends one message without waiting for a reply.

        Raises:
            InvalidMessage: The message is not valid.
        """
        deadline = self.deadline(timeout)
        if target is not None:
            check_target(target)
        outgoing = prepare(self, message)
        return self.run_tracked(
            send_oneway(self, outgoing, round_robin, deadline, target), deadline
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
        admitted: Signal | None = None,
    ) -> Flow[BatchReceipt]:
        """Return the flow that sends a list of messages in as few requests as possible.

        Each request has the whole timeout. A list or tuple is checked as a whole before any of it
        is sent. Any other iterable may be endless: it is read and checked in parts. With
        `is_limited` each request waits for room; `admitted` fires when the first has some.

        Raises:
            OptionError: It is not an iterable of messages.
            InvalidMessage: A message of a list is not valid, or they cannot share a batch.
        """
        deadline = self.deadline(timeout)
        if target is not None:
            check_target(target)
        bytes_max = self.options.body_bytes_max
        if isinstance(messages, list | tuple):
            is_valid = True
            parts = iter(self._parts_of(list(messages)))
        else:
            is_valid = False
            stream = iterated("messages", messages, "a list of Message")
            parts = split(checked(stream), bytes_max, size_in_batch)
        return self.run_tracked(
            self._send_parts(
                parts, round_robin, rules, target, timeout, is_limited, admitted, is_valid
            ),
            deadline,
        )

    def _parts_of(self, messages: list[Message]) -> list[list[Message]]:
        """Check a list of messages, and split it into batches.

        Raises:
            OptionError, InvalidMessage: As `send_batch`.
        """
        bytes_max, namespace = self.options.body_bytes_max, self.client.options.namespace
        # The usual list is checked in one pass, and is one batch.
        size = usual_batch_bytes(messages, bytes_max)
        is_one = size is not None and size <= bytes_max and 0 < len(messages) <= BATCH_MESSAGES_MAX
        if is_one and not messages[0].topic.startswith(RETRY_PREFIX):
            check_message(messages[0], bytes_max, namespace)
            return [messages]
        check_batch(messages)
        check_list(messages, bytes_max, namespace)
        return list(split(messages, bytes_max, size_in_batch))

    def _send_parts(
        self,
        parts: Iterator[list[Message]],
        round_robin: RoundRobin,
        rules: SendRules,
        target: QueueId | Selector | None,
        timeout: float | None,
        is_limited: bool,
        admitted: Signal | None,
        is_valid: bool,
    ) -> Flow[BatchReceipt]:
        receipts: list[SendReceipt] = []
        counts: list[int] = []
        while True:
            part: list[Message] = []
            try:
                # Reading the user's iterable runs user code.
                part = yield UserCall(next, (parts, _NO_MORE))
                if part is _NO_MORE:
                    return BatchReceipt(tuple(receipts), tuple(counts))
                outgoing: Outgoing = yield UserCall(prepare_checked_batch, (self, part, is_valid))
                deadline = self.deadline(timeout)
                flow = send_with_retries(self, outgoing, round_robin, deadline, rules, target)
                if is_limited:
                    # A list that is sent in part must not end because of a full moment.
                    flow = self.run_tracked(
                        flow,
                        deadline,
                        len(outgoing.body),
                        is_part=True,
                        admitted=admitted,
                        must_wait=bool(receipts),
                    )
                receipt = yield from flow
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
        """Return the flow that sends a prepared message, as a part of a tracked flow.

        With `is_limited` it waits for room under the limits of back-pressure.
        """
        flow = send_with_retries(self, outgoing, round_robin, deadline, rules, target)
        if not is_limited:
            return flow
        return self.run_tracked(flow, deadline, len(outgoing.body), is_part=True)

    def _gather_by_queue(
        self,
        gathering: Accumulator,
        message: Message,
        target: QueueId | Selector | None,
        rules: SendRules,
        deadline: float,
    ) -> Flow[SendReceipt]:
        """Choose the queue of a message, then send it in a batch for that queue."""
        topic = with_namespace(message.topic, self.client.options.namespace)
        route = yield from self.find_route_in_order(topic, deadline)
        queue = yield from choose_queue(self, route, topic, message, target)
        return (yield from gathering.add(message, queue, deadline, rules.is_retried_when_chosen))

    def _send_gathered(
        self, messages: list[Message], queue: QueueId | None, is_retried: bool, deadline: float
    ) -> Flow[SendReceipt]:
        """Send a batch of the accumulator; a single message is not sent as a batch."""
        rules = self.submit_rules if is_retried else self.waiting_rules
        outgoing: Outgoing
        if len(messages) == 1:
            outgoing = yield UserCall(prepare, (self, messages[0]))
        else:
            # Each was checked before it was added.
            outgoing = yield UserCall(prepare_checked_batch, (self, messages, True))
        return (
            yield from send_with_retries(self, outgoing, self._round_robin, deadline, rules, queue)
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
