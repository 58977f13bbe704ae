# Generated from client/_async/dead_letter_calls.py by scripts/generate_sync.py; do not edit.
"""Calls that send messages again: dead letters, or any message of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.client_user import ClientUser
from downrange.client.flows.admin import dead_letters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from downrange.client.flows.admin.dead_letters import ResendTarget
    from downrange.client.flows.admin.reports import DeadLetterPage, DeadMessage, Resent
    from downrange.model import QueueId


class DeadLetterCalls(ClientUser):
    """Lists dead letters and sends them again. A dead letter itself is never changed."""

    def dead_letters(
        self,
        group: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        after: Mapping[QueueId, int] | None = None,
        max_count: int = 100,
        decode_body: bool = True,
        timeout: float | None = None,
    ) -> DeadLetterPage:
        """Return a page of the messages that a group failed to consume too often.

        Args:
            group: The group.
            begin: Only those that died at this time or later.
            end: Only those that died at this time or earlier.
            after: Where to go on: `next` of the page before.
            max_count: How many at most; `is_complete` of the page says whether there are more.
            decode_body: Whether to decompress the bodies. If not, `compression` of a message names
                the format, and only a format that is not known raises `MalformedBody`. Such
                dead letters can be sent again, as they are.
            timeout: For the whole call.

        Raises:
            GroupNotFound: No broker has the group.
            RouteNotFound: The dead-letter topic cannot be read.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = dead_letters.dead_letters(
            core,
            group,
            begin=begin,
            end=end,
            after=after,
            max_count=max_count,
            decode_body=decode_body,
            deadline=deadline,
        )
        return self._client.run(flow)

    def resend_dead_letters(
        self,
        letters: Iterable[DeadMessage],
        *,
        to: ResendTarget = "topic",
        skip_resent: bool = True,
        rate: float | None = None,
        timeout: float | None = None,
    ) -> list[Resent]:
        """Send dead letters again, one after the other.

        Body, keys, tags and your properties stay the same; a body that is still compressed is sent
        so. `ORIGIN_MESSAGE_ID` names the message as it was first sent, and `RESENT_DEAD_LETTER` the
        dead letter. The new id is the same in every run, so that a later run finds and skips what
        was sent.

        Args:
            letters: The dead letters.
            to: "topic" for the topic that they were sent to, where all groups get them again;
                "retry" for the retry topic of their group, where only this group does.
            skip_resent: Leave out those that an earlier run has sent to the same place.
            rate: The most messages per second.
            timeout: For each of them.

        Returns:
            What became of each: sent, skipped or failed, with the reason.

        Raises:
            OptionError: An argument is invalid; nothing was sent.
        """
        core, deadline = self._deadline(timeout)
        flow = dead_letters.resend_dead_letters(
            core,
            letters,
            to=to,
            skip_resent=skip_resent,
            rate=rate,
            timeout=deadline - core.clock.now(),
        )
        return self._client.run(flow)

    def retry_now(
        self, group: str, topic: str, message_id: str, *, timeout: float | None = None
    ) -> str:
        """Put a copy of a message into a group's retry topic: a member gets it at once.

        A retry that already waits for its delay is delivered, too, when it is due: brokers cannot
        take it back.

        Args:
            group: The group.
            topic: The topic of the message.
            message_id: Either id of the message.
            timeout: For the whole call.

        Returns:
            The id of the copy.

        Raises:
            NotFound: The message does not exist.
            RouteNotFound: The group has no retry topic: no member was ever connected.
            RocketMQError: A server did not answer, or refused.
        """
        core, deadline = self._deadline(timeout)
        flow = dead_letters.retry_now(core, group, topic, message_id, deadline=deadline)
        return self._client.run(flow)

    def send_again(self, topic: str, message_id: str, *, timeout: float | None = None) -> str:
        """Send a copy of a stored message to its topic, where all groups get it.

        Body, keys, tags, sharding key and your properties stay the same; a delay is not repeated.
        `ORIGIN_MESSAGE_ID` names the message that was copied.

        Args:
            topic: The topic of the message.
            message_id: Either id of the message.
            timeout: For the whole call.

        Returns:
            The id of the copy.

        Raises:
            NotFound: The message does not exist.
            RouteNotFound: The topic does not exist, or cannot be written to.
            RocketMQError: A server did not answer, or refused.
        """
        core, deadline = self._deadline(timeout)
        flow = dead_letters.send_again(core, topic, message_id, deadline=deadline)
        return self._client.run(flow)
