"""A poll as the public classes make it: messages are taken in a step, after a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from downrange.client.flows.consuming.consumer_core import ConsumerCore
    from downrange.client.flows.consuming.poll_core import PollCore
    from downrange.client.flows.effects import Flow
    from downrange.model import ReceivedMessage


def poll(
    core: ConsumerCore | PollCore, max_count: int, deadline: float
) -> Flow[list[ReceivedMessage]]:
    """Return messages as soon as there are any; an empty list at the deadline."""
    messages = core.begin_poll(max_count)
    while not messages and (yield from core.wait_for_messages(deadline)):
        messages = core.take(max_count)
    return messages
