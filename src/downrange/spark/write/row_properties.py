r"""The property strings of rows: keys, tags and user properties, written column by column.

In the map `properties`

- a null value means no property; a blank name or value is an error, and so are the bytes \x01 and
  \x02, which separate properties;
- names in `DROPPED_PROPERTIES` are dropped silently: they belong to the protocol, and brokers and
  clients set them again. The map of a message that was read holds many of them;
- KEYS, TAGS and __SHARDINGKEY are used, unless there is a column for them. The column wins, also
  if it is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from downrange.client.flows.validation import RESERVED_PROPERTIES
from downrange.native import native_only
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from downrange.spark.write.rows import Rows

#: Its functions are created at import, so type checkers do not see them.
pc: Final[Any] = pyarrow.compute
#: Column -> its property.
_PROPERTY_OF: Final = {
    "keys": PropertyKey.KEYS.value,
    "tags": PropertyKey.TAGS.value,
    "sharding_key": PropertyKey.SHARDING_KEY.value,
}
#: Names in `properties` that are not sent, because they belong to the protocol.
DROPPED_PROPERTIES: Final = (
    RESERVED_PROPERTIES
    | {
        *(PropertyKey.INNER_COUNT.value, PropertyKey.INNER_BASE.value),
        *(PropertyKey.INNER_MULTI_DISPATCH.value, PropertyKey.INNER_MULTI_QUEUE_OFFSET.value),
        *(PropertyKey.TRANSACTION_ID.value, PropertyKey.TRANSACTION_CHECK_TIMES.value),
        PropertyKey.CHECK_IMMUNITY_TIME.value,
    }
) - set(_PROPERTY_OF.values())

#: The marks are the bytes 1 and 2; up to this one, bytes are control characters or the blank.
_LAST_MARK: Final = 2
_BLANK: Final = 0x20
_ASCII_END: Final = 0x80
_BINARY: Final = pa.binary()
_NAME_MARK: Final = pa.scalar(b"\x01", _BINARY)
_NOTHING: Final = pa.scalar(b"", _BINARY)
_VALUE_MARK: Final = pa.scalar(b"\x02", _BINARY)
_NULL: Final = pa.scalar(None, _BINARY)
_WAIT: Final = pa.scalar(b"WAIT\x01true\x02", _BINARY)
_NO_COLUMN: Final = "rows need a column"
_native_rows: Final = native_only("joined_rows")
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value.encode() + b"\x01"


def property_strings(rows: Rows, ids: Any) -> Any:
    """Return the property string of each row, as binary, without a delay.

    Args:
        rows: The rows.
        ids: Their unique ids, as binary.

    Raises:
        InvalidMessage: A row has an invalid property; names it.
    """
    columns: list[tuple[bytes, Any]] = []
    own = _user_properties(rows)
    if own is not None:
        columns.append((b"", own))
    for name, key in _PROPERTY_OF.items():
        column = _words(rows) if name == "keys" else _text(rows, name)
        if column is not None:
            columns.append((key.encode() + b"\x01", column))
    columns.append((_UNIQUE_KEY, ids))
    whole = joined_rows(columns)
    sizes = pc.binary_length(whole)
    rows.reject_first(
        pc.greater(sizes, PROPERTIES_BYTES_MAX),
        lambda index: (
            f"its keys, tags and properties take {sizes[index]} bytes, {PROPERTIES_BYTES_MAX} are "
            "allowed; move some data into the body"
        ),
    )
    return whole


def pure_joined_rows(columns: list[tuple[bytes, Any]]) -> Any:
    """Join the values of each row to a property string, with WAIT at the end.

    Args:
        columns: Binary columns, each with what comes before its values; null is no property.

    Raises:
        ValueError: There are no columns.
    """
    if not columns:
        raise ValueError(_NO_COLUMN)
    parts = [
        pc.binary_join_element_wise(pa.scalar(front, _BINARY), column, _NOTHING)
        for front, column in columns
    ]
    return pc.binary_join_element_wise(*parts, _WAIT, _VALUE_MARK, null_handling="skip")


def _native_joined_rows(columns: list[tuple[bytes, Any]]) -> Any:
    """As `pure_joined_rows`, in one pass."""
    count = len(columns[0][1]) if columns else 0
    assert _native_rows is not None
    bounds, data = _native_rows(
        count,
        [(front, _buffers_of(column), b"\x02") for front, column in columns],
        b"WAIT\x01true\x02",
    )
    return pa.Array.from_buffers(_BINARY, count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _buffers_of(column: Any) -> tuple[Any, Any, Any]:
    """Return the bounds, the bytes, and which values are not null; None for all."""
    _, bounds, data = column.buffers()
    bounds = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    is_valid = None
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return bounds, np.frombuffer(data or b"", np.uint8), is_valid


joined_rows: Final = pure_joined_rows if _native_rows is None else _native_joined_rows


def _text(rows: Rows, name: str) -> Any:
    """Return a text column as binary, with blank texts as null."""
    column = rows.column(name)
    if column is None or column.null_count == len(column):
        return None
    if _has_usual_texts(column):
        return column.cast(_BINARY)
    _check_text(rows, name, column)
    trimmed = pc.ascii_trim_whitespace(column)
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), _NULL, trimmed.cast(_BINARY))


def _has_usual_texts(column: Any) -> bool:
    """Return whether each text is in ASCII, without marks, and without blanks at its ends.

    Then it needs no other check, and no trimming. This takes a tenth of the time of the checks.
    """
    if column.null_count:
        return False
    bounds, data, _ = _buffers_of(column)
    octets = data[bounds[0] : bounds[-1]]
    starts, ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
    return bool(
        len(octets)
        and (starts < ends).all()
        and octets.min() > _LAST_MARK
        and octets.max() < _ASCII_END
        and octets[starts].min() > _BLANK
        and octets[ends - 1].min() > _BLANK
    )


def _check_text(rows: Rows, name: str, column: Any) -> None:
    """Reject texts that would break a property string."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index, value in enumerate(column.cast(_BINARY).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                rows.reject(index, f"{name} is not UTF-8: {error}")
    rows.reject_first(
        _has_mark(column),
        f"{name} contains byte 1 or 2, which separate properties; remove them",
    )


def _has_mark(column: Any) -> Any:
    return pc.or_(
        pc.match_substring(column, "\x01").fill_null(False),
        pc.match_substring(column, "\x02").fill_null(False),
    )


def _words(rows: Rows) -> Any:
    """Return the keys of each row as one text."""
    column = rows.column("keys")
    if column is None or not pa.types.is_list(column.type):
        return _text(rows, "keys")
    elements = column.flatten()
    has_bad = elements.null_count > 0 or pc.any(_is_no_word(elements)).as_py()
    if has_bad:
        for index, words in enumerate(column.to_pylist()):
            for word in words or ():
                if word is None or not word or word.split() != [word]:
                    problem = f"key {word!r} is null, empty or contains blanks, which separate keys"
                    rows.reject(index, problem)
    joined = pc.binary_join(column, " ")
    _check_text(rows, "keys", joined)
    return pc.if_else(pc.equal(pc.binary_length(joined), 0), _NULL, joined.cast(_BINARY))


def _is_no_word(column: Any) -> Any:
    return pc.or_(pc.equal(pc.binary_length(column), 0), pc.match_substring_regex(column, r"\s"))


def _user_properties(rows: Rows) -> Any:
    """Return the user properties of each row as `name mark value`, joined; null without any."""
    column = rows.column("properties")
    if column is None or column.null_count == len(column):
        return None
    count = len(column)
    bounds: NDArray[np.int64] = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    entry_rows = np.repeat(np.arange(count), np.diff(bounds))
    size = int(bounds[-1] - bounds[0])
    names = column.keys.slice(int(bounds[0]), size)
    values = column.items.slice(int(bounds[0]), size)
    dropped = DROPPED_PROPERTIES | {
        key for name, key in _PROPERTY_OF.items() if rows.column(name) is not None
    }
    is_kept = pc.and_(
        pc.invert(pc.is_in(names, pa.array(sorted(dropped), pa.string()))), values.is_valid()
    )
    if column.null_count:  # a null map may still have entries in the buffer
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        is_kept = pc.and_(is_kept, pa.array(is_valid[entry_rows], pa.bool_()))
    names, values = names.filter(is_kept), values.filter(is_kept)
    entry_rows = entry_rows[is_kept.to_numpy(zero_copy_only=False)]
    _check_entries(rows, names, values, entry_rows)
    entries = pc.binary_join_element_wise(names.cast(_BINARY), values.cast(_BINARY), _NAME_MARK)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(entry_rows, minlength=count), out=ends[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), entries), _VALUE_MARK)
    return pc.if_else(pc.equal(pc.binary_length(joined), 0), _NULL, joined)


def _check_entries(
    rows: Rows, names: Any, values: Any, entry_rows: NDArray[np.signedinteger[Any]]
) -> None:
    """Reject properties that a reader would drop or misread."""
    is_bad = pc.or_(pc.or_(_is_blank(names), _is_blank(values)), _any_mark(names, values))
    try:
        names.validate(full=True)
        values.validate(full=True)
        index = pc.index(is_bad, pa.scalar(True)).as_py()
    except pa.ArrowInvalid:
        index = next(
            at
            for at, pair in enumerate(
                zip(names.cast(_BINARY).to_pylist(), values.cast(_BINARY).to_pylist(), strict=True)
            )
            if not _is_text(b"".join(pair))
        )
    if index >= 0:
        name, value = names.cast(_BINARY)[index].as_py(), values.cast(_BINARY)[index].as_py()
        rows.reject(
            int(entry_rows[index]),
            f"property {name.decode(errors='replace')!r} = {value.decode(errors='replace')[:80]!r} "
            "is invalid: name and value must be UTF-8, not blank, and without the bytes 1 and 2",
        )


def _any_mark(names: Any, values: Any) -> Any:
    return pc.or_(_has_mark(names), _has_mark(values))


def _is_blank(column: Any) -> Any:
    return pc.equal(pc.binary_length(pc.ascii_trim_whitespace(column)), 0)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
