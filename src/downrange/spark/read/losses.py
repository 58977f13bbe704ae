"""Messages that a reader was promised and that are not there: told, or fatal."""

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
        wanted: The offsets that were to be read: first, and behind the last.
        available: What the queue has instead; None when nobody knows the queue any more.
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
        there = "the queue is not there" if available is None else _span("it has", available)
        super().__init__(
            f"topic {queue.topic!r}, broker {queue.broker!r}, queue {queue.number}: "
            f"{_span('wanted', wanted)}, {there}: {problem}.\n"
            "  Set failOnDataLoss=false to go on with what there is, or begin anew with another "
            "checkpoint and startingOffsets."
        )


def _span(verb: str, offsets: tuple[int, int]) -> str:
    first, behind = offsets
    if behind <= first:
        return f"{verb} nothing before offset {behind}"
    return f"{verb} offsets {first} to {behind - 1}"


def report_loss(loss: DataLost, *, is_fatal: bool) -> None:
    """Fail with a loss, or log it.

    Raises:
        DataLost: It is fatal.
    """
    if is_fatal:
        raise loss
    _log.warning("messages are lost, going on: %s", str(loss).partition("\n")[0])
