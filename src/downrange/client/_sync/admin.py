# Generated from client/_async/admin.py by scripts/generate_sync.py; do not edit.
"""`Admin`: topics, groups, queues and messages of a cluster.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=8)

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.topic_calls import TopicCalls
from downrange.client.flows.admin import changes, clusters, topics
from downrange.client.flows.consuming import offsets
from downrange.client.flows.routing import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.admin.clusters import ClusterFacts
    from downrange.client.flows.admin.topics import QueueState, TopicName, TopicSettings
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId, QueueOffset


class Admin(TopicCalls):
    """Creates, changes and reads topics, groups, queues and messages of a cluster.

    Every call has a `timeout` for the whole call; the client's `call_timeout` unless given. It
    raises a `RocketMQError` when a server does not answer or refuses.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.
        hooks: Functions that its own client calls around every request.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        with Admin("127.0.0.1:9876") as admin:
            admin.create_topic("orders", queues=8)
        ```
    """

    # ---- clusters and topics -----------------------------------------------------------------

    def cluster_facts(
        self, *, with_versions: bool = False, timeout: float | None = None
    ) -> ClusterFacts:
        """Return the clusters and brokers that the name server knows.

        Args:
            with_versions: Ask each broker for its version as well.
            timeout: For the whole call.

        Raises:
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        flow = clusters.cluster_facts(core, with_versions=with_versions, deadline=deadline)
        return self._client.run(flow)

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        is_ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        brokers: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, TopicSettings]:
        """Change settings of a topic; those that are not given stay as they are on each broker.

        Args:
            topic: The topic.
            read_queues: Queues per broker that consumers read.
            write_queues: Queues per broker that producers send to.
            permission: 4 to read plus 2 to write.
            is_ordered: Whether it is an order topic; 4.9 brokers do not store this.
            attributes: Attributes of 5.x; None removes one.
            brokers: Only these brokers.
            timeout: For the whole call.

        Returns:
            Broker -> the new settings.

        Raises:
            OptionError: A number is invalid, or a broker does not have the topic.
            RouteNotFound: The topic does not exist.
            RocketMQError: A broker failed; others may have done it.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.update_topic(
            core,
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=attributes,
            brokers=brokers,
            deadline=deadline,
        )
        return self._client.run(flow)

    def delete_topic(
        self, topic: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> None:
        """Delete a topic and its messages; does nothing when it does not exist.

        Args:
            topic: The topic.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            RocketMQError: A server failed; others may have done it.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.delete_topic(core, topic, cluster=cluster, deadline=deadline)
        self._client.run(flow)

    def list_topics(self, *, timeout: float | None = None) -> list[TopicName]:
        """Return all topics by name; with a namespace, its topics and the system topics.

        Raises:
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topics.list_topics(core, deadline=deadline))

    def topic_route(self, topic: str, *, timeout: float | None = None) -> Route:
        """Return the current route of a topic, from the name server.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topics.topic_route(core, topic, deadline=deadline))

    def topic_settings(
        self, topic: str, *, timeout: float | None = None
    ) -> dict[str, TopicSettings]:
        """Return the settings of a topic on each broker.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topics.topic_settings(core, topic, deadline=deadline))

    def topic_stats(self, topic: str, *, timeout: float | None = None) -> list[QueueState]:
        """Return the offsets of the queues of a topic.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topics.topic_stats(core, topic, deadline=deadline))

    # ---- groups ------------------------------------------------------------------------------

    def create_group(
        self,
        group: str,
        *,
        is_enabled: bool = True,
        can_broadcast: bool = True,
        retries: int = 16,
        retry_queues: int = 1,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a consumer group on every master of a cluster, or change an existing one.

        Args:
            group: The group.
            is_enabled: Whether the group may read.
            can_broadcast: Whether broadcasting is allowed, that is each member reads all messages.
            retries: How often a message is delivered again that a consumer sent back.
            retry_queues: Queues of the retry topic.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            OptionError: The name is invalid.
            RocketMQError: A broker failed; others may have done it.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.create_group(
            core,
            group,
            is_enabled=is_enabled,
            can_broadcast=can_broadcast,
            retries=retries,
            retry_queues=retry_queues,
            cluster=cluster,
            deadline=deadline,
        )
        self._client.run(flow)

    def delete_group(
        self, group: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> None:
        """Delete a consumer group and its offsets.

        Args:
            group: The group.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            RocketMQError: A broker failed; others may have done it.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.delete_group(core, group, cluster=cluster, deadline=deadline)
        self._client.run(flow)

    def group_offset(
        self, group: str, queue: QueueId, *, timeout: float | None = None
    ) -> QueueOffset | None:
        """Return the committed offset of a group in a queue; None when it has none.

        Raises:
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(offsets.group_offset(core, group, queue, deadline=deadline))

    def set_group_offset(
        self, group: str, queue: QueueId, offset: int, *, timeout: float | None = None
    ) -> None:
        """Set the committed offset of a group in a queue, forward or back.

        Args:
            group: The group.
            queue: The queue.
            offset: The offset of the next message to read.
            timeout: For the whole call.

        Raises:
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer, or refused.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.set_group_offset(core, group, queue, offset, deadline=deadline)
        self._client.run(flow)

    # ---- queues ------------------------------------------------------------------------------

    def read_queues(self, topic: str, *, timeout: float | None = None) -> list[QueueId]:
        """Return the queues of a topic that can be read.

        Raises:
            RouteNotFound: The topic has none.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(lookup.read_queues(core, topic, deadline=deadline))
