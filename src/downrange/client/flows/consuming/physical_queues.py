"""Physical queues: the queues of brokers that hold the messages of a static topic's logical queue.

A logical queue has one physical queue on each broker that served it, oldest first. A move rounds
the offset up: the first message after it may have the offset 10,000, although only two messages
were stored before. `routing/queue_mapping` says which broker serves a logical queue now.

Brokers translate requests to physical queues by themselves. Two translations of 5.5.0 are wrong,
so these requests are made here for each physical queue (`lo` is false): the search by time stops at
offset 0 of a queue that has moved, and the earliest store time is that of another queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.flows.routing.lookup import find_master, find_route, refresh_route
from downrange.errors import QueueMoved, RouteNotFound
from downrange.wire.bodies import MappedTopicConfig, QueueHistory, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    EarliestTimeReply,
    EarliestTimeRequest,
    MaxOffsetRequest,
    OffsetByTimeRequest,
    OffsetReply,
    TopicConfigRequest,
)

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.model import QueueId
    from downrange.wire.bodies import PhysicalQueue
    from downrange.wire.fields import Header


def logical_offset(part: PhysicalQueue, offset: int) -> int:
    """Return the offset in the logical queue of an offset in one of its physical queues."""
    return part.logic_offset + max(0, offset - part.start_offset)


def read_history(body: bytes) -> QueueHistory:
    """Return the queue mapping in a broker's reply; an empty one for an ordinary topic.

    Raises:
        MalformedBody: A member is of the wrong type.
    """
    return decode_body(MappedTopicConfig, body).mapping_detail or QueueHistory()


def parts_of(history: QueueHistory, number: int) -> list[PhysicalQueue]:
    """Return the physical queues of a logical one whose offsets are known, oldest first."""
    return [part for part in history.hosted_queues.get(number, []) if part.logic_offset >= 0]


def search_parts(core: ClientCore, queue: QueueId, at_ms: int, deadline: float) -> Flow[int]:
    """Return the offset of the first message of a logical queue stored at a time or later.

    Args:
        core: The client.
        queue: The logical queue, with the namespace.
        at_ms: The time, in milliseconds since 1970.
        deadline: When to give up.

    Raises:
        RouteNotFound: It is not a queue of a static topic, or a broker is not registered.
        RocketMQError: A broker did not answer.
    """
    parts = yield from _find_parts(core, queue, deadline)
    for part in parts[:-1]:
        found = yield from _search(core, queue, part, at_ms, deadline)
        header = MaxOffsetRequest(queue.topic, part.queue_id, lo=False)
        fields = yield from _ask(core, queue, part, header, deadline)
        if found < OffsetReply.from_fields(fields).offset:
            return logical_offset(part, found)
    found = yield from _search(core, queue, parts[-1], at_ms, deadline)
    return logical_offset(parts[-1], found)


def _search(
    core: ClientCore, queue: QueueId, part: PhysicalQueue, at_ms: int, deadline: float
) -> Flow[int]:
    header = OffsetByTimeRequest(queue.topic, part.queue_id, at_ms, lo=False)
    fields = yield from _ask(core, queue, part, header, deadline)
    return OffsetReply.from_fields(fields).offset


def earliest_ms(core: ClientCore, queue: QueueId, deadline: float) -> Flow[int]:
    """Return when the first message of a logical queue was stored; -1 when it is empty.

    For arguments and errors see `search_parts`.
    """
    parts = yield from _find_parts(core, queue, deadline)
    for part in parts:
        header = EarliestTimeRequest(queue.topic, part.queue_id, lo=False)
        fields = yield from _ask(core, queue, part, header, deadline)
        at_ms = EarliestTimeReply.from_fields(fields).timestamp
        if at_ms >= 0:
            return at_ms
    return -1


def _find_parts(core: ClientCore, queue: QueueId, deadline: float) -> Flow[list[PhysicalQueue]]:
    """Ask the broker that serves a logical queue for its physical queues, at least one.

    The broker that served it before knows only the ones up to the move.
    """
    parts = yield from _ask_parts(core, queue, deadline)
    if not parts:
        yield from refresh_route(core, queue.topic, deadline)
        parts = yield from _ask_parts(core, queue, deadline)
    if not parts:
        address = yield from find_master(core, queue, deadline)
        remark = f"queue {queue.number} of {queue.topic!r} is not served by this broker"
        raise QueueMoved(int(ResponseCode.NOT_LEADER_FOR_QUEUE), remark, address, queue.topic)
    return parts


def _ask_parts(core: ClientCore, queue: QueueId, deadline: float) -> Flow[list[PhysicalQueue]]:
    address = yield from find_master(core, queue, deadline)
    route = yield from find_route(core, queue.topic, deadline)
    command = request_command(TopicConfigRequest(queue.topic, lo=True))
    reply = yield from core.ask(address, command, deadline, queue.topic)
    parts = parts_of(read_history(reply.body), queue.number)
    return parts if parts and parts[-1].bname == route.broker_of(queue) else []


def _ask(
    core: ClientCore, queue: QueueId, part: PhysicalQueue, header: Header, deadline: float
) -> Flow[dict[str, str]]:
    address = core.routes.master_of(part.bname)
    if address is None:
        problem = (
            f" to broker {part.bname!r}, which holds older messages of queue {queue.number} of "
            "the static topic: it is not registered, or has no master now"
        )
        raise RouteNotFound(queue.topic, core.name_servers.addresses, problem)
    reply = yield from core.ask(address, request_command(header), deadline, queue.topic)
    return reply.fields
