"""Offsets: of queues, of consumer groups in queues, and where a consumer starts.

Only a master answers these requests. Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from downrange.client.flows.names import named_queue, with_namespace
from downrange.client.flows.routing.lookup import find_master
from downrange.errors import NotFound, OptionError
from downrange.model import QueueId, QueueOffset
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.wire.fields import Header

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
    if isinstance(start, int) and start >= 0:
        return QueueOffset(start)
    if isinstance(start, datetime):
        return (yield from search_offset(core, queue, start, deadline=deadline))
    if start == "latest":
        return (yield from max_offset(core, queue, deadline=deadline))
    if start == "committed":
        committed = yield from group_offset(core, group, queue, deadline=deadline)
        if committed is not None:
            return committed
    elif start != "earliest":
        raise OptionError(
            f"start={start!r} is not an offset, not a datetime, and not one of committed, "
            "earliest, latest"
        )
    return (yield from min_offset(core, queue, deadline=deadline))


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
    named = named_queue(queue, core.options.namespace)
    fields = yield from _ask_master(core, named, header(named.topic, named.number), deadline)
    return QueueOffset(OffsetReply.from_fields(fields).offset)


def search_offset(
    core: ClientCore, queue: QueueId, at: datetime, *, deadline: float
) -> Flow[QueueOffset]:
    """Return the offset at which to start reading messages that were stored from a time on.

    A 5.x broker returns the offset of the first message stored at that time or later, or the
    offset of the next new message when all are older. A 4.9 broker returns the message nearest in
    time, which may be older, or the last message when all are older.

    Raises:
        OptionError: The time has no time zone.
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer.
    """
    named = named_queue(queue, core.options.namespace)
    header = OffsetByTimeRequest(named.topic, named.number, ms_of("at", at))
    fields = yield from _ask_master(core, named, header, deadline)
    return QueueOffset(OffsetReply.from_fields(fields).offset)


def earliest_store_time(
    core: ClientCore, queue: QueueId, *, deadline: float
) -> Flow[datetime | None]:
    """Return when the first message that a queue holds was stored; None when it is empty.

    For errors see `max_offset`.
    """
    named = named_queue(queue, core.options.namespace)
    header = EarliestTimeRequest(named.topic, named.number)
    fields = yield from _ask_master(core, named, header, deadline)
    at_ms = EarliestTimeReply.from_fields(fields).timestamp
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
    named = named_queue(queue, core.options.namespace)
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
    """Commit the offset of a group in a queue; it may be lower than before.

    Raises:
        RouteNotFound: No route names the queue's broker, or it has no master.
        RocketMQError: The broker did not answer, or refused.
    """
    named = named_queue(queue, core.options.namespace)
    name = with_namespace(group, core.options.namespace)
    header = CommitOffsetRequest(name, named.topic, named.number, offset)
    yield from _ask_master(core, named, header, deadline)


def _ask_master(
    core: ClientCore, queue: QueueId, header: Header, deadline: float
) -> Flow[dict[str, str]]:
    address = yield from find_master(core, queue, deadline)
    reply = yield from core.ask(address, request_command(header), deadline, queue.topic)
    return reply.fields


def ms_of(name: str, at: datetime) -> int:
    """Return the milliseconds since 1970 of a time.

    Args:
        name: The argument that gave it, for the error.
        at: The time, with its time zone.

    Raises:
        OptionError: It has no time zone.
    """
    if at.utcoffset() is None:
        raise OptionError(f"{name}={at!r} has no time zone")
    return (at - _EPOCH) // _MILLISECOND
