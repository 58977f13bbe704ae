"""One pop: the request for messages that are invisible to others until they are acknowledged.

`receipts` has the requests that follow a pop. One rule: a message whose tag is not wanted is
acknowledged here, because a broker compares only hashes of tags.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from downrange.client.flows.consuming.pull import EVERYTHING, Filter, read_messages
from downrange.client.flows.consuming.receipts import ack_many, find_broker
from downrange.client.flows.names import with_namespace
from downrange.errors import InvalidField, NotSupported, PopNotSupported, ServerError
from downrange.model import ReceivedMessage
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.pop_headers import (
    NotificationReply,
    NotificationRequest,
    PopReply,
    PopRequest,
)
from downrange.wire.pop_receipts import PLAIN, Receipt, parse_receipt, parse_start_offsets
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.wire.command import Command

#: In place of a queue number: any queue of the broker.
ALL_QUEUES: Final = -1
#: The most messages that a broker returns for one request.
POP_COUNT_MAX: Final = 32
#: Where a group starts in a queue that it has never read.
PopStart: TypeAlias = Literal["earliest", "latest"]
_INIT_MODES: Final = {"earliest": 0, "latest": 1}


class PopStatus(Enum):
    """How a pop ended.

    FOUND: There are messages; the comparison of tags may have removed all of them.
    EMPTY: There was none, also not until the end of the waiting time.
    FULL: The broker holds too many waiting requests, or too many messages are open: pause.
    """

    FOUND = "found"
    EMPTY = "empty"
    FULL = "full"


_STATUSES: Final = {
    int(ResponseCode.SUCCESS): PopStatus.FOUND,
    int(ResponseCode.POLLING_TIMEOUT): PopStatus.EMPTY,
    int(ResponseCode.PULL_NOT_FOUND): PopStatus.EMPTY,
    int(ResponseCode.NO_MESSAGE): PopStatus.EMPTY,
    int(ResponseCode.POLLING_FULL): PopStatus.FULL,
}


class Popped(msgspec.Struct, frozen=True):
    """One popped message, and the receipt to acknowledge it with."""

    message: ReceivedMessage
    receipt: Receipt


class PopBatch(msgspec.Struct, frozen=True):
    """The result of a pop.

    Attributes:
        status: How it ended.
        popped: The messages with their receipts.
        rest_count: How many more messages the broker has for the group, about.
        asked_at: When the request was made, on the client's clock. `invisible` seconds later, the
            receipts may be over; the broker counts from a moment that is not before.
    """

    status: PopStatus
    popped: list[Popped]
    rest_count: int
    asked_at: float


class Notified(msgspec.Struct, frozen=True):
    """The answer to `wait_for_messages`.

    Attributes:
        has_messages: Whether a pop would find a message now.
        is_full: Whether the broker holds too many waiting requests to hold another one.
    """

    has_messages: bool
    is_full: bool


def pop(
    core: ClientCore,
    group: str,
    topic: str,
    broker: str,
    *,
    queue_number: int = ALL_QUEUES,
    max_count: int = POP_COUNT_MAX,
    invisible: float,
    poll: float = 0.0,
    message_filter: Filter = EVERYTHING,
    start: PopStart = "earliest",
    deadline: float,
    decode_body: bool = True,
    message_class: type[ReceivedMessage] = ReceivedMessage,
) -> Flow[PopBatch]:
    """Pop messages of one broker.

    A reply that is lost leaves its messages invisible until their time is over.

    Args:
        core: The client.
        group: The consumer group, without the namespace.
        topic: The topic, without the namespace.
        broker: The name of the broker.
        queue_number: One queue, or `ALL_QUEUES`; the group's retries come with either.
        max_count: Most messages, up to `POP_COUNT_MAX`.
        invisible: Seconds until messages that were not acknowledged are delivered again.
        poll: Seconds that the broker waits for a message when there is none. The clocks of client
            and broker must agree for that, or the broker answers too early or too late.
        message_filter: Which messages.
        start: Where the group starts in a queue that it has never read. With "latest", a broker
            still starts at offset 0 while the queue's first message is in its memory.
        deadline: When to give up; later than the end of `poll`.
        decode_body: Whether bodies are decompressed.
        message_class: The class of the messages; see `read_messages`.

    Raises:
        PopNotSupported: The broker is older than 5.0.
        BrokerNotFound: The name server does not have the broker, or it has no master.
        ServerError: The broker refused.
        RocketMQError: The broker did not answer.
    """
    address = yield from find_broker(core, topic, broker, deadline)
    header = PopRequest(
        consumer_group=with_namespace(group, core.options.namespace),
        topic=with_namespace(topic, core.options.namespace),
        queue_id=queue_number,
        max_msg_nums=max_count,
        invisible_time=int(invisible * 1000),
        poll_time=int(poll * 1000),
        born_time=_born_ms(core, poll),
        init_mode=_INIT_MODES[start],
        exp_type=message_filter.kind,
        exp=message_filter.text,
        order=False,
    )
    asked_at = core.clock.now()
    reply = yield from core.call(address, request_command(header), deadline)
    status = _STATUSES.get(reply.code)
    if status is None:
        raise _refused(core, reply, address, topic)
    if status is not PopStatus.FOUND:
        return PopBatch(status, [], 0, asked_at)
    found = PopReply.from_fields(reply.fields)
    messages = read_messages(
        core, reply.body or b"", broker, decode_body=decode_body, message_class=message_class
    )
    popped = _with_receipts(messages, found, broker)
    if message_filter.tags:
        popped = yield from _wanted(core, group, popped, message_filter, deadline)
    return PopBatch(status, popped, found.rest_num, asked_at)


def wait_for_messages(
    core: ClientCore,
    group: str,
    topic: str,
    broker: str,
    *,
    poll: float,
    message_filter: Filter = EVERYTHING,
    deadline: float,
) -> Flow[Notified]:
    """Wait until a pop of a broker would find a message; nothing becomes invisible.

    One message wakes one of the waiting members of a group.

    For arguments and errors see `pop`. Brokers before 5.3 ignore the filter.
    """
    address = yield from find_broker(core, topic, broker, deadline)
    header = NotificationRequest(
        consumer_group=with_namespace(group, core.options.namespace),
        topic=with_namespace(topic, core.options.namespace),
        queue_id=ALL_QUEUES,
        poll_time=int(poll * 1000),
        born_time=_born_ms(core, poll),
        order=False,
        exp_type=message_filter.kind,
        exp=message_filter.text,
    )
    reply = yield from core.call(address, request_command(header), deadline)
    if reply.code not in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT):
        raise _refused(core, reply, address, topic)
    answer = NotificationReply.from_fields(reply.fields)
    return Notified(answer.has_msg, answer.polling_full)


def _born_ms(core: ClientCore, poll: float) -> int:
    """Return the time of a request; 0 if it does not wait, so that clocks need not agree.

    A broker answers a request whose time to wait has ended half a second ago as an empty one.
    """
    return core.clock.wall_ms() if poll > 0 else 0


def _refused(core: ClientCore, reply: Command, address: str, topic: str) -> ServerError:
    error = core.refused(reply, address, topic)
    if isinstance(error, NotSupported):
        return PopNotSupported(reply.code, reply.remark, address, topic)
    return error


def _with_receipts(messages: list[ReceivedMessage], found: PopReply, broker: str) -> list[Popped]:
    """Add the receipts: those of retries are properties, the others are made of the reply."""
    starts = parse_start_offsets(found.start_offset_info) if found.start_offset_info else {}
    popped: list[Popped] = []
    for message in messages:
        text = message.properties.get(PropertyKey.POP_CHECKPOINT)
        if text is not None:
            popped.append(Popped(message, parse_receipt(text)))
            continue
        queue_id = message.queue.number
        start = starts.get((PLAIN, queue_id))
        if start is None:
            raise InvalidField("pop reply", "startOffsetInfo", f"no entry for queue {queue_id}")
        receipt = Receipt(
            start=start,
            pop_ms=found.pop_time,
            invisible_ms=found.invisible_time,
            revive_queue=found.revive_qid,
            kind=PLAIN,
            broker=broker,
            queue_id=queue_id,
            offset=message.offset,
        )
        popped.append(Popped(message, receipt))
    return popped


def _wanted(
    core: ClientCore, group: str, popped: list[Popped], message_filter: Filter, deadline: float
) -> Flow[list[Popped]]:
    """Return the messages whose tags are wanted; acknowledge the others.

    If that fails, they are delivered again, and compared again.
    """
    wanted = [each for each in popped if each.message.tags in message_filter.tags]
    if len(wanted) < len(popped):
        others = [
            (each.message.topic, each.receipt)
            for each in popped
            if each.message.tags not in message_filter.tags
        ]
        yield from ack_many(core, group, others, deadline=deadline)
    return wanted
