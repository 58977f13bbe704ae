"""Batch reads: start and end offsets are fixed once per DataFrame, as a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from downrange.errors import OptionError
from downrange.spark.read.catalog import Catalog
from downrange.spark.read.fetch import read_partition
from downrange.spark.read.losses import DataLost, report_loss
from downrange.spark.read.offsets import LATEST
from downrange.spark.read.plan import plan
from downrange.spark.read.read_options import Bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import InputPartition

    from downrange.model import QueueId
    from downrange.spark.read.read_options import ReadOptions
    from downrange.spark.schema import RecordBatch


class RocketMQReader(DataSourceReader):
    """Reads the messages between two positions.

    Args:
        options: How to read.
        columns: The columns to read, in order.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Fix where the read begins and ends, and plan its tasks.

        Raises:
            OptionError: An option names queues or brokers that do not exist.
            DataLost: Messages are missing, and failOnDataLoss is set.
            RocketMQError: A topic does not exist, or a server did not answer.
        """
        options = self._options
        catalog = Catalog(options)
        queues = catalog.queues()
        begins = catalog.resolve(
            options.starting or Bound(word="earliest"), queues, others=options.new_queue_start
        )
        ends = catalog.resolve(options.ending or Bound(word="latest"), queues, others="latest")
        return plan(*self._checked(catalog, begins, ends), options)

    def _checked(
        self, catalog: Catalog, begins: dict[QueueId, int], ends: dict[QueueId, int]
    ) -> tuple[dict[QueueId, int], dict[QueueId, int]]:
        """Compare with the offsets that the queues have; report and leave out missing ones."""
        options = self._options
        firsts, nexts = catalog.begins(begins), catalog.ends(begins, is_fresh=True)
        for queue in begins:
            there = (firsts.get(queue, 0), nexts.get(queue, 0))
            wanted = (begins[queue], ends[queue])
            if wanted[0] > there[1]:
                problem = "the start is behind the last message"
            elif wanted[0] < there[0] and wanted[0] < wanted[1]:
                problem = "the first messages were deleted"
            elif ends[queue] > there[1]:
                problem = "the queue ends before that"
            else:
                continue
            report_loss(DataLost(queue, wanted, there, problem), is_fatal=options.is_loss_fatal)
            begins[queue] = max(wanted[0], there[0])
            ends[queue] = min(wanted[1], there[1])
        return begins, ends

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a partition; see `read_partition`."""
        return read_partition(partition, self._columns, self._options)


def check_batch_only(options: ReadOptions) -> None:
    """Reject options that only a stream has.

    Raises:
        OptionError: Names the option.
    """
    named = {
        "maxOffsetsPerTrigger": options.trigger_offsets_max,
        "minOffsetsPerTrigger": options.trigger_offsets_min,
        "commitGroupOffsets": options.is_group_committed or None,
    }
    if given := [name for name, value in named.items() if value is not None]:
        raise OptionError(
            f"option {given[0]} is for streams; use spark.readStream, or leave it out"
        )
    starting = options.starting
    if starting is not None and (
        starting.word == "latest" or any(offset == LATEST for _, offset in starting.offsets)
    ):
        raise OptionError("a batch with startingOffsets=latest has nothing to read; use earliest")
