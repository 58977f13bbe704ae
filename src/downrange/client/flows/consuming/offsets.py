"""Offsets: of queues, of consumer groups in queues, and where a consumer starts.

Only a master answers these requests. Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from downrange.checks import check_between, check_type
from downrange.client.flows.consuming.physical_queues import earliest_ms, search_parts
from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.names import named_queue, with_namespace
from downrange.client.flows.routing.lookup import find_master, find_route, refresh_route
from downrange.client.flows.routing.queue_mapping import is_logical
from downrange.client.flows.validation import check_group, check_queue
from downrange.errors import NotFound, OptionError, QueueMoved
from downrange.model import QueueId, QueueOffset
from downrange.wire.codes import ReleaseVersion
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
)
from downrange.wire.limits import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.routing.routes import Route
    from downrange.wire.command import Command
    from downrange.wire.fields import Header

ResultT = TypeVar("ResultT")
#: Where to begin: "committed" (the group's offset, or the first message if it has none),
#: "earliest" (the first message), "latest" (the next new message), a time (the first message stored
#: then or later), or an offset.
Start: TypeAlias = Literal["committed", "earliest", "latest"] | datetime | int

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def find_start(
    core: ClientCore, queue: QueueId, group: str, start: Start, *, deadline: float
) -> Flow[QueueOffset]:
    """Return the offset that a start stands for now.

    Raises:
        OptionError: It is not a valid start.
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    check_start("start", start)
    if isinstance(start, int):
        return QueueOffset(start)
    if isinstance(start, datetime):
        return (yield from search_offset(core, queue, start, deadline=deadline))
    if start == "latest":
        return (yield from max_offset(core, queue, deadline=deadline))
    if start == "committed":
        committed = yield from group_offset(core, group, queue, deadline=deadline)
        if committed is not None:
            return committed
    return (yield from min_offset(core, queue, deadline=deadline))


def check_start(name: str, start: Start) -> None:
    """Check where to start.

    Raises:
        OptionError: It is not an offset, a time with a time zone, or one of the three words.
    """
    if isinstance(start, datetime):
        ms_of(name, start)
    elif isinstance(start, bool) or not (
        (isinstance(start, int) and start >= 0) or start in ("committed", "earliest", "latest")
    ):
        raise OptionError(
            f"{name}={start!r} is not an offset, not a datetime, and not one of committed, "
            "earliest, latest"
        )


def max_offset(core: ClientCore, queue: QueueId, *, deadline: float) -> Flow[QueueOffset]:
    """Return the offset that the next message of a queue will get.

    Raises:
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    return (yield from _ask_offset(core, queue, MaxOffsetRequest, deadline))


def min_offset(core: ClientCore, queue: QueueId, *, deadline: float) -> Flow[QueueOffset]:
    """Return the offset of the first message that a queue holds; for errors see `max_offset`."""
    return (yield from _ask_offset(core, queue, MinOffsetRequest, deadline))


def _ask_offset(
    core: ClientCore,
    queue: QueueId,
    header: Callable[[str, int], MaxOffsetRequest | MinOffsetRequest],
    deadline: float,
) -> Flow[QueueOffset]:
    named = _named(core, queue)
    reply = yield from _ask_master(core, named, header(named.topic, named.number), deadline)
    return QueueOffset(OffsetReply.from_fields(reply.fields).offset)


def search_offset(
    core: ClientCore, queue: QueueId, at: datetime, *, deadline: float
) -> Flow[QueueOffset]:
    """Return the offset at which to start reading messages that were stored from a time on.

    With a 5.x broker it is the offset of the first message stored at that time or later, or the
    offset of the next new message when all are older. A 4.9 broker finds the message nearest in
    time, or the last message when all are older, so some messages may be older; none is left out.

    Raises:
        OptionError: The time has no time zone.
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    named = _named(core, queue)
    at_ms = ms_of("at", at)
    if is_logical(named.broker):
        return QueueOffset((yield from search_parts(core, named, at_ms, deadline)))
    header = OffsetByTimeRequest(named.topic, named.number, at_ms)
    reply = yield from _ask_master(core, named, header, deadline)
    if reply.version < ReleaseVersion.V5_0_0:
        # Of several messages of that very millisecond it finds any, and those before it would be
        # left out. A millisecond earlier, it finds none after the first of them.
        header = OffsetByTimeRequest(named.topic, named.number, at_ms - 1)
        reply = yield from _ask_master(core, named, header, deadline)
    return QueueOffset(OffsetReply.from_fields(reply.fields).offset)


def earliest_store_time(
    core: ClientCore, queue: QueueId, *, deadline: float
) -> Flow[datetime | None]:
    """Return when the first message that a queue holds was stored; None when it is empty.

    For errors see `max_offset`.
    """
    named = _named(core, queue)
    if is_logical(named.broker):
        at_ms = yield from earliest_ms(core, named, deadline)
    else:
        header = EarliestTimeRequest(named.topic, named.number)
        reply = yield from _ask_master(core, named, header, deadline)
        at_ms = EarliestTimeReply.from_fields(reply.fields).timestamp
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC)


def group_offset(
    core: ClientCore, group: str, queue: QueueId, *, deadline: float
) -> Flow[QueueOffset | None]:
    """Return the committed offset of a group in a queue; None when it has none.

    A 4.9 broker returns 0 for a group without an offset when the queue's first message is in
    memory.

    Raises:
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    check_group(group)
    named = _named(core, queue)
    name = with_namespace(group, core.options.namespace)
    header = GroupOffsetRequest(name, named.topic, named.number, set_zero_if_not_found=False)
    try:
        reply = yield from _ask_master(core, named, header, deadline)
    except NotFound:
        return None
    return QueueOffset(OffsetReply.from_fields(reply.fields).offset)


def set_group_offset(
    core: ClientCore, group: str, queue: QueueId, offset: int, *, deadline: float
) -> Flow[None]:
    """Commit the offset of a group in a queue; it may be lower than before.

    The first commit of a group to a topic of a broker goes alone, and others wait for its answer:
    of two at a time, Apache's brokers may keep one and lose the other.

    Raises:
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer, or refused.
    """
    check_group(group)
    check_between(0, INT64_MAX, "offset", offset)
    named = _named(core, queue)
    name = with_namespace(group, core.options.namespace)
    header = CommitOffsetRequest(name, named.topic, named.number, offset)
    place = (named.broker, name, named.topic)
    while (first := core.first_commits.get(place)) is not None and not first.is_fired:
        is_over: bool = yield Wait(first, deadline)
        if not is_over:
            break  # the request below fails
    if first is not None:
        yield from _ask_master(core, named, header, deadline)
        return
    core.first_commits[place] = first = Signal()
    try:
        yield from _ask_master(core, named, header, deadline)
    except BaseException:
        del core.first_commits[place]  # the next one is the first
        raise
    finally:
        first.fire()


def _named(core: ClientCore, queue: QueueId) -> QueueId:
    """Return a queue with the namespace in its topic, after checking its type."""
    check_queue(queue)
    return named_queue(queue, core.options.namespace)


def of_existing(
    core: ClientCore, queue: QueueId, flow: Flow[ResultT], *, deadline: float
) -> Flow[ResultT]:
    """Run a flow about a queue, after checking that its topic has it: brokers answer 0 otherwise.

    Raises:
        OptionError: The topic has no such queue on that broker.
        RouteNotFound: The topic does not exist.
        RocketMQError: No name server answered, or an error of the flow.
    """
    named = _named(core, queue)
    count = _queue_count((yield from find_route(core, named.topic, deadline)), named.broker)
    if count is not None and named.number >= count:  # the cached route may be old
        fresh = yield from refresh_route(core, named.topic, deadline)
        count = None if fresh is None else _queue_count(fresh, named.broker)
    if count is not None and named.number >= count:
        raise OptionError(
            f"queue {queue.number} of topic {queue.topic!r} does not exist on broker "
            f"{queue.broker!r}, which has the queues 0 to {count - 1}"
        )
    return (yield from flow)


def _queue_count(route: Route, broker: str) -> int | None:
    """Return how many queues of a topic a broker has, to read or to write; None without it."""
    if route.hosts:
        return sum(queue.broker == broker for queue in route.hosts) or None
    counts = [
        max(part.read_queue_nums, part.write_queue_nums)
        for part in route.body.queue_datas
        if part.broker_name == broker
    ]
    return max(counts, default=None)


def _ask_master(core: ClientCore, queue: QueueId, header: Header, deadline: float) -> Flow[Command]:
    address = yield from find_master(core, queue, deadline)
    try:
        reply = yield from core.ask(address, request_command(header), deadline, queue.topic)
    except QueueMoved:
        yield from refresh_route(core, queue.topic, deadline)
        address = yield from find_master(core, queue, deadline)
        reply = yield from core.ask(address, request_command(header), deadline, queue.topic)
    return reply


def ms_of(name: str, at: datetime) -> int:
    """Return the milliseconds since 1970 of a time.

    Args:
        name: The argument that gave it, for the error.
        at: The time, with its time zone.

    Raises:
        OptionError: It is not a datetime, or has no time zone.
    """
    check_type(name, at, datetime, "a datetime")
    if at.utcoffset() is None:
        raise OptionError(f"{name}={at!r} has no time zone")
    return (at - _EPOCH) // _MILLISECOND
