"""Records that wait to be stored at the end of this turn, with the callbacks that answer them.

Handlers add records and return `StorePending`; `Broker.commit` appends all of them in one write.
It then calls each `on_stored`, in the order of adding, for the outputs that follow, such as a
reply. With `is_flush_awaited` the broker keeps these outputs until the records are durable.

Pops and acknowledgements add runs: records of the broker in one queue, without an object for each.
Those of a turn are stored as one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from downrange.errors import RocketMQError
    from downrange.server.outputs import Output
    from downrange.wire.batches import RecordBatch, RunItem
    from downrange.wire.records import Record


class OnStored(Protocol):
    """Called when records are stored, or could not be stored.

    Args:
        error: Why nothing was stored. None means that the records have their offsets and times.
        now_ms: The time.
    """

    def __call__(self, error: RocketMQError | None, now_ms: int, /) -> Iterable[Output]:
        """Return the outputs that follow."""
        ...


class OnRunStored(Protocol):
    """Called when a run is stored, or could not be stored.

    Args:
        error: Why nothing was stored.
        offset: The queue offset of the first record; without a meaning after an error.
    """

    def __call__(self, error: RocketMQError | None, offset: int, /) -> Iterable[Output]:
        """Return the outputs that follow."""
        ...


def no_outputs(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
    """Return nothing: the `on_stored` of records that need no answer."""
    return ()


class PendingWrite:
    """Records that are stored together or not at all: one message, or a batch.

    Attributes:
        series: Writes of the same series depend on each other: if one fails, those that were added
            to the queue after it fail too. None for a write that depends on no other.
        tables_version: The outputs of `on_stored` wait until the tables of this version are saved;
            `Broker` sets it if the request changed them.
    """

    __slots__ = (
        "is_flush_awaited",
        "on_stored",
        "properties",
        "records",
        "series",
        "tables_version",
    )

    def __init__(
        self,
        records: Sequence[Record | RecordBatch],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored,
        is_flush_awaited: bool,
        series: tuple[str, str] | None = None,
        tables_version: int = 0,
    ) -> None:
        self.records = records
        self.properties = properties
        self.on_stored = on_stored
        self.is_flush_awaited = is_flush_awaited
        self.series = series
        self.tables_version = tables_version


class PendingRun:
    """A run that is stored as a whole or not at all; its outputs always wait for the flush.

    Attributes:
        items: The records.
        on_stored: Called with the result.
        series: See `PendingWrite`.
        tables_version: See `PendingWrite`.
    """

    __slots__ = ("items", "on_stored", "series", "tables_version")

    def __init__(
        self,
        items: Sequence[RunItem],
        on_stored: OnRunStored,
        series: tuple[str, str] | None,
    ) -> None:
        self.items = items
        self.on_stored = on_stored
        self.series = series
        self.tables_version = 0

    def as_records(self, shared: Record) -> PendingWrite:
        """Return the same with an object for each record.

        Args:
            shared: What the records have in common.
        """
        records = [
            replace(shared, body=body, property_bytes=properties)
            for body, properties, _ in self.items
        ]

        def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
            return self.on_stored(error, records[0].queue_offset)

        properties = [record.properties() for record in records]
        return PendingWrite(records, properties, on_stored, True, self.series, self.tables_version)


class WriteQueue:
    """All writes since the last commit; runs are stored before the others.

    Attributes:
        last: The write that was added last.
    """

    __slots__ = ("_runs", "_writes", "last")

    def __init__(self) -> None:
        self._writes: list[PendingWrite] = []
        self._runs: list[PendingRun] = []
        self.last: PendingWrite | PendingRun | None = None

    def __len__(self) -> int:
        """Return the number of writes that wait."""
        return len(self._writes) + len(self._runs)

    @property
    def has_messages(self) -> bool:
        """Whether anything but runs waits."""
        return bool(self._writes)

    def add(
        self,
        records: Sequence[Record | RecordBatch],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored = no_outputs,
        *,
        is_flush_awaited: bool = False,
        series: tuple[str, str] | None = None,
    ) -> None:
        """Add records.

        A handler that calls this returns `StorePending`. Callbacks and the steps of a tick need
        not: a commit follows these in any case.

        Args:
            records: Complete except for offsets, size and store time.
            properties: Their parsed properties, equal to `record.property_bytes`. A batch holds its
                own, so its entry here is not used.
            on_stored: Called with the result.
            is_flush_awaited: Whether, in sync mode, the outputs of `on_stored` wait for the flush.
            series: See `PendingWrite`.
        """
        write = PendingWrite(records, properties, on_stored, is_flush_awaited, series)
        self._writes.append(write)
        self.last = write

    def add_run(
        self,
        items: Sequence[RunItem],
        on_stored: OnRunStored,
        series: tuple[str, str] | None = None,
    ) -> None:
        """Add a run; see `PendingRun`."""
        run = PendingRun(items, on_stored, series)
        self._runs.append(run)
        self.last = run

    def take(self) -> list[PendingWrite]:
        """Return all writes but runs, in the order of adding, and remove them."""
        writes, self._writes = self._writes, []
        return writes

    def take_runs(self) -> list[PendingRun]:
        """Return all runs in the order of adding, and remove them."""
        runs, self._runs = self._runs, []
        return runs
