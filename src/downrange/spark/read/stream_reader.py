"""Stream reads: decides on the driver which messages the next batch has; one process per query.

Spark stores the end of each batch and passes it as the start of the next one. It does not store
where the first batch began, and may ask for that again after a restart, so the first end carries it
(see `offsets`). For the same reason, the start of a queue that appears later is stored in the end
of the first batch that reads it. So the stored offsets alone decide what a batch reads.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from downrange.errors import OptionError
from downrange.spark.read.catalog import Catalog
from downrange.spark.read.fetch import read_partition
from downrange.spark.read.limits import backlog, limited
from downrange.spark.read.losses import DataLost, report_loss
from downrange.spark.read.offsets import Positions, begins_of
from downrange.spark.read.plan import plan
from downrange.spark.read.read_options import Bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from pyspark.sql.datasource import InputPartition

    from downrange.model import QueueId
    from downrange.spark.read.read_options import ReadOptions
    from downrange.spark.schema import RecordBatch

_log = logging.getLogger("downrange.spark")
#: Seconds between two commits of group offsets.
_COMMIT_INTERVAL: Final = 1.0


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, batch by batch.

    Args:
        options: How to read.
        columns: The columns to read, in order.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._catalog = Catalog(options)
        self._initial: Positions | None = None
        #: With the trigger AvailableNow: where this run ends.
        self._target: dict[QueueId, int] | None = None
        self._waiting_since: float | None = None
        #: Start offsets of new queues, until the end of a batch holds them.
        self._new: dict[QueueId, int] = {}
        #: Queues that cannot be read (reported already) -> when to look for them again.
        self._gone: dict[QueueId, float] = {}
        #: The last known ends of the queues.
        self._latest: dict[QueueId, int] = {}
        self._committed: dict[QueueId, int] = {}
        self._committed_at = 0.0

    # ---- offsets -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins; always the same in one process."""
        if self._initial is None:
            bound = self._options.starting or Bound(word="latest")
            found = self._catalog.resolve(
                bound, self._catalog.queues(), others=self._options.new_queue_start
            )
            self._initial = Positions(found, is_first=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a trigger; `latestOffset` gets no limit from `Trigger.Once`."""
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run: the current ends of the queues."""
        self._catalog.invalidate()
        self._target = self._catalog.ends(self._catalog.queues(None), is_fresh=True)
        self._catalog.invalidate()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` itself if there is nothing to read.

        Raises:
            DataLost: A queue is gone or shorter than before, and failOnDataLoss is set.
            RocketMQError: A server did not answer, in several attempts.
        """
        begin = Positions.from_json(start)
        ends = self._ends(begin)
        begins = self._begins(begin, ends)
        ends = {queue: ends.get(queue, offset) for queue, offset in begins.items()}
        is_limited = not isinstance(limit, ReadAllAvailable)
        is_idle = ends == dict(begin) and not begin.is_first
        if is_limited and self._must_wait(backlog(begins, ends)):
            is_idle = True
        self._commit_group(begin, is_idle=is_idle)
        if is_idle:
            return start
        if is_limited and self._options.trigger_offsets_max is not None:
            ends = limited(begins, ends, self._options.trigger_offsets_max)
        changed = {queue: begins[queue] for queue in begins if begins[queue] != begin.get(queue)}
        initial = Positions(begins if begin.is_first else changed)
        return Positions(ends, initial=initial if initial else None).to_json()

    def _ends(self, begin: Positions) -> dict[QueueId, int]:
        """Return the current ends of all queues, or the fixed ends of this run."""
        if self._target is None:
            queues: Set[QueueId] = self._catalog.queues(begin.keys())
            self._restore_gone(queues)
            self._latest = self._catalog.ends((queues | begin.keys()) - self._gone.keys())
        else:
            if missing := begin.keys() - self._target.keys() - self._gone.keys():
                # The broker may have been unreachable when this run began.
                back = self._catalog.queues(begin.keys()) & missing
                self._target |= self._catalog.ends(back, is_fresh=True)
            queues, self._latest = self._target.keys(), self._target
        ends = dict(self._latest)
        for queue in sorted(begin.keys() - self._gone.keys()):
            end = ends.get(queue)
            if queue not in queues or end is None:
                self._check_gone(queue, begin[queue], ends.pop(queue, None))
            elif begin.is_first and self._target is not None:
                # The start "latest" was resolved after the end was fixed; end there then.
                ends[queue] = self._target[queue] = max(end, begin[queue])
        return ends

    def _restore_gone(self, queues: Set[QueueId]) -> None:
        """Read queues again that were gone and that a name server knows now."""
        now = time.monotonic()
        for queue in [queue for queue in self._gone if queue in queues]:
            if now >= self._gone[queue]:
                del self._gone[queue]

    def _check_gone(self, queue: QueueId, offset: int, end: int | None) -> None:
        """Note that a queue cannot be read any more; report a loss if it had unread messages.

        Its offset stays in the positions: if the queue comes back, it is not a new one.
        """
        if end != offset:
            there = None if end is None or end < offset else (offset, offset)
            problem = (
                "the queue was removed"
                if there
                else "its broker is unreachable, or its topic was deleted"
            )
            loss = DataLost(queue, (offset, max(offset, end or 0)), there, problem)
            report_loss(loss, is_fatal=self._options.is_loss_fatal)
        self._gone[queue] = time.monotonic() + self._options.route_interval

    def _begins(self, begin: Positions, ends: dict[QueueId, int]) -> dict[QueueId, int]:
        """Return where the next batch begins, with new and re-created queues."""
        begins = dict(begin)
        for queue in begin:
            end = ends.get(queue)
            if end is not None and end < begin[queue]:
                loss = DataLost(queue, (begin[queue], begin[queue]), (0, end), "it was re-created")
                report_loss(loss, is_fatal=self._options.is_loss_fatal)
                begins |= self._catalog.begins([queue])
        return begins | self._begins_of_new(ends.keys() - begin.keys(), ends)

    def _begins_of_new(self, new: Set[QueueId], ends: dict[QueueId, int]) -> dict[QueueId, int]:
        """Return where queues begin that no stored offset names; fixed when they are first seen."""
        is_latest = self._options.new_queue_start == "latest"
        self._new = {queue: offset for queue, offset in self._new.items() if queue in new}
        unseen = new - self._new.keys()
        if is_latest:
            self._new |= {queue: ends[queue] for queue in unseen}
        elif unseen:
            self._new |= self._catalog.begins(unseen)
        # An empty queue is left out, unless its start is "latest" and must be stored now.
        return {
            queue: offset
            for queue, offset in self._new.items()
            if is_latest or offset < ends[queue]
        }

    def _must_wait(self, waiting: int) -> bool:
        """Whether to wait for more messages: too few, and the delay is not over."""
        options = self._options
        if options.trigger_offsets_min is None or self._target is not None:
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        is_over = now - self._waiting_since >= options.trigger_delay_max
        if waiting >= options.trigger_offsets_min or (waiting and is_over):
            self._waiting_since = now
            return False
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the queues, for the progress report of the query."""
        return Positions(self._latest).to_json() if self._latest else None

    # ---- rows ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch; depends on the two offsets and the options only."""
        last = Positions.from_json(end)
        return plan(begins_of(Positions.from_json(start), last), last, self._options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a partition; see `read_partition`."""
        return read_partition(partition, self._columns, self._options)

    # ---- progress of the group -----------------------------------------------------------------

    def _commit_group(self, begin: Positions, *, is_idle: bool) -> None:
        """Commit how far the stream is: messages before its start are read and written.

        Not in `commit`: Spark calls that one batch late, and never for the last batch of a run.
        """
        if not self._options.is_group_committed or begin.is_first:
            return
        now = time.monotonic()
        if not is_idle and now - self._committed_at < _COMMIT_INTERVAL:
            return
        changed = {
            queue: offset for queue, offset in begin.items() if self._committed.get(queue) != offset
        }
        if changed:
            self._catalog.commit(changed)
            self._committed |= changed
            self._committed_at = now

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint holds the offsets of a stream."""

    def stop(self) -> None:
        """Do nothing: Spark rarely calls this, so nothing may depend on it."""


def check_stream_only(options: ReadOptions) -> None:
    """Reject options that only a batch has.

    Raises:
        OptionError: Names the options.
    """
    if options.ending is not None:
        raise OptionError(
            "endingOffsets and endingTimestamp are for batches; a stream ends with the trigger "
            "availableNow, or with spark.read instead of spark.readStream"
        )
