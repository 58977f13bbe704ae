"""Routes: which queues a topic has, and on which brokers. `lookup` fetches them.

A route is a snapshot; a changed one replaces it. When no name server answers, the snapshot stays.
A topic that does not exist yet borrows the route of the default topic, with fewer queues. The
broker that gets the first message then creates the topic, on itself alone. So an auto-created topic
ends up on one broker; `auto_create="balanced"` avoids that.

The queues of a static topic are logical ones; `queue_mapping` says what that is. Users, selectors
and cursors have logical queues. Sends have targets: the same number with the broker that serves it,
so that broker health, addresses and request headers are those of the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from downrange.client.flows.routing.queue_mapping import read_mapping
from downrange.model import QueueId
from downrange.wire.bodies import RouteBody
from downrange.wire.codes import Permission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.wire.bodies import BrokerQueues

MASTER: Final = 0
_READ: Final = int(Permission.READ)
_WRITE: Final = int(Permission.WRITE)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic's queues are.

    Attributes:
        topic: The topic, with the namespace.
        writable: Queues that can be sent to: of brokers with a master and write permission. A
            static topic has all its logical queues here, as long as one of them has such a broker:
            a selector's choice must not depend on brokers.
        readable: Queues that can be read from.
        targets: The queues that sends take in turn: `writable`; for a static topic those with a
            master and write permission, each with the broker that serves it.
        write_counts: Broker -> how many queues it has for sending; empty for a static topic.
        masters: Broker -> address of its master.
        brokers: Broker -> address of each replica by its id.
        is_order_topic: Whether the order config of the topic sets the queues.
        is_borrowed: Whether this is the default topic's route.
        hosts: For a static topic: logical queue -> the broker that serves it, or None.
        logical_names: For a static topic: broker -> the broker's name in its logical queues.
        body: The name server's answer.
    """

    topic: str
    writable: tuple[QueueId, ...]
    readable: tuple[QueueId, ...]
    targets: tuple[QueueId, ...] = field(repr=False)
    write_counts: Mapping[str, int] = field(repr=False)
    masters: Mapping[str, str]
    brokers: Mapping[str, Mapping[int, str]] = field(repr=False)
    is_order_topic: bool = False
    is_borrowed: bool = False
    hosts: Mapping[QueueId, str | None] = field(default_factory=dict, repr=False)
    logical_names: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: RouteBody = field(default_factory=RouteBody, repr=False)

    def broker_of(self, queue: QueueId) -> str | None:
        """Return the broker that serves a queue; None when no broker serves a logical queue."""
        return self.hosts.get(queue) if self.hosts else queue.broker

    def target_of(self, queue: QueueId) -> QueueId | None:
        """Return the target of sends to a queue; None when no master serves a logical queue."""
        if not self.hosts:
            return queue
        host = self.hosts.get(queue)
        if host is None or host not in self.masters:
            return None
        return QueueId(queue.topic, host, queue.number)

    def shown(self, target: QueueId) -> QueueId:
        """Return the queue that users see for a target of a send."""
        if not self.hosts:
            return target
        return QueueId(target.topic, self.logical_names[target.broker], target.number)


def route_of(topic: str, body: RouteBody, *, queue_count_max: int | None = None) -> Route:
    """Return the route in a name server's answer.

    Args:
        topic: The topic of the queues.
        body: The answer.
        queue_count_max: The most queues per broker; makes the route a borrowed one.

    Raises:
        MalformedBody: The queue mapping of a static topic has an impossible number of queues.
    """
    brokers = {replicas.broker_name: replicas.broker_addrs for replicas in body.broker_datas}
    masters = {
        name: addresses[MASTER] for name, addresses in brokers.items() if MASTER in addresses
    }
    if body.topic_queue_mapping_by_broker and queue_count_max is None:
        return _static_route(topic, body, masters, brokers)
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
    writable = _queues(topic, write_counts)
    return Route(
        topic=topic,
        writable=writable,
        readable=_queues(topic, read_counts),
        targets=writable,
        write_counts=write_counts,
        masters=masters,
        brokers=brokers,
        is_order_topic=bool(body.order_topic_conf),
        is_borrowed=queue_count_max is not None,
        body=body,
    )


def _static_route(
    topic: str,
    body: RouteBody,
    masters: Mapping[str, str],
    brokers: Mapping[str, Mapping[int, str]],
) -> Route:
    hosts, logical_names = read_mapping(topic, body.topic_queue_mapping_by_broker or {})
    permissions = {part.broker_name: part.perm for part in body.queue_datas}
    targets = tuple(
        QueueId(topic, host, queue.number)
        for queue, host in hosts.items()
        if host is not None and host in masters and permissions.get(host, 0) & _WRITE
    )
    # A queue without a broker is read, too: it gets one again, and its messages must not be missed.
    readable = tuple(
        queue
        for queue, host in hosts.items()
        if host is None or permissions.get(host, _READ) & _READ
    )
    return Route(
        topic=topic,
        writable=tuple(hosts) if targets else (),
        readable=readable,
        targets=targets,
        write_counts={},
        masters=masters,
        brokers=brokers,
        is_order_topic=bool(body.order_topic_conf),
        hosts=hosts,
        logical_names=logical_names,
        body=body,
    )


def _readable(part: BrokerQueues) -> bool:
    return part.perm & _READ != 0


def _order_counts(config: str) -> dict[str, int]:
    """Parse "broker:count;broker:count"; a malformed part is skipped."""
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
    """The cached routes of a client.

    Attributes:
        on_change: Functions to call with the old route, if any, and the new one.
    """

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self.on_change: list[Callable[[Route | None, Route], None]] = []

    def get(self, topic: str) -> Route | None:
        """Return the cached route of a topic."""
        return self._routes.get(topic)

    def topics(self) -> list[str]:
        """Return the topics of all cached routes."""
        return list(self._routes)

    def replace(self, route: Route) -> Route:
        """Cache a route; return it, or the cached one when both are the same."""
        old = self._routes.get(route.topic)
        if old is not None and old.is_borrowed == route.is_borrowed and _same(old.body, route.body):
            return old
        self._routes[route.topic] = route
        for listener in self.on_change:
            listener(old, route)
        return route

    def forget(self, topic: str) -> None:
        """Drop the route of a topic."""
        self._routes.pop(topic, None)

    def brokers(self) -> dict[str, Mapping[int, str]]:
        """Return all brokers of all routes: name -> address of each replica by its id."""
        known: dict[str, Mapping[int, str]] = {}
        for route in self._routes.values():
            known.update(route.brokers)
        return known

    def master_of(self, broker: str) -> str | None:
        """Return the address of a broker's master from any route that names it."""
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
