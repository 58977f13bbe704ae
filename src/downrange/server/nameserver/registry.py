"""The registered brokers of a name server, and the topics that they hold.

The behaviour is that of Apache's `RouteInfoManager` of 5.x, unless a method says otherwise. Five
tables:

    topic         -> broker name -> its queues there
    broker name   -> cluster, and address by broker id (0 is the master)
    cluster       -> broker names
    cluster and address -> time of the last heartbeat, connection, data version
    topic         -> broker name -> queue mapping (static topics)

One rule: time and connections are arguments, so that every step can be replayed.

A registration may contain a single topic, so topics that are missing in it are not deleted. A
topic in it is stored when the broker is new, when its data version has changed, or when the topic
is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from downrange.wire.bodies import (
    BrokerQueues,
    BrokerReplicas,
    DataVersion,
    RouteBody,
    TopicConfig,
    TopicTableBody,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2

#: Reasons to refuse a registration; the first is Apache's text.
NOT_YET_REGISTERED: Final = "register broker failed"
TOO_MANY_BROKERS: Final = "register broker failed: the name server holds brokers_max brokers"
TOO_MANY_TOPICS: Final = "register broker failed: the name server holds topics_max topics"


@dataclass(slots=True, kw_only=True)
class Registration:
    """The registration of one broker process.

    Attributes:
        name: Broker name, which a master shares with its slaves.
        address: "host:port" for clients.
        cluster: Cluster name.
        broker_id: 0 for the master.
        ha_address: Where slaves fetch the log.
        connection: Number of its connection; when that ends, the broker is removed.
        timeout_ms: The broker is removed after this time without a heartbeat.
        acting_master: Whether a slave may act as the master; None from a 4.9 broker.
        zone: Name of the broker's zone.
        table: Its topics, or some of them.
        filter_servers: Addresses.
    """

    name: str
    address: str
    cluster: str
    broker_id: int
    ha_address: str
    connection: int
    timeout_ms: int
    acting_master: bool | None = None
    zone: str | None = None
    table: TopicTableBody = field(default_factory=TopicTableBody)
    filter_servers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Registered:
    """The result of a registration.

    Attributes:
        refused: Why it was refused; None if it was accepted.
        is_new: Whether the broker was unknown before.
        master_address: For a slave: the address of its master, if that is live.
        ha_address: For a slave: where to fetch the log of that master.
    """

    refused: str | None = None
    is_new: bool = False
    master_address: str | None = None
    ha_address: str | None = None


class BrokerKey(NamedTuple):
    """Identifies a broker process; in tests, two clusters may have the same address."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """A registered broker process whose time-out has not passed."""

    name: str
    seen_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: int
    ha_address: str


class RouteRegistry:
    """The tables of one name server.

    Args:
        brokers_max: The limit of broker processes.
        topics_max: The limit of topics.
    """

    def __init__(self, *, brokers_max: int = 10_000, topics_max: int = 1_000_000) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._queues: dict[str, dict[str, BrokerQueues]] = {}
        self._replicas: dict[str, BrokerReplicas] = {}
        self._clusters: dict[str, dict[str, None]] = {}  # ordered sets: replies keep their order
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        self._mappings: dict[str, dict[str, Any]] = {}

    # ---- registration ----

    def register(self, registration: Registration, now_ms: int) -> Registered:
        """Store a registration; a refused one changes nothing."""
        key = BrokerKey(registration.cluster, registration.address)
        if (reason := self._reason_to_refuse(registration, key)) is not None:
            return Registered(refused=reason)
        version = normal_version(registration.table.data_version)
        if self._is_superseded(registration, version):
            # Apache answers with success too: a broker that lost its role must not retry.
            self._live.pop(key, None)
            self._filter_servers.pop(key, None)
            return Registered()

        known = self._live.get(key)
        if known is not None and known.name != registration.name:
            self.unregister(key, known.name)  # it was renamed; Apache keeps the old name for ever
        replicas = self._replicas_of(registration)
        addresses = replicas.broker_addrs
        # A slave that became the master gives up its old id.
        for broker_id in [number for number, held in addresses.items() if held == key.address]:
            if broker_id != registration.broker_id:
                del addresses[broker_id]
        is_first = registration.broker_id not in addresses
        addresses[registration.broker_id] = key.address
        self._store_topics(registration, key, version, is_first=is_first)

        is_new = key not in self._live
        self._live[key] = LiveBroker(
            name=registration.name,
            seen_ms=now_ms,
            timeout_ms=registration.timeout_ms,
            data_version=version,
            connection=registration.connection,
            ha_address=registration.ha_address,
        )
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        else:
            self._filter_servers.pop(key, None)
        return self._answer(registration, replicas, is_new=is_new)

    def _reason_to_refuse(self, registration: Registration, key: BrokerKey) -> str | None:
        topics = registration.table.topic_config_table
        replicas = self._replicas.get(registration.name)
        is_known = replicas is not None and registration.broker_id in replicas.broker_addrs
        if not is_known and len(topics) == 1:
            # A table of one topic is an update of that topic. For an unknown broker it would
            # create a broker with a single topic; after a refusal the broker sends all topics.
            return NOT_YET_REGISTERED
        if key not in self._live and len(self._live) >= self._brokers_max:
            return TOO_MANY_BROKERS
        if len(topics) > self._topics_max - len(self._queues):  # otherwise they fit
            new = sum(config.topic_name not in self._queues for config in topics.values())
            if len(self._queues) + new > self._topics_max:
                return TOO_MANY_TOPICS
        return None

    def _is_superseded(self, registration: Registration, version: DataVersion) -> bool:
        """Whether another address has this id with a newer state (after a switch of roles)."""
        replicas = self._replicas.get(registration.name)
        holder = replicas.broker_addrs.get(registration.broker_id) if replicas else None
        if holder is None or holder == registration.address:
            return False
        live = self._live.get(BrokerKey(registration.cluster, holder))
        return live is not None and _state(live.data_version) > _state(version)

    def _replicas_of(self, registration: Registration) -> BrokerReplicas:
        replicas = self._replicas.get(registration.name)
        if replicas is None:
            replicas = BrokerReplicas(
                broker_name=registration.name, broker_addrs={}, cluster=registration.cluster
            )
            self._replicas[registration.name] = replicas
        self._clusters.setdefault(registration.cluster, {})[registration.name] = None
        replicas.enable_acting_master = registration.acting_master is True
        replicas.zone_name = registration.zone
        return replicas

    def _store_topics(
        self, registration: Registration, key: BrokerKey, version: DataVersion, *, is_first: bool
    ) -> None:
        name = registration.name
        is_prime_slave = (
            registration.acting_master is not None
            and registration.broker_id != MASTER_ID
            and registration.broker_id == min(self._replicas[name].broker_addrs)
        )
        if registration.broker_id != MASTER_ID and not is_prime_slave:
            return
        is_changed = is_first or self.is_changed(key, version)
        # While the master is down, the acting master is announced for reading only.
        forbidden = PERM_WRITE if is_prime_slave and registration.acting_master else 0
        for config in registration.table.topic_config_table.values():
            if is_changed or name not in self._queues.get(config.topic_name, {}):
                queues = _queues_of(config, name, config.perm & ~forbidden)
                self._queues.setdefault(config.topic_name, {})[name] = queues
        if is_changed:
            for topic, mapping in (registration.table.topic_queue_mapping_info_map or {}).items():
                self._mappings.setdefault(topic, {})[name] = mapping

    def _answer(
        self, registration: Registration, replicas: BrokerReplicas, *, is_new: bool
    ) -> Registered:
        answer = Registered(is_new=is_new)
        master = replicas.broker_addrs.get(MASTER_ID)
        if registration.broker_id != MASTER_ID and master is not None:
            live = self._live.get(BrokerKey(registration.cluster, master))
            if live is not None:
                answer.master_address, answer.ha_address = master, live.ha_address
        return answer

    def unregister(self, key: BrokerKey, name: str) -> bool:
        """Remove a broker process; the last process of a name takes the topics with it.

        Returns:
            Whether it was registered.
        """
        live = self._live.pop(key, None)
        self._filter_servers.pop(key, None)
        replicas = self._replicas.get(name if live is None else live.name)
        if replicas is None:
            return False
        addresses = replicas.broker_addrs
        for broker_id in [number for number, held in addresses.items() if held == key.address]:
            del addresses[broker_id]
        if not addresses:
            self._remove_name(replicas.broker_name)
        elif replicas.enable_acting_master and MASTER_ID not in addresses:
            self.wipe_write_permission(replicas.broker_name)
        return live is not None

    def _remove_name(self, name: str) -> None:
        del self._replicas[name]
        for cluster in [known for known, names in self._clusters.items() if name in names]:
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for table in (self._queues, self._mappings):
            _drop(table, [name])

    def on_heartbeat(self, key: BrokerKey, now_ms: int) -> None:
        """Restart the time-out of a broker; an unknown broker is ignored."""
        live = self._live.get(key)
        if live is not None:
            live.seen_ms = now_ms

    def expire(self, now_ms: int) -> list[tuple[BrokerKey, LiveBroker]]:
        """Remove the brokers whose time-out has passed, and return them."""
        return self._remove(lambda live: live.seen_ms + live.timeout_ms < now_ms)

    def on_disconnect(self, connection: int) -> list[tuple[BrokerKey, LiveBroker]]:
        """Remove the brokers that registered on a connection which ended, and return them.

        Apache removes only one of them; the others time out.
        """
        return self._remove(lambda live: live.connection == connection)

    def _remove(self, is_gone: Callable[[LiveBroker], bool]) -> list[tuple[BrokerKey, LiveBroker]]:
        gone = [(key, live) for key, live in self._live.items() if is_gone(live)]
        for key, live in gone:
            self.unregister(key, live.name)
        return gone

    # ---- topics ----

    def put_topic(self, topic: str, queues: Iterable[BrokerQueues]) -> bool:
        """Set queues of a topic by hand; return False if a broker is unknown.

        The queues before that broker are set, as in Apache's server.
        """
        for part in queues:
            is_full = topic not in self._queues and len(self._queues) >= self._topics_max
            if part.broker_name not in self._replicas or is_full:
                return False
            self._queues.setdefault(topic, {})[part.broker_name] = part
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues in one cluster."""
        if not cluster:
            self._queues.pop(topic, None)
            self._mappings.pop(topic, None)
        elif topic in self._queues:
            _drop(self._queues, self._clusters.get(cluster, {}), only=topic)

    def wipe_write_permission(self, name: str) -> int:
        """Announce a broker's topics as not writable; return the number of topics."""
        return self._change_perms(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, name: str) -> int:
        """Announce a broker's topics as readable and writable; return the number of topics."""
        return self._change_perms(name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perms(self, name: str, change: Callable[[int], int]) -> int:
        parts = [queues[name] for queues in self._queues.values() if name in queues]
        for part in parts:
            part.perm = change(part.perm)
        return len(parts)

    # ---- queries ----

    def route(self, topic: str, *, is_acting_master_supported: bool = False) -> RouteBody | None:
        """Return the route of a topic; None if no live broker holds it.

        Args:
            topic: Topic.
            is_acting_master_supported: For a broker name without a master, return the slave with
                the lowest id as the master, if the registration allows it and the queues are not
                writable.
        """
        queues = self._queues.get(topic, {})
        replicas = [_copy(self._replicas[name]) for name in queues if name in self._replicas]
        if not replicas:
            return None
        if is_acting_master_supported:
            for group in replicas:
                _promote(group, queues[group.broker_name])
        return RouteBody(
            queue_datas=list(queues.values()),
            broker_datas=replicas,
            filter_server_table={
                key.address: servers
                for key, servers in self._filter_servers.items()
                if self._live[key].name in queues
            },
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def replicas(self) -> dict[str, BrokerReplicas]:
        """Return all brokers by name."""
        return self._replicas

    def clusters(self) -> dict[str, list[str]]:
        """Return the broker names of all clusters."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._queues)

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the names of the topics that the brokers of a cluster hold."""
        names = self._clusters.get(cluster, {})
        return [
            topic for topic, queues in self._queues.items() if not names.keys().isdisjoint(queues)
        ]

    def topics_by_flag(self, has_flags: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flag passes the test; all brokers have the same flag."""
        return [
            topic
            for topic, queues in self._queues.items()
            if has_flags(next(iter(queues.values())).topic_sys_flag)
        ]

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Return the data version of a live broker."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    def is_changed(self, key: BrokerKey, version: DataVersion) -> bool:
        """Whether a broker with this data version must register again."""
        return self.data_version(key) != normal_version(version)

    def live_brokers(self) -> dict[BrokerKey, LiveBroker]:
        """Return all live broker processes."""
        return self._live


def normal_version(version: DataVersion) -> DataVersion:
    """Return a comparable data version: 4.9 has no state version where 5.x has 0."""
    return DataVersion(
        timestamp=version.timestamp, counter=version.counter, state_version=_state(version)
    )


def _state(version: DataVersion) -> int:
    return version.state_version or 0


def _queues_of(config: TopicConfig, name: str, perm: int) -> BrokerQueues:
    return BrokerQueues(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _drop(table: dict[str, dict[str, Any]], names: Iterable[str], only: str | None = None) -> None:
    """Remove brokers from a table by topic; topics without brokers are removed too."""
    for topic in list(table) if only is None else [only]:
        for name in names:
            table[topic].pop(name, None)
        if not table[topic]:
            del table[topic]


def _copy(replicas: BrokerReplicas) -> BrokerReplicas:
    return BrokerReplicas(
        broker_name=replicas.broker_name,
        broker_addrs=dict(replicas.broker_addrs),
        cluster=replicas.cluster,
        zone_name=replicas.zone_name,
        enable_acting_master=replicas.enable_acting_master,
    )


def _promote(group: BrokerReplicas, queues: BrokerQueues) -> None:
    addresses = group.broker_addrs
    if MASTER_ID in addresses or not group.enable_acting_master or queues.perm & PERM_WRITE:
        return
    addresses[MASTER_ID] = addresses.pop(min(addresses))
