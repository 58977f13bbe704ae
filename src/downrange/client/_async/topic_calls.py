"""Calls on topics, offsets and messages that producers and admins share, as in the Java client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._async.client_user import AsyncClientUser
from downrange.client.flows.admin import changes, messages
from downrange.client.flows.consuming import offsets
from downrange.client.flows.routing import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from downrange.client.flows.admin.topics import TopicSettings
    from downrange.model import QueueId, QueueOffset, ReceivedMessage


class AsyncTopicCalls(AsyncClientUser):
    """Creates topics, looks up offsets and messages.

    Every call has a `timeout` for the whole call; the client's `call_timeout` unless given.
    """

    async def create_topic(
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
        """Create a topic on every master of a cluster, or change an existing one to these settings.

        Args:
            topic: The topic.
            queues: Queues per broker.
            read_queues: Queues per broker that consumers read; `queues` unless given.
            write_queues: Queues per broker that producers send to; `queues` unless given.
            permission: 4 to read plus 2 to write.
            is_ordered: Whether it is an order topic; 4.9 brokers do not store this.
            attributes: Settings of 5.x, such as {"message.type": "FIFO"}.
            cluster: The cluster, where there are several.
            brokers: Only these brokers.
            timeout: For the whole call.

        Returns:
            The settings; the name server already gives the new route to clients.

        Raises:
            OptionError: A name or a number is invalid.
            RocketMQError: A broker failed; others may have done it.
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
        return await self._client.run(flow)

    async def publish_queues(self, topic: str, *, timeout: float | None = None) -> list[QueueId]:
        """Return the queues of a topic that can be written to.

        Raises:
            RouteNotFound: The topic has none.
            RocketMQError: No name server answered.
        """
        core, deadline = self._deadline(timeout)
        return await self._client.run(lookup.publish_queues(core, topic, deadline=deadline))

    async def min_offset(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset:
        """Return the offset of the first message in a queue.

        Raises:
            OptionError: The topic has no such queue.
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.min_offset(core, queue, deadline=deadline)
        return await self._client.run(offsets.of_existing(core, queue, flow, deadline=deadline))

    async def max_offset(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset:
        """Return the offset of the next message to be stored in a queue.

        Raises:
            OptionError: The topic has no such queue.
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.max_offset(core, queue, deadline=deadline)
        return await self._client.run(offsets.of_existing(core, queue, flow, deadline=deadline))

    async def search_offset(
        self, queue: QueueId, at: datetime, *, timeout: float | None = None
    ) -> QueueOffset:
        """Return the offset of the first message that was stored at a time or later.

        A 4.9 broker returns the message nearest in time, which may be older.

        Args:
            queue: The queue.
            at: The time, with a time zone.
            timeout: For the whole call.

        Raises:
            OptionError: The time has no time zone, or the topic has no such queue.
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.search_offset(core, queue, at, deadline=deadline)
        return await self._client.run(offsets.of_existing(core, queue, flow, deadline=deadline))

    async def earliest_store_time(
        self, queue: QueueId, *, timeout: float | None = None
    ) -> datetime | None:
        """Return when the first message in a queue was stored; None for an empty queue.

        Raises:
            OptionError: The topic has no such queue.
            RouteNotFound: No route names the queue's broker, or the broker has no master.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = offsets.earliest_store_time(core, queue, deadline=deadline)
        return await self._client.run(offsets.of_existing(core, queue, flow, deadline=deadline))

    async def view_message(
        self,
        topic: str,
        message_id: str,
        *,
        since: datetime | None = None,
        decode_body: bool = True,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Find a message by one of its ids.

        Args:
            topic: The topic of the message.
            message_id: The `message_id` or the `offset_id` of its receipt.
            since: For a `message_id`, how far back to search; three days unless given.
            decode_body: Whether to decompress the body. If not, `compression` of the message names
                how it is compressed.
            timeout: For the whole call.

        Raises:
            NotFound: The message does not exist.
            RouteNotFound: The topic does not exist.
            RocketMQError: A broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = messages.view_message(
            core, topic, message_id, since=since, decode_body=decode_body, deadline=deadline
        )
        return await self._client.run(flow)

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 32,
        begin: datetime | None = None,
        end: datetime | None = None,
        decode_body: bool = True,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Find messages by one of their keys, on all brokers of a topic.

        Args:
            topic: The topic of the messages.
            key: The key.
            max_count: How many messages at most; the newest ones.
            begin: Stored at this time or later.
            end: Stored at this time or earlier.
            decode_body: Whether to decompress the bodies. If not, `compression` of a message names
                the format, and only a format that is not known raises `MalformedBody`.
            timeout: For the whole call.

        Returns:
            The messages in the order in which they were stored.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A broker did not answer, and the others have no such message.
        """
        core, deadline = self._deadline(timeout)
        flow = messages.query_messages(
            core,
            topic,
            key,
            max_count=max_count,
            begin=begin,
            end=end,
            decode_body=decode_body,
            deadline=deadline,
        )
        return await self._client.run(flow)
