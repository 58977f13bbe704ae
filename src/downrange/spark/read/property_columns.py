r"""The properties of many records at once, as Arrow arrays.

All property strings are copied into one buffer, each after a mark byte:

    \x02 name \x01 value \x02 name \x01 value … \x02 name \x01 value …

So every item begins with a mark, whether or not the sender ended the last item with one. The
positions of the marks are the offsets of one Arrow array. Its elements are in turn a name, a mark,
a value, and the bytes before the next name. Arrow picks names and values out of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from downrange.native import native_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from downrange.spark.read.record_table import RecordTable

    #: An Arrow array; PyArrow ships no type information.
    Array = Any

#: Arrow's functions; most are created at import, so type checkers do not see them.
arrow: Final[Any] = compute

_native_values: Final = native_only("property_values")
_ITEM_MARK: Final = 2
_VALUE_MARK: Final = 1
#: Elements per item in the array of pieces, and the index of the value among them.
_PIECES: Final = 4
_VALUE_PIECE: Final = 2
#: Up to this many rows times names, pairs are counted in a table; above, they are sorted.
_PAIRS_COUNTED_MAX: Final = 1 << 20


def pick_slices(kind: Any, data: Any, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Array:
    """Copy slices of a buffer into an array, one element each. Slices must not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    bounds = np.empty((count, 2), np.int32)
    bounds[:, 0] = starts
    bounds[:, 1] = ends
    # Every second element holds the bytes between two slices.
    whole = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return _take(whole, np.arange(0, 2 * count, 2))


def property_values(table: RecordTable, names: Sequence[str]) -> dict[str, Array]:
    """Return the values of some properties by name, for each row; null where a row has none.

    The native part finds all names in one pass over rows in ASCII. Without it, or with other
    characters, `PropertyTable` finds one after the other.

    Args:
        table: The records.
        names: Names of 4 or 8 characters.
    """
    if _native_values is not None and len(table):
        texts = _native_values(
            table.data,
            table.property_starts,
            table.property_ends,
            [name.encode() for name in names],
        )
        if texts is not None:
            return dict(zip(names, map(_text_array, texts), strict=True))
    properties = PropertyTable(table)
    return {name: properties.values(name) for name in names}


def _text_array(text: tuple[bytes, bytes, bytes]) -> Array:
    """Return an array of its bounds, its bytes, and a byte per row that says if it has a value."""
    bounds, data, is_valid = text
    flags = np.frombuffer(is_valid, np.bool_)
    bits = None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))
    buffers = [bits, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(flags), buffers)


class PropertyTable:
    """The properties of every record of a table."""

    __slots__ = ("_item_rows", "_item_starts", "_name_sizes", "_octets", "_pieces", "_row_items")

    def __init__(self, table: RecordTable) -> None:
        self._octets, row_starts = _in_one_buffer(table)
        item_marks, value_marks, item_ends = _find_marks(self._octets)
        #: Row -> its first item, with one more entry for the end.
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
        """Return each row's value of a property, or null; its name must have 4 or 8 characters."""
        encoded_name = name.encode()
        size = len(encoded_name)
        row_count = len(self._row_items) - 1
        items = np.flatnonzero(self._name_sizes == size)
        found = np.full(row_count, -1, np.int64)
        if len(items):
            # Names of this size compare as numbers; a mark and a value follow each in the buffer.
            form = np.dtype(f"<u{size}")
            words: NDArray[Any] = np.ndarray(
                (len(self._octets) - size + 1,), form, self._octets, strides=(1,)
            )
            is_it = words[self._item_starts[items]] == int.from_bytes(encoded_name, "little")
            items = items[is_it]
            # If a row has the name twice, the last assignment wins, as it must.
            found[self._item_rows[items]] = items
        return _take(self._pieces, found * _PIECES + _VALUE_PIECE, found < 0)

    def maps(self) -> Array:
        """Return each row's properties as a map."""
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
        """Find names that a row has twice: in a map they occur once, with the last value.

        Returns:
            None if there are none. Otherwise two items for each name that stays: the first, which
            gives its place in the map, and the last, which gives its value.
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
    """Return all property strings in valid UTF-8, each after a mark, and where they begin."""
    starts, ends = table.property_starts, table.property_ends
    octets = np.frombuffer(table.data, np.uint8)
    is_empty = starts == ends
    # A mark at the end of a string is dropped: the next string begins with its own. The byte before
    # the properties, the low byte of their length, gives room for the mark; empty ones need none.
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
    """Replace invalid UTF-8, row by row, if there is any."""
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
    """Return the mark, the value's mark and the end of each item with a name and a value."""
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
    # Some item lacks its name or value, or a value contains \x01: a value begins at the first \x01.
    item_marks = marks[kinds == _ITEM_MARK]
    item_ends = np.append(item_marks[1:], len(octets))
    all_value_marks = np.append(marks[kinds == _VALUE_MARK], len(octets))
    value_marks = all_value_marks[np.searchsorted(all_value_marks, item_marks)]
    is_whole = (value_marks > item_marks + 1) & (value_marks + 1 < item_ends)
    return item_marks[is_whole], value_marks[is_whole], item_ends[is_whole]
