"""Connected producers and consumers, by group, from their heartbeats.

A client is identified by its connection, which has at most one. It is in a group until it leaves,
sends no heartbeat for too long, or its connection ends (Java: ProducerManager, ConsumerManager).
The subscriptions of a group are those of the last heartbeat of any member: one that is missing
there is removed. So all members of a group must have the same subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from downrange.server.outputs import Peer
    from downrange.wire.bodies import ConsumerMember, HeartbeatBody, Subscription

BROADCASTING = "BROADCASTING"


class Client:
    """One connected client.

    Attributes:
        connection: Number of its connection.
        address: The remote address of the connection.
        client_id: The id from its heartbeat.
        language: The language of its library.
        version: The release of its library.
        producing: Its producer groups, with the time of the last heartbeat for each.
        consuming: The same for consumer groups.
    """

    __slots__ = (
        "address",
        "client_id",
        "connection",
        "consuming",
        "language",
        "producing",
        "version",
    )

    def __init__(self, peer: Peer) -> None:
        self.connection, self.address = peer
        self.client_id = ""
        self.language: str | None = None
        self.version = 0
        self.producing: dict[str, int] = {}
        self.consuming: dict[str, int] = {}


class ConsumerGroup:
    """A consumer group that has members.

    Attributes:
        members: Its clients by connection.
        type: Pull, push or pop, by Java's name.
        model: Whether each message goes to one member or to all, by Java's name.
        start: Where a queue without an offset begins, by Java's name.
        fingerprint: That of the last heartbeat, 0 if it had none; None before the first one.
        subscribed_fingerprint: The same of the last heartbeat that named the subscriptions.
    """

    __slots__ = (
        "_subscriptions",
        "fingerprint",
        "members",
        "model",
        "name",
        "start",
        "subscribed_fingerprint",
        "type",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[int, Client] = {}
        self.type = self.model = self.start = ""
        self.fingerprint: int | None = None
        self.subscribed_fingerprint: int | None = None
        self._subscriptions: dict[str, Subscription] = {}

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.model == BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        """The ids of the members; a client that is connected twice is listed once."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def subscription(self, topic: str) -> Subscription | None:
        """Return the group's subscription to a topic, or None."""
        return self._subscriptions.get(topic)

    def subscriptions(self) -> dict[str, Subscription]:
        """Return the group's subscriptions by topic."""
        return dict(self._subscriptions)

    def join(self, client: Client, member: ConsumerMember) -> bool:
        """Add or update a member; return whether it is new."""
        self.type, self.model, self.start = (
            member.consume_type,
            member.message_model,
            member.consume_from_where,
        )
        is_new = client.connection not in self.members
        self.members[client.connection] = client
        return is_new

    def has_client(self, client_id: str) -> bool:
        """Whether a client is a member, over any connection."""
        return any(member.client_id == client_id for member in self.members.values())

    def is_full_heartbeat_needed(self, fingerprint: int, *, is_short: bool) -> bool:
        """Note a heartbeat's fingerprint; return whether the next one must name subscriptions.

        Apache only compares with the fingerprint before. So after a restart, or when the last
        member connects anew, it never gets the subscriptions of a client that sends short
        heartbeats.
        """
        before, self.fingerprint = self.fingerprint, fingerprint
        if not is_short:
            self.subscribed_fingerprint = fingerprint
        return before not in (None, fingerprint) or self.subscribed_fingerprint != fingerprint

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Replace the group's subscriptions; return whether topics were added or removed."""
        new = {subscription.topic: subscription for subscription in subscriptions}
        is_changed = new.keys() != self._subscriptions.keys()
        for topic, subscription in self._subscriptions.items():
            if topic in new and new[topic].sub_version <= subscription.sub_version:
                new[topic] = subscription  # this heartbeat is older than the last one
        self._subscriptions = new
        return is_changed


def _has_filter_of(old: Subscription | None, new: Subscription) -> bool:
    return old is not None and (old.sub_string, old.expression_type) == (
        new.sub_string,
        new.expression_type,
    )


class HeartbeatChanges(NamedTuple):
    """The changes by a heartbeat.

    Attributes:
        changed: Consumer groups that got a new member or other topics.
        refiltered: Groups and topics whose subscription is new, or has another filter.
        is_full_needed: Whether the next heartbeat must name the subscriptions.
    """

    changed: list[ConsumerGroup]
    refiltered: list[tuple[str, str]]
    is_full_needed: bool


class Departure(NamedTuple):
    """A consumer group that a client left.

    Attributes:
        group: Its name.
        client_id: The client.
        is_gone: Whether the client has no other connection in the group.
    """

    group: str
    client_id: str
    is_gone: bool


class Clients:
    """All connected clients.

    Attributes:
        scanned_ms: When clients without heartbeats were last looked for.
    """

    def __init__(self) -> None:
        self.scanned_ms = 0
        self._clients: dict[int, Client] = {}
        self._connections: dict[str, int] = {}  # by client id
        self._producers: dict[str, dict[int, Client]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}

    # ---- reading ----

    def producers(self, group: str) -> list[Client]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Iterator[tuple[str, list[Client]]]:
        """Yield all producer groups with their members."""
        for group, members in self._producers.items():
            yield group, list(members.values())

    def producer_connections(self, group: str) -> list[int]:
        """Return the connections of a producer group."""
        return list(self._producers.get(group, ()))

    def connection_of_client(self, client_id: str) -> int | None:
        """Return the connection of a client, or None if it is not connected."""
        return self._connections.get(client_id)

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group, or None if it has no member."""
        return self._consumers.get(group)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return all consumer groups that have members."""
        return list(self._consumers.values())

    def find_consumer_connection(self, group: str, client_id: str) -> int | None:
        """Return the connection of a member of a consumer group."""
        consumers = self._consumers.get(group)
        if consumers is None:
            return None
        for client in consumers.members.values():
            if client.client_id == client_id:
                return client.connection
        return None

    # ---- changing ----

    def heartbeat(
        self, peer: Peer, body: HeartbeatBody, language: str | None, version: int, now_ms: int
    ) -> HeartbeatChanges:
        """Add or update a client and its memberships.

        Args:
            peer: The client's connection.
            body: The heartbeat; all consumer groups in it exist.
            language: The language of its library.
            version: The release of its library.
            now_ms: The time.
        """
        client = self._clients.get(peer.number)
        if client is None:
            client = self._clients[peer.number] = Client(peer)
        self._name(client, body.client_id)
        client.language, client.version = language, version
        for member in body.producer_data_set:
            client.producing[member.group_name] = now_ms
            self._producers.setdefault(member.group_name, {})[client.connection] = client
        changed: list[ConsumerGroup] = []
        refiltered: list[tuple[str, str]] = []
        fingerprint = body.heartbeat_fingerprint or 0
        is_short = fingerprint != 0 and bool(body.without_sub)
        is_full_needed = False
        for consumer in body.consumer_data_set:
            name = consumer.group_name
            group = self._consumers.setdefault(name, ConsumerGroup(name))
            client.consuming[name] = now_ms
            is_changed = group.join(client, consumer)
            if not is_short:
                before = group.subscriptions()
                is_changed |= group.subscribe(consumer.subscription_data_set)
                refiltered += [
                    (name, topic)
                    for topic, subscription in group.subscriptions().items()
                    if not _has_filter_of(before.get(topic), subscription)
                ]
            is_full_needed |= group.is_full_heartbeat_needed(fingerprint, is_short=is_short)
            if is_changed:
                changed.append(group)
        return HeartbeatChanges(changed, refiltered, is_full_needed)

    def unregister(
        self, connection: int, producer_group: str | None, consumer_group: str | None
    ) -> Departure | None:
        """Remove a client from groups; return its departure from the consumer group, if any."""
        client = self._clients.get(connection)
        if client is None:
            return None
        if producer_group is not None:
            self._leave_producers(client, producer_group)
        departure = consumer_group and self._leave_consumers(client, consumer_group)
        self._forget_idle(client)
        return departure or None

    def drop_connection(self, connection: int) -> list[Departure]:
        """Remove the client of a connection that ended, and return its departures."""
        client = self._clients.get(connection)
        if client is None:
            return []
        for group in list(client.producing):
            self._leave_producers(client, group)
        departures = [self._leave_consumers(client, group) for group in list(client.consuming)]
        self._forget_idle(client)
        return [departure for departure in departures if departure is not None]

    def expire(self, now_ms: int, timeout_ms: int) -> list[Client]:
        """Return the clients that sent no heartbeat for one of their groups for this long."""
        last_ms = now_ms - timeout_ms
        return [
            client
            for client in self._clients.values()
            if any(beat_ms < last_ms for beat_ms in client.producing.values())
            or any(beat_ms < last_ms for beat_ms in client.consuming.values())
        ]

    # ---- inside ----

    def _name(self, client: Client, client_id: str) -> None:
        if client.client_id != client_id:
            self._forget_name(client)
            client.client_id = client_id
        self._connections[client_id] = client.connection

    def _forget_name(self, client: Client) -> None:
        if self._connections.get(client.client_id) == client.connection:
            del self._connections[client.client_id]

    def _leave_producers(self, client: Client, group: str) -> None:
        if client.producing.pop(group, None) is None:
            return
        del self._producers[group][client.connection]
        if not self._producers[group]:
            del self._producers[group]

    def _leave_consumers(self, client: Client, group: str) -> Departure | None:
        if client.consuming.pop(group, None) is None:
            return None
        consumers = self._consumers[group]
        del consumers.members[client.connection]
        if not consumers.members:
            del self._consumers[group]
        is_gone = not consumers.has_client(client.client_id)
        return Departure(group, client.client_id, is_gone)

    def _forget_idle(self, client: Client) -> None:
        if client.producing or client.consuming:
            return
        del self._clients[client.connection]
        self._forget_name(client)
