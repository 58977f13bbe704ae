"""Unique ids of rows: the same row, sent again, has the same id.

An id has the form of those that producers make, 32 upper-case hexadecimal digits, since tools
expect that:

    digits  0-15   hash of who writes: the query, the batch and the partition, or the job and the
                   partition
           16-19   the row's number within the partition, upper half
           20-27   0, where others have milliseconds since the month began: Java's tools look for a
                   message from then on, so they find what was stored this month
           28-31   the row's number, lower half

So a row has the same id as often as its task is tried, provided that the task sees the same rows in
the same order. After a shuffle that need not be so; take ids out of a column then.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from downrange.errors import InvalidMessage

if TYPE_CHECKING:
    from downrange.wire.ids import UniqueIdMaker

_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
#: Where the digits of a row's number are, and how far each is shifted.
_DIGITS: Final = tuple(zip((16, 17, 18, 19, 28, 29, 30, 31), range(28, -1, -4), strict=True))
_ROWS_MAX: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class RowIds:
    """Makes ids of the rows of one task.

    Attributes:
        origin: Who writes, as a text that no other task shares and every attempt of it does.
    """

    origin: str

    def of(self, first_row: int, count: int) -> Any:
        """Return the ids of so many rows from this one on, as binary.

        Raises:
            InvalidMessage: A partition has more rows than ids have room for.
        """
        if first_row + count > _ROWS_MAX:
            raise InvalidMessage(
                f"a partition of more than {_ROWS_MAX} rows cannot have ids made of row numbers; "
                "repartition, or set dedup=column"
            )
        digest = blake2b(self.origin.encode(), digest_size=8).hexdigest().upper()
        digits = np.full((count, 32), ord("0"), np.uint8)
        digits[:, :16] = np.frombuffer(digest.encode(), np.uint8)
        rows = np.arange(first_row, first_row + count, dtype=np.uint32)
        for column, shift in _DIGITS:
            digits[:, column] = _HEX[(rows >> shift) & 15]
        return fixed_width(digits)


def producer_ids(maker: UniqueIdMaker, born_ms: int, count: int) -> Any:
    """Return ids as any producer makes them, as binary; a row that is sent again has another."""
    return pa.array([maker.make(born_ms) for _ in range(count)], pa.string()).cast(pa.binary())


def fixed_width(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """Return the rows of a table of bytes as binary values, without copying them."""
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
