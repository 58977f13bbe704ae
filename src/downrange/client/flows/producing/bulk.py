"""Bulk sends: messages that are encoded already, sent until they are stored or time is up.

Spark encodes batches directly from columns, with unique ids of its own. This module turns such
bytes into an `Outgoing`, and repeats a send, with pauses, until the deadline. It tries longer than
an ordinary send, because a failed job has to start again from its beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

import msgspec

from downrange.client.flows.effects import Flow, Pause
from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.failures import failure_of
from downrange.client.flows.producing.prepare import Outgoing
from downrange.client.flows.producing.producer_state import SendRules
from downrange.client.flows.producing.retry_loop import send_with_retries
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import BrokerNotFound, RocketMQError, RouteNotFound, SendFailed
from downrange.model import Attempt, Message
from downrange.wire.codes import RequestCode
from downrange.wire.properties import PropertyKey, decode_properties, encode_properties
from downrange.wire.records import decode_batch

if TYPE_CHECKING:
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.model import QueueId, SendReceipt

#: One attempt per send: `send_until` makes the pauses and decides whether to go on.
_ONE_ATTEMPT: Final = SendRules("async", 0, True, True)
_FIRST_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 2.0
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class EncodedMessages(Sequence[Message]):
    """The messages of an encoded batch; decoded only when one of them is read.

    Args:
        topic: Their topic.
        body: The body of the batch.
        count: How many there are.
    """

    __slots__ = ("_body", "_count", "_topic")

    def __init__(self, topic: str, body: bytes, count: int) -> None:
        self._topic = topic
        self._body = body
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        """Decode the batch, and return one of its messages or a slice."""
        messages = [
            Message(
                self._topic,
                item.body,
                flag=item.flag,
                properties=decode_properties(item.property_bytes.decode()),
            )
            for item in decode_batch(self._body)
        ]
        return messages[index]


def encoded_batch(
    producer: ProducerState, topic: str, body: bytes, count: int, first_id: str
) -> Outgoing:
    """Prepare an encoded batch; its content is not checked.

    Args:
        producer: The producer that sends it.
        topic: The topic, without the namespace.
        body: Messages as `wire.records.encode_batch` encodes them, each with its unique id.
        count: How many there are.
        first_id: The unique id of the first message, which the receipt has as `message_id`.
    """
    client = producer.client
    properties = {PropertyKey.WAIT.value: "true"}
    namespace = client.options.namespace
    if namespace is not None:
        properties[PropertyKey.INSTANCE_ID.value] = namespace
    return Outgoing(
        message=Message(topic, b""),
        topic=with_namespace(topic, namespace),
        message_id=first_id,
        body=body,
        properties=encode_properties(properties),
        sys_flag=0,
        code=_SEND_BATCH,
        born_ms=client.clock.wall_ms(),
        batch=EncodedMessages(topic, body, count),
        count=count,
    )


def encoded_message(
    producer: ProducerState,
    topic: str,
    body: bytes,
    *,
    properties: str,
    message_id: str,
    sys_flag: int = 0,
) -> Outgoing:
    """Prepare one message with an encoded property string and a body that may be compressed.

    Args:
        producer: The producer that sends it.
        topic: The topic, without the namespace.
        body: The encoded body.
        properties: The property string, with the unique id and without the namespace.
        message_id: The unique id.
        sys_flag: The system flag: how the body is compressed.
    """
    client = producer.client
    namespace = client.options.namespace
    if namespace is not None:
        properties += encode_properties({PropertyKey.INSTANCE_ID.value: namespace})
    return Outgoing(
        message=Message(topic, body),
        topic=with_namespace(topic, namespace),
        message_id=message_id,
        body=body,
        properties=properties,
        sys_flag=sys_flag,
        code=_SEND_V2,
        born_ms=client.clock.wall_ms(),
    )


def send_until(
    producer: ProducerState,
    outgoing: Outgoing,
    round_robin: RoundRobin,
    deadline: float,
    *,
    target: QueueId | None = None,
    attempt_timeout: float,
) -> Flow[SendReceipt]:
    """Send a message or a batch until a broker stores it, with any number of attempts.

    With a target every attempt goes to that queue; otherwise the queue picker chooses. Between
    attempts the route is refreshed, because a broker may have come back at another address.

    Args:
        producer: The producer.
        outgoing: The prepared message or batch.
        round_robin: The turns of the calling thread.
        deadline: When to give up, for all attempts together.
        target: The queue, if it must be this one.
        attempt_timeout: How long one attempt may take.

    Raises:
        SendFailed: No broker confirmed that it stored it; lists all attempts.
        RouteNotFound: The topic had no route until the deadline.
        BrokerNotFound: No broker, or not the target's, was registered until the deadline.
        RocketMQError: No name server answered, or a hook forbids the send.
    """
    clock = producer.client.clock
    started = clock.now()
    failures: list[Attempt] = []
    pause = _FIRST_PAUSE
    last: RocketMQError | None = None
    while True:
        now = clock.now()
        until = min(deadline, now + attempt_timeout)
        try:
            receipt = yield from send_with_retries(
                producer, outgoing, round_robin, until, _ONE_ATTEMPT, target
            )
        except SendFailed as failed:
            failures += failed.attempts
            elapsed = clock.now() - started
            last = failure_of(outgoing.message.topic, failures, elapsed, outgoing.message_id)
            if not failed.retryable:
                raise last from last.__cause__
        except (RouteNotFound, BrokerNotFound) as missing:
            # Gone for now, or not registered yet after a restart. Attempts before that count more:
            # they may have stored it.
            last = last or missing
        else:
            if not failures:
                return receipt
            return msgspec.structs.replace(receipt, failures=(*failures, *receipt.failures))
        if clock.now() + pause >= deadline:
            raise last
        producer.counts.retried += 1
        yield Pause(pause)
        pause = min(2 * pause, _PAUSE_MAX)
        yield from _refresh(producer, outgoing.topic, until=min(deadline, clock.now() + pause))


def _refresh(producer: ProducerState, topic: str, *, until: float) -> Flow[None]:
    """Refresh the route; after a failure the cached one stays."""
    with contextlib.suppress(RocketMQError):
        yield from refresh_route(producer.client, topic, until)
