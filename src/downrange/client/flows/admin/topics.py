"""Facts about topics: names, routes, settings, and what their queues hold.

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from downrange.checks import check_name, iterated
from downrange.client.flows.admin.clusters import ask_each
from downrange.client.flows.consuming.physical_queues import (
    logical_offset,
    parts_of,
    read_history,
)
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import (
    with_namespace,
    without_namespace,
)
from downrange.client.flows.routing.lookup import ask_route, missing_route
from downrange.client.flows.routing.routes import Route, route_of
from downrange.errors import NotSupported, OptionError, RocketMQError, TopicNotFound
from downrange.model import QueueId
from downrange.wire.bodies import (
    QueueHistory,
    TopicConfig,
    TopicNamesBody,
    TopicOffset,
    TopicStatsBody,
    TopicTableBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import TopicConfigRequest, TopicStatsRequest
from downrange.wire.system_names import (
    DEAD_LETTER_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    is_client_system_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore

#: What a topic is for: messages of users, messages that a group retries, messages that a group
#: failed to consume, or the cluster itself.
TopicKind: TypeAlias = Literal["normal", "retry", "dead-letter", "system"]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic.

    Attributes:
        topic: Its name.
        read_queues: Queues per broker that consumers read.
        write_queues: Queues per broker that producers send to.
        permission: 4 read, 2 write, 1 inherited by auto-created topics; added up.
        is_ordered: Whether the topic is for ordered messages.
        attributes: Settings of 5.x, such as "message.type".
        brokers: Names of the brokers with these settings.
    """

    topic: str
    read_queues: int
    write_queues: int
    permission: int = 6
    is_ordered: bool = False
    attributes: dict[str, str] = {}
    brokers: tuple[str, ...] = ()


class TopicName(msgspec.Struct, frozen=True):
    """A topic that a cluster has, and what it is for."""

    name: str
    kind: TopicKind = "normal"


class QueueState(msgspec.Struct, frozen=True):
    """What a queue holds.

    Attributes:
        queue: The queue.
        min_offset: The offset of the first message.
        max_offset: The offset that the next message will get.
        stored_at: When the last message was stored; None when there is none.
        skipped: Offsets between the two that no message has: a queue of a static topic skips some
            when it moves to another broker.
    """

    queue: QueueId
    min_offset: int
    max_offset: int
    stored_at: datetime | None
    skipped: int = 0

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.max_offset - self.min_offset - self.skipped


def list_topics(core: ClientCore, *, deadline: float) -> Flow[list[TopicName]]:
    """Return all topics by name; with a namespace, its topics and the system topics."""
    everything = yield from _ask_names(
        core, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, deadline
    )
    # Each cluster and each broker has a system topic of its own name.
    own = yield from _ask_names(core, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, deadline)
    replies = {f"{name}{REPLY_SUFFIX}" for name in own}
    namespace = core.options.namespace
    topics: list[TopicName] = []
    for name in everything:
        kind = _kind_of(name, {*own, *replies})
        shown = without_namespace(name, namespace)
        if namespace is None or shown != name or kind == "system":
            topics.append(TopicName(shown, kind))
    return sorted(topics, key=lambda topic: topic.name)


def _ask_names(core: ClientCore, code: RequestCode, deadline: float) -> Flow[list[str]]:
    reply = yield from core.ask_name_server(Command(int(code)), deadline)
    return decode_body(TopicNamesBody, reply.body).topic_list


def _kind_of(name: str, own: Iterable[str]) -> TopicKind:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    return "system" if is_client_system_topic(name) or name in own else "normal"


def topic_route(core: ClientCore, topic: str, *, deadline: float) -> Flow[Route]:
    """Return the route of a topic from the name server, not from the cache.

    A route in the cache is replaced by it.

    Raises:
        RouteNotFound: There is no such topic.
        BrokerNotFound: No broker is registered.
    """
    check_name("topic", topic)
    name = with_namespace(topic, core.options.namespace)
    body = yield from ask_route(core, name, deadline)
    if body is not None and core.routes.get(name) is not None:
        core.routes.replace(route_of(name, body))
    if body is None:
        problem = f".\n  Create it with `downrange topic create {topic}`."
        raise (yield from missing_route(core, topic, deadline, problem))
    return route_of(topic, body)


def topic_settings(
    core: ClientCore, topic: str, *, deadline: float
) -> Flow[dict[str, TopicSettings]]:
    """Return the settings of a topic on each of its masters: broker -> settings.

    Raises:
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    route = yield from topic_route(core, topic, deadline=deadline)
    name = with_namespace(topic, core.options.namespace)
    asked = [_ask_settings(core, address, name, deadline) for address in route.masters.values()]
    outcomes: list[TopicConfig | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    settings: dict[str, TopicSettings] = {}
    for broker, outcome in zip(route.masters, outcomes, strict=True):
        if isinstance(outcome, RocketMQError):
            raise outcome
        settings[broker] = TopicSettings(
            topic=topic,
            read_queues=outcome.read_queue_nums,
            write_queues=outcome.write_queue_nums,
            permission=outcome.perm,
            is_ordered=outcome.order,
            attributes=outcome.attributes or {},
            brokers=(broker,),
        )
    return settings


def _ask_settings(core: ClientCore, address: str, topic: str, deadline: float) -> Flow[TopicConfig]:
    """Return the settings of one topic; a 4.9 broker can only return those of all topics."""
    try:
        reply = yield from core.ask(
            address, request_command(TopicConfigRequest(topic)), deadline, topic
        )
        return decode_body(TopicConfig, reply.body)
    except NotSupported:
        command = Command(int(RequestCode.GET_ALL_TOPIC_CONFIG))
        reply = yield from core.ask(address, command, deadline)
    table = decode_body(TopicTableBody, reply.body).topic_config_table
    if topic not in table:
        raise TopicNotFound(int(ResponseCode.TOPIC_NOT_EXIST), None, address, topic)
    return table[topic]


def topic_stats(
    core: ClientCore, topic: str, *, brokers: Iterable[str] | None = None, deadline: float
) -> Flow[list[QueueState]]:
    """Return what the queues of a topic hold, from each of its masters.

    A static topic has its logical queues, of which those without a broker are left out.

    Args:
        core: The client.
        topic: The topic.
        brokers: Only these brokers.
        deadline: When to give up.

    Raises:
        OptionError: The topic is not on one of the brokers.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    route = yield from topic_route(core, topic, deadline=deadline)
    name = with_namespace(topic, core.options.namespace)
    header = TopicStatsRequest(name)
    masters = _masters_of(route, brokers)
    replies = yield from ask_each(core, masters, lambda: request_command(header), deadline, topic)
    table = {
        QueueId(topic, queue.broker, queue.number): ends
        for reply in replies.values()
        for queue, ends in decode_body(TopicStatsBody, reply.body).offset_table.items()
    }
    if route.hosts:
        mapped = TopicConfigRequest(name, lo=True)
        replies = yield from ask_each(
            core, masters, lambda: request_command(mapped), deadline, topic
        )
        histories = {broker: read_history(reply.body) for broker, reply in replies.items()}
        return _logical_states(route, histories, table)
    return sorted(
        (
            QueueState(
                queue, ends.min_offset, ends.max_offset, _time_of(ends.last_update_timestamp)
            )
            for queue, ends in table.items()
        ),
        key=lambda state: state.queue,
    )


def _masters_of(route: Route, brokers: Iterable[str] | None) -> Mapping[str, str]:
    if brokers is None:
        return route.masters
    chosen = list(iterated("brokers", brokers, "a list of names of brokers"))
    if unknown := [name for name in chosen if name not in route.masters]:
        raise OptionError(f"brokers={unknown} are not among {sorted(route.masters)}")
    return {name: route.masters[name] for name in chosen}


def _logical_states(
    route: Route, histories: Mapping[str, QueueHistory], table: Mapping[QueueId, TopicOffset]
) -> list[QueueState]:
    """Return what the logical queues of a static topic hold, from what their physical ones hold."""
    states: list[QueueState] = []
    for queue, host in route.hosts.items():
        parts = parts_of(histories.get(host or "", QueueHistory()), queue.number)
        if not parts:
            continue
        ends = [
            table.get(QueueId(queue.topic, part.bname, part.queue_id), TopicOffset())
            for part in parts
        ]
        first = logical_offset(parts[0], ends[0].min_offset)
        last = logical_offset(parts[-1], ends[-1].max_offset)
        held = sum(each.max_offset - each.min_offset for each in ends)
        stored_at = _time_of(max(each.last_update_timestamp for each in ends))
        states.append(QueueState(queue, first, last, stored_at, last - first - held))
    return states


def _time_of(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms > 0 else None
