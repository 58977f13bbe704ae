"""What the queues of a topic hold, also while one of its brokers is down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.console.cluster.pages.common import Missing, Note
from downrange.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import AsyncAdmin, QueueState


async def read_states(
    admin: AsyncAdmin, topic: str
) -> tuple[list[QueueState], tuple[Missing, ...]]:
    """Return the queues of all brokers that answer, and the brokers that do not.

    Raises:
        RouteNotFound: The topic does not exist.
        RocketMQError: None of its brokers answered, or one refused.
    """
    try:
        return await admin.topic_stats(topic), ()
    except TransportError as error:
        route = await admin.topic_route(topic)
        states: list[QueueState] = []
        missing: list[Missing] = []
        for broker, address in sorted(route.masters.items()):
            try:
                states += await admin.topic_stats(topic, brokers=[broker])
            except TransportError as failure:
                missing.append(Missing(broker=broker, address=address, problem=failure.brief))
        if len(missing) == len(route.masters):
            raise error
        return states, tuple(missing)


def missing_text(missing: Iterable[Missing]) -> str | None:
    """Return which brokers are missing; None if there are all."""
    parts = [f"broker {each.broker} is missing: {each.problem}" for each in missing]
    return "; ".join(parts) or None


def missing_queue_notes(missing: Iterable[Missing]) -> tuple[Note, ...]:
    """Say which brokers are missing from a result."""
    return tuple(
        Note(
            code="broker-missing",
            text=f"messages of broker {each.broker} are missing: {each.problem}",
            values={"broker": each.broker, "problem": each.problem},
        )
        for each in missing
    )
