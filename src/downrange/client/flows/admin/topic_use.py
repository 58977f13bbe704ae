"""How a topic is used: what its queues hold and from when, who reads it, and how much.

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.checks import check_flag, check_name
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


def topic_traffic(
    core: ClientCore,
    topic: str,
    *,
    with_groups: bool = True,
    with_sizes: bool = False,
    deadline: float,
) -> Flow[list[Traffic]]:
    """Return how many messages went into a topic, and from it to each group that reads it.

    Brokers count in samples of ten seconds, so that the last seconds may be missing.

    Args:
        core: The client.
        topic: The topic.
        with_groups: Ask for the groups, too.
        with_sizes: Ask for the mean size of a message, too.
        deadline: When to give up.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: No broker answered.
    """
    check_name("topic", topic)
    check_flag("with_groups", with_groups)
    check_flag("with_sizes", with_sizes)
    groups: list[str] = []
    if with_groups:
        groups = yield from topic_groups(core, topic, deadline=deadline)
    route = yield from topic_route(core, topic, deadline=deadline)
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    keys: dict[str | None, str] = {None: name}
    keys |= {group: f"{name}@{with_namespace(group, namespace)}" for group in groups}
    found: list[Traffic] = []
    for group, key in keys.items():
        counter = "TOPIC_PUT" if group is None else "GROUP_GET"
        counts = yield from _counts(core, route.masters, f"{counter}_NUMS", key, deadline)
        sizes: dict[str, CountsBody] = {}
        if with_sizes:
            sizes = yield from _counts(core, route.masters, f"{counter}_SIZE", key, deadline)
        found.append(_traffic(topic, group, counts, sizes))
    return found


def _counts(
    core: ClientCore, masters: Mapping[str, str], counter: str, key: str, deadline: float
) -> Flow[dict[str, CountsBody]]:
    """Return a counter of each broker that has it."""
    header = BrokerStatsRequest(stats_name=counter, stats_key=key)
    replies, _ = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_UNUSED
    )
    return {broker: decode_body(CountsBody, reply.body) for broker, reply in replies.items()}


def _traffic(
    topic: str,
    group: str | None,
    counts: Mapping[str, CountsBody],
    sizes: Mapping[str, CountsBody],
) -> Traffic:
    minutes: list[Count] = [body.stats_minute for body in counts.values()]
    measured = sum(_longest(counts[broker]) for broker in sizes if broker in counts)
    size = sum(_longest(sizes[broker]) for broker in sizes if broker in counts)
    return Traffic(
        topic=topic,
        group=group,
        rate=sum(count.tps for count in minutes),
        minute=sum(count.sum for count in minutes),
        day=sum(map(_longest, counts.values())),
        mean_bytes=size / measured if measured else None,
    )


def _longest(body: CountsBody) -> int:
    """Return what was counted in the longest time that has a sample: a day, an hour, a minute."""
    return max(body.stats_day.sum, body.stats_hour.sum, body.stats_minute.sum)
