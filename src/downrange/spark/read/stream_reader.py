"""Stream reads: which messages the next batch has, on the driver, in one process per query.

Spark keeps the end of each batch, and gives it back as the start of the next one. It does not keep
where the first one began, and a restart may ask for that again: so the first end carries it along
(see `offsets`). For the same reason a queue that appears later has its beginning in the end of the
batch that first reads it. So what a batch reads follows from what Spark has stored, and from
nothing else.
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
from downrange.spark.read.batch_reader import read_rows
from downrange.spark.read.catalog import Catalog
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
    """Reads on and on.

    Args:
        options: How to read.
        columns: What to read, in order.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._catalog = Catalog(options)
        self._initial: Positions | None = None
        #: With the trigger AvailableNow, where it all ends.
        self._target: dict[QueueId, int] | None = None
        self._waiting_since: float | None = None
        #: Queues that appeared, and where they begin, until a batch has noted it.
        self._new: dict[QueueId, int] = {}
        #: Queues that cannot be read any more, which was told, and when to look for them again.
        self._gone: dict[QueueId, float] = {}
        #: Where queues ended when that was asked last.
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
        """Return what tells a trigger with limits from one without, which is `Trigger.Once`."""
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Settle where this run ends: at what there is now."""
        self._catalog.invalidate()
        self._target = self._catalog.ends(self._catalog.queues(None), is_fresh=True)
        self._catalog.invalidate()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` itself when there is nothing to do.

        Raises:
            DataLost: Queues are gone, or shorter than they were, and that is fatal.
            RocketMQError: A server did not answer, again and again.
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
        """Return where all queues end now, or where this run does."""
        if self._target is None:
            queues: Set[QueueId] = self._catalog.queues(begin.keys())
            self._restore_gone(queues)
            self._latest = self._catalog.ends((queues | begin.keys()) - self._gone.keys())
        else:
            if missing := begin.keys() - self._target.keys() - self._gone.keys():
                # Its broker may have been away for a moment when this run began.
                back = self._catalog.queues(begin.keys()) & missing
                self._target |= self._catalog.ends(back, is_fresh=True)
            queues, self._latest = self._target.keys(), self._target
        ends = dict(self._latest)
        for queue in sorted(begin.keys() - self._gone.keys()):
            end = ends.get(queue)
            if queue not in queues or end is None:
                self._check_gone(queue, begin[queue], ends.pop(queue, None))
            elif begin.is_first and self._target is not None:
                # "Latest" was asked for later than where this run ends: so it ends there.
                ends[queue] = self._target[queue] = max(end, begin[queue])
        return ends

    def _restore_gone(self, queues: Set[QueueId]) -> None:
        """Ask for queues that were gone, now that a name server knows them."""
        now = time.monotonic()
        for queue in [queue for queue in self._gone if queue in queues]:
            if now >= self._gone[queue]:
                del self._gone[queue]

    def _check_gone(self, queue: QueueId, offset: int, end: int | None) -> None:
        """A queue that cannot be read any more is harmless when all of it has been read.

        Its offset stays where it is: should it come back, it is not a new one.
        """
        if end != offset:
            there = None if end is None or end < offset else (offset, offset)
            problem = "it was taken away" if there else "its broker is away, or its topic deleted"
            loss = DataLost(queue, (offset, max(offset, end or 0)), there, problem)
            report_loss(loss, is_fatal=self._options.is_loss_fatal)
        self._gone[queue] = time.monotonic() + self._options.route_interval

    def _begins(self, begin: Positions, ends: dict[QueueId, int]) -> dict[QueueId, int]:
        """Return where the next batch begins, new queues and ones made anew included."""
        begins = dict(begin)
        for queue in begin:
            end = ends.get(queue)
            if end is not None and end < begin[queue]:
                loss = DataLost(queue, (begin[queue], begin[queue]), (0, end), "it was made anew")
                report_loss(loss, is_fatal=self._options.is_loss_fatal)
                begins |= self._catalog.begins([queue])
        return begins | self._begins_of_new(ends.keys() - begin.keys(), ends)

    def _begins_of_new(self, new: Set[QueueId], ends: dict[QueueId, int]) -> dict[QueueId, int]:
        """Return where queues begin that no batch has noted yet; settled when they are seen."""
        is_latest = self._options.new_queue_start == "latest"
        self._new = {queue: offset for queue, offset in self._new.items() if queue in new}
        unseen = new - self._new.keys()
        if is_latest:
            self._new |= {queue: ends[queue] for queue in unseen}
        elif unseen:
            self._new |= self._catalog.begins(unseen)
        # An empty queue need not be noted, unless it must not be read from its beginning.
        return {
            queue: offset
            for queue, offset in self._new.items()
            if is_latest or offset < ends[queue]
        }

    def _must_wait(self, waiting: int) -> bool:
        """Whether there are too few messages yet, and there is time."""
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
        """Return where the queues end, for the progress of the query."""
        return Positions(self._latest).to_json() if self._latest else None

    # ---- rows ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share a batch out; a function of the two offsets and the options alone."""
        last = Positions.from_json(end)
        return plan(begins_of(Positions.from_json(start), last), last, self._options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a partition; see `read_partition`."""
        return read_rows(partition, self._columns, self._options)

    # ---- progress of the group -----------------------------------------------------------------

    def _commit_group(self, begin: Positions, *, is_idle: bool) -> None:
        """Show how far the stream is: its start is what has been read and written.

        Not in `commit`, which Spark calls one batch late, and never for the last batch of a run.
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
        """Do nothing: the broker keeps nothing for a stream; Spark's checkpoint does."""

    def stop(self) -> None:
        """Do nothing: Spark seldom calls it, so nothing depends on it."""


def check_stream_only(options: ReadOptions) -> None:
    """Refuse options that only a batch understands.

    Raises:
        OptionError: Names it.
    """
    if options.ending is not None:
        raise OptionError(
            "endingOffsets and endingTimestamp are for batches; a stream ends with the trigger "
            "availableNow, or with spark.read instead of spark.readStream"
        )
