"""Transactions: a half message, local work, and the outcome, which commits or rolls back.

    producer                             broker
    half message                     ->  stored in a topic that consumers do not read
    the local work runs
    COMMIT, ROLLBACK or UNKNOWN      ->  one-way: the request may be lost
                                     <-  a check, when no outcome arrived for some time
    the check runs; its outcome      ->

One rule: an outcome that cannot be sent is not an error. The work is done by then, and the broker
sends a check to any producer of the group. So the check function must know the outcome of every
message, also of messages from another process. After a lost reply, a half message may be stored
twice; then the broker checks the other one, too.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.client.flows.consuming.pull import read_messages
from downrange.client.flows.effects import Flow, UserCall
from downrange.client.flows.hooks import EndTransactionContext, run_observers
from downrange.client.flows.names import with_namespace
from downrange.client.flows.notices import WorkFailed
from downrange.client.flows.producing.prepare import Outgoing, prepare
from downrange.client.flows.producing.producer_core import producers_of
from downrange.client.flows.producing.trace_buffer import trace_of_end_transaction
from downrange.client.flows.producing.transaction_checks import TransactionChecks
from downrange.client.flows.routing.lookup import find_send_address
from downrange.client.flows.routing.membership import ensure_registered
from downrange.client.flows.routing.queue_mapping import is_logical
from downrange.client.flows.validation import check_is_message
from downrange.errors import (
    InvalidMessage,
    OptionError,
    RocketMQError,
    SendFailed,
    server_error,
)
from downrange.model import (
    Attempt,
    Message,
    Outcome,
    QueueId,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    TransactionReceipt,
)
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.fields import request_command
from downrange.wire.headers import CheckTransactionRequest, EndTransactionRequest, ViewRequest
from downrange.wire.ids import parse_offset_id
from downrange.wire.properties import PropertyKey
from downrange.wire.records import decode_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.client.flows.producing.producer_state import SendRules
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.wire.command import Command
    from downrange.wire.ids import OffsetId

#: A check that waited this many seconds is not answered: the broker repeats it.
_CHECK_WAIT_MAX: Final = 60.0


class Half(msgspec.Struct):
    """A half message, with what the end of its transaction needs.

    Attributes:
        message: As it was sent, or as the broker sent it back in a check.
        queue: The queue that it gets when it is committed, with the namespace.
        message_id: Its unique id.
        transaction_id: The broker's id of the transaction.
        log_offset: The offset of the half message in the broker's commit log.
        half_offset: Its offset in the broker's queue of half messages.
    """

    message: Message | ReceivedMessage
    queue: QueueId
    message_id: str
    transaction_id: str | None
    log_offset: int
    half_offset: int


# ---- sending -------------------------------------------------------------------------------------


def send_in_transaction(
    producer: ProducerCore,
    message: Message,
    execute: Callable[..., Any],
    round_robin: RoundRobin,
    rules: SendRules,
    timeout: float | None = None,
) -> Flow[TransactionReceipt]:
    """Return the flow that sends a half message, runs the local work and sends its outcome.

    Args:
        producer: The producer.
        message: The message.
        execute: The local work; takes the message and its receipt, returns an `Outcome`.
        round_robin: The turns of the calling thread.
        rules: How many attempts, and after which outcomes.
        timeout: For sending the half message; that of the options unless given.

    Raises:
        InvalidMessage: The message is not valid.
    """
    deadline = producer.deadline(timeout)
    outgoing = _prepare_half(producer, message)
    flow = _send_and_execute(producer, outgoing, execute, round_robin, rules, deadline)
    return producer.run_tracked(flow, deadline)


def begin(
    producer: ProducerCore,
    message: Message,
    round_robin: RoundRobin,
    rules: SendRules,
    timeout: float | None = None,
) -> Flow[tuple[SendReceipt, Half]]:
    """Return the flow that sends a half message, for a caller that will `end` it.

    The flow rolls back a message that was not stored safely, and raises `SendFailed`.

    Raises:
        InvalidMessage: The message is not valid.
    """
    deadline = producer.deadline(timeout)
    outgoing = _prepare_half(producer, message)
    return producer.run_tracked(_begin(producer, outgoing, round_robin, rules, deadline), deadline)


def end(
    producer: ProducerCore, half: Half, outcome: Outcome, error: Exception | None = None
) -> Flow[None]:
    """Send the outcome of a transaction to the broker of its half message; errors are reported.

    Args:
        producer: The producer that sent it.
        half: The half message.
        outcome: The outcome.
        error: Why the outcome is unknown; the broker logs it.
    """
    remark = None if error is None else f"the local work failed: {error!r}"
    deadline = producer.deadline(None)
    try:
        address = yield from find_send_address(producer.client, half.queue, deadline)
        yield from _send_end(producer, half, address, outcome, remark)
    except RocketMQError as problem:
        yield from _note_failure(producer, half, outcome, problem)


def _prepare_half(producer: ProducerCore, message: Message) -> Outgoing:
    check_is_message(message)
    if message.delay_level or message.deliver_at is not None or message.deliver_in:
        error = InvalidMessage(
            f"message for {message.topic!r}: a message of a transaction cannot be delayed; it is "
            "delivered when it is committed"
        )
        error.topic = message.topic
        raise error
    extra = {
        PropertyKey.TRANSACTION_PREPARED.value: "true",
        PropertyKey.PRODUCER_GROUP.value: producer.group,
    }
    return prepare(producer, message, extra=extra, is_half=True)


def _send_half(
    producer: ProducerCore,
    outgoing: Outgoing,
    round_robin: RoundRobin,
    rules: SendRules,
    deadline: float,
) -> Flow[tuple[SendReceipt, Half]]:
    """Register at the brokers, for their checks, and send the half message."""
    route = yield from producer.find_route(outgoing.topic, deadline)
    yield from ensure_registered(producer.client, route.masters.values(), deadline)
    # Only the half message takes a permit: the local work may send messages, too.
    receipt = yield from producer.send_prepared(
        outgoing, round_robin, rules, None, deadline, rules.mode == "async"
    )
    place = parse_offset_id(receipt.offset_id)
    broker, half_offset = receipt.queue.broker, int(receipt.offset)
    if is_logical(broker):
        broker, half_offset = yield from _find_half(producer, outgoing, receipt, place, deadline)
    half = Half(
        message=outgoing.message,
        queue=QueueId(outgoing.topic, broker, receipt.queue.number),
        message_id=receipt.message_id,
        transaction_id=receipt.transaction_id or receipt.message_id,
        log_offset=place.log_offset,
        half_offset=half_offset,
    )
    return receipt, half


def _find_half(
    producer: ProducerCore,
    outgoing: Outgoing,
    receipt: SendReceipt,
    place: OffsetId,
    deadline: float,
) -> Flow[tuple[str, int]]:
    """Return the broker of a half message for a static topic, and its offset among the halves.

    The receipt has the offset of the half message plus that at which the logical queue came to the
    broker. So the record is read. If that fails, the broker's check ends the transaction.
    """
    client, offset = producer.client, int(receipt.offset)
    host = f"[{place.host}]" if ":" in place.host else place.host
    address = f"{host}:{place.port}"
    with contextlib.suppress(RocketMQError):
        command = request_command(ViewRequest(place.log_offset, outgoing.topic))
        reply = yield from client.ask(address, command, deadline, outgoing.topic)
        offset = decode_record(reply.body, 0).queue_offset
    return client.routes.broker_at(address) or receipt.queue.broker, offset


def _send_and_execute(
    producer: ProducerCore,
    outgoing: Outgoing,
    execute: Callable[..., Any],
    round_robin: RoundRobin,
    rules: SendRules,
    deadline: float,
) -> Flow[TransactionReceipt]:
    receipt, half = yield from _send_half(producer, outgoing, round_robin, rules, deadline)
    outcome, error = Outcome.ROLLBACK, None
    if receipt.status is SendStatus.STORED:
        args = (outgoing.message, receipt)
        outcome, error = yield from _decide(producer, "the local work", execute, args)
    yield from end(producer, half, outcome, error)
    return TransactionReceipt(receipt, outcome, error)


def _begin(
    producer: ProducerCore,
    outgoing: Outgoing,
    round_robin: RoundRobin,
    rules: SendRules,
    deadline: float,
) -> Flow[tuple[SendReceipt, Half]]:
    clock = producer.client.clock
    started = clock.now()
    receipt, half = yield from _send_half(producer, outgoing, round_robin, rules, deadline)
    if receipt.status is SendStatus.STORED:
        return receipt, half
    yield from end(producer, half, Outcome.ROLLBACK)
    queue, status, topic = half.queue, receipt.status, outgoing.message.topic
    address = producer.client.routes.master_of(queue.broker) or queue.broker
    error = server_error(status.value, status.name, address, topic)
    elapsed = clock.now() - started
    attempt = Attempt(queue.broker, address, queue.number, error, elapsed)
    attempts = [*receipt.failures, attempt]
    raise SendFailed(topic, attempts, elapsed, receipt.message_id) from error


def _decide(
    producer: ProducerCore, what: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> Flow[tuple[Outcome, Exception | None]]:
    """Call the user's function for an outcome; after any error it is UNKNOWN."""
    try:
        answer: object = yield UserCall(function, args, may_block=True)
    except Exception as error:  # the user's code may raise anything
        yield from producer.report(what, error)
        return Outcome.UNKNOWN, error
    if isinstance(answer, Outcome):
        return answer, None
    if answer is None:
        return Outcome.UNKNOWN, None
    wrong = OptionError(f"{what} returned {answer!r}, which is not an Outcome")
    yield from producer.report(what, wrong)
    return Outcome.UNKNOWN, wrong


def _note_failure(
    producer: ProducerCore, half: Half, outcome: Outcome, error: RocketMQError
) -> Flow[None]:
    """Publish that an outcome was not sent; the broker will send a check."""
    what = f"sending {outcome.name} of {half.message_id} to {half.queue.broker}"
    producer.client.notices.append(WorkFailed(what, error))
    yield from producer.client.publish()


def _send_end(
    producer: ProducerCore,
    half: Half,
    address: str,
    outcome: Outcome,
    remark: str | None,
    *,
    is_from_check: bool = False,
) -> Flow[None]:
    """Send the outcome one-way, with hooks and trace."""
    client, trace = producer.client, producer.trace
    context = EndTransactionContext(
        group=producer.plain_group,
        message=half.message,
        address=address,
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        outcome=TransactionFlag(outcome.value),
        is_from_check=is_from_check,
    )
    yield from run_observers(producer.hooks.end_transaction, (context,), producer.report)
    if trace is not None and trace.traces_topic(half.queue.topic):
        topic, now_ms = half.message.topic, client.clock.wall_ms()
        trace.add(
            trace_of_end_transaction(
                context, group=producer.plain_group, topic=topic, time_ms=now_ms
            )
        )
    header = EndTransactionRequest(
        producer_group=producer.group,
        tran_state_table_offset=half.half_offset,
        commit_log_offset=half.log_offset,
        commit_or_rollback=outcome.value,
        msg_id=half.message_id,
        from_transaction_check=is_from_check,
        transaction_id=half.transaction_id,
        topic=half.queue.topic,
        broker_name=half.queue.broker,
    )
    command = request_command(header)
    command.remark = remark
    yield from client.call(address, command, producer.deadline(None), is_oneway=True)


# ---- checks of the broker ------------------------------------------------------------------------


def take_checks(producer: ProducerCore, function: Callable[..., Any]) -> None:
    """Answer the brokers' checks of the producer's transactions with a function."""
    client = producer.client
    producer.checks = TransactionChecks(function, producer.options, client.clock)
    client.handlers[int(RequestCode.CHECK_TRANSACTION_STATE)] = partial(answer_check, client)


def answer_check(client: ClientCore, address: str, command: Command) -> Flow[None]:
    """Answer a broker's check of a half message; a check for an unknown group is ignored.

    Raises:
        WireError: The check is malformed.
        ClientClosed: The producer is being closed.
    """
    header = CheckTransactionRequest.from_fields(command.fields)
    broker = header.broker_name or client.routes.broker_at(address) or ""
    message = read_messages(client, command.body, broker)[0]
    producer = producers_of(client).get(message.properties.get(PropertyKey.PRODUCER_GROUP, ""))
    if producer is None or producer.checks is None:
        return
    half = Half(
        message=message,
        queue=QueueId(
            with_namespace(message.topic, client.options.namespace), broker, message.queue.number
        ),
        message_id=message.message_id,
        transaction_id=header.transaction_id,
        log_offset=header.commit_log_offset,
        half_offset=header.tran_state_table_offset,
    )
    deadline = client.clock.now() + _CHECK_WAIT_MAX
    yield from producer.run_tracked(
        _check(producer, producer.checks, half, address, deadline), deadline
    )


def _check(
    producer: ProducerCore, checks: TransactionChecks, half: Half, address: str, deadline: float
) -> Flow[None]:
    if not (yield from checks.enter(deadline)):
        producer.counts.checks_dropped += 1
        return
    try:
        outcome, error = yield from _decide(
            producer, "the check of a transaction", checks.function, (half.message,)
        )
    finally:
        checks.leave()
    remark = None if error is None else f"the check failed: {error!r}"
    try:
        yield from _send_end(producer, half, address, outcome, remark, is_from_check=True)
        producer.counts.checked += 1
    except RocketMQError as problem:
        yield from _note_failure(producer, half, outcome, problem)
