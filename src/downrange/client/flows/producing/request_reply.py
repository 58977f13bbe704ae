"""Request-reply: send a message and wait for a reply message, or send that reply.

A request carries a correlation id and the id of this client. Its consumer replies to a topic of the
cluster; the broker that gets the reply pushes it to the client, over the connection of the client's
heartbeats. Hence the one rule: before a request is sent, the client must be registered at all
brokers that the reply may come through.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.checks import check_type
from downrange.client.flows.effects import Flow, Signal, UserCall, Wait
from downrange.client.flows.names import without_namespace
from downrange.client.flows.producing.prepare import Outgoing, prepare
from downrange.client.flows.producing.producer_core import producers_of
from downrange.client.flows.producing.retry_loop import send_with_retries
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import ensure_registered
from downrange.client.flows.validation import check_target
from downrange.errors import InvalidMessage, RequestTimedOut, RocketMQError
from downrange.model import LogOffset, Message, QueueId, QueueOffset, ReceivedMessage, SendReceipt
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import decompress
from downrange.wire.headers import PushReplyRequest
from downrange.wire.properties import PropertyKey, decode_properties
from downrange.wire.system_names import REPLY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.producing.producer_state import ProducerState, SendRules
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.client.flows.routing.routes import Route
    from downrange.client.flows.routing.selectors import Selector

_REPLY_TYPE: Final = "reply"
#: Java's code for a message that cannot be replied to.
_CANNOT_REPLY: Final = 10007


# ---- requests ------------------------------------------------------------------------------------


def request(
    producer: ProducerState,
    message: Message,
    round_robin: RoundRobin,
    rules: SendRules,
    target: QueueId | Selector | None = None,
    timeout: float | None = None,
    *,
    is_limited: bool = False,
    admitted: Signal | None = None,
) -> Flow[ReceivedMessage]:
    """Return the flow that sends a request and waits for the reply.

    With `is_limited` it waits for room under the limits of back-pressure, then fires `admitted`.

    Raises:
        InvalidMessage: The message is not valid.
    """
    client = producer.client
    seconds = producer.options.timeout if timeout is None else timeout
    deadline = producer.deadline(timeout)
    if target is not None:
        check_target(target)
    correlation_id = client.randomness.uuid()
    extra = {
        PropertyKey.CORRELATION_ID.value: correlation_id,
        PropertyKey.REPLY_TO_CLIENT.value: client.client_id,
        PropertyKey.TTL.value: str(round(seconds * 1000)),
    }
    outgoing = prepare(producer, message, extra=extra)
    client.handlers[int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)] = partial(take_reply, client)
    flow = _send_and_wait(
        producer, outgoing, correlation_id, round_robin, rules, target, deadline, seconds
    )
    return producer.run_tracked(
        flow, deadline, len(message.body) if is_limited else None, admitted=admitted
    )


def _send_and_wait(
    producer: ProducerState,
    outgoing: Outgoing,
    correlation_id: str,
    round_robin: RoundRobin,
    rules: SendRules,
    target: QueueId | Selector | None,
    deadline: float,
    timeout: float,
) -> Flow[ReceivedMessage]:
    route = yield from producer.find_route(outgoing.topic, deadline)
    yield from _register_for_replies(producer.client, route, deadline)
    pending = producer.requests.open(correlation_id)
    try:
        yield from send_with_retries(producer, outgoing, round_robin, deadline, rules, target)
        yield Wait(pending.arrived, deadline)
        if pending.message is None:
            raise RequestTimedOut(outgoing.message.topic, timeout)
        return pending.message
    finally:
        producer.requests.close(correlation_id)


def _register_for_replies(client: ClientCore, route: Route, deadline: float) -> Flow[None]:
    """Register at all brokers that a reply may come through: those of the reply topic."""
    masters = set(route.masters.values())
    for cluster in {replicas.cluster for replicas in route.body.broker_datas}:
        if cluster is not None:
            replies = yield from _find_replies(client, cluster + REPLY_SUFFIX, deadline)
            masters |= set() if replies is None else set(replies.masters.values())
    yield from ensure_registered(client, sorted(masters), deadline)


def _find_replies(client: ClientCore, topic: str, deadline: float) -> Flow[Route | None]:
    """Return the route of a reply topic; the timer then sends heartbeats to its brokers, too."""
    route = client.routes.get(topic)
    if route is None:
        try:
            route = yield from refresh_route(client, topic, deadline)
        except RocketMQError:
            return None  # the brokers of the request's own topic may be enough
    return route


def take_reply(client: ClientCore, address: str, command: Command) -> Flow[Command]:
    """Deliver a reply that a broker pushed to the flow that waits for it; return the answer."""
    try:
        header = PushReplyRequest.from_fields(command.fields)
        body: bytes = yield UserCall(
            decompress, (command.body, header.sys_flag, client.options.body_bytes_max)
        )
    except RocketMQError as error:
        return Command(int(ResponseCode.SYSTEM_ERROR), remark=f"the reply is malformed: {error}")
    reply = _reply_of(client, header, body, client.routes.broker_at(address) or "")
    correlation_id = reply.properties.get(PropertyKey.CORRELATION_ID, "")
    for producer in producers_of(client).values():
        requests = producer.requests
        if requests.has(correlation_id) and not requests.take(correlation_id, reply):
            producer.counts.late_replies += 1
    return Command(int(ResponseCode.SUCCESS))


def _reply_of(
    client: ClientCore, header: PushReplyRequest, body: bytes, broker: str
) -> ReceivedMessage:
    """Return a pushed reply as a message; the push does not contain its offsets."""
    properties = decode_properties(header.properties or "")
    properties[PropertyKey.ARRIVE_TIME.value] = str(client.clock.wall_ms())
    topic = without_namespace(header.topic, client.options.namespace)
    return ReceivedMessage(
        message_id=properties.get(PropertyKey.UNIQUE_KEY, ""),
        queue=QueueId(topic, broker, header.queue_id),
        offset=QueueOffset(0),
        body=body,
        properties=properties,
        offset_id="",
        log_offset=LogOffset(0),
        flag=header.flag,
        born_at_ms=header.born_timestamp,
        born_host=header.born_host,
        stored_at_ms=header.store_timestamp,
        delivery_attempts=header.reconsume_times or 0,
    )


# ---- replies -------------------------------------------------------------------------------------


def reply(
    producer: ProducerState,
    request: ReceivedMessage,
    message: Message,
    round_robin: RoundRobin,
    rules: SendRules,
    timeout: float | None = None,
    *,
    is_limited: bool = False,
) -> Flow[SendReceipt]:
    """Return the flow that sends a message of `reply_to` to the sender of the request.

    Raises:
        InvalidMessage: The message is not valid, or `request` is not a request.
    """
    deadline = producer.deadline(timeout)
    outgoing = prepare(producer, message, extra=_ids_of(request), is_reply=True)
    outgoing.topic = message.topic  # a system topic: it has no namespace
    flow = send_with_retries(producer, outgoing, round_robin, deadline, rules)
    return producer.run_tracked(flow, deadline, len(message.body) if is_limited else None)


def reply_to(
    request: ReceivedMessage,
    body: bytes | str,
    *,
    tags: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Message:
    """Return a message for the reply topic of this request.

    Raises:
        InvalidMessage: It has no property with its cluster, so it is not a request.
    """
    check_type("request", request, ReceivedMessage, "a ReceivedMessage")
    cluster = _property(request, PropertyKey.CLUSTER)
    return Message(cluster + REPLY_SUFFIX, body, tags=tags, keys=keys, properties=properties)


def _ids_of(request: ReceivedMessage) -> dict[str, str]:
    """Return the properties that lead a reply back to the request's sender."""
    ids = {
        key.value: _property(request, key)
        for key in (PropertyKey.CORRELATION_ID, PropertyKey.REPLY_TO_CLIENT)
    }
    ids[PropertyKey.MESSAGE_TYPE.value] = _REPLY_TYPE
    if (ttl := request.properties.get(PropertyKey.TTL)) is not None:
        ids[PropertyKey.TTL.value] = ttl
    return ids


def _property(request: ReceivedMessage, key: PropertyKey) -> str:
    value = request.properties.get(key)
    if value is None:
        error = InvalidMessage(
            f"message {request.message_id} of {request.topic!r} cannot be replied to: it has no "
            f"property {key.value}, so it was not sent with request()"
        )
        error.code = _CANNOT_REPLY
        error.topic = request.topic
        raise error
    return value
