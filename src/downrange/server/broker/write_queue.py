"""Records that wait to be stored at the end of this turn, with the callbacks that answer them.

Handlers add records and return `StorePending`; `Broker.commit` appends all of them in one write.
It then calls each `on_stored`, in the order of adding, for the outputs that follow, such as a
reply. With `is_flush_awaited` the broker keeps these outputs until the records are durable.

Pops and acknowledgements store their records at once instead (`pop/pop_store.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.errors import RocketMQError
    from downrange.server.outputs import Output
    from downrange.wire.batches import RecordRun
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


def no_outputs(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
    """Return nothing: the `on_stored` of records that need no answer."""
    return ()


class PendingWrite:
    """Records that are stored together or not at all: one message, a batch, or sends of one read.

    Attributes:
        apart: Returns the same as writes that do not depend on each other, to be stored one by one
            if they cannot be stored together. None for a message or a batch.
        tables_version: The outputs of `on_stored` wait until the tables of this version are saved;
            `Broker` sets it if the request changed them.
    """

    __slots__ = (
        "apart",
        "is_flush_awaited",
        "on_stored",
        "properties",
        "records",
        "tables_version",
    )

    def __init__(
        self,
        records: Sequence[Record | RecordRun],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored,
        is_flush_awaited: bool,
        tables_version: int = 0,
        apart: Callable[[], list[PendingWrite]] | None = None,
    ) -> None:
        self.records = records
        self.properties = properties
        self.on_stored = on_stored
        self.is_flush_awaited = is_flush_awaited
        self.tables_version = tables_version
        self.apart = apart


class WriteQueue:
    """All writes since the last commit.

    Attributes:
        last: The write that was added last.
    """

    __slots__ = ("_writes", "last")

    def __init__(self) -> None:
        self._writes: list[PendingWrite] = []
        self.last: PendingWrite | None = None

    def __len__(self) -> int:
        """Return the number of writes that wait."""
        return len(self._writes)

    def add(
        self,
        records: Sequence[Record | RecordRun],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored = no_outputs,
        *,
        is_flush_awaited: bool = False,
        apart: Callable[[], list[PendingWrite]] | None = None,
    ) -> None:
        """Add records.

        A handler that calls this returns `StorePending`. Callbacks and the steps of a tick need
        not: a commit follows these in any case.

        Args:
            records: Complete except for offsets, size and store time.
            properties: Their parsed properties, equal to `record.property_bytes`. A batch or run
                holds its own, so its entry here is not used.
            on_stored: Called with the result.
            is_flush_awaited: Whether, in sync mode, the outputs of `on_stored` wait for the flush.
            apart: See `PendingWrite`.
        """
        write = PendingWrite(records, properties, on_stored, is_flush_awaited, apart=apart)
        self._writes.append(write)
        self.last = write

    def take(self) -> list[PendingWrite]:
        """Return all writes in the order of adding, and remove them."""
        writes, self._writes = self._writes, []
        return writes
