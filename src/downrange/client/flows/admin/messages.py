"""Questions about queues and messages: offsets, times, groups' progress, messages by id or key.

Only a master can tell. Names go in and come out as users know them; the namespace is put on and
taken off here.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from downrange.client.flows.admin.clusters import AT_ONCE
from downrange.client.flows.effects import Flow, Gather, Once
from downrange.client.flows.names import with_namespace, without_namespace
from downrange.client.flows.routing.routes import Route, find_readable, find_writable, refresh_route
from downrange.errors import MalformedId, NotFound, OptionError, RocketMQError, RouteNotFound
from downrange.model import QueueId, QueueOffset, ReceivedMessage
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    EarliestTimeReply,
    EarliestTimeRequest,
    GroupOffsetRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetByTimeRequest,
    OffsetReply,
    QueryByKeyRequest,
    ViewRequest,
)
from downrange.wire.ids import OffsetId, parse_offset_id
from downrange.wire.limits import INT64_MAX
from downrange.wire.messages import received
from downrange.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.fields import Header

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.QUERY_NOT_FOUND)
_SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)
_END_OF_TIME_MS: Final = INT64_MAX
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: How far back a message is looked for by its unique id unless told otherwise, as in Java.
UNIQUE_ID_DAYS: Final = 3


# ---- queues and offsets --------------------------------------------------------------------------


def publish_queues(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[QueueId]]:
    """Return the queues that messages of a topic can be sent to.

    Raises:
        RouteNotFound: There are none.
    """
    name = with_namespace(topic, core.options.namespace)
    route = yield from find_writable(core, name, deadline, default_topic=None, queue_count=1)
    return [shown_queue(core, queue) for queue in route.writable]


def read_queues(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[QueueId]]:
    """Return the queues that messages of a topic can be read from.

    Raises:
        RouteNotFound: There are none.
    """
    name = with_namespace(topic, core.options.namespace)
    route = yield from find_readable(core, name, deadline)
    return [shown_queue(core, queue) for queue in route.readable]


def max_offset(core: ClientCore, queue: QueueId, *, deadline: float) -> Flow[QueueOffset]:
    """Return the offset that the next message of a queue will get.

    Raises:
        RouteNotFound: Nobody knows the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    return (yield from _ask_offset(core, queue, MaxOffsetRequest, deadline))


def min_offset(core: ClientCore, queue: QueueId, *, deadline: float) -> Flow[QueueOffset]:
    """Return the offset of the first message that a queue still holds; errors: `max_offset`."""
    return (yield from _ask_offset(core, queue, MinOffsetRequest, deadline))


def _ask_offset(
    core: ClientCore,
    queue: QueueId,
    header: Callable[[str, int], MaxOffsetRequest | MinOffsetRequest],
    deadline: float,
) -> Flow[QueueOffset]:
    named = named_queue(core, queue)
    fields = yield from _ask_master(core, named, header(named.topic, named.number), deadline)
    return QueueOffset(OffsetReply.from_fields(fields).offset)


def search_offset(
    core: ClientCore, queue: QueueId, at: datetime, *, deadline: float
) -> Flow[QueueOffset]:
    """Return where to start reading a queue to get what was stored from a time on.

    A 5.x broker names the first message stored at that time or later, and the next one to come when
    all are older. A 4.9 broker names the one that is nearest in time, which may be older, and the
    last one when all are.

    Raises:
        OptionError: The time does not say its time zone.
        RouteNotFound: Nobody knows the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    named = named_queue(core, queue)
    header = OffsetByTimeRequest(named.topic, named.number, _ms_of("at", at))
    fields = yield from _ask_master(core, named, header, deadline)
    return QueueOffset(OffsetReply.from_fields(fields).offset)


def earliest_store_time(
    core: ClientCore, queue: QueueId, *, deadline: float
) -> Flow[datetime | None]:
    """Return when the first message that a queue still holds was stored; None when it is empty.

    Errors: see `max_offset`.
    """
    named = named_queue(core, queue)
    header = EarliestTimeRequest(named.topic, named.number)
    fields = yield from _ask_master(core, named, header, deadline)
    at_ms = EarliestTimeReply.from_fields(fields).timestamp
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC)


def group_offset(
    core: ClientCore, group: str, queue: QueueId, *, deadline: float
) -> Flow[QueueOffset | None]:
    """Return how far a group has come in a queue; None when it has not begun.

    A 4.9 broker says 0 of a group that has not begun when the queue's first message is in memory.

    Raises:
        RouteNotFound: Nobody knows the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    named = named_queue(core, queue)
    name = with_namespace(group, core.options.namespace)
    header = GroupOffsetRequest(name, named.topic, named.number, set_zero_if_not_found=False)
    try:
        fields = yield from _ask_master(core, named, header, deadline)
    except NotFound:
        return None
    return QueueOffset(OffsetReply.from_fields(fields).offset)


def set_group_offset(
    core: ClientCore, group: str, queue: QueueId, offset: int, *, deadline: float
) -> Flow[None]:
    """Record how far a group has come in a queue; it may also go back.

    Raises:
        RouteNotFound: Nobody knows the queue's broker, or it has no master.
        RocketMQError: The broker did not answer, or refused.
    """
    named = named_queue(core, queue)
    name = with_namespace(group, core.options.namespace)
    header = CommitOffsetRequest(name, named.topic, named.number, offset)
    yield from _ask_master(core, named, header, deadline)


def _ask_master(
    core: ClientCore, queue: QueueId, header: Header, deadline: float
) -> Flow[dict[str, str]]:
    address = yield from find_master(core, queue, deadline)
    reply = yield from core.ask(address, request_command(header), deadline, queue.topic)
    return reply.fields


def find_master(core: ClientCore, queue: QueueId, deadline: float) -> Flow[str]:
    """Return the address of the master that has a queue, asking the name server when unknown.

    Raises:
        RouteNotFound: The topic, the broker, or its master is not there.
    """
    known = yield from _find_route(core, queue.topic, deadline)
    if queue.broker in known.masters:
        return known.masters[queue.broker]
    fresh = yield from refresh_route(core, queue.topic, deadline)
    masters = {} if fresh is None else fresh.masters
    if queue.broker not in masters:
        problem = f" to broker {queue.broker!r}: it has no master; these have: {sorted(masters)}"
        raise RouteNotFound(queue.topic, core.name_servers.addresses, problem)
    return masters[queue.broker]


def _find_route(core: ClientCore, topic: str, deadline: float) -> Flow[Route]:
    """Return a topic's route, whether or not it may be written to or read from.

    Raises:
        RouteNotFound: There is no such topic.
    """
    route = core.routes.get(topic)
    if route is None or route.is_borrowed:
        route = yield Once(("refresh", topic), lambda: refresh_route(core, topic, deadline))
    if route is None:
        problem = f".\n  Create it with `downrange topic create {topic}`."
        raise RouteNotFound(topic, core.name_servers.addresses, problem)
    return route


def named_queue(core: ClientCore, queue: QueueId) -> QueueId:
    """Return a queue as servers know it."""
    namespace = core.options.namespace
    if namespace is None:
        return queue
    return QueueId(with_namespace(queue.topic, namespace), queue.broker, queue.number)


def shown_queue(core: ClientCore, queue: QueueId) -> QueueId:
    """Return a queue as users know it."""
    namespace = core.options.namespace
    if namespace is None:
        return queue
    return QueueId(without_namespace(queue.topic, namespace), queue.broker, queue.number)


def _ms_of(name: str, at: datetime) -> int:
    if at.utcoffset() is None:
        raise OptionError(f"{name}={at!r} does not say its time zone")
    return (at - _EPOCH) // _MILLISECOND


# ---- messages ------------------------------------------------------------------------------------


def view_message(
    core: ClientCore,
    topic: str,
    message_id: str,
    *,
    since: datetime | None = None,
    deadline: float,
) -> Flow[ReceivedMessage]:
    """Find a message by either of its ids.

    An offset id names its broker, which is asked. Any other id is taken for a unique one, and all
    brokers of the topic are asked.

    Args:
        core: The client.
        topic: Where it was sent to.
        message_id: What a receipt says: `message_id` or `offset_id`.
        since: For a unique id, how far back to look; three days unless given.
        deadline: When to give up.

    Raises:
        NotFound: There is no such message.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    name = with_namespace(topic, core.options.namespace)
    route = yield from _find_route(core, name, deadline)
    place = _place_of(message_id)
    if place is not None:
        return (yield from _view(core, route, place, deadline))
    begin_ms = core.clock.wall_ms() - UNIQUE_ID_DAYS * 86_400_000
    header = QueryByKeyRequest(
        topic=name,
        key=message_id,
        max_num=32,
        begin_timestamp=begin_ms if since is None else _ms_of("since", since),
        end_timestamp=_END_OF_TIME_MS,
        is_unique_key=True,
    )
    found = yield from _query_all(core, route, header, deadline)
    exact = [message for message in found if message.message_id == message_id]
    if not exact:
        remark = f"no message of {topic!r} has the id {message_id!r}"
        raise NotFound(_NOT_FOUND, remark, ", ".join(_targets(route).values()), topic)
    return exact[-1]


def _place_of(message_id: str) -> OffsetId | None:
    """Read an offset id; None when it is a unique one, whose number there is no port."""
    try:
        place = parse_offset_id(message_id)
    except MalformedId:
        return None
    return place if 0 < place.port < 65_536 else None


def _view(
    core: ClientCore, route: Route, place: OffsetId, deadline: float
) -> Flow[ReceivedMessage]:
    host = f"[{place.host}]" if ":" in place.host else place.host
    address = f"{host}:{place.port}"
    command = request_command(ViewRequest(place.log_offset, route.topic))
    reply = yield from core.call(address, command, deadline)
    if reply.code == _SYSTEM_ERROR:  # the broker's way to say that nothing is there
        raise NotFound(reply.code, reply.remark, address, route.topic)
    if reply.code != _SUCCESS:
        raise core.refused(reply, address, route.topic)
    names = {
        each: broker for broker, replicas in route.brokers.items() for each in replicas.values()
    }
    messages = read_messages(core, reply.body, names.get(address, address))
    if not messages:
        raise NotFound(_NOT_FOUND, "an empty answer", address, route.topic)
    return messages[0]


def query_messages(
    core: ClientCore,
    topic: str,
    key: str,
    *,
    max_count: int = 32,
    begin: datetime | None = None,
    end: datetime | None = None,
    deadline: float,
) -> Flow[list[ReceivedMessage]]:
    """Find messages by one of their keys, on all brokers of a topic.

    Args:
        core: The client.
        topic: Where they were sent to.
        key: The key.
        max_count: How many at most; the newest of them.
        begin: Stored at this time or later.
        end: Stored at this time or earlier.
        deadline: When to give up.

    Returns:
        The messages in the order in which they were stored; maybe none.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: No broker had any, and one of them did not answer.
    """
    name = with_namespace(topic, core.options.namespace)
    route = yield from _find_route(core, name, deadline)
    header = QueryByKeyRequest(
        topic=name,
        key=key,
        max_num=max_count,
        begin_timestamp=0 if begin is None else _ms_of("begin", begin),
        end_timestamp=_END_OF_TIME_MS if end is None else _ms_of("end", end),
        is_unique_key=False,
    )
    found = yield from _query_all(core, route, header, deadline)
    # The index knows hashes only, so others may be among them.
    shown = without_namespace(name, core.options.namespace)
    exact = [message for message in found if message.topic == shown and key in message.keys]
    return exact[-max_count:]


def _query_all(
    core: ClientCore, route: Route, header: QueryByKeyRequest, deadline: float
) -> Flow[list[ReceivedMessage]]:
    """Ask a broker of each name; return what they found by store time."""
    targets = _targets(route)
    asked = [_query(core, broker, targets[broker], header, deadline) for broker in targets]
    outcomes: list[list[ReceivedMessage] | RocketMQError] = yield Gather(asked, AT_ONCE)
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
    core: ClientCore, broker: str, address: str, header: QueryByKeyRequest, deadline: float
) -> Flow[list[ReceivedMessage]]:
    reply = yield from core.call(address, request_command(header), deadline)
    if reply.code == _NOT_FOUND:
        return []
    if reply.code != _SUCCESS:
        raise core.refused(reply, address, header.topic)
    return read_messages(core, reply.body, broker)


def _targets(route: Route) -> dict[str, str]:
    """Return whom to ask: of each broker its master, or else the replica of the lowest id."""
    return {
        broker: replicas[min(replicas)] for broker, replicas in route.brokers.items() if replicas
    }


def read_messages(core: ClientCore, body: bytes, broker: str) -> list[ReceivedMessage]:
    """Return the messages in a reply's body, with their topics as users know them."""
    limit = core.options.body_bytes_max
    messages: list[ReceivedMessage] = []
    for record in decode_records(body):
        messages += received(record, broker, body_bytes_max=limit)
    if core.options.namespace is None:
        return messages
    return [
        dataclasses.replace(message, queue=shown_queue(core, message.queue)) for message in messages
    ]
