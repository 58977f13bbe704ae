"""Who is connected: producers and consumers by group, as their heartbeats say.

A client is known by its connection, as a connection has at most one. It is in a group until it
says so, falls silent, or its connection ends (Java: ProducerManager, ConsumerManager). What the
group reads is what its members said last: a subscription that is missing from a heartbeat is
gone, so the members of a group must read alike.
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
        address: Where that comes from.
        client_id: What the client calls itself.
        language: What it is written in.
        version: Its release.
        producing: The producer groups it is in, and when it last said so.
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
        type: Whether they pull, are pushed to, or pop; Java's name.
        model: Whether each message goes to one member or to all; Java's name.
        start: Where a queue without an offset begins; Java's name.
        fingerprint: What the last short heartbeat was made of.
    """

    __slots__ = ("_subscriptions", "fingerprint", "members", "model", "name", "start", "type")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[int, Client] = {}
        self.type = self.model = self.start = ""
        self.fingerprint: int | None = None
        self._subscriptions: dict[str, Subscription] = {}

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.model == BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        """The members' ids, each once even while a client is connected twice."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def subscription(self, topic: str) -> Subscription | None:
        """Return what the group reads of a topic, or None."""
        return self._subscriptions.get(topic)

    def subscriptions(self) -> dict[str, Subscription]:
        """Return what the group reads, by topic."""
        return dict(self._subscriptions)

    def join(self, client: Client, said: ConsumerMember) -> bool:
        """Take a member in or hear it again; say whether it is new."""
        self.type, self.model, self.start = (
            said.consume_type,
            said.message_model,
            said.consume_from_where,
        )
        is_new = client.connection not in self.members
        self.members[client.connection] = client
        return is_new

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Replace what the group reads; say whether topics came or went."""
        said = {subscription.topic: subscription for subscription in subscriptions}
        is_changed = said.keys() != self._subscriptions.keys()
        for topic, subscription in self._subscriptions.items():
            if topic in said and said[topic].sub_version <= subscription.sub_version:
                said[topic] = subscription  # a heartbeat that was overtaken
        self._subscriptions = said
        return is_changed


class HeartbeatChanges(NamedTuple):
    """What a heartbeat changed.

    Attributes:
        changed: Consumer groups that gained a member or changed their topics.
        is_fingerprint_new: Whether a group's short heartbeats must be preceded by a whole one.
    """

    changed: list[ConsumerGroup]
    is_fingerprint_new: bool


class Clients:
    """All connected clients.

    Attributes:
        scanned_ms: When silent ones were last looked for.
    """

    def __init__(self) -> None:
        self.scanned_ms = 0
        self._clients: dict[int, Client] = {}
        self._connections: dict[str, int] = {}  # by client id
        self._producers: dict[str, dict[int, Client]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}

    # ---- asking ----

    def producers(self, group: str) -> list[Client]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Iterator[tuple[str, list[Client]]]:
        """Go over all producer groups."""
        for group, members in self._producers.items():
            yield group, list(members.values())

    def producer_connections(self, group: str) -> list[int]:
        """Return the connections of a producer group."""
        return list(self._producers.get(group, ()))

    def connection_of_client(self, client_id: str) -> int | None:
        """Return the connection of a client, or None where it is not connected."""
        return self._connections.get(client_id)

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group, or None where it has no member."""
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

    # ---- telling ----

    def heartbeat(
        self, peer: Peer, body: HeartbeatBody, language: str | None, version: int, now_ms: int
    ) -> HeartbeatChanges:
        """Hear from a client.

        Args:
            peer: Its connection.
            body: What it says; the consumer groups in it exist.
            language: What it is written in.
            version: Its release.
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
        is_fingerprint_new = False
        for said in body.consumer_data_set:
            group = self._consumers.setdefault(said.group_name, ConsumerGroup(said.group_name))
            client.consuming[said.group_name] = now_ms
            is_changed = group.join(client, said)
            if not (body.heartbeat_fingerprint and body.without_sub):
                is_changed |= group.subscribe(said.subscription_data_set)
            if group.fingerprint != body.heartbeat_fingerprint:
                group.fingerprint, is_fingerprint_new = body.heartbeat_fingerprint, True
            if is_changed:
                changed.append(group)
        return HeartbeatChanges(changed, is_fingerprint_new)

    def unregister(
        self, connection: int, producer_group: str | None, consumer_group: str | None
    ) -> bool:
        """Let a client leave a group; say whether it left the consumer group."""
        client = self._clients.get(connection)
        if client is None:
            return False
        if producer_group is not None:
            self._leave_producers(client, producer_group)
        was_member = consumer_group is not None and self._leave_consumers(client, consumer_group)
        self._forget_idle(client)
        return was_member

    def drop_connection(self, connection: int) -> list[str]:
        """Forget a connection that ended; return the consumer groups it was in."""
        client = self._clients.get(connection)
        if client is None:
            return []
        groups = list(client.consuming)
        for group in list(client.producing):
            self._leave_producers(client, group)
        for group in groups:
            self._leave_consumers(client, group)
        self._forget_idle(client)
        return groups

    def expire(self, now_ms: int, timeout_ms: int) -> list[Client]:
        """Return the clients that are in a group of which they did not speak for so long."""
        last_ms = now_ms - timeout_ms
        return [
            client
            for client in self._clients.values()
            if any(heard_ms < last_ms for heard_ms in client.producing.values())
            or any(heard_ms < last_ms for heard_ms in client.consuming.values())
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

    def _leave_consumers(self, client: Client, group: str) -> bool:
        if client.consuming.pop(group, None) is None:
            return False
        del self._consumers[group].members[client.connection]
        if not self._consumers[group].members:
            del self._consumers[group]
        return True

    def _forget_idle(self, client: Client) -> None:
        if client.producing or client.consuming:
            return
        del self._clients[client.connection]
        self._forget_name(client)
