"""Messages that a cluster stores: found by id or by key.

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.checks import check_between, check_flag, check_name
from downrange.client.flows.admin.reports import QueueMessages
from downrange.client.flows.consuming.offsets import ms_of
from downrange.client.flows.consuming.pull import PullStatus, pull, read_messages
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import with_namespace, without_namespace
from downrange.client.flows.routing.lookup import find_any_replicas, find_route
from downrange.errors import MalformedId, NotFound, RocketMQError
from downrange.model import ReceivedMessage
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import QueryByKeyRequest, ViewRequest
from downrange.wire.ids import OffsetId, parse_offset_id
from downrange.wire.limits import INT32_MAX, INT64_MAX
from downrange.wire.reply_messages import messages_in
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.QUERY_NOT_FOUND)
_SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)
_END_OF_TIME_MS: Final = INT64_MAX
#: How many days back a message is searched by its unique id by default, as in Java.
UNIQUE_ID_DAYS: Final = 3


def view_message(
    core: ClientCore,
    topic: str,
    message_id: str,
    *,
    since: datetime | None = None,
    decode_body: bool = True,
    deadline: float,
) -> Flow[ReceivedMessage]:
    """Return a message by either of its ids.

    An offset id contains the address of its broker. Any other id is taken as a unique id, and all
    brokers of the topic are asked.

    Args:
        core: The client.
        topic: The topic it was sent to.
        message_id: The `message_id` or the `offset_id` of a receipt.
        since: For a unique id: the earliest store time to search; three days ago unless given.
        decode_body: Whether to decompress the body.
        deadline: When to give up.

    Raises:
        NotFound: There is no such message in this topic.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    check_name("topic", topic)
    check_name("message_id", message_id)
    check_flag("decode_body", decode_body)
    since_ms = None if since is None else ms_of("since", since)
    name = with_namespace(topic, core.options.namespace)
    route = yield from find_route(core, name, deadline)
    place = _place_of(message_id)
    if place is not None:
        return (yield from _view(core, route, place, deadline, decode_body))
    begin_ms = core.clock.wall_ms() - UNIQUE_ID_DAYS * 86_400_000
    header = QueryByKeyRequest(
        topic=name,
        key=message_id,
        max_num=32,
        begin_timestamp=begin_ms if since_ms is None else since_ms,
        end_timestamp=_END_OF_TIME_MS,
        is_unique_key=True,
    )
    found = yield from _query_all(core, route, header, deadline, decode_body)
    exact = [message for message in found if message.message_id == message_id]
    if not exact:
        remark = f"no message of {topic!r} has the id {message_id!r}"
        raise NotFound(_NOT_FOUND, remark, ", ".join(find_any_replicas(route).values()), topic)
    return exact[-1]


def _place_of(message_id: str) -> OffsetId | None:
    """Parse an offset id; None for a unique id, which has no valid port in that place."""
    try:
        place = parse_offset_id(message_id)
    except MalformedId:
        return None
    return place if 0 < place.port < 65_536 else None


def _view(
    core: ClientCore, route: Route, place: OffsetId, deadline: float, decode_body: bool
) -> Flow[ReceivedMessage]:
    host = f"[{place.host}]" if ":" in place.host else place.host
    address = f"{host}:{place.port}"
    command = request_command(ViewRequest(place.log_offset, route.topic))
    reply = yield from core.call(address, command, deadline)
    if reply.code == _SYSTEM_ERROR:  # a broker's code for an offset without a message
        raise NotFound(reply.code, reply.remark, address, route.topic)
    if reply.code != _SUCCESS:
        raise core.refused(reply, address, route.topic)
    names = {
        each: broker for broker, replicas in route.brokers.items() for each in replicas.values()
    }
    broker = names.get(address, address)
    messages = read_messages(core, reply.body, broker, decode_body=decode_body)
    if not messages:
        raise NotFound(_NOT_FOUND, "an empty answer", address, route.topic)
    # Apache's brokers look at the offset only. The names are compared as the broker has them: for
    # users, `orders` outside of the namespace and `orders` in it are the same.
    (stored, *_) = messages_in(reply.body, broker, ReceivedMessage, body_bytes_max=None)
    if stored.topic != route.topic:
        remark = f"the message at offset {place.log_offset} is of another topic"
        raise NotFound(_NOT_FOUND, remark, address, route.topic)
    return messages[0]


def query_messages(
    core: ClientCore,
    topic: str,
    key: str,
    *,
    max_count: int = 32,
    begin: datetime | None = None,
    end: datetime | None = None,
    decode_body: bool = True,
    deadline: float,
) -> Flow[list[ReceivedMessage]]:
    """Return messages by one of their keys, from all brokers of a topic.

    Args:
        core: The client.
        topic: The topic they were sent to.
        key: The key.
        max_count: Most messages; the newest are returned.
        begin: Stored at this time or later.
        end: Stored at this time or earlier.
        decode_body: Whether to decompress the bodies.
        deadline: When to give up.

    Returns:
        The messages in the order in which they were stored.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: Nothing was found, and a broker did not answer.
    """
    check_name("topic", topic)
    check_name("key", key)
    check_between(1, INT32_MAX, "max_count", max_count)
    check_flag("decode_body", decode_body)
    name = with_namespace(topic, core.options.namespace)
    header = QueryByKeyRequest(
        topic=name,
        key=key,
        max_num=max_count,
        begin_timestamp=0 if begin is None else ms_of("begin", begin),
        end_timestamp=_END_OF_TIME_MS if end is None else ms_of("end", end),
        is_unique_key=False,
    )
    route = yield from find_route(core, name, deadline)
    found = yield from _query_all(core, route, header, deadline, decode_body)
    # The index stores only hashes, so other keys may be among the results.
    shown = without_namespace(name, core.options.namespace)
    exact = [message for message in found if message.topic == shown and key in message.keys]
    return exact[-max_count:]


def _query_all(
    core: ClientCore,
    route: Route,
    header: QueryByKeyRequest,
    deadline: float,
    decode_body: bool,
) -> Flow[list[ReceivedMessage]]:
    """Ask one replica of each broker; return the messages by store time."""
    targets = find_any_replicas(route)
    asked = [
        _query(core, broker, address, header, deadline, decode_body)
        for broker, address in targets.items()
    ]
    outcomes: list[list[ReceivedMessage] | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    found: list[ReceivedMessage] = []
    failure: RocketMQError | None = None
    for outcome in outcomes:
        if isinstance(outcome, RocketMQError):
            failure = failure or outcome
        else:
            found += outcome
    if not found and failure is not None:
        raise failure
    return sorted(found, key=lambda message: message.stored_at_ms)


def _query(
    core: ClientCore,
    broker: str,
    address: str,
    header: QueryByKeyRequest,
    deadline: float,
    decode_body: bool,
) -> Flow[list[ReceivedMessage]]:
    reply = yield from core.call(address, request_command(header), deadline)
    if reply.code == _NOT_FOUND:
        return []
    if reply.code != _SUCCESS:
        raise core.refused(reply, address, header.topic)
    return read_messages(core, reply.body, broker, decode_body=decode_body)


def read_queue(
    core: ClientCore,
    queue: QueueId,
    offset: int,
    *,
    max_count: int = 32,
    decode_body: bool = True,
    deadline: float,
) -> Flow[QueueMessages]:
    """Return messages of a queue from an offset on, without a group of their own.

    An offset below the first message counts as the first. There may be fewer messages than asked
    for: a broker limits a reply by count and bytes. `next` and `is_end` of the result say how to
    go on.

    Args:
        core: The client.
        queue: The queue.
        offset: The first offset.
        max_count: The most messages.
        decode_body: Whether to decompress the bodies.
        deadline: When to give up.

    Raises:
        RouteNotFound: No route names the queue's broker.
        RocketMQError: The broker did not answer, or refused.
    """
    check_between(0, INT64_MAX, "offset", offset)
    check_between(1, INT32_MAX, "max_count", max_count)
    check_flag("decode_body", decode_body)
    read = partial(
        pull,
        core,
        queue,
        group=TOOLS_GROUP,
        max_count=max_count,
        decode_body=decode_body,
        deadline=deadline,
    )
    batch = yield from read(offset)
    if batch.status is PullStatus.MOVED and batch.next_offset > offset:
        batch = yield from read(batch.next_offset)
    return QueueMessages(
        queue=queue,
        messages=tuple(batch.messages),
        next=batch.next_offset,
        first=batch.min_offset,
        end=batch.max_offset,
    )
