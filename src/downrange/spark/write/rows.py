"""Rows to write, as Arrow batches, and their description in errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute

from downrange.errors import InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Its functions are created at import, so type checkers do not see them.
pc: Final[Any] = pyarrow.compute
#: Larger Arrow batches are split, because columns have 32-bit offsets.
_CHUNK_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a partition.

    Attributes:
        batch: The rows as Spark gives them.
        first_row: The number of the first row within the partition.
        partition: The partition's number.
    """

    batch: Any
    first_row: int
    partition: int

    def column(self, name: str) -> Any:
        """Return a column in one of the plain types; None if it does not exist."""
        index = self.batch.schema.get_field_index(name)
        return None if index < 0 else _plain(self.batch.column(index))

    def reject(self, index: int, problem: str) -> NoReturn:
        """Raise an error about one row."""
        raise InvalidMessage(f"{self.describe(index)}: {problem}")

    def describe(self, index: int) -> str:
        """Return the description of a row for errors: number, topic, keys and size."""
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
        """Raise an error about the first row for which the mask is true, if there is one."""
        index = pc.index(mask, pa.scalar(True)).as_py()
        if index >= 0:
            self.reject(index, problem if isinstance(problem, str) else problem(index))

    def _value(self, name: str, index: int) -> Any:
        at = self.batch.schema.get_field_index(name)
        try:
            return None if at < 0 else self.batch.column(at)[index].as_py()
        except UnicodeDecodeError:
            return "<not UTF-8>"


def in_chunks(batch: Any) -> Iterator[Any]:
    """Split a batch that is too large to encode at once."""
    parts = min(-(-batch.nbytes // _CHUNK_BYTES), batch.num_rows)
    if parts <= 1:
        yield batch
        return
    size = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _plain(column: Any) -> Any:
    """Return a column in a plain type; Spark can be configured to use large types."""
    kind = column.type
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_list(kind):  # also with non-null elements, which no Arrow function accepts
        return column.cast(pa.list_(pa.string()))
    if pa.types.is_map(kind) and pa.types.is_large_string(kind.key_type):
        return column.cast(pa.map_(pa.string(), pa.string()))
    return column
