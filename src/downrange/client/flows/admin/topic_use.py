"""How a topic is used: what its queues hold and from when, who reads it, and how much.

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.checks import check_name
from downrange.client.flows.admin.clusters import ask_each, ask_some
from downrange.client.flows.admin.reports import QueueRange, Traffic
from downrange.client.flows.admin.topics import topic_route, topic_stats
from downrange.client.flows.consuming.offsets import earliest_store_time
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import with_namespace, without_namespace
from downrange.errors import RocketMQError
from downrange.wire.bodies import Count, CountsBody, GroupNamesBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import BrokerStatsRequest, TopicConsumersRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from downrange.client.flows.client_core import ClientCore

#: A broker's code for a counter that was never used.
_UNUSED: Final = int(ResponseCode.SYSTEM_ERROR)


def queue_ranges(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[QueueRange]]:
    """Return the offsets of the queues of a topic, and when the messages were stored.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    states = yield from topic_stats(core, topic, deadline=deadline)
    asked = [earliest_store_time(core, state.queue, deadline=deadline) for state in states]
    firsts: list[datetime | RocketMQError | None] = yield Gather(asked, CALLS_AT_ONCE)
    ranges: list[QueueRange] = []
    for state, first in zip(states, firsts, strict=True):
        if isinstance(first, RocketMQError):
            raise first
        ranges.append(
            QueueRange(
                queue=state.queue,
                first=state.min_offset,
                end=state.max_offset,
                first_stored_at=first if state.max_offset > state.min_offset else None,
                last_stored_at=state.stored_at,
            )
        )
    return ranges


def topic_groups(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[str]]:
    """Return the consumer groups that read a topic, connected or not, by name.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    route = yield from topic_route(core, topic, deadline=deadline)
    namespace = core.options.namespace
    header = TopicConsumersRequest(with_namespace(topic, namespace))
    replies = yield from ask_each(
        core, route.masters, lambda: request_command(header), deadline, topic
    )
    names = {
        without_namespace(group, namespace)
        for reply in replies.values()
        for group in decode_body(GroupNamesBody, reply.body).group_list
    }
    return sorted(names)


def topic_traffic(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[Traffic]]:
    """Return how many messages went into a topic, and from it to each group that reads it.

    Brokers count in samples of ten seconds, so that the last seconds may be missing.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: No broker answered.
    """
    check_name("topic", topic)
    groups = yield from topic_groups(core, topic, deadline=deadline)
    route = yield from topic_route(core, topic, deadline=deadline)
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    found = [
        (yield from _traffic(core, route.masters, topic, None, "TOPIC_PUT_NUMS", name, deadline))
    ]
    for group in groups:
        key = f"{name}@{with_namespace(group, namespace)}"
        found.append(
            (
                yield from _traffic(
                    core, route.masters, topic, group, "GROUP_GET_NUMS", key, deadline
                )
            )
        )
    return found


def _traffic(
    core: ClientCore,
    masters: Mapping[str, str],
    topic: str,
    group: str | None,
    counter: str,
    key: str,
    deadline: float,
) -> Flow[Traffic]:
    header = BrokerStatsRequest(stats_name=counter, stats_key=key)
    replies, _ = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_UNUSED
    )
    bodies = [decode_body(CountsBody, reply.body) for reply in replies.values()]
    minutes: list[Count] = [body.stats_minute for body in bodies]
    return Traffic(
        topic=topic,
        group=group,
        rate=sum(count.tps for count in minutes),
        minute=sum(count.sum for count in minutes),
        day=sum(body.stats_day.sum for body in bodies),
    )
