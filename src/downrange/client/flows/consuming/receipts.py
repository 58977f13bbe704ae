"""Requests about popped messages: acknowledge them, change when they are visible again, give up.

A receipt identifies one delivery of a message (`wire/pop_receipts.py`). It is valid until it is
acknowledged or changed, or until its time is over. An Apache broker does not check that: it answers
a late acknowledgement with success, and a late change makes the message visible a second time. So
callers keep the newest receipt, and do not use it after its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.consuming.send_back import DEAD_LETTER_LEVEL
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import find_send_address
from downrange.errors import NotSupported, RocketMQError
from downrange.model import QueueId
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import SendBackRequest
from downrange.wire.pop_bodies import SPAN_MAX, BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import AckRequest, ChangeInvisibleReply, ChangeInvisibleRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.model import ReceivedMessage
    from downrange.wire.pop_receipts import Receipt

#: How many messages one request acknowledges at most.
_ACKS_MAX: Final = 512


def find_broker(core: ClientCore, topic: str, broker: str, deadline: float) -> Flow[str]:
    """Return the address of a broker's master.

    Raises:
        BrokerNotFound: The name server does not have the broker, or it has no master.
        RocketMQError: No name server answered.
    """
    name = with_namespace(topic, core.options.namespace)
    return (yield from find_send_address(core, QueueId(name, broker, 0), deadline))


# ---- one message -------------------------------------------------------------------------------


def ack(
    core: ClientCore, group: str, topic: str, receipt: Receipt, *, deadline: float
) -> Flow[None]:
    """Acknowledge a message: the group does not get it again.

    Args:
        core: The client.
        group: The group, without the namespace.
        topic: The topic that was popped from, without the namespace.
        receipt: The newest receipt of the message.
        deadline: When to give up.

    Raises:
        NotFound: The queue does not have the message.
        RocketMQError: The broker refused, or did not answer.
    """
    address = yield from find_broker(core, topic, receipt.broker, deadline)
    named_group, named_topic = _names(core, group, topic, receipt)
    header = AckRequest(named_group, named_topic, receipt.queue_id, str(receipt), receipt.offset)
    yield from core.ask(address, request_command(header), deadline, topic)


def change_invisible(
    core: ClientCore,
    group: str,
    topic: str,
    receipt: Receipt,
    *,
    seconds: float,
    deadline: float,
) -> Flow[Receipt]:
    """Change when a message becomes visible again; return its new receipt.

    An Apache broker delivers it two to three seconds after that time.

    Args:
        core: The client.
        group: The group, without the namespace.
        topic: The topic that was popped from, without the namespace.
        receipt: The newest receipt of the message.
        seconds: From now on; 0 makes it visible at once.
        deadline: When to give up.

    Raises:
        NotFound: The receipt is not valid any more, or the queue does not have the message.
        RocketMQError: The broker refused, or did not answer.
    """
    address = yield from find_broker(core, topic, receipt.broker, deadline)
    named_group, named_topic = _names(core, group, topic, receipt)
    header = ChangeInvisibleRequest(
        consumer_group=named_group,
        topic=named_topic,
        queue_id=receipt.queue_id,
        extra_info=str(receipt),
        offset=receipt.offset,
        invisible_time=int(seconds * 1000),
    )
    reply = yield from core.ask(address, request_command(header), deadline, topic)
    changed = ChangeInvisibleReply.from_fields(reply.fields)
    return receipt._replace(
        start=receipt.offset,
        pop_ms=changed.pop_time,
        invisible_ms=changed.invisible_time,
        revive_queue=changed.revive_qid,
    )


def send_to_dead_letters(
    core: ClientCore,
    group: str,
    message: ReceivedMessage,
    receipt: Receipt,
    *,
    deadline: float,
) -> Flow[None]:
    """Store a message in the group's dead-letter topic, then acknowledge it.

    Args:
        core: The client.
        group: The group, without the namespace.
        message: The message.
        receipt: Its newest receipt.
        deadline: When to give up.

    Raises:
        RocketMQError: The broker refused, or did not answer. If only the acknowledgement failed,
            the message is in the dead-letter topic and is delivered again.
    """
    address = yield from find_broker(core, message.topic, receipt.broker, deadline)
    named_group, named_topic = _names(core, group, message.topic, receipt)
    header = SendBackRequest(
        offset=message.log_offset,
        group=named_group,
        delay_level=DEAD_LETTER_LEVEL,
        origin_msg_id=message.offset_id,
        origin_topic=named_topic,
        broker_name=receipt.broker,
    )
    yield from core.ask(address, request_command(header), deadline, message.topic)
    yield from ack(core, group, message.topic, receipt, deadline=deadline)


def _names(core: ClientCore, group: str, topic: str, receipt: Receipt) -> tuple[str, str]:
    """Return the group, and the topic that has the message, which may be a retry topic."""
    namespace = core.options.namespace
    named_group = with_namespace(group, namespace)
    return named_group, receipt.topic(with_namespace(topic, namespace), named_group)


# ---- many messages -----------------------------------------------------------------------------


def ack_many(
    core: ClientCore, group: str, popped: Sequence[tuple[str, Receipt]], *, deadline: float
) -> Flow[list[RocketMQError | None]]:
    """Acknowledge many messages, with as few requests as possible.

    A broker that does not know such requests (5.0) gets one request per message.

    Args:
        core: The client.
        group: The group, without the namespace.
        popped: Topic and newest receipt of each message.
        deadline: When to give up.

    Returns:
        For each message, in order: None, or the error of its request.
    """
    parts: list[list[int]] = []
    open_parts: dict[str, list[int]] = {}
    for index, (_, receipt) in enumerate(popped):
        if not 0 <= receipt.offset - receipt.start < SPAN_MAX:
            parts.append([index])  # a bit set of its distance would be too long
            continue
        part = open_parts.get(receipt.broker)
        if part is None or len(part) >= _ACKS_MAX:
            part = open_parts[receipt.broker] = []
            parts.append(part)
        part.append(index)
    flows = [_ack_part(core, group, [popped[index] for index in part], deadline) for part in parts]
    outcomes: list[list[RocketMQError | None] | RocketMQError] = yield Gather(flows, CALLS_AT_ONCE)
    results: list[RocketMQError | None] = [None] * len(popped)
    for part, outcome in zip(parts, outcomes, strict=True):
        failures = [outcome] * len(part) if isinstance(outcome, RocketMQError) else outcome
        for index, failure in zip(part, failures, strict=True):
            results[index] = failure
    return results


def _ack_part(
    core: ClientCore, group: str, popped: Sequence[tuple[str, Receipt]], deadline: float
) -> Flow[list[RocketMQError | None]]:
    """Acknowledge messages of one broker."""
    if len(popped) > 1:
        topic, receipt = popped[0]
        address = yield from find_broker(core, topic, receipt.broker, deadline)
        body = BatchAckBody(broker_name=receipt.broker, acks=_batch(core, group, popped))
        command = Command(int(RequestCode.BATCH_ACK_MESSAGE), body=body.encode())
        try:
            yield from core.ask(address, command, deadline, topic)
        except NotSupported:
            pass
        else:
            return [None] * len(popped)
    failures: list[RocketMQError | None] = []
    for topic, receipt in popped:
        try:
            yield from ack(core, group, topic, receipt, deadline=deadline)
            failures.append(None)
        except RocketMQError as error:
            failures.append(error)
    return failures


def _batch(core: ClientCore, group: str, popped: Sequence[tuple[str, Receipt]]) -> list[BatchAck]:
    """Return an entry per checkpoint."""
    namespace = core.options.namespace
    offsets: dict[tuple[str, Receipt], list[int]] = {}
    for topic, receipt in popped:
        checkpoint = receipt._replace(offset=receipt.start)
        offsets.setdefault((topic, checkpoint), []).append(receipt.offset)
    return [
        BatchAck(
            bits=bit_set(checkpoint.start, found),
            group=with_namespace(group, namespace),
            invisible_ms=checkpoint.invisible_ms,
            pop_ms=checkpoint.pop_ms,
            queue_id=checkpoint.queue_id,
            kind=checkpoint.kind,
            revive_queue=checkpoint.revive_queue,
            start=checkpoint.start,
            topic=with_namespace(topic, namespace),
        )
        for (topic, checkpoint), found in offsets.items()
    ]
