# Generated from client/_async/admin.py by scripts/generate_sync.py; do not edit.
"""`Admin`: topics, groups, queues and messages of a cluster.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=8)

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.broker_calls import BrokerCalls
from downrange.client._sync.dead_letter_calls import DeadLetterCalls
from downrange.client._sync.group_calls import GroupCalls
from downrange.client._sync.reset_calls import ResetCalls
from downrange.client._sync.topic_calls import TopicCalls
from downrange.client.flows.admin import changes, clusters, messages, topic_use, topics
from downrange.client.flows.routing import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.admin.clusters import ClusterFacts
    from downrange.client.flows.admin.reports import QueueMessages, QueueRange, Traffic
    from downrange.client.flows.admin.topics import QueueState, TopicName, TopicSettings
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId


class Admin(TopicCalls, GroupCalls, ResetCalls, DeadLetterCalls, BrokerCalls):
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

    def topic_stats(
        self,
        topic: str,
        *,
        brokers: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> list[QueueState]:
        """Return the offsets of the queues of a topic.

        Args:
            topic: The topic.
            brokers: Only these brokers, for example because another one is down.
            timeout: For the whole call.

        Raises:
            OptionError: The topic is not on one of the brokers.
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = topics.topic_stats(core, topic, brokers=brokers, deadline=deadline)
        return self._client.run(flow)

    def topic_groups(self, topic: str, *, timeout: float | None = None) -> list[str]:
        """Return the consumer groups that read a topic, connected or not, by name.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topic_use.topic_groups(core, topic, deadline=deadline))

    def topic_traffic(
        self,
        topic: str,
        *,
        with_groups: bool = True,
        with_sizes: bool = False,
        timeout: float | None = None,
    ) -> list[Traffic]:
        """Return how many messages went into a topic, and from it to each group that reads it.

        Brokers count in samples of ten seconds, so that the last seconds may be missing.

        Args:
            topic: The topic.
            with_groups: Ask for the groups, too; each costs a request per broker.
            with_sizes: Ask for the mean size of a message, too; twice as many requests.
            timeout: For the whole call.

        Returns:
            First the messages that were sent, then those that each group has read.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = topic_use.topic_traffic(
            core, topic, with_groups=with_groups, with_sizes=with_sizes, deadline=deadline
        )
        return self._client.run(flow)

    # ---- queues ------------------------------------------------------------------------------

    def queue_ranges(self, topic: str, *, timeout: float | None = None) -> list[QueueRange]:
        """Return the offsets of the queues of a topic, and when the messages were stored.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(topic_use.queue_ranges(core, topic, deadline=deadline))

    def read_queues(self, topic: str, *, timeout: float | None = None) -> list[QueueId]:
        """Return the queues of a topic that can be read.

        Raises:
            RouteNotFound: The topic has none.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(lookup.read_queues(core, topic, deadline=deadline))

    def read_queue(
        self,
        queue: QueueId,
        offset: int,
        *,
        max_count: int = 32,
        decode_body: bool = True,
        timeout: float | None = None,
    ) -> QueueMessages:
        """Return messages of a queue from an offset on; no group's offsets change.

        An offset below the first message counts as the first. There may be fewer messages than
        asked for: a broker limits a reply by count and bytes.

        Args:
            queue: The queue.
            offset: The first offset.
            max_count: The most messages; an Apache broker returns at most 32.
            decode_body: Whether to decompress the bodies. If not, `compression` of a message names
                the format, and only a format that is not known raises `MalformedBody`.
            timeout: For the whole call.

        Returns:
            The messages; `next` and `is_end` say how to go on.

        Raises:
            RouteNotFound: No route names the queue's broker.
            RocketMQError: The broker did not answer, or refused.
        """
        core, deadline = self._deadline(timeout)
        flow = messages.read_queue(
            core, queue, offset, max_count=max_count, decode_body=decode_body, deadline=deadline
        )
        return self._client.run(flow)
