# Generated from client/_async/group_calls.py by scripts/generate_sync.py; do not edit.
"""Calls on consumer groups: settings, members, lag, and what members do now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.client_user import ClientUser
from downrange.client.flows.admin import groups, lag, members, progress
from downrange.client.flows.consuming import offsets

if TYPE_CHECKING:
    from downrange.client.flows.admin.reports import (
        AllProgress,
        DirectResult,
        GroupLag,
        GroupList,
        GroupMembers,
        GroupSettings,
        Member,
        RunningState,
    )
    from downrange.model import QueueId, QueueOffset


class GroupCalls(ClientUser):
    """Creates, changes and describes consumer groups.

    Changes go to every master of a cluster. Every call has a `timeout` for the whole call; the
    client's `call_timeout` unless given.
    """

    # ---- settings ----------------------------------------------------------------------------

    def list_groups(
        self,
        *,
        cluster: str | None = None,
        with_progress: bool = False,
        timeout: float | None = None,
    ) -> GroupList:
        """Return all consumer groups by name; with a namespace, its groups and the system groups.

        A broker that does not answer is named by the attribute `unanswered` of the list.

        Args:
            cluster: Only of this cluster; of all clusters unless given.
            with_progress: Ask for members, lag and rate of each group, too.
            timeout: For the whole call.

        Raises:
            RocketMQError: No server answered.
        """
        core, deadline = self._deadline(timeout)
        flow = groups.list_groups(
            core, cluster=cluster, with_progress=with_progress, deadline=deadline
        )
        return self._client.run(flow)

    def group_settings(
        self, group: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> dict[str, GroupSettings]:
        """Return the settings of a consumer group on each broker that has it.

        Args:
            group: The group.
            cluster: Only of this cluster.
            timeout: For the whole call.

        Raises:
            GroupNotFound: No broker has it.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = groups.group_settings(core, group, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def create_group(
        self,
        group: str,
        *,
        is_enabled: bool = True,
        can_broadcast: bool = True,
        retries: int = 16,
        retry_queues: int = 1,
        is_ordered: bool = False,
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
            is_ordered: Whether a 5.x proxy delivers its messages in order.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            OptionError: The name is invalid.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: No broker did it.
        """
        core, deadline = self._deadline(timeout)
        flow = groups.create_group(
            core,
            group,
            is_enabled=is_enabled,
            can_broadcast=can_broadcast,
            retries=retries,
            retry_queues=retry_queues,
            is_ordered=is_ordered,
            cluster=cluster,
            deadline=deadline,
        )
        self._client.run(flow)

    def update_group(
        self,
        group: str,
        *,
        is_enabled: bool | None = None,
        can_broadcast: bool | None = None,
        retries: int | None = None,
        retry_queues: int | None = None,
        is_ordered: bool | None = None,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, GroupSettings]:
        """Change settings of a consumer group; those that are not given stay as they are.

        A broker of the cluster that does not have the group gets it.

        Args:
            group: The group.
            is_enabled: Whether the group may read; False pauses it.
            can_broadcast: Whether broadcasting is allowed.
            retries: How often a message is delivered again that a consumer sent back.
            retry_queues: Queues of the retry topic.
            is_ordered: Whether a 5.x proxy delivers its messages in order.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Returns:
            Broker -> the new settings.

        Raises:
            OptionError: A number is invalid.
            GroupNotFound: No broker has it.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = groups.update_group(
            core,
            group,
            is_enabled=is_enabled,
            can_broadcast=can_broadcast,
            retries=retries,
            retry_queues=retry_queues,
            is_ordered=is_ordered,
            cluster=cluster,
            deadline=deadline,
        )
        return self._client.run(flow)

    def delete_group(
        self,
        group: str,
        *,
        keep_offsets: bool = False,
        with_topics: bool = False,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Delete a consumer group and its offsets.

        Args:
            group: The group.
            keep_offsets: Leave its offsets, so that a new group of this name goes on there. A 5.x
                broker then creates the group again at once, with default settings.
            with_topics: Delete its retry and dead-letter topics and their messages, too.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: No broker did it.
        """
        core, deadline = self._deadline(timeout)
        flow = groups.delete_group(
            core,
            group,
            keep_offsets=keep_offsets,
            with_topics=with_topics,
            cluster=cluster,
            deadline=deadline,
        )
        self._client.run(flow)

    # ---- members -----------------------------------------------------------------------------

    def group_members(
        self,
        group: str,
        *,
        cluster: str | None = None,
        with_filters: bool = False,
        timeout: float | None = None,
    ) -> GroupMembers:
        """Return the connected members of a consumer group, from all brokers.

        Args:
            group: The group.
            cluster: Only of this cluster.
            with_filters: Ask each member what it reads. `differences` of the result then says
                which members read a topic differently.
            timeout: For the whole call.

        Raises:
            RocketMQError: No broker answered.
        """
        core, deadline = self._deadline(timeout)
        flow = members.group_members(
            core, group, cluster=cluster, with_filters=with_filters, deadline=deadline
        )
        return self._client.run(flow)

    def running_state(
        self, group: str, client_id: str, *, with_stack: bool = False, timeout: float | None = None
    ) -> RunningState:
        """Return what a member of a group does now: queues, buffers, rates, threads.

        Args:
            group: The group.
            client_id: The member.
            with_stack: Ask for what its threads do, too.
            timeout: For the whole call.

        Raises:
            ServerError: The member is not connected, or did not answer the broker.
            RocketMQError: No broker answered.
        """
        core, deadline = self._deadline(timeout)
        flow = members.running_state(
            core, group, client_id, with_stack=with_stack, deadline=deadline
        )
        return self._client.run(flow)

    def consume_directly(
        self,
        group: str,
        client_id: str,
        topic: str,
        message_id: str,
        *,
        timeout: float | None = None,
    ) -> DirectResult:
        """Have one member consume one message now; the group's offsets do not change.

        Args:
            group: The group.
            client_id: The member.
            topic: The topic of the message.
            message_id: Either id of the message.
            timeout: For the whole call; brokers give a member 10 s.

        Raises:
            NotFound: The message does not exist.
            ServerError: The member is not connected, or did not answer the broker.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = members.consume_directly(
            core, group, client_id, topic, message_id, deadline=deadline
        )
        return self._client.run(flow)

    def producer_members(
        self, group: str, *, cluster: str | None = None, timeout: float | None = None
    ) -> list[Member]:
        """Return the connected members of a producer group; empty when there is none.

        Args:
            group: The producer group.
            cluster: Only of this cluster.
            timeout: For the whole call.

        Raises:
            RocketMQError: No broker answered.
        """
        core, deadline = self._deadline(timeout)
        flow = members.producer_members(core, group, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def list_producers(
        self, *, cluster: str | None = None, timeout: float | None = None
    ) -> dict[str, list[Member]]:
        """Return all connected producers: group -> members; with a namespace, those of it.

        Args:
            cluster: Only of this cluster.
            timeout: For the whole call.

        Raises:
            NotSupported: A broker is too old for this request.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = members.list_producers(core, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    # ---- progress ----------------------------------------------------------------------------

    def group_lag(
        self,
        group: str,
        *,
        topic: str | None = None,
        cluster: str | None = None,
        with_owners: bool = False,
        timeout: float | None = None,
    ) -> GroupLag:
        """Return how far a group is behind in each queue: in messages and in time.

        Args:
            group: The group.
            topic: Only this topic; all that it has read, with its retry topic, unless given.
            cluster: Only of this cluster.
            with_owners: Ask each member which queues it reads.
            timeout: For the whole call.

        Raises:
            GroupNotFound: No broker has it.
            RocketMQError: No broker answered.
        """
        core, deadline = self._deadline(timeout)
        flow = lag.group_lag(
            core, group, topic=topic, cluster=cluster, with_owners=with_owners, deadline=deadline
        )
        return self._client.run(flow)

    def list_progress(
        self, *, cluster: str | None = None, timeout: float | None = None
    ) -> AllProgress:
        """Return how far each group is behind in each topic: one request to each broker.

        Args:
            cluster: Only of this cluster.
            timeout: For the whole call.

        Returns:
            By group and topic, with retry topics; and the brokers that did not answer.

        Raises:
            RocketMQError: No broker answered.
        """
        core, deadline = self._deadline(timeout)
        flow = progress.list_progress(core, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

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
        """Commit the offset of a group in a queue, forward or back.

        Connected members do not learn of it, and commit their own offset again; `reset_offsets`
        tells them.

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
