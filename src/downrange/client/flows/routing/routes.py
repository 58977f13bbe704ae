"""Routes: which queues a topic has, on which brokers, and how they are found.

A route is a snapshot; a changed one replaces it. When no name server answers, the snapshot stays.
A topic that nobody knows yet borrows the route of the default topic, with fewer queues: the broker
that gets the first message then creates it, on itself alone. That is why an auto-created topic ends
up on one broker (`auto_create="balanced"` is the cure).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from downrange.client.flows.effects import Flow, Gather, Once
from downrange.client.flows.routing.name_servers import ask_name_server
from downrange.errors import RocketMQError, RouteNotFound, server_error
from downrange.model import QueueId
from downrange.wire.bodies import RouteBody, decode_body
from downrange.wire.codes import Permission, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.bodies import BrokerQueues

MASTER: Final = 0
_READ: Final = int(Permission.READ)
_WRITE: Final = int(Permission.WRITE)
_NOT_FOUND: Final = int(ResponseCode.TOPIC_NOT_EXIST)
#: How many routes are asked for at the same time in the background.
_REFRESHED_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic's queues are.

    Attributes:
        topic: The topic, as servers know it.
        writable: Queues that can be sent to: of brokers with a master and write permission.
        readable: Queues that can be read from.
        write_counts: Broker -> how many queues it has for sending.
        masters: Broker -> address of its master.
        brokers: Broker -> address of each replica by its id.
        is_order_topic: Whether the order config says where the queues are.
        is_borrowed: Whether this is the default topic's route.
        body: What the name server said.
    """

    topic: str
    writable: tuple[QueueId, ...]
    readable: tuple[QueueId, ...]
    write_counts: Mapping[str, int] = field(repr=False)
    masters: Mapping[str, str]
    brokers: Mapping[str, Mapping[int, str]] = field(repr=False)
    is_order_topic: bool = False
    is_borrowed: bool = False
    body: RouteBody = field(default_factory=RouteBody, repr=False)


def route_of(topic: str, body: RouteBody, *, queue_count_max: int | None = None) -> Route:
    """Read a name server's answer.

    Args:
        topic: The topic whose queues they will be.
        body: The answer.
        queue_count_max: For a borrowed route: no broker has more queues than this.
    """
    brokers = {replicas.broker_name: replicas.broker_addrs for replicas in body.broker_datas}
    masters = {
        name: addresses[MASTER] for name, addresses in brokers.items() if MASTER in addresses
    }
    parts = sorted(body.queue_datas, key=lambda part: part.broker_name)
    if queue_count_max is not None:
        counts = {part.broker_name: min(queue_count_max, part.read_queue_nums) for part in parts}
        read, write = counts, counts
    else:
        read = {part.broker_name: part.read_queue_nums for part in parts}
        write = {part.broker_name: part.write_queue_nums for part in parts}
    if body.order_topic_conf:
        counts = _order_counts(body.order_topic_conf)
        write_counts = {broker: count for broker, count in counts.items() if broker in masters}
    else:
        write_counts = {
            part.broker_name: write[part.broker_name]
            for part in parts
            if part.perm & _WRITE and part.broker_name in masters
        }
    read_counts = {part.broker_name: read[part.broker_name] for part in parts if _readable(part)}
    return Route(
        topic=topic,
        writable=_queues(topic, write_counts),
        readable=_queues(topic, read_counts),
        write_counts=write_counts,
        masters=masters,
        brokers=brokers,
        is_order_topic=bool(body.order_topic_conf),
        is_borrowed=queue_count_max is not None,
        body=body,
    )


def _readable(part: BrokerQueues) -> bool:
    return part.perm & _READ != 0


def _order_counts(config: str) -> dict[str, int]:
    """Read "broker:count;broker:count"; a part that cannot be read is passed over."""
    counts: dict[str, int] = {}
    for part in config.split(";"):
        broker, _, count = part.rpartition(":")
        if broker and count.strip().isdecimal():
            counts[broker.strip()] = int(count)
    return counts


def _queues(topic: str, counts: Mapping[str, int]) -> tuple[QueueId, ...]:
    return tuple(
        QueueId(topic, broker, number)
        for broker, count in counts.items()
        for number in range(count)
    )


class RouteTable:
    """The routes that a client knows.

    Attributes:
        on_change: Called with the old route, if any, and the new one.
    """

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self.on_change: list[Callable[[Route | None, Route], None]] = []

    def get(self, topic: str) -> Route | None:
        """Return the snapshot of a topic."""
        return self._routes.get(topic)

    def topics(self) -> list[str]:
        """Return the topics that are used."""
        return list(self._routes)

    def replace(self, route: Route) -> Route:
        """Take a route; return it, or the one that was there when they do not differ."""
        old = self._routes.get(route.topic)
        if old is not None and old.is_borrowed == route.is_borrowed and _same(old.body, route.body):
            return old
        self._routes[route.topic] = route
        for listener in self.on_change:
            listener(old, route)
        return route

    def forget(self, topic: str) -> None:
        """Drop a topic that is used no more."""
        self._routes.pop(topic, None)

    def brokers(self) -> dict[str, Mapping[int, str]]:
        """Return all brokers of all routes: name -> address of each replica by its id."""
        known: dict[str, Mapping[int, str]] = {}
        for route in self._routes.values():
            known.update(route.brokers)
        return known

    def master_of(self, broker: str) -> str | None:
        """Return a broker's master, whichever route names it."""
        for route in self._routes.values():
            if broker in route.masters:
                return route.masters[broker]
        return None

    def broker_at(self, address: str) -> str | None:
        """Return the name of the broker with this address."""
        for broker, replicas in self.brokers().items():
            if address in replicas.values():
                return broker
        return None


def _same(one: RouteBody, other: RouteBody) -> bool:
    return (
        sorted(one.queue_datas, key=lambda part: part.broker_name)
        == sorted(other.queue_datas, key=lambda part: part.broker_name)
        and sorted(one.broker_datas, key=lambda part: part.broker_name)
        == sorted(other.broker_datas, key=lambda part: part.broker_name)
        and one.order_topic_conf == other.order_topic_conf
        and one.topic_queue_mapping_by_broker == other.topic_queue_mapping_by_broker
    )


# ---- finding -------------------------------------------------------------------------------------


def ask_route(core: ClientCore, topic: str, deadline: float) -> Flow[RouteBody | None]:
    """Ask a name server for a topic's route; None when it knows none.

    Raises:
        RocketMQError: No name server answered, or it refused.
    """
    header = RouteRequest(topic, accept_standard_json_only=True)
    reply = yield from ask_name_server(core, request_command(header), deadline)
    if reply.code == _NOT_FOUND:
        return None
    if reply.code != ResponseCode.SUCCESS:
        raise server_error(reply.code, reply.remark, core.name_servers.addresses[0], topic)
    return decode_body(RouteBody, reply.body)


def refresh_route(core: ClientCore, topic: str, deadline: float) -> Flow[Route | None]:
    """Ask for a topic's route and keep it; None when the name server knows none."""
    body = yield from ask_route(core, topic, deadline)
    return None if body is None else core.routes.replace(route_of(topic, body))


def find_readable(core: ClientCore, topic: str, deadline: float) -> Flow[Route]:
    """Return a route that can be read from, out of the cache or from a name server.

    Raises:
        RouteNotFound: There is none.
    """
    route = core.routes.get(topic)
    if route is None or not route.readable or route.is_borrowed:
        route = yield Once(("route", topic), lambda: refresh_route(core, topic, deadline))
    if route is None or not route.readable:
        raise _not_found(core, topic, ".")
    return route


def find_writable(
    core: ClientCore, topic: str, deadline: float, *, default_topic: str | None, queue_count: int
) -> Flow[Route]:
    """Return a route that can be sent to, out of the cache or from a name server.

    Args:
        core: The client.
        topic: The topic, as servers know it.
        deadline: When to give up.
        default_topic: Whose route a missing topic borrows; None borrows none.
        queue_count: How many queues per broker it then has at most.

    Raises:
        RouteNotFound: There is none.
        RocketMQError: No name server answered.
    """
    route = core.routes.get(topic)
    if route is None or not route.writable:
        # Not shared with those who read, whom a borrowed route would mislead.
        route = yield Once(
            ("writable", topic),
            lambda: _look_up(core, topic, deadline, default_topic, queue_count),
        )
    assert route is None or isinstance(route, Route)
    if route is not None and route.writable:
        return route
    if route is not None:
        raise _not_found(
            core, topic, ": no broker with a master lets it be written to. Check its permission."
        )
    why = (
        f", and the cluster does not create topics automatically (no {default_topic} route)."
        if default_topic is not None
        else "."
    )
    raise _not_found(core, topic, f"{why}\n  Create it with `downrange topic create {topic}`.")


def _look_up(
    core: ClientCore, topic: str, deadline: float, default_topic: str | None, queue_count: int
) -> Flow[Route | None]:
    route = yield from refresh_route(core, topic, deadline)
    if route is not None or default_topic is None:
        return route
    body = yield from ask_route(core, default_topic, deadline)
    if body is None:
        return None
    return core.routes.replace(route_of(topic, body, queue_count_max=queue_count))


def _not_found(core: ClientCore, topic: str, problem: str) -> RouteNotFound:
    return RouteNotFound(topic, core.name_servers.addresses, problem)


def refresh_all(core: ClientCore, topics: Iterable[str] | None = None) -> Flow[int]:
    """Ask for the routes of all used topics; return how many could not be had.

    A topic that the name server does not know, any more or yet, keeps what it has.
    """
    names = core.routes.topics() if topics is None else list(topics)
    deadline = core.clock.now() + core.options.call_timeout
    outcomes: list[object] = yield Gather(
        [refresh_route(core, topic, deadline) for topic in names], _REFRESHED_AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)
