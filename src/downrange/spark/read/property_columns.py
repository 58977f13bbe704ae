r"""The properties of many records at once, as Arrow arrays.

All property strings are put into one buffer, each behind a mark of its own:

    \x02 name \x01 value \x02 name \x01 value … \x02 name \x01 value …

so that a mark begins every item, whether or not the sender ended its last one. The marks' positions
then say everything. They are also the offsets of one array whose elements are, in turn, a name, a
mark, a value, and whatever lies before the next name; Arrow picks names and values out of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from downrange.spark.read.record_table import RecordTable

    #: An Arrow array; the library ships no types.
    Array = Any

#: Arrow's functions; most are made when it is imported, so that type checkers do not see them.
arrow: Final[Any] = compute

_ITEM_MARK: Final = 2
_VALUE_MARK: Final = 1
#: Elements per item in the array that names and values are picked from, and the value's place.
_PIECES: Final = 4
_VALUE_PIECE: Final = 2
#: Rows times names up to which pairs are counted in a table; beyond it they are sorted.
_PAIRS_COUNTED_MAX: Final = 1 << 20


def pick_slices(kind: Any, data: Any, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Array:
    """Copy slices of a buffer into an array, one element each; they must not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    bounds = np.empty((count, 2), np.int32)
    bounds[:, 0] = starts
    bounds[:, 1] = ends
    # Every other element is what lies between two slices.
    whole = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return _take(whole, np.arange(0, 2 * count, 2))


class PropertyTable:
    """The properties of every record of a table."""

    __slots__ = ("_item_rows", "_item_starts", "_name_sizes", "_octets", "_pieces", "_row_items")

    def __init__(self, table: RecordTable) -> None:
        self._octets, row_starts = _in_one_buffer(table)
        item_marks, value_marks, item_ends = _find_marks(self._octets)
        #: Row -> its first item; one more for the end.
        self._row_items = np.searchsorted(item_marks, row_starts)
        #: Item -> its row.
        self._item_rows = np.repeat(np.arange(len(table)), np.diff(self._row_items))
        self._item_starts = item_marks + 1
        self._name_sizes = value_marks - self._item_starts
        bounds = np.empty((len(item_marks), _PIECES), np.int32)
        bounds[:, 0] = self._item_starts
        bounds[:, 1] = value_marks
        bounds[:, 2] = value_marks + 1
        bounds[:, 3] = item_ends
        self._pieces = pa.Array.from_buffers(
            pa.string(),
            max(_PIECES * len(item_marks) - 1, 0),
            [None, pa.py_buffer(bounds), pa.py_buffer(self._octets)],
        )

    def values(self, name: str) -> Array:
        """Return every row's value of a property whose name has 4 or 8 characters, or null."""
        wanted = name.encode()
        size = len(wanted)
        row_count = len(self._row_items) - 1
        items = np.flatnonzero(self._name_sizes == size)
        found = np.full(row_count, -1, np.int64)
        if len(items):
            # The names of that size as numbers; behind each are a mark and a value in the buffer.
            form = np.dtype(f"<u{size}")
            words: NDArray[Any] = np.ndarray(
                (len(self._octets) - size + 1,), form, self._octets, strides=(1,)
            )
            is_it = words[self._item_starts[items]] == int.from_bytes(wanted, "little")
            items = items[is_it]
            # Where a row has the name twice, the last one is assigned last.
            found[self._item_rows[items]] = items
        return _take(self._pieces, found * _PIECES + _VALUE_PIECE, found < 0)

    def maps(self) -> Array:
        """Return every row's properties."""
        names = _take(self._pieces, np.arange(0, _PIECES * len(self._item_starts), _PIECES))
        items = np.arange(len(names))
        repeated = self._repeated(names)
        row_items = self._row_items
        if repeated is not None:
            firsts, items = repeated
            names = _take(names, firsts)
            counts = np.bincount(self._item_rows[firsts], minlength=len(row_items) - 1)
            row_items = np.concatenate(([0], np.cumsum(counts)))
        return pa.MapArray.from_arrays(
            pa.array(row_items.astype(np.int32)),
            names,
            _take(self._pieces, items * _PIECES + _VALUE_PIECE),
        )

    def _repeated(self, names: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Find names that a row has twice: a map must not, and the last value counts.

        Returns:
            None if there are none. Otherwise, for the names that stay, the item that says where
            the name stands (its first) and the item whose value it has (its last).
        """
        encoded = arrow.dictionary_encode(names)
        kinds = len(encoded.dictionary)
        pairs = self._item_rows * kinds + encoded.indices.to_numpy()
        if not len(pairs):
            return None
        if len(self._row_items) * kinds <= _PAIRS_COUNTED_MAX:
            if np.bincount(pairs).max() == 1:
                return None
        elif len(np.unique(pairs)) == len(pairs):
            return None
        firsts = np.unique(pairs, return_index=True)[1]
        lasts = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
        order = np.argsort(firsts)
        return firsts[order], lasts[order]


def _take(values: Array, places: NDArray[Any], absent: NDArray[Any] | None = None) -> Array:
    if absent is not None and not absent.any():
        absent = None
    return arrow.take(values, pa.array(places, mask=absent), boundscheck=False)


def _in_one_buffer(table: RecordTable) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all property strings, each behind a mark, and where they begin; UTF-8 for sure."""
    starts, ends = table.property_starts, table.property_ends
    octets = np.frombuffer(table.data, np.uint8)
    is_empty = starts == ends
    # A mark at the end ends nothing that the next one would not begin. Before the properties is the
    # low byte of their length: room for the mark, and not taken for one where nothing follows.
    ends = ends - (octets[ends - 1] == _ITEM_MARK)
    starts = starts - ~is_empty
    joined = pick_slices(pa.binary(), table.data, starts, ends)
    row_starts = np.zeros(len(table) + 1, np.int64)
    np.cumsum(ends - starts, out=row_starts[1:])
    copied = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[: row_starts[-1]].copy()
    copied[row_starts[:-1][~is_empty]] = _ITEM_MARK
    if len(copied) and copied.max() > 0x7F:
        return _as_utf8(copied, row_starts)
    return copied, row_starts


def _as_utf8(
    octets: NDArray[np.uint8], row_starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Replace what is no UTF-8, row by row, if anything is not."""
    data = octets.tobytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        bounds = row_starts.tolist()
        rows = [
            data[start:end].decode(errors="replace").encode() for start, end in pairwise(bounds)
        ]
        octets = np.frombuffer(b"".join(rows), np.uint8)
        row_starts = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    return octets, row_starts


def _find_marks(
    octets: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return, for every item with a name and a value: its mark, the value's mark, its end."""
    marks = np.flatnonzero(octets <= _ITEM_MARK)
    bounds = np.append(marks, len(octets))
    kinds = octets[marks]
    if (
        len(marks) % 2 == 0
        and (kinds[0::2] == _ITEM_MARK).all()
        and (kinds[1::2] == _VALUE_MARK).all()
        and (np.diff(bounds) > 1).all()
    ):
        return marks[0::2], marks[1::2], bounds[2::2]
    # Some item has no value or no name, or a value holds its own mark: it begins at the first one.
    item_marks = marks[kinds == _ITEM_MARK]
    item_ends = np.append(item_marks[1:], len(octets))
    all_value_marks = np.append(marks[kinds == _VALUE_MARK], len(octets))
    value_marks = all_value_marks[np.searchsorted(all_value_marks, item_marks)]
    is_whole = (value_marks > item_marks + 1) & (value_marks + 1 < item_ends)
    return item_marks[is_whole], value_marks[is_whole], item_ends[is_whole]
