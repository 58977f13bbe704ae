# Generated from client/_async/topic_calls.py by scripts/generate_sync.py; do not edit.
"""Topics, offsets and messages: what producers and admins both can do, as in the Java client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.client_user import ClientUser
from downrange.client.flows.admin import changes, messages
from downrange.client.flows.consuming import offsets
from downrange.client.flows.routing import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from downrange.client.flows.admin.topics import TopicSettings
    from downrange.model import QueueId, QueueOffset, ReceivedMessage


class TopicCalls(ClientUser):
    """Creates topics, looks up offsets and messages.

    Every call takes a `timeout` for the whole of it: the client's `call_timeout` unless given.
    """

    def create_topic(
        self,
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
        timeout: float | None = None,
    ) -> TopicSettings:
        """Create a topic on every master of a cluster, or make an existing one be like this.

        Args:
            topic: Its name.
            queues: Queues per broker.
            read_queues: Queues that consumers read, where it is not `queues`.
            write_queues: Queues that producers send to, where it is not `queues`.
            permission: 4 read, 2 write, added up.
            is_ordered: Whether it is for messages whose order counts; 4.9 brokers do not keep it.
            attributes: Settings of 5.x, such as {"message.type": "FIFO"}.
            cluster: Which cluster, when there are several.
            brokers: Only these brokers.
            timeout: For the whole call.

        Returns:
            What it is like now; the name server tells it to clients already.

        Raises:
            OptionError: A name or number makes no sense.
            RocketMQError: A broker did not do it; others may have.
        """
        core, deadline = self._deadline(timeout)
        flow = changes.create_topic(
            core,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=attributes,
            cluster=cluster,
            brokers=brokers,
            deadline=deadline,
        )
        return self._client.run(flow)

    def publish_queues(self, topic: str, *, timeout: float | None = None) -> list[QueueId]:
        """Return the queues that messages of a topic can be sent to.

        Raises:
            RouteNotFound: There are none.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(lookup.publish_queues(core, topic, deadline=deadline))

    def min_offset(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset:
        """Return the offset of the first message that a queue still holds.

        Raises:
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(offsets.min_offset(core, queue, deadline=deadline))

    def max_offset(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset:
        """Return the offset that the next message of a queue will get.

        Raises:
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(offsets.max_offset(core, queue, deadline=deadline))

    def search_offset(
        self, queue: QueueId, at: datetime, *, timeout: float | None = None
    ) -> QueueOffset:
        """Return where to start reading a queue to get what was stored from a time on.

        A 4.9 broker names the message that is nearest in time, which may be older.

        Args:
            queue: The queue.
            at: The time, which must know its time zone.
            timeout: For the whole call.

        Raises:
            OptionError: The time does not say its time zone.
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(offsets.search_offset(core, queue, at, deadline=deadline))

    def earliest_store_time(
        self, queue: QueueId, *, timeout: float | None = None
    ) -> datetime | None:
        """Return when the first message that a queue still holds was stored; None without one.

        Raises:
            RouteNotFound: Nobody knows the queue's broker, or it has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(offsets.earliest_store_time(core, queue, deadline=deadline))

    def view_message(
        self,
        topic: str,
        message_id: str,
        *,
        since: datetime | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Find a message by either of its ids.

        Args:
            topic: Where it was sent to.
            message_id: What a receipt says: `message_id` or `offset_id`.
            since: For a unique id, how far back to look; three days unless given.
            timeout: For the whole call.

        Raises:
            NotFound: There is no such message.
            RouteNotFound: There is no such topic.
            RocketMQError: A broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = messages.view_message(core, topic, message_id, since=since, deadline=deadline)
        return self._client.run(flow)

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 32,
        begin: datetime | None = None,
        end: datetime | None = None,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Find messages by one of their keys, on all brokers of a topic.

        Args:
            topic: Where they were sent to.
            key: The key.
            max_count: How many at most; the newest of them.
            begin: Stored at this time or later.
            end: Stored at this time or earlier.
            timeout: For the whole call.

        Returns:
            The messages in the order in which they were stored; maybe none.

        Raises:
            RouteNotFound: There is no such topic.
            RocketMQError: No broker had any, and one of them did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = messages.query_messages(
            core, topic, key, max_count=max_count, begin=begin, end=end, deadline=deadline
        )
        return self._client.run(flow)
