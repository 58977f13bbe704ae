"""Create, change and delete topics.

A change goes to every master of a cluster, so that a topic is the same on all brokers. A change of
a topic ends when the name server's route shows it. Names have no namespace here; it is added for
the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.checks import (
    check_between,
    check_flag,
    check_name,
    check_optional_text,
    check_text,
    check_texts,
    check_type,
)
from downrange.client.flows.admin.clusters import ask_each, find_masters
from downrange.client.flows.admin.topics import TopicSettings, topic_route, topic_settings
from downrange.client.flows.effects import Flow, Once, Pause
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import ask_route, missing_route, refresh_route
from downrange.client.flows.routing.routes import route_of
from downrange.client.flows.validation import check_topic
from downrange.errors import OptionError, RouteNotFound
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CreateTopicRequest,
    DeleteRouteRequest,
    DeleteTopicRequest,
)
from downrange.wire.limits import INT32_MAX
from downrange.wire.system_names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.bodies import RouteBody

#: Seconds between two questions for a route that does not show a change yet.
_ROUTE_PAUSE: Final = 0.05


def create_topic(
    core: ClientCore,
    topic: str,
    *,
    queues: int = 8,
    read_queues: int | None = None,
    write_queues: int | None = None,
    permission: int = 6,
    is_ordered: bool = False,
    attributes: Mapping[str, str] | None = None,
    cluster: str | None = None,
    brokers: Iterable[str] | None = None,
    deadline: float,
) -> Flow[TopicSettings]:
    """Create a topic on every master of a cluster, or give an existing one these settings.

    Args:
        core: The client.
        topic: Its name.
        queues: Queues per broker.
        read_queues: Queues that consumers read, if not `queues`.
        write_queues: Queues that producers send to, if not `queues`.
        permission: 4 read, 2 write, added up.
        is_ordered: Whether the topic is for ordered messages; 4.9 brokers do not store it.
        attributes: Settings of 5.x, such as {"message.type": "FIFO"}.
        cluster: The cluster, when there are several.
        brokers: Only these brokers.
        deadline: When to give up.

    Returns:
        The settings; the routes of the name server show them already.

    Raises:
        OptionError: A name or number is not valid, or it is a static topic.
        RocketMQError: A broker failed; others may have made the change.
    """
    check_topic(topic)
    check_between(1, INT32_MAX, "queues", queues)
    check_optional_text("cluster", cluster)
    brokers = None if brokers is None else check_texts("brokers", brokers)
    settings = TopicSettings(
        topic=with_namespace(topic, core.options.namespace),
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        permission=permission,
        is_ordered=is_ordered,
        attributes=_attributes(attributes),
    )
    _check(settings)
    masters = yield from find_masters(
        core, cluster=cluster, brokers=brokers, topic=topic, deadline=deadline
    )
    existing = yield from ask_route(core, settings.topic, deadline)
    if existing is not None and existing.topic_queue_mapping_by_broker:
        raise _is_static(topic)
    changes = {f"+{name}": value for name, value in settings.attributes.items()}
    yield from _put_topic(core, settings, changes, masters, deadline)
    return msgspec.structs.replace(settings, topic=topic, brokers=tuple(sorted(masters)))


def update_topic(
    core: ClientCore,
    topic: str,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    permission: int | None = None,
    is_ordered: bool | None = None,
    attributes: Mapping[str, str | None] | None = None,
    brokers: Iterable[str] | None = None,
    deadline: float,
) -> Flow[dict[str, TopicSettings]]:
    """Change a topic; settings that are not given keep their value on each broker.

    Args:
        core: The client.
        topic: Its name.
        read_queues: Queues per broker that consumers read.
        write_queues: Queues per broker that producers send to.
        permission: 4 read, 2 write, added up.
        is_ordered: Whether the topic is for ordered messages; 4.9 brokers do not store it.
        attributes: Settings of 5.x; None removes one.
        brokers: Only these brokers.
        deadline: When to give up.

    Returns:
        Broker -> its settings of the topic now.

    Raises:
        OptionError: A number is not valid, a broker does not have the topic, or it is a static
            topic, whose number of queues cannot be changed like this.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker failed; others may have made the change.
    """
    changes = _attributes(attributes)
    brokers = None if brokers is None else check_texts("brokers", brokers)
    check_name("topic", topic)
    for name, value in (("read_queues", read_queues), ("write_queues", write_queues)):
        if value is not None:
            check_between(1, INT32_MAX, name, value)
    if permission is not None:
        check_between(0, 7, "permission", permission)
    if is_ordered is not None:
        check_flag("is_ordered", is_ordered)
    current = yield from topic_settings(core, topic, deadline=deadline)
    chosen = sorted(current if brokers is None else set(brokers))
    if not set(chosen) <= current.keys():
        raise OptionError(f"brokers={chosen} are not among {sorted(current)}, which have the topic")
    route = yield from topic_route(core, topic, deadline=deadline)
    if route.hosts and (read_queues is not None or write_queues is not None):
        raise _is_static(topic)
    changed: dict[str, TopicSettings] = {}
    for broker in chosen:
        old = current[broker]
        merged = {**old.attributes, **changes}
        new = TopicSettings(
            topic=with_namespace(topic, core.options.namespace),
            read_queues=old.read_queues if read_queues is None else read_queues,
            write_queues=old.write_queues if write_queues is None else write_queues,
            permission=old.permission if permission is None else permission,
            is_ordered=old.is_ordered if is_ordered is None else is_ordered,
            attributes={name: value for name, value in merged.items() if value is not None},
        )
        _check(new)
        signed = {_signed(name, value): value for name, value in changes.items()}
        yield from _put_topic(core, new, signed, {broker: route.masters[broker]}, deadline)
        changed[broker] = msgspec.structs.replace(new, topic=topic, brokers=(broker,))
    return changed


def _is_static(topic: str) -> OptionError:
    """Return the error for a change that would take physical queues from logical ones."""
    return OptionError(
        f"topic {topic!r} is a static topic: its number of queues is changed with `mqadmin "
        "updateStaticTopic`, and its other settings with `update_topic`"
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    """Return a copy of attributes, after checking their types; a value may be None."""
    if attributes is None:
        return {}
    check_type("attributes", attributes, Mapping, "a dict of str to str")
    for name, value in attributes.items():
        check_text("each name of attributes", name)
        if value is not None:
            check_text(f"attributes[{name!r}]", value)
    return dict(attributes)


def _signed(name: str, value: str | None) -> str:
    return f"-{name}" if value is None else f"+{name}"


def _check(settings: TopicSettings) -> None:
    for name in ("read_queues", "write_queues"):
        check_between(1, INT32_MAX, name, getattr(settings, name))
    check_between(0, 7, "permission", settings.permission)
    check_flag("is_ordered", settings.is_ordered)
    for name, value in settings.attributes.items():
        if not name or any(mark in name + value for mark in "=,"):
            raise OptionError(
                f"attribute {name!r}={value!r} cannot be encoded: the name is empty, or there is a "
                "'=' or ','"
            )


def _put_topic(
    core: ClientCore,
    settings: TopicSettings,
    changes: Mapping[str, str | None],
    masters: Mapping[str, str],
    deadline: float,
) -> Flow[None]:
    """Set a topic on some masters, and wait until the name server's route shows it."""
    header = CreateTopicRequest(
        topic=settings.topic,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=settings.read_queues,
        write_queue_nums=settings.write_queues,
        perm=settings.permission,
        topic_sys_flag=0,
        order=settings.is_ordered,
        attributes=_attribute_text(changes) or None,
    )
    yield from ask_each(core, masters, lambda: request_command(header), deadline, settings.topic)
    body = yield from ask_route(core, settings.topic, deadline)
    while body is None or not _shows(body, settings, masters):
        if core.clock.now() + _ROUTE_PAUSE >= deadline:
            problem = f" yet that shows it on {', '.join(sorted(masters))}, which have it already."
            raise RouteNotFound(settings.topic, core.name_servers.addresses, problem)
        yield Pause(_ROUTE_PAUSE)
        body = yield from ask_route(core, settings.topic, deadline)
    if core.routes.get(settings.topic) is not None:
        core.routes.replace(route_of(settings.topic, body))


def _attribute_text(changes: Mapping[str, str | None]) -> str:
    """Encode changes of attributes: `+name=value` sets one, `-name` removes it."""
    return ",".join(
        signed if value is None else f"{signed}={value}" for signed, value in changes.items()
    )


def _shows(body: RouteBody, settings: TopicSettings, brokers: Iterable[str]) -> bool:
    expected = (settings.read_queues, settings.write_queues, settings.permission)
    shown = {
        part.broker_name: (part.read_queue_nums, part.write_queue_nums, part.perm)
        for part in body.queue_datas
    }
    return all(shown.get(broker) == expected for broker in brokers)


def create_missing_topic(
    core: ClientCore,
    topic: str,
    queue_count: int,
    deadline: float,
    *,
    default_topic: str = DEFAULT_TOPIC,
) -> Flow[None]:
    """Create a topic before the first message is sent, on every broker that would auto-create it.

    These are the brokers that have the default topic; a cluster without it does not create topics
    automatically. An existing topic is not changed. Senders that miss it at the same time create
    it once.

    Raises:
        RouteNotFound: There is no default topic.
        BrokerNotFound: No broker is registered.
        RocketMQError: A broker failed; others may have created it.
    """
    yield Once(
        ("create", topic),
        lambda: _create_like_default(core, topic, queue_count, deadline, default_topic),
    )


def _create_like_default(
    core: ClientCore, topic: str, queue_count: int, deadline: float, default_topic: str
) -> Flow[None]:
    if (yield from refresh_route(core, topic, deadline)) is not None:
        return
    body = yield from ask_route(core, default_topic, deadline)
    masters = {} if body is None else route_of(default_topic, body).masters
    if not masters:
        problem = (
            f", and the cluster does not create topics automatically (no {default_topic} route).\n"
            f"  Create it with `downrange topic create {topic}`."
        )
        raise (yield from missing_route(core, topic, deadline, problem))
    settings = TopicSettings(topic=topic, read_queues=queue_count, write_queues=queue_count)
    yield from _put_topic(core, settings, {}, masters, deadline)
    yield from refresh_route(core, topic, deadline)


def delete_topic(
    core: ClientCore,
    topic: str,
    *,
    cluster: str | None = None,
    deadline: float,
) -> Flow[None]:
    """Delete a topic and its messages on every broker of a cluster, then at all name servers.

    A missing topic is not an error.

    Raises:
        RocketMQError: A server failed; others may have deleted it.
    """
    check_topic(topic)
    check_optional_text("cluster", cluster)
    name = with_namespace(topic, core.options.namespace)
    masters = yield from find_masters(
        core, cluster=cluster, brokers=None, topic=topic, deadline=deadline
    )
    at_broker = DeleteTopicRequest(name)
    yield from ask_each(core, masters, lambda: request_command(at_broker), deadline, name)
    # Brokers first: a broker that still has the topic registers it again.
    name_servers = {address: address for address in core.name_servers.addresses}
    at_name_server = DeleteRouteRequest(name, cluster)
    yield from ask_each(core, name_servers, lambda: request_command(at_name_server), deadline, name)
    core.routes.forget(name)
