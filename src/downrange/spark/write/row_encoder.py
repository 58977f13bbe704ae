"""Rows of an Arrow batch as messages: checked and encoded column by column, never row by row.

A batch on the wire is its items back to back. So one column of items holds the bodies of any number
of requests, each a slice of it. A wrong row is found by a check of the whole column; the error then
names the row's number, topic and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from downrange.client.flows.validation import check_message
from downrange.errors import OptionError
from downrange.model import Message
from downrange.spark.write.row_ids import fixed_width
from downrange.spark.write.row_properties import property_strings
from downrange.spark.write.write_options import ID_PATTERN

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from downrange.spark.write.rows import Rows
    from downrange.spark.write.write_options import WriteOptions

#: Its functions are created at import, so type checkers do not see them.
pc: Final[Any] = pyarrow.compute
_BINARY: Final = pa.binary()
_NOTHING: Final = pa.scalar(b"", _BINARY)
#: Bytes of an item's header, and of everything but body and properties (wire/records.py).
_HEADER_BYTES: Final = 20
_ITEM_BYTES: Final = _HEADER_BYTES + 2


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows that passed every check.

    Attributes:
        rows: The rows before encoding.
        bodies: The bodies, as binary.
        properties: The property strings, as binary, without delays.
        ids: The unique ids, as binary.
        delays_ms: The delay of each row, 0 for none; None if no row has one.
        topics: The topics that occur.
        topic_codes: For each row, the index of its topic.
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


def encode_rows(
    rows: Rows, options: WriteOptions, namespace: str | None, make_ids: Callable[[int, int], Any]
) -> EncodedRows:
    """Check and encode rows.

    Args:
        rows: The rows.
        options: How they are written.
        namespace: The prefix of topics.
        make_ids: Takes the first row number and a count, returns ids; unused with dedup=column.

    Raises:
        InvalidMessage: A row is invalid; names it.
    """
    topics, topic_codes = _topics(rows, options, namespace)
    bodies = _bodies(rows, options.message_bytes_max)
    ids = _own_ids(rows) if options.dedup == "column" else make_ids(rows.first_row, len(bodies))
    return EncodedRows(
        rows=rows,
        bodies=bodies,
        properties=property_strings(rows, ids),
        ids=ids,
        delays_ms=_delays(rows),
        topics=topics,
        topic_codes=topic_codes,
    )


def batch_items(bodies: Any, properties: Any) -> Any:
    """Return messages as batch items in a binary column; any slice of it is a batch."""
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
    """Return the bytes that each row takes in a batch."""
    return _ITEM_BYTES + _sizes(encoded.bodies) + _sizes(encoded.properties)


# ---- columns -------------------------------------------------------------------------------------


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
        rows.reject_first(column.is_null(), "its topic is null; name one, or set the option topic")
    coded = column.dictionary_encode()
    codes: NDArray[np.int64] = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names: list[bytes] = coded.dictionary.cast(_BINARY).to_pylist()
    topics = [name.decode(errors="replace") for name in names]
    for code, topic in enumerate(topics):
        try:
            check_message(Message(topic, b"1"), 1, namespace)
        except OptionError as error:
            rows.reject(int(np.argmax(codes == code)), str(error))
    return topics, codes


def _bodies(rows: Rows, bytes_max: int) -> Any:
    bodies = rows.column("body").cast(_BINARY)
    if bodies.null_count:
        problem = "its body is null; filter such rows, or coalesce the column"
        rows.reject_first(bodies.is_null(), problem)
    sizes = pc.binary_length(bodies)
    problem = "its body is empty; brokers take only messages with at least one byte"
    rows.reject_first(pc.equal(sizes, 0), problem)
    rows.reject_first(
        pc.greater(sizes, bytes_max),
        lambda index: (
            f"its body has {sizes[index]} bytes, {bytes_max} are allowed; send less, or raise the "
            "option maxMessageBytes and the brokers' maxMessageSize"
        ),
    )
    return bodies


def _own_ids(rows: Rows) -> Any:
    column = rows.column("msg_id")
    is_right = pc.match_substring_regex(column.cast(_BINARY), ID_PATTERN).fill_null(False)
    rows.reject_first(
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
    rows.reject_first(
        pc.less(filled, 0),
        lambda index: f"delay_time_ms is {filled[index]}; a delay is at least 0",
    )
    delays: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return delays if delays.any() else None
