"""`AsyncAdmin`: topics, groups, queues and messages of a cluster.

    async with AsyncAdmin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._async.topic_calls import AsyncTopicCalls
from downrange.client.flows.admin import changes, clusters, topics
from downrange.client.flows.consuming import offsets
from downrange.client.flows.routing import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.admin.clusters import ClusterFacts
    from downrange.client.flows.admin.topics import QueueState, TopicName, TopicSettings
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId, QueueOffset


class AsyncAdmin(AsyncTopicCalls):
    """Creates, changes and reads topics, groups, queues and messages of a cluster.

    Every call takes a `timeout` for the whole of it: the client's `call_timeout` unless given. It
    fails with a `RocketMQError` when a server does not answer or does not agree.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or an `AsyncClient` to share.
        client_options: How its own client behaves.
        credentials: What its own client signs with.
        tls: How its own client speaks TLS.
        proxy: What its own client connects through.
        hooks: What its own client calls around every request.

    Raises:
        OptionError: An argument makes no sense.

    Example:
        ```python
        async with AsyncAdmin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8)
        ```
    """

    # ---- clusters and topics -----------------------------------------------------------------

    async def cluster_facts(
        self, *, with_versions: bool = False, timeout: float | None = None
    ) -> ClusterFacts:
        """Return which clusters and brokers there are.

        Args:
            with_versions: Ask each broker for its release, too.
            timeout: For the whole call.

        Raises:
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        flow = clusters.cluster_facts(core, with_versions=with_versions, deadline=deadline)
        return await self._client.run(flow)

    async def update_topic(
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
        """Change a topic; what is not named stays as it is on each broker.

        Args:
            topic: Its name.
            read_queues: Queues per broker that consumers read.
            write_queues: Queues per broker that producers send to.
            permission: 4 read, 2 write, added up.
            is_ordered: Whether it is for messages whose order counts; 4.9 brokers do not keep it.
            attributes: Settings of 5.x; None takes one away.
            brokers: Only these brokers.
            timeout: For the whole call.

        Returns:
            Broker -> what it is like there now.

        Raises:
            OptionError: A number makes no sense, or a broker does not have it.
            RouteNotFound: There is no such topic.
            RocketMQError: A broker did not do it; others may have.
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
        return await self._client.run(flow)

    async def delete_topic(
        self, topic: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> None:
        """Delete a topic and its messages; one that does not exist is fine.

        Args:
            topic: Its name.
            cluster: Which cluster, when there are several.
            timeout: For the whole call.

        Raises:
            RocketMQError: A server did not do it; others may have.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.delete_topic(core, topic, cluster=cluster, deadline=deadline)
        await self._client.run(flow)

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicName]:
        """Return all topics by name; with a namespace, those in it, and the cluster's own.

        Raises:
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(topics.list_topics(core, deadline=deadline))

    async def topic_route(self, topic: str, *, timeout: float | None = None) -> Route:
        """Return where a topic is, as the name server says now.

        Raises:
            RouteNotFound: There is no such topic.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(topics.topic_route(core, topic, deadline=deadline))

    async def topic_settings(
        self, topic: str, *, timeout: float | None = None
    ) -> dict[str, TopicSettings]:
        """Return what a topic is like on each broker.

        Raises:
            RouteNotFound: There is no such topic.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(topics.topic_settings(core, topic, deadline=deadline))

    async def topic_stats(self, topic: str, *, timeout: float | None = None) -> list[QueueState]:
        """Return what the queues of a topic hold.

        Raises:
            RouteNotFound: There is no such topic.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(topics.topic_stats(core, topic, deadline=deadline))

    # ---- groups ------------------------------------------------------------------------------

    async def create_group(
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
        """Create a consumer group on every master of a cluster, or make one be like this.

        Args:
            group: Its name.
            is_enabled: Whether it may read.
            can_broadcast: Whether each of its members may read everything.
            retries: How often it gets a message again that it gave back.
            retry_queues: Queues for those.
            cluster: Which cluster, when there are several.
            timeout: For the whole call.

        Raises:
            OptionError: The name makes no sense.
            RocketMQError: A broker did not do it; others may have.
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
        await self._client.run(flow)

    async def delete_group(
        self, group: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> None:
        """Delete a consumer group and how far it has come.

        Args:
            group: Its name.
            cluster: Which cluster, when there are several.
            timeout: For the whole call.

        Raises:
            RocketMQError: A broker did not do it; others may have.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.delete_group(core, group, cluster=cluster, deadline=deadline)
        await self._client.run(flow)

    async def group_offset(
        self, group: str, queue: QueueId, *, timeout: float | None = None
    ) -> QueueOffset | None:
        """Return how far a group has come in a queue; None when it has not begun.

        Raises:
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(offsets.group_offset(core, group, queue, deadline=deadline))

    async def set_group_offset(
        self, group: str, queue: QueueId, offset: int, *, timeout: float | None = None
    ) -> None:
        """Record how far a group has come in a queue; it may also go back.

        Args:
            group: The group.
            queue: The queue.
            offset: The next message that it is to get.
            timeout: For the whole call.

        Raises:
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer, or refused.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.set_group_offset(core, group, queue, offset, deadline=deadline)
        await self._client.run(flow)

    # ---- queues ------------------------------------------------------------------------------

    async def read_queues(self, topic: str, *, timeout: float | None = None) -> list[QueueId]:
        """Return the queues that messages of a topic can be read from.

        Raises:
            RouteNotFound: There are none.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(lookup.read_queues(core, topic, deadline=deadline))
