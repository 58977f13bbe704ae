"""Sending what somebody else has encoded, until it is stored or time is up.

Whoever moves rows by the million writes batches straight out of columns, and gives each message an
id of its own making. Here such bytes become what the loop of attempts takes, and here is the other
difference from an ordinary send: it is tried again, with pauses, as long as the deadline allows,
for a job that fails is started again from its beginning, which costs far more than patience.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

import msgspec

from downrange.client.flows.effects import Flow, Pause
from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.prepare import Outgoing
from downrange.client.flows.producing.producer_state import SendRules
from downrange.client.flows.producing.retry_loop import failure_of, send_with_retries
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import RocketMQError, RouteNotFound, SendFailed
from downrange.model import Attempt, Message
from downrange.wire.codes import RequestCode
from downrange.wire.properties import PropertyKey, decode_properties, encode_properties
from downrange.wire.records import decode_batch

if TYPE_CHECKING:
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.model import QueueId, SendReceipt

#: Each attempt by itself: pauses and the decision to go on are made here.
_ONE_ATTEMPT: Final = SendRules("async", 0, True, True)
_FIRST_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 2.0
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class EncodedMessages(Sequence[Message]):
    """The messages of a batch that was encoded already; read only if someone looks at one.

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
        """Decode the batch, and return a message of it or some of them."""
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
    """Make a batch ready whose body is written; nothing in it is looked at.

    Args:
        producer: Who sends it.
        topic: The topic, without the namespace.
        body: Items as `wire.records.encode_batch` writes them, each with its unique id.
        count: How many there are.
        first_id: The unique id of the first one, by which the receipt names the batch.
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
    """Make one message ready whose property string is written and whose body may be compressed.

    Args:
        producer: Who sends it.
        topic: The topic, without the namespace.
        body: The bytes that travel.
        properties: The property string, unique id included, that of the namespace not.
        message_id: The unique id.
        sys_flag: How the body is compressed.
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
    """Store a message or a batch, however many attempts that takes, before the deadline.

    With a queue as the target every attempt goes there; without, each goes where the producer's
    health of brokers says. Between attempts the route is asked for again: a broker may have come
    back elsewhere.

    Args:
        producer: Who sends.
        outgoing: What is sent.
        round_robin: The caller's place in the round robin.
        deadline: When to give up, all attempts together.
        target: The queue, if it must be this one.
        attempt_timeout: How long one attempt may take.

    Raises:
        SendFailed: It was not stored; lists all attempts.
        RouteNotFound: There is no way to the topic, or to the target's broker, until the deadline.
        RocketMQError: No name server answered, or a hook forbids it.
    """
    clock = producer.client.clock
    started = clock.now()
    failures: list[Attempt] = []
    pause = _FIRST_PAUSE
    while True:
        now = clock.now()
        until = min(deadline, now + attempt_timeout)
        last: RocketMQError
        try:
            receipt = yield from send_with_retries(
                producer, outgoing, round_robin, until, _ONE_ATTEMPT, target
            )
        except SendFailed as failed:
            failures += failed.attempts
            last = failure_of(outgoing.message.topic, failures, clock.now() - started)
            if not failed.retryable:
                raise last from failed
        except RouteNotFound as missing:  # gone for now, or not told yet after a restart
            last = missing
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
    """Refresh the route; without an answer the old one stays."""
    with contextlib.suppress(RocketMQError):
        yield from refresh_route(producer.client, topic, until)
