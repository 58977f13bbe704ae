r"""Rows of an Arrow batch as messages: checked and encoded column by column, never row by row.

A batch on the wire is its items back to back, so one column of items is the body of any number of
requests: each is a slice of it. What is wrong with a row is found by a look at the whole column;
the row's number, topic and keys are then told.

In the map `properties`

- a null value is no property; a blank name or value is an error, and so are the marks \x01 and \x02
  that separate properties;
- names in `DROPPED_PROPERTIES` are dropped without a word: they belong to the protocol, brokers and
  clients write them anew, and the map of a message that was read is full of them;
- KEYS, TAGS and __SHARDINGKEY are carried over, unless there is a column of that meaning, which
  alone counts then, null or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute

from downrange.core.validation import RESERVED_PROPERTIES, check_message
from downrange.errors import InvalidMessage, OptionError
from downrange.model import Message
from downrange.spark.row_ids import fixed_width
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from downrange.spark.write_options import WriteOptions

#: Made at run time, so no checker knows what is in it.
pc: Final[Any] = pyarrow.compute
#: Column -> the property that carries it.
_PROPERTY_OF: Final = {
    "keys": PropertyKey.KEYS.value,
    "tags": PropertyKey.TAGS.value,
    "sharding_key": PropertyKey.SHARDING_KEY.value,
}
#: Names in `properties` that are not sent on, for the protocol owns them.
DROPPED_PROPERTIES: Final = (
    RESERVED_PROPERTIES
    | {
        *(PropertyKey.INNER_COUNT.value, PropertyKey.INNER_BASE.value),
        *(PropertyKey.INNER_MULTI_DISPATCH.value, PropertyKey.INNER_MULTI_QUEUE_OFFSET.value),
        *(PropertyKey.TRANSACTION_ID.value, PropertyKey.TRANSACTION_CHECK_TIMES.value),
        PropertyKey.CHECK_IMMUNITY_TIME.value,
    }
) - set(_PROPERTY_OF.values())

_BINARY: Final = pa.binary()
_NAME_MARK: Final = pa.scalar(b"\x01", _BINARY)
_VALUE_MARK: Final = pa.scalar(b"\x02", _BINARY)
_NOTHING: Final = pa.scalar(b"", _BINARY)
_NULL: Final = pa.scalar(None, _BINARY)
_WAIT: Final = pa.scalar(b"WAIT\x01true\x02", _BINARY)
_UNIQUE_KEY: Final = pa.scalar(PropertyKey.UNIQUE_KEY.value.encode(), _BINARY)
#: Header of an item, and what stands before its properties (wire/records.py).
_HEADER_BYTES: Final = 20
_ITEM_BYTES: Final = _HEADER_BYTES + 2
_PROPERTY_BYTES_MAX: Final = 2**15 - 1
#: Visible ASCII: anything else breaks in a tool sooner or later.
_ID_PATTERN: Final = "^[!-~]{1,128}$"
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

    def refuse(self, index: int, problem: str) -> NoReturn:
        """Raise the error that is about one row."""
        raise InvalidMessage(f"{self.name_of(index)}: {problem}")

    def name_of(self, index: int) -> str:
        """Return how a row is called in errors: its number, topic, keys and size."""
        facts = [
            f"{name} {str(value)[:100]!r}"
            for name in ("topic", "keys", "msg_id")
            if (value := self._value(name, index)) is not None
        ]
        body = self.batch.column("body")[index].as_buffer()
        if body is not None:
            facts.append(f"body of {body.size} bytes")
        told = f" ({', '.join(facts)})" if facts else ""
        return f"row {self.first_row + index} of partition {self.partition}{told}"

    def refuse_first(self, mask: Any, problem: Callable[[int], str] | str) -> None:
        """Raise the error about the first row of which something is true, if there is one."""
        index = pc.index(mask, pa.scalar(True)).as_py()
        if index >= 0:
            self.refuse(index, problem if isinstance(problem, str) else problem(index))

    def _value(self, name: str, index: int) -> Any:
        at = self.batch.schema.get_field_index(name)
        try:
            return None if at < 0 else self.batch.column(at)[index].as_py()
        except UnicodeDecodeError:
            return "that are no UTF-8"


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows that passed every check.

    Attributes:
        rows: Where they come from.
        bodies: The bodies, as binary.
        properties: Their property strings, as binary; a delay is not in them.
        ids: Their unique ids, as binary.
        delays_ms: How long each is held back, 0 for not at all; None when none is.
        topics: The topics that occur.
        topic_codes: For each row, which of them.
    """

    rows: Rows
    bodies: Any
    properties: Any
    ids: Any
    delays_ms: NDArray[np.int64] | None
    topics: list[str]
    topic_codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bodies)


def in_chunks(batch: Any) -> Iterator[Any]:
    """Cut a batch that is too large to be encoded at once."""
    parts = min(-(-batch.nbytes // _CHUNK_BYTES), batch.num_rows)
    if parts <= 1:
        yield batch
        return
    size = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def encode_rows(
    rows: Rows, options: WriteOptions, namespace: str | None, make_ids: Callable[[int, int], Any]
) -> EncodedRows:
    """Check and encode rows.

    Args:
        rows: The rows.
        options: How they are written.
        namespace: What is put before topics.
        make_ids: Given the first row and how many, returns ids; not asked with dedup=column.

    Raises:
        InvalidMessage: A row breaks a rule; names it.
    """
    topics, topic_codes = _topics(rows, options, namespace)
    bodies = _bodies(rows, options.message_bytes_max)
    ids = _own_ids(rows) if options.dedup == "column" else make_ids(rows.first_row, len(bodies))
    return EncodedRows(
        rows=rows,
        bodies=bodies,
        properties=_property_strings(rows, ids),
        ids=ids,
        delays_ms=_delays(rows),
        topics=topics,
        topic_codes=topic_codes,
    )


def batch_items(bodies: Any, properties: Any) -> Any:
    """Return messages as the items of a batch, a column of binary: any slice of it is a batch."""
    count = len(bodies)
    body_sizes, property_sizes = _sizes(bodies), _sizes(properties)
    header = np.zeros((count, 5), ">i4")
    header[:, 0] = _ITEM_BYTES + body_sizes + property_sizes
    header[:, 4] = body_sizes
    sizes = property_sizes.astype(">i2")
    return pc.binary_join_element_wise(
        fixed_width(header.view(np.uint8).reshape(count, _HEADER_BYTES)),
        bodies,
        fixed_width(sizes.view(np.uint8).reshape(count, 2)),
        properties,
        _NOTHING,
    )


def item_sizes(encoded: EncodedRows) -> NDArray[np.int64]:
    """Return how many bytes each row takes in a batch."""
    return _ITEM_BYTES + _sizes(encoded.bodies) + _sizes(encoded.properties)


# ---- columns -------------------------------------------------------------------------------------


def _plain(column: Any) -> Any:
    """Return a column in one of few types; Spark can be told to use large ones."""
    kind = column.type
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind):
        return column.cast(_BINARY)
    if pa.types.is_list(kind):  # also one whose elements are never null: no function takes that
        return column.cast(pa.list_(pa.string()))
    if pa.types.is_map(kind) and pa.types.is_large_string(kind.key_type):
        return column.cast(pa.map_(pa.string(), pa.string()))
    return column


def _sizes(column: Any) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.binary_length(column).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _topics(
    rows: Rows, options: WriteOptions, namespace: str | None
) -> tuple[list[str], NDArray[np.int64]]:
    count = rows.batch.num_rows
    if options.topic is not None:
        return [options.topic], np.zeros(count, np.int64)
    column = rows.column("topic")
    if column.null_count:
        rows.refuse_first(column.is_null(), "its topic is null; name one, or set the option topic")
    coded = column.dictionary_encode()
    codes: NDArray[np.int64] = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names: list[bytes] = coded.dictionary.cast(_BINARY).to_pylist()
    topics = [name.decode(errors="replace") for name in names]
    for code, topic in enumerate(topics):
        try:
            check_message(Message(topic, b"1"), 1, namespace)
        except OptionError as error:
            rows.refuse(int(np.argmax(codes == code)), str(error))
    return topics, codes


def _bodies(rows: Rows, bytes_max: int) -> Any:
    bodies = rows.column("body").cast(_BINARY)
    if bodies.null_count:
        problem = "its body is null; filter such rows, or coalesce the column"
        rows.refuse_first(bodies.is_null(), problem)
    sizes = pc.binary_length(bodies)
    problem = "its body is empty; brokers take only messages with at least one byte"
    rows.refuse_first(pc.equal(sizes, 0), problem)
    rows.refuse_first(
        pc.greater(sizes, bytes_max),
        lambda index: (
            f"its body has {sizes[index]} bytes, {bytes_max} are allowed; send less, or raise the "
            "option maxMessageBytes and the brokers' maxMessageSize"
        ),
    )
    return bodies


def _own_ids(rows: Rows) -> Any:
    column = rows.column("msg_id")
    is_right = pc.match_substring_regex(column.cast(_BINARY), _ID_PATTERN).fill_null(False)
    rows.refuse_first(
        pc.invert(is_right),
        lambda index: (
            f"msg_id is {column[index].as_py()!r}; an id has 1 to 128 visible ASCII characters, "
            "such as sha2(concat_ws('/', ...), 256)"
        ),
    )
    return column.cast(_BINARY)


def _delays(rows: Rows) -> NDArray[np.int64] | None:
    column = rows.column("delay_time_ms")
    if column is None or column.null_count == len(column):
        return None
    filled = column.cast(pa.int64()).fill_null(0)
    rows.refuse_first(
        pc.less(filled, 0),
        lambda index: f"delay_time_ms is {filled[index]}; a delay is at least 0",
    )
    delays: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return delays if delays.any() else None


# ---- properties ----------------------------------------------------------------------------------


def _property_strings(rows: Rows, ids: Any) -> Any:
    parts: list[Any] = [_user_properties(rows)]
    for name, key in _PROPERTY_OF.items():
        column = _words(rows) if name == "keys" else _text(rows, name)
        if column is not None:
            parts.append(_named(pa.scalar(key.encode(), _BINARY), column))
    parts.append(_named(_UNIQUE_KEY, ids))
    whole = pc.binary_join_element_wise(
        *(part for part in parts if part is not None), _WAIT, _VALUE_MARK, null_handling="skip"
    )
    sizes = pc.binary_length(whole)
    rows.refuse_first(
        pc.greater(sizes, _PROPERTY_BYTES_MAX),
        lambda index: (
            f"its keys, tags and properties take {sizes[index]} bytes, {_PROPERTY_BYTES_MAX} are "
            "allowed; move something into the body"
        ),
    )
    return whole


def _named(key: Any, column: Any) -> Any:
    """Return `key mark value` for each value; null where it is null."""
    return pc.binary_join_element_wise(key, column, _NAME_MARK)


def _text(rows: Rows, name: str) -> Any:
    """Return a column of texts as binary, blank ones as null."""
    column = rows.column(name)
    if column is None or column.null_count == len(column):
        return None
    _check_text(rows, name, column)
    trimmed = pc.ascii_trim_whitespace(column)
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), _NULL, trimmed.cast(_BINARY))


def _check_text(rows: Rows, name: str, column: Any) -> None:
    """Refuse texts that would break a property string."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index, value in enumerate(column.cast(_BINARY).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                rows.refuse(index, f"{name} is no UTF-8: {error}")
    rows.refuse_first(
        _has_mark(column),
        f"{name} holds one of the bytes 1 and 2, which separate properties; take them out",
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
                    problem = f"key {word!r} is null, empty or holds blanks, which separate keys"
                    rows.refuse(index, problem)
    joined = pc.binary_join(column, " ")
    _check_text(rows, "keys", joined)
    return pc.if_else(pc.equal(pc.binary_length(joined), 0), _NULL, joined.cast(_BINARY))


def _is_no_word(column: Any) -> Any:
    return pc.or_(pc.equal(pc.binary_length(column), 0), pc.match_substring_regex(column, r"\s"))


def _user_properties(rows: Rows) -> Any:
    """Return `name mark value` of all own properties of each row, joined; null without any."""
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
    if column.null_count:  # a null map may still have entries behind it
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
    """Refuse properties that a reader would drop or misread."""
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
        rows.refuse(
            int(entry_rows[index]),
            f"property {name.decode(errors='replace')!r} = {value.decode(errors='replace')[:80]!r} "
            "cannot be carried: name and value are UTF-8, not blank, and without the bytes 1 and 2",
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
