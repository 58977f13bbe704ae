"""The loop of attempts: which queue each attempt goes to, and what follows its outcome.

One loop serves every way to send. `SendRules` holds the differences: how many attempts may follow,
and whether one follows a refusal. Java's client decides this in two places, with different rules
for `send` and for `send` with a callback; `submit` keeps the rules of the latter.

| Outcome of an attempt | send | submit |
|---|---|---|
| no reply: cannot connect, lost, late | next attempt | next attempt |
| a malformed reply, a request that cannot be encoded | the end | the end |
| refused with a code of `retry_codes` | next attempt | the end |
| refused with another code | the end | the end |
| refused: another broker serves this queue of a static topic | next attempt, there | the same |
| stored, but disk or slave was late | the end, or next with `retry_when_not_stored` | the same |

A message with a chosen queue is never sent to another one. After an attempt without a reply the
broker may have stored the message: the next attempt may store it twice, and the receipt says so.
Each attempt updates the health of its broker, one-way ones included. A one-way message that could
not be written is sent to another broker; one that was written is not followed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.effects import Call, Flow, UserCall
from downrange.client.flows.hooks import (
    SendContext,
    SendMode,
    message_type_of,
    run_forbidden,
    run_observers,
)
from downrange.client.flows.producing.attempt import plain_command, receipt_of, send_command
from downrange.client.flows.producing.failures import (
    failure_of,
    follow_queue,
    is_retried,
    pause_before_retry,
    record_failure,
)
from downrange.client.flows.producing.trace_buffer import trace_of_send
from downrange.client.flows.routing.lookup import find_target
from downrange.client.flows.routing.routes import Route
from downrange.client.flows.routing.selectors import (
    ByHash,
    ByRandom,
    ByRoom,
    by_sharding_key,
    check_selected,
    select,
    selector_failed,
    selector_name,
)
from downrange.errors import (
    InvalidMessage,
    OptionError,
    QueueMoved,
    RocketMQError,
    SendForbidden,
    server_error,
)
from downrange.model import QueueId, SendReceipt, SendStatus
from downrange.wire.command import Command
from downrange.wire.properties import decode_properties
from downrange.wire.send_answers import StoredAnswer

if TYPE_CHECKING:
    from downrange.client.flows.producing.prepare import Outgoing
    from downrange.client.flows.producing.producer_state import ProducerState, SendRules
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.client.flows.routing.selectors import Selector
    from downrange.model import Attempt, Message

_STORED: Final = SendStatus.STORED
_VIP_DISTANCE: Final = 2


class FirstAttempt(msgspec.Struct):
    """An attempt that was made before its flow began.

    Attributes:
        route: The route of the topic, which is not a static one.
        queue: The queue that it went to.
        address: The broker's address.
        started: When it was made.
        outcome: The reply, or the error.
    """

    route: Route
    queue: QueueId
    address: str
    started: float
    outcome: Command | StoredAnswer | RocketMQError

    def reply(self) -> Command | StoredAnswer:
        """Return the reply, or raise the error."""
        if isinstance(self.outcome, RocketMQError):
            raise self.outcome
        return self.outcome


def send_with_retries(
    producer: ProducerState,
    outgoing: Outgoing,
    round_robin: RoundRobin,
    deadline: float,
    rules: SendRules,
    target: QueueId | Selector | None = None,
    first: FirstAttempt | None = None,
) -> Flow[SendReceipt]:
    """Send a message until a broker stores it, or the rules or the deadline end it.

    Args:
        producer: The producer.
        outgoing: The prepared message or batch.
        round_robin: The turns of the calling thread.
        deadline: When to give up, for all attempts together.
        rules: How many attempts, and after which outcomes.
        target: A queue, or a selector that chooses one.
        first: The first attempt, if it was made before; see `plain_send`. The loop goes on with its
            outcome.

    Raises:
        SendFailed: No broker confirmed that it stored it; lists all attempts.
        RouteNotFound: The topic has no queue to send to.
        RocketMQError: No name server answered, no broker is registered, or a hook forbids the send.
    """
    client = producer.client
    clock = client.clock
    started = clock.now() if first is None else first.started
    topic = outgoing.topic
    selected = chosen = chosen_address = None
    route: Route | None
    if first is not None:
        route = first.route
    elif target is None and outgoing.message.sharding_key is None:
        route = client.routes.get(topic)
        if route is None or not route.writable:
            route = yield from producer.find_route(topic, deadline)
    else:
        route = yield from producer.find_route_in_order(topic, deadline)
        selected = yield from choose_queue(producer, route, topic, outgoing.message, target)
        chosen = selected
        chosen_address = None if route.hosts else route.masters.get(chosen.broker)
        if chosen_address is None:
            chosen, chosen_address = yield from find_target(client, selected, deadline)
    retries = rules.retries if chosen is None or rules.is_retried_when_chosen else 0
    failures: list[Attempt] = []
    late: SendReceipt | None = None
    failed_broker: str | None = None
    while True:
        now = clock.now() if first is None else first.started
        if first is not None:
            queue, address, until = first.queue, first.address, deadline
        elif now >= deadline:
            break
        else:
            queue = chosen or producer.picker.pick(
                round_robin, topic, route.targets, route.write_counts, failed_broker, now
            )
            address = chosen_address or route.masters[queue.broker]
            if client.options.vip_channel:
                address = vip_address(address)
            if failures:
                yield from pause_before_retry(
                    producer, outgoing, failures, queue.broker, address, deadline
                )
                now = clock.now()
            until, limit = deadline, producer.options.attempt_timeout
            if limit is not None and len(failures) < retries:  # the last one gets all the time left
                until = min(deadline, now + limit)
        try:
            if first is not None:
                made, first = first, None
                receipt = receipt_of(made.reply(), address, queue, outgoing, failures)
            elif producer.is_plain:
                command = send_command(producer, outgoing, queue)
                reply: Command = yield Call(address, command, until)
                shown = route.shown(queue) if route.hosts else queue
                receipt = receipt_of(reply, address, shown, outgoing, failures)
            else:
                receipt = yield from _attempt_with_hooks(
                    producer, outgoing, route, queue, address, until, rules, failures
                )
        except SendForbidden:  # a hook decided, so it is not a failure of the broker
            producer.counts.failed += outgoing.count
            raise
        except QueueMoved as error:  # not stored, so it follows the queue whatever the rules say
            yield from record_failure(producer, outgoing, failures, queue, address, error, now)
            route = yield from follow_queue(producer, route, queue, deadline)
            if selected is not None and (moved := route.target_of(selected)) is not None:
                chosen, chosen_address = moved, route.masters[moved.broker]
        except RocketMQError as error:
            ended = clock.now()
            producer.health.failed(queue.broker, error, ended - now, ended)
            yield from record_failure(producer, outgoing, failures, queue, address, error, now)
            failed_broker = queue.broker
            if len(failures) > retries or not is_retried(producer, rules, error):
                break
        else:
            if producer.health.is_on:
                ended = clock.now()
                producer.health.answered(queue.broker, ended - now, ended)
                if client.notices:
                    yield from client.publish()
            if receipt.status is _STORED:
                producer.counts.sent += outgoing.count
                return receipt
            late, failed_broker = receipt, queue.broker
            if not producer.options.retry_when_not_stored or len(failures) >= retries:
                break
            refusal = server_error(receipt.status.value, receipt.status.name, address, topic)
            yield from record_failure(producer, outgoing, failures, queue, address, refusal, now)
    if late is not None:
        producer.counts.sent += outgoing.count
        return late
    producer.counts.failed += outgoing.count
    elapsed = clock.now() - started
    raise failure_of(outgoing.message.topic, failures, elapsed, outgoing.message_id)


def send_oneway(
    producer: ProducerState,
    outgoing: Outgoing,
    round_robin: RoundRobin,
    deadline: float,
    target: QueueId | Selector | None = None,
) -> Flow[None]:
    """Write a message to a connection, without a reply; whether the broker stores it is unknown.

    A message that cannot be written goes to another broker, up to `retries` times.

    Raises:
        SendFailed: It could not be written to any connection; lists all attempts.
        RouteNotFound: The topic has no queue to send to.
        RocketMQError: No name server answered, no broker is registered, or a hook forbids the send.
    """
    client, clock, rules = producer.client, producer.client.clock, producer.oneway_rules
    started = clock.now()
    route = client.routes.get(outgoing.topic)
    if route is None or not route.writable:
        route = yield from producer.find_route(outgoing.topic, deadline)
    chosen = chosen_address = None
    if target is not None or outgoing.message.sharding_key is not None:
        chosen = yield from choose_queue(producer, route, outgoing.topic, outgoing.message, target)
        chosen_address = None if route.hosts else route.masters.get(chosen.broker)
        if chosen_address is None:
            chosen, chosen_address = yield from find_target(client, chosen, deadline)
    retries = rules.retries if chosen is None else 0
    failures: list[Attempt] = []
    failed_broker: str | None = None
    while (now := clock.now()) < deadline:
        queue = chosen or producer.picker.pick(
            round_robin, outgoing.topic, route.targets, route.write_counts, failed_broker, now
        )
        address = chosen_address or route.masters[queue.broker]
        if client.options.vip_channel:
            address = vip_address(address)
        if failures:
            yield from pause_before_retry(
                producer, outgoing, failures, queue.broker, address, deadline
            )
            now = clock.now()
        until, limit = deadline, producer.options.attempt_timeout
        if limit is not None and len(failures) < retries:
            until = min(deadline, now + limit)
        try:
            if producer.is_plain:
                yield Call(address, send_command(producer, outgoing, queue), until, is_oneway=True)
            else:
                yield from _write_with_hooks(producer, outgoing, route, queue, address, until)
        except SendForbidden:
            raise
        except RocketMQError as error:
            ended = clock.now()
            producer.health.failed(queue.broker, error, ended - now, ended)
            yield from record_failure(producer, outgoing, failures, queue, address, error, now)
            failed_broker = queue.broker
            if len(failures) > retries or not is_retried(producer, rules, error):
                break
        else:
            producer.counts.oneway += 1
            if producer.health.is_on:
                ended = clock.now()
                producer.health.answered(queue.broker, ended - now, ended)
                if client.notices:
                    yield from client.publish()
            return
    producer.counts.failed += 1
    elapsed = clock.now() - started
    raise failure_of(outgoing.message.topic, failures, elapsed, outgoing.message_id)


# ---- queues --------------------------------------------------------------------------------------


def choose_queue(
    producer: ProducerState,
    route: Route,
    topic: str,
    message: Message,
    target: QueueId | Selector | None,
) -> Flow[QueueId]:
    """Return the queue that the caller gave, or that a selector or the sharding key chooses.

    Args:
        producer: The producer; an exception of the user's selector is reported to it.
        route: The route of the topic.
        topic: The topic, with the namespace.
        message: The message.
        target: A queue or a selector; None for the sharding key of the message.

    Raises:
        InvalidMessage: The queue belongs to another topic.
        OptionError: The selector failed, or did not return a queue of the topic.
    """
    if target is None:
        target = by_sharding_key(message)
    if isinstance(target, QueueId):
        if target.topic not in (message.topic, topic):
            raise InvalidMessage(
                f"a message for {message.topic!r} cannot be sent to queue {target}, which "
                "belongs to another topic"
            )
        return QueueId(topic, target.broker, target.number)
    randomness = producer.client.randomness
    if isinstance(target, ByHash | ByRandom):
        return select(target, route.writable, message, randomness)
    try:
        chosen: object
        if isinstance(target, ByRoom):  # may call functions of the user, too
            chosen = yield UserCall(select, (target, route.writable, message, randomness))
        else:
            chosen = yield UserCall(target, (route.writable, message))
    except Exception as error:  # the user's code may raise anything
        if isinstance(target, ByRoom) and isinstance(error, OptionError):
            raise  # its own: no broker is in these rooms
        yield from producer.report(selector_name(target), error)
        raise selector_failed(target, error) from error
    return check_selected(target, chosen, route.writable)


def vip_address(address: str) -> str:
    """Return the address of a broker's VIP channel, a second listener two ports below."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - _VIP_DISTANCE}"


# ---- hooks and trace -----------------------------------------------------------------------------


def _attempt_with_hooks(
    producer: ProducerState,
    outgoing: Outgoing,
    route: Route,
    queue: QueueId,
    address: str,
    deadline: float,
    rules: SendRules,
    failures: list[Attempt],
) -> Flow[SendReceipt]:
    """Make one attempt, with hooks, trace and signature."""
    client, hooks = producer.client, producer.hooks
    shown = route.shown(queue)
    context = _context(producer, outgoing, shown, address, rules.mode)
    yield from run_forbidden(hooks.forbid_send, context)
    yield from run_observers(hooks.before_send, (context,), producer.report)
    started, started_ms = client.clock.now(), client.clock.wall_ms()
    trace = producer.trace
    try:
        command = plain_command(producer, outgoing, queue)
        reply = yield from client.call(address, command, deadline)
        has_trace = trace is not None and trace.traces_topic(outgoing.topic)
        receipt = receipt_of(reply, address, shown, outgoing, failures, has_trace=has_trace)
    except RocketMQError as error:
        context.error = error
        yield from run_observers(hooks.after_send, (context,), producer.report)
        raise
    context.receipt = receipt
    yield from run_observers(hooks.after_send, (context,), producer.report)
    if trace is not None and receipt.is_traced:
        message = outgoing.message
        is_batch = outgoing.batch is not None
        trace.add(
            trace_of_send(
                receipt,
                group=producer.plain_group,
                topic=message.topic,
                tags=None if is_batch else message.tags,
                keys=() if is_batch else message.keys,
                address=address,
                body_bytes=len(outgoing.body),
                message_type=context.message_type,
                time_ms=started_ms,
                cost_ms=round((client.clock.now() - started) * 1000),
            )
        )
    return receipt


def _write_with_hooks(
    producer: ProducerState,
    outgoing: Outgoing,
    route: Route,
    queue: QueueId,
    address: str,
    deadline: float,
) -> Flow[None]:
    """Make one attempt to write a one-way message, with hooks and signature."""
    hooks = producer.hooks
    context = _context(producer, outgoing, route.shown(queue), address, "oneway")
    yield from run_forbidden(hooks.forbid_send, context)
    yield from run_observers(hooks.before_send, (context,), producer.report)
    try:
        command = plain_command(producer, outgoing, queue)
        yield from producer.client.call(address, command, deadline, is_oneway=True)
    except RocketMQError as error:
        context.error = error
        yield from run_observers(hooks.after_send, (context,), producer.report)
        raise
    yield from run_observers(hooks.after_send, (context,), producer.report)


def _context(
    producer: ProducerState, outgoing: Outgoing, queue: QueueId, address: str, mode: SendMode
) -> SendContext:
    return SendContext(
        group=producer.plain_group,
        messages=outgoing.batch or (outgoing.message,),
        queue=queue,
        address=address,
        mode=mode,
        message_type=message_type_of(decode_properties(outgoing.properties)),
        namespace=producer.client.options.namespace,
    )
