"""Unique ids of rows: a row that is sent again has the same id.

An id has the form of a producer's ids, 32 upper-case hexadecimal digits, because tools expect that:

    digits  0-15   hash of the writer: query, batch and partition, or job and partition
           16-19   the row's number within the partition, upper half
           20-27   0; producers put the milliseconds since the start of the month here, and Java's
                   tools search from then on, so they find messages stored this month
           28-31   the row's number, lower half

So a row has the same id in every attempt of its task, if the task sees the same rows in the same
order. After a shuffle that is not certain; use ids from a column then.
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
#: Positions of the digits of a row's number, and the shift of each.
_DIGITS: Final = tuple(zip((16, 17, 18, 19, 28, 29, 30, 31), range(28, -1, -4), strict=True))
_ROWS_MAX: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class RowIds:
    """Makes the ids of the rows of one task.

    Attributes:
        origin: Identifies the task: the same text in all its attempts, and in no other task.
    """

    origin: str

    def of(self, first_row: int, count: int) -> Any:
        """Return the ids of `count` rows from `first_row` on, as binary.

        Raises:
            InvalidMessage: The partition has more rows than an id can number.
        """
        if first_row + count > _ROWS_MAX:
            raise InvalidMessage(
                f"a partition of more than {_ROWS_MAX} rows cannot have ids with row numbers; "
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
    """Return ids as producers make them, as binary; a row that is sent again gets a new id."""
    return pa.array([maker.make(born_ms) for _ in range(count)], pa.string()).cast(pa.binary())


def fixed_width(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """Return the rows of a byte table as binary values, without a copy."""
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
