"""Rows that are to be written, as Arrow gives them, and how errors name one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute

from downrange.errors import InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Made at run time, so no checker knows what is in it.
pc: Final[Any] = pyarrow.compute
#: Arrow batches above this are taken in parts: columns have 32-bit offsets.
_CHUNK_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a partition.

    Attributes:
        batch: As Spark gave them.
        first_row: The number of the first one within the partition.
        partition: The partition's number.
    """

    batch: Any
    first_row: int
    partition: int

    def column(self, name: str) -> Any:
        """Return a column with plain types, or None when there is none."""
        index = self.batch.schema.get_field_index(name)
        return None if index < 0 else _plain(self.batch.column(index))

    def reject(self, index: int, problem: str) -> NoReturn:
        """Raise the error that is about one row."""
        raise InvalidMessage(f"{self.describe(index)}: {problem}")

    def describe(self, index: int) -> str:
        """Return how a row is called in errors: its number, topic, keys and size."""
        facts = [
            f"{name} {str(value)[:100]!r}"
            for name in ("topic", "keys", "msg_id")
            if (value := self._value(name, index)) is not None
        ]
        body = self.batch.column("body")[index].as_buffer()
        if body is not None:
            facts.append(f"body of {body.size} bytes")
        details = f" ({', '.join(facts)})" if facts else ""
        return f"row {self.first_row + index} of partition {self.partition}{details}"

    def reject_first(self, mask: Any, problem: Callable[[int], str] | str) -> None:
        """Raise the error about the first row of which something is true, if there is one."""
        index = pc.index(mask, pa.scalar(True)).as_py()
        if index >= 0:
            self.reject(index, problem if isinstance(problem, str) else problem(index))

    def _value(self, name: str, index: int) -> Any:
        at = self.batch.schema.get_field_index(name)
        try:
            return None if at < 0 else self.batch.column(at)[index].as_py()
        except UnicodeDecodeError:
            return "that are no UTF-8"


def in_chunks(batch: Any) -> Iterator[Any]:
    """Cut a batch that is too large to be encoded at once."""
    parts = min(-(-batch.nbytes // _CHUNK_BYTES), batch.num_rows)
    if parts <= 1:
        yield batch
        return
    size = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _plain(column: Any) -> Any:
    """Return a column in one of few types; Spark can be details to use large ones."""
    kind = column.type
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_list(kind):  # also one whose elements are never null: no function takes that
        return column.cast(pa.list_(pa.string()))
    if pa.types.is_map(kind) and pa.types.is_large_string(kind.key_type):
        return column.cast(pa.map_(pa.string(), pa.string()))
    return column
