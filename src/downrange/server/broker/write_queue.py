"""Records that wait to be stored at the end of this turn, and the replies that wait for them.

What arrives together is written together: handlers add records, and `Broker.commit` appends them
all in one go. Whoever added some is told by `on_stored` how it went, in the order of adding, and
returns what to do then, such as a reply. A on_stored that must not be heard before the record is
durable says so by `is_flush_awaited`; the broker keeps its outputs until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.errors import RocketMQError
    from downrange.server.outputs import Output
    from downrange.wire.batches import RecordBatch
    from downrange.wire.records import Record


class OnStored(Protocol):
    """Hears how storing went; any function of this form will do.

    Args:
        error: Why nothing was stored, or None: then the records have their offsets and times.
        now_ms: The time.
    """

    def __call__(self, error: RocketMQError | None, now_ms: int, /) -> Iterable[Output]:
        """Say what to do now."""
        ...


def no_outputs(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
    """OnStored with nothing to do."""
    return ()


class PendingWrite:
    """Records that are stored together or not at all: one message, or a batch.

    Attributes:
        version: What `on_stored` returns waits until the tables of this version are saved.
    """

    __slots__ = ("is_flush_awaited", "on_stored", "properties", "records", "version")

    def __init__(
        self,
        records: Sequence[Record | RecordBatch],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored,
        is_flush_awaited: bool,
    ) -> None:
        self.records = records
        self.properties = properties
        self.on_stored = on_stored
        self.is_flush_awaited = is_flush_awaited
        self.version = 0


class WriteQueue:
    """What was added since the last commit.

    Attributes:
        on_first: Hears that there is something to store now; the driver sees to a commit then.
    """

    __slots__ = ("_writes", "on_first")

    def __init__(self) -> None:
        self._writes: list[PendingWrite] = []
        self.on_first: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to store."""
        return bool(self._writes)

    def add(
        self,
        records: Sequence[Record | RecordBatch],
        properties: Sequence[dict[str, str]],
        on_stored: OnStored = no_outputs,
        *,
        is_flush_awaited: bool = False,
    ) -> None:
        """Have records stored at the end of this turn.

        Args:
            records: Complete but for offsets, size and store time.
            properties: Their parsed properties, which `record.property_bytes` already holds; of a
                batch, which brings its own, any.
            on_stored: Told how it went.
            is_flush_awaited: Whether what `on_stored` returns waits for the flush (sync mode only).
        """
        writes = self._writes
        if not writes and self.on_first is not None:
            self.on_first()
        writes.append(PendingWrite(records, properties, on_stored, is_flush_awaited))

    def hold_last(self, version: int) -> None:
        """Let the one who added last wait for tables to be saved: he changed them."""
        if self._writes:
            self._writes[-1].version = version

    def take(self) -> list[PendingWrite]:
        """Return all of it, in order, and begin anew."""
        writes, self._writes = self._writes, []
        return writes
