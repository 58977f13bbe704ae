"""One message: body, properties, its trace, and what groups did with it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.actions.action import shell_line
from downrange.console.cluster.bodies import body_of, decoded, message_row
from downrange.console.cluster.message_ids import find_message
from downrange.console.cluster.pages.messages import Delivery, MessageDetail, MessageTrace
from downrange.console.cluster.python_source import source_of
from downrange.console.cluster.trace_steps import steps_of
from downrange.errors import RocketMQError, RouteNotFound
from downrange.wire.system_names import TRACE_TOPIC

if TYPE_CHECKING:
    from downrange import AsyncAdmin, ReceivedMessage

#: By how much the clocks of clients and brokers may differ.
_SKEW: Final = timedelta(hours=1)
#: The most messages that an Apache broker returns for a key.
_TRACES_MAX: Final = 64


async def message_detail(
    admin: AsyncAdmin, topic: str, message_id: str, name_servers: str
) -> MessageDetail:
    """Return one message by either id.

    Raises:
        NotABroker: The id names a server that is not a broker of the topic.
        NotFound: It does not exist.
        RouteNotFound: The topic does not exist.
        RocketMQError: A server did not answer.
    """
    stored = await find_message(admin, topic, message_id, decode_body=False)
    found, problem = decoded(stored)
    trace, deliveries = await asyncio.gather(
        trace_of(admin, found), _deliveries(admin, topic, found)
    )
    namespace = admin.client.options.namespace
    words = ("message", "show", "--", topic, message_id)
    return MessageDetail(
        row=message_row(found),
        born_host=found.born_host,
        delivery_attempts=found.delivery_attempts,
        flag=found.flag,
        log_offset=found.log_offset,
        properties=dict(found.properties),
        body=body_of(found, problem),
        trace=trace,
        deliveries=deliveries,
        python=source_of(found, name_servers, namespace),
        command=shell_line(words, name_servers, namespace),
    )


async def trace_of(admin: AsyncAdmin, message: ReceivedMessage) -> MessageTrace:
    """Return the trace of a message; a trace that cannot be read does not hide the message."""
    try:
        traces = await admin.query_messages(
            TRACE_TOPIC,
            message.message_id,
            max_count=_TRACES_MAX,
            begin=message.stored_at - _SKEW,
            decode_body=False,
        )
    except RouteNotFound:
        return MessageTrace(is_on=False)
    except RocketMQError as error:
        return MessageTrace(is_on=True, problem=str(error))
    stopped = "rows" if len(traces) >= _TRACES_MAX else "complete"
    return MessageTrace(
        is_on=True, steps=tuple(steps_of(traces, message.message_id)), stopped=stopped
    )


async def _deliveries(
    admin: AsyncAdmin, topic: str, message: ReceivedMessage
) -> tuple[Delivery, ...]:
    """Return what each group did with a message, as its offset and its members tell."""
    try:
        groups = (await admin.topic_groups(topic))[: limits.TOPIC_GROUPS_MAX]
    except RocketMQError:
        return ()
    return tuple(await asyncio.gather(*(_delivery(admin, group, message) for group in groups)))


async def _delivery(admin: AsyncAdmin, group: str, message: ReceivedMessage) -> Delivery:
    is_consumed: bool | None = None
    members: tuple[str, ...] = ()
    try:
        offset = await admin.group_offset(group, message.queue)
        is_consumed = None if offset is None else offset > message.offset
        members = tuple(each.client_id for each in (await admin.group_members(group)).members)
    except RocketMQError:
        pass  # what is known is shown
    return Delivery(group=group, is_consumed=is_consumed, members=members)
