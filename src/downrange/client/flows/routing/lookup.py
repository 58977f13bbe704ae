"""Lookup: where a topic's queues and a queue's broker are, from the cache or a name server.

All questions for a route go through `refresh_route`, which shares one request among all flows that
ask for the same topic at the same time. One rule: only `find_writable` may answer with a borrowed
route, the default topic's for a topic that does not exist yet (see `routes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.checks import check_name
from downrange.client.flows.effects import Flow, Gather, Once
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.routing.queue_mapping import is_logical
from downrange.client.flows.routing.routes import Route, route_of
from downrange.errors import (
    BrokerNotFound,
    CallTimeout,
    RocketMQError,
    RouteNotFound,
    server_error,
)
from downrange.wire.bodies import ClusterBody, RouteBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId

_NOT_FOUND: Final = int(ResponseCode.TOPIC_NOT_EXIST)
#: How many routes are asked for at the same time in the background.
_REFRESHED_AT_ONCE: Final = 8


# ---- asking --------------------------------------------------------------------------------------


def ask_route(core: ClientCore, topic: str, deadline: float) -> Flow[RouteBody | None]:
    """Ask a name server for a topic's route; None when it has none. Nothing is cached.

    Raises:
        RocketMQError: No name server answered, or it refused.
    """
    header = RouteRequest(topic, accept_standard_json_only=True)
    reply = yield from core.call_name_server(request_command(header), deadline)
    if reply.code == _NOT_FOUND:
        return None
    if reply.code != ResponseCode.SUCCESS:
        raise server_error(reply.code, reply.remark, core.name_servers.addresses[0], topic)
    return decode_body(RouteBody, reply.body)


def refresh_route(core: ClientCore, topic: str, deadline: float) -> Flow[Route | None]:
    """Ask for a topic's route and cache it; None when the name server has none.

    Flows that ask for the same topic at the same time share one request. Its deadline is that of
    the flow that asked first; a flow that joined and has time left repeats it once.

    Raises:
        RocketMQError: No name server answered, or it refused.
    """
    is_own = False

    def ask() -> Flow[Route | None]:
        nonlocal is_own
        is_own = True
        return _ask_and_keep(core, topic, deadline)

    key = ("route", topic)
    try:
        route: Route | None = yield Once(key, ask)
    except CallTimeout:
        if is_own or core.clock.now() >= deadline:
            raise
        route = yield Once(key, ask)
    return route


def _ask_and_keep(core: ClientCore, topic: str, deadline: float) -> Flow[Route | None]:
    body = yield from ask_route(core, topic, deadline)
    if body is None:
        return None
    route = core.routes.replace(route_of(topic, body))
    yield from core.publish()
    return route


def refresh_all(core: ClientCore, topics: Iterable[str] | None = None) -> Flow[int]:
    """Refresh the routes of all used topics; return how many requests failed.

    A topic that the name server does not have, yet or any more, keeps its cached route.
    """
    names = core.routes.topics() if topics is None else list(topics)
    deadline = core.clock.now() + core.options.call_timeout
    outcomes: list[object] = yield Gather(
        [refresh_route(core, topic, deadline) for topic in names], _REFRESHED_AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)


# ---- routes of topics ----------------------------------------------------------------------------


def find_route(core: ClientCore, topic: str, deadline: float) -> Flow[Route]:
    """Return the route of a topic that exists, whether or not it can be written to or read from.

    Raises:
        RouteNotFound: The topic does not exist.
        RocketMQError: No name server answered, or no broker is registered.
    """
    route = core.routes.get(topic)
    if route is None or route.is_borrowed:
        route = yield from refresh_route(core, topic, deadline)
    if route is None:
        raise (yield from missing_route(core, topic, deadline, _create(topic)))
    return route


def _create(topic: str) -> str:
    return f".\n  Create it with `downrange topic create {topic}`."


def find_readable(core: ClientCore, topic: str, deadline: float) -> Flow[Route]:
    """Return a route with queues that can be read from.

    Raises:
        RouteNotFound: There is none.
        RocketMQError: No name server answered, or no broker is registered.
    """
    route = core.routes.get(topic)
    if route is None or not route.readable or route.is_borrowed:
        route = yield from refresh_route(core, topic, deadline)
    if route is None:
        raise (yield from missing_route(core, topic, deadline, _create(topic)))
    if not route.readable:
        problem = " with queues that may be read. Check its permission."
        raise _not_found(core, topic, problem)
    return route


def find_writable(
    core: ClientCore, topic: str, deadline: float, *, default_topic: str | None, queue_count: int
) -> Flow[Route]:
    """Return a route with queues that can be sent to.

    Args:
        core: The client.
        topic: The topic, namespace included.
        deadline: When to give up.
        default_topic: The topic whose route a missing topic borrows; None borrows none.
        queue_count: The most queues per broker of a borrowed route.

    Raises:
        RouteNotFound: There is none.
        RocketMQError: No name server answered, or no broker is registered.
    """
    route = core.routes.get(topic)
    if route is None or not route.writable:
        route = yield from refresh_route(core, topic, deadline)
        if route is None and default_topic is not None:
            # A key of its own: flows that read the topic must not get a borrowed route.
            route = yield Once(
                ("borrow", topic),
                lambda: _borrow(core, topic, deadline, default_topic, queue_count),
            )
    assert route is None or isinstance(route, Route)
    if route is not None and route.writable:
        return route
    if route is not None and not route.masters:
        # A name server of 5.x returns a route without brokers when none is of the client's zone.
        who = f"master of {', '.join(sorted(route.brokers))}" if route.brokers else "broker"
        raise _no_broker(core, topic, f"no {who}{_zone_of(core)} is registered")
    if route is not None:
        problem = ": no broker with a master lets it be written to. Check its permission."
        raise _not_found(core, topic, problem)
    why = (
        f", and the cluster does not create topics automatically (no {default_topic} route)."
        if default_topic is not None
        else "."
    )
    problem = f"{why}\n  Create it with `downrange topic create {topic}`."
    raise (yield from missing_route(core, topic, deadline, problem))


def _borrow(
    core: ClientCore, topic: str, deadline: float, default_topic: str, queue_count: int
) -> Flow[Route | None]:
    body = yield from ask_route(core, default_topic, deadline)
    if body is None:
        return None
    route = core.routes.replace(route_of(topic, body, queue_count_max=queue_count))
    yield from core.publish()
    return route


def missing_route(
    core: ClientCore, topic: str, deadline: float, problem: str
) -> Flow[RouteNotFound | BrokerNotFound]:
    """Return the error for a topic that the name server has no route of.

    When all brokers are gone, no topic has a route, and to create it is not the remedy. So the name
    server is asked for its brokers; if it does not answer that, the topic is reported as missing.
    """
    has_brokers: bool = yield Once(("brokers",), lambda: _has_brokers(core, deadline))
    if has_brokers:
        return _not_found(core, topic, problem)
    return _no_broker(core, topic, "no broker is registered")


def _has_brokers(core: ClientCore, deadline: float) -> Flow[bool]:
    try:
        command = Command(int(RequestCode.GET_BROKER_CLUSTER_INFO))
        reply = yield from core.ask_name_server(command, deadline)
        return bool(decode_body(ClusterBody, reply.body).broker_addr_table)
    except RocketMQError:
        return True


def _no_broker(core: ClientCore, topic: str, problem: str) -> BrokerNotFound:
    address = core.name_servers.addresses[0]
    return BrokerNotFound(
        address,
        f"{problem}, so topic {topic!r} has no route.\n  Start a broker, or wait until it has "
        f"registered; `downrange doctor {address}` shows more.",
        topic,
    )


def _not_found(core: ClientCore, topic: str, problem: str) -> RouteNotFound:
    if core.options.zone_mode:
        problem += f"\n  Only brokers{_zone_of(core)} are used (zone_mode)."
    return RouteNotFound(topic, core.name_servers.addresses, problem)


def _zone_of(core: ClientCore) -> str:
    return f" of zone {core.options.zone!r}" if core.options.zone_mode else ""


# ---- queues of topics ----------------------------------------------------------------------------


def publish_queues(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[QueueId]]:
    """Return the queues that messages of a topic can be sent to, without the namespace.

    Raises:
        RouteNotFound: There are none.
    """
    check_name("topic", topic)
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    route = yield from find_writable(core, name, deadline, default_topic=None, queue_count=1)
    return [shown_queue(queue, namespace) for queue in route.writable]


def read_queues(core: ClientCore, topic: str, *, deadline: float) -> Flow[list[QueueId]]:
    """Return the queues that messages of a topic can be read from, without the namespace.

    Raises:
        RouteNotFound: There are none.
    """
    check_name("topic", topic)
    namespace = core.options.namespace
    route = yield from find_readable(core, with_namespace(topic, namespace), deadline)
    return [shown_queue(queue, namespace) for queue in route.readable]


# ---- brokers of queues ---------------------------------------------------------------------------


def find_master(core: ClientCore, queue: QueueId, deadline: float) -> Flow[str]:
    """Return the address of the master that holds a queue of a topic that exists.

    Raises:
        RouteNotFound: The topic, the broker or its master is missing.
        RocketMQError: No name server answered.
    """
    known = yield from find_route(core, queue.topic, deadline)
    address = known.masters.get(known.broker_of(queue) or "")
    if address is not None:
        return address
    fresh = yield from refresh_route(core, queue.topic, deadline)
    address = None if fresh is None else fresh.masters.get(fresh.broker_of(queue) or "")
    if address is not None:
        return address
    if fresh is not None and fresh.hosts:
        raise _not_served(core, fresh, queue)
    masters = [] if fresh is None else sorted(fresh.masters)
    problem = f" to broker {queue.broker!r}: it has no master; these have: {masters}"
    raise _not_found(core, queue.topic, problem)


def _not_served(core: ClientCore, route: Route, queue: QueueId) -> RouteNotFound:
    """Return the error for a queue of a static topic that cannot be used now."""
    if queue not in route.hosts:
        names = sorted({each.broker for each in route.hosts})
        problem = (
            f" to queue {queue.number} of broker {queue.broker!r}: it is a static topic, whose "
            f"{len(route.hosts)} queues are those of {', '.join(names)}.\n  `read_queues` and "
            "`publish_queues` return them."
        )
    elif (broker := route.hosts[queue]) is None:
        problem = (
            f" to queue {queue.number} of the static topic: the broker that serves it is not "
            f"registered; these are: {sorted(route.brokers)}"
        )
    else:
        problem = (
            f" to queue {queue.number} of the static topic: broker {broker!r}, which serves it, "
            f"is not registered or has no master; these have: {sorted(route.masters)}"
        )
    return _not_found(core, queue.topic, problem)


def find_target(core: ClientCore, queue: QueueId, deadline: float) -> Flow[tuple[QueueId, str]]:
    """Return the target of a send to a chosen queue, and the address of its master.

    Raises:
        RouteNotFound: It is not a queue of the static topic, or no master serves it now.
        BrokerNotFound: The name server does not have the broker, or it has no master.
        RocketMQError: No name server answered.
    """
    route = core.routes.get(queue.topic)
    if not is_logical(queue.broker) and (route is None or not route.hosts):
        return queue, (yield from find_send_address(core, queue, deadline))
    target = None if route is None else route.target_of(queue)
    if route is None or not route.hosts or target is None:
        route = yield from refresh_route(core, queue.topic, deadline)
        if route is None or not route.hosts:
            problem = f" to broker {queue.broker!r}: it is not a static topic"
            raise _not_found(core, queue.topic, problem)
        target = route.target_of(queue)
        if target is None:
            raise _not_served(core, route, queue)
    return target, route.masters[target.broker]


def find_send_address(core: ClientCore, queue: QueueId, deadline: float) -> Flow[str]:
    """Return the master's address for a queue to send to; the topic need not exist there yet.

    Unlike `find_master`, any cached route that names the broker will do.

    Raises:
        BrokerNotFound: The name server does not have the broker, or it has no master.
        RocketMQError: No name server answered.
    """
    address = core.routes.master_of(queue.broker)
    if address is not None:
        return address
    route = yield from refresh_route(core, queue.topic, deadline)
    if route is None or queue.broker not in route.masters:
        problem = f"broker {queue.broker!r} is not registered, or has no master now"
        raise _no_broker(core, queue.topic, problem)
    return route.masters[queue.broker]


def find_master_or_proxy(core: ClientCore, topic: str, broker: str, deadline: float) -> Flow[str]:
    """Return the address of a broker's master, or of any master of the topic.

    Behind a proxy the name server lists other names than the brokers'; a proxy forwards.

    Raises:
        RouteNotFound: The topic has no master.
        RocketMQError: No name server answered.
    """
    address = core.routes.master_of(broker)
    if address is not None:
        return address
    route = yield from refresh_route(core, topic, deadline)
    masters = {} if route is None else route.masters
    if not masters:
        problem = f": no broker can be asked for a message of broker {broker!r}."
        raise _not_found(core, topic, problem)
    return masters.get(broker) or next(iter(masters.values()))


def find_replica(core: ClientCore, queue: QueueId, replica: int, deadline: float) -> Flow[str]:
    """Return the address to read a queue from: of this replica, or else of the lowest id.

    Raises:
        RouteNotFound: The topic or the broker is missing.
        RocketMQError: No name server answered.
    """
    route = yield from find_readable(core, queue.topic, deadline)
    replicas = route.brokers.get(route.broker_of(queue) or "")
    if not replicas:
        if route.hosts:
            raise _not_served(core, route, queue)
        problem = f" to broker {queue.broker!r}; there are {sorted(route.brokers)}"
        raise _not_found(core, queue.topic, problem)
    return replicas[replica if replica in replicas else min(replicas)]


def find_any_replicas(route: Route) -> dict[str, str]:
    """Return one address per broker of a route: the master's, or else of the lowest id."""
    return {
        broker: replicas[min(replicas)] for broker, replicas in route.brokers.items() if replicas
    }
