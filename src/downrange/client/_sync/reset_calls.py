# Generated from client/_async/reset_calls.py by scripts/generate_sync.py; do not edit.
"""Calls that change where a consumer group reads: reset, clone, skip; each with a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.client_user import ClientUser
from downrange.client.flows.admin import resets

if TYPE_CHECKING:
    from downrange.client.flows.admin.reports import OffsetReset, ResetTarget


class ResetCalls(ClientUser):
    """Resets the offsets of consumer groups.

    `plan_…` returns what would change, `apply_reset` does it. Members may be connected: brokers of
    5.x tell them with their next pull. A 4.9 broker can tell them only a time, so a reset to
    offsets is refused there until the members are stopped.
    """

    def plan_reset(
        self, group: str, topic: str, to: ResetTarget, *, timeout: float | None = None
    ) -> OffsetReset:
        """Return what a reset would change; nothing is changed.

        Args:
            group: The group.
            topic: The topic.
            to: "earliest", "latest", a datetime with a time zone, an offset, `Shift(n)` for n
                messages on (back if below 0), or a dict of queues to offsets. An offset that a
                queue does not have is replaced by the first one or by the end.
            timeout: For the whole call.

        Raises:
            OptionError: The target is invalid, or the topic does not have one of its queues.
            GroupNotFound: No broker has the group.
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(resets.plan_reset(core, group, topic, to, deadline=deadline))

    def plan_clone(
        self, source: str, target: str, topic: str, *, timeout: float | None = None
    ) -> OffsetReset:
        """Return what it would change to give one group the offsets of another.

        Args:
            source: The group whose offsets are copied.
            target: The group that gets them.
            topic: The topic.
            timeout: For the whole call.

        Raises:
            OptionError: The source has no offset there, or both groups are the same.
            GroupNotFound: No broker has the group.
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = resets.plan_clone(core, source, target, topic, deadline=deadline)
        return self._client.run(flow)

    def apply_reset(self, reset: OffsetReset, *, timeout: float | None = None) -> OffsetReset:
        """Do what a preview says; return it with the offsets that the brokers confirmed.

        Args:
            reset: The result of `plan_reset` or `plan_clone`.
            timeout: For the whole call.

        Raises:
            OptionError: The broker can tell connected members only a time, and offsets were given.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: No broker did it.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(resets.apply_reset(core, reset, deadline=deadline))

    def reset_offsets(
        self, group: str, topic: str, to: ResetTarget, *, timeout: float | None = None
    ) -> OffsetReset:
        """Reset the offsets of a group in a topic: `plan_reset`, then `apply_reset`.

        Args:
            group: The group.
            topic: The topic.
            to: As for `plan_reset`.
            timeout: For each of the two steps.

        Raises:
            OptionError: The target is invalid, or the broker cannot tell it to members.
            GroupNotFound: No broker has the group.
            RouteNotFound: The topic does not exist.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: A server did not answer.
        """
        plan = self.plan_reset(group, topic, to, timeout=timeout)
        return self.apply_reset(plan, timeout=timeout)

    def clone_offsets(
        self, source: str, target: str, topic: str, *, timeout: float | None = None
    ) -> OffsetReset:
        """Give a group the offsets of another: `plan_clone`, then `apply_reset`.

        Args:
            source: The group whose offsets are copied.
            target: The group that gets them; it must exist.
            topic: The topic.
            timeout: For each of the two steps.

        Raises:
            OptionError: The source has no offset there, or the broker cannot tell it to members.
            GroupNotFound: No broker has the group.
            RouteNotFound: The topic does not exist.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: A server did not answer.
        """
        plan = self.plan_clone(source, target, topic, timeout=timeout)
        return self.apply_reset(plan, timeout=timeout)

    def skip_messages(self, group: str, topic: str, *, timeout: float | None = None) -> OffsetReset:
        """Skip all messages that a group has not consumed yet: a reset to "latest".

        Args:
            group: The group.
            topic: The topic.
            timeout: For each of the two steps.

        Raises:
            GroupNotFound: No broker has the group.
            RouteNotFound: The topic does not exist.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: A server did not answer.
        """
        return self.reset_offsets(group, topic, "latest", timeout=timeout)

    def group_topics(
        self, group: str, *, with_retries: bool = False, timeout: float | None = None
    ) -> list[str]:
        """Return the topics in which a group has offsets, by name.

        Args:
            group: The group.
            with_retries: The retry topics, too.
            timeout: For the whole call.

        Raises:
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = resets.group_topics(core, group, with_retries=with_retries, deadline=deadline)
        return self._client.run(flow)
