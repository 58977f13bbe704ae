"""The lag of a stream: a listener that computes it from every progress report.

A Python source cannot report metrics of its own, but a report holds its offsets: where a batch
ended, and where the queues ended at that time. The lag is the difference.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from downrange.errors import OptionError
from downrange.spark.read.offsets import Positions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from downrange.model import QueueId

_log = logging.getLogger("downrange.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The lag of one source of a query.

    Attributes:
        query: The query's name, or its id.
        batch: The number of the batch that ended.
        rows: The rows of this batch.
        rows_per_second: How fast it was processed.
        queues: Waiting messages of each queue.
    """

    query: str
    batch: int
    rows: int
    rows_per_second: float
    queues: dict[QueueId, int]

    @property
    def total(self) -> int:
        """Waiting messages of all queues."""
        return sum(self.queues.values())

    @property
    def most(self) -> int:
        """Waiting messages of the queue with the most."""
        return max(self.queues.values(), default=0)

    @property
    def least(self) -> int:
        """Waiting messages of the queue with the fewest."""
        return min(self.queues.values(), default=0)

    @property
    def average(self) -> float:
        """Waiting messages per queue, on average."""
        return self.total / len(self.queues) if self.queues else 0.0


class LagListener(StreamingQueryListener):
    """Reports the lag after every batch of every query of a session.

    Args:
        report: Called with each `Lag` in a thread of Spark; logs at INFO by default.

    Example:
        ```python
        spark.streams.addListener(LagListener(lambda lag: gauge.set(lag.total)))
        ```
    """

    def __init__(self, report: Callable[[Lag], None] | None = None) -> None:
        self._report = report or _log_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report the lag of each `rocketmq` source."""
        for lag in lags_of(event.progress):
            self._report(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


def lags_of(progress: StreamingQueryProgress) -> list[Lag]:
    """Return the lag of each `rocketmq` source in a progress report."""
    found: list[Lag] = []
    for source in progress.sources:
        end, latest = _positions(source.endOffset), _positions(source.latestOffset)
        if end is None or latest is None:
            continue
        found.append(
            Lag(
                query=progress.name or str(progress.id),
                batch=progress.batchId,
                rows=source.numInputRows,
                rows_per_second=source.processedRowsPerSecond or 0.0,
                queues={
                    queue: max(0, offset - end[queue])
                    for queue, offset in latest.items()
                    if queue in end
                },
            )
        )
    return found


def _positions(text: str | None) -> Positions | None:
    """Decode an offset of a report; None if it is of another source."""
    if not text:
        return None
    try:
        return Positions.from_json(msgspec.json.decode(text, type=dict))
    except (OptionError, msgspec.DecodeError):
        return None


def _log_lag(lag: Lag) -> None:
    _log.info(
        "%s batch %d: %d rows at %.0f/s; %d messages wait (%d to %d per queue)",
        *(lag.query, lag.batch, lag.rows, lag.rows_per_second, lag.total, lag.least, lag.most),
    )
