"""Messages that a reader expected and that are gone: an error, or a warning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from downrange.model import QueueId

_log = logging.getLogger("downrange.spark")


class DataLost(RocketMQError):
    """Messages that should have been read are gone.

    Attributes:
        queue: Their queue.
        wanted: The offsets to read: the first, and the one after the last.
        available: The offsets that the queue has; None if the queue does not exist any more.
    """

    def __init__(
        self,
        queue: QueueId,
        wanted: tuple[int, int],
        available: tuple[int, int] | None,
        problem: str,
    ) -> None:
        self.queue = queue
        self.wanted = wanted
        self.available = available
        there = "the queue does not exist" if available is None else _span("it has", available)
        super().__init__(
            f"topic {queue.topic!r}, broker {queue.broker!r}, queue {queue.number}: "
            f"{_span('wanted', wanted)}, {there}: {problem}.\n"
            "  Set failOnDataLoss=false to continue without them, or start with a new checkpoint "
            "and other startingOffsets."
        )


def _span(verb: str, offsets: tuple[int, int]) -> str:
    first, behind = offsets
    if behind <= first:
        return f"{verb} nothing before offset {behind}"
    return f"{verb} offsets {first} to {behind - 1}"


def report_loss(loss: DataLost, *, is_fatal: bool) -> None:
    """Raise a loss if it is fatal, else log it.

    Raises:
        DataLost: The loss is fatal.
    """
    if is_fatal:
        raise loss
    _log.warning("messages are lost, reading continues: %s", str(loss).partition("\n")[0])
