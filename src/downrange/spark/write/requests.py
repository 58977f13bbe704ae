"""Cut encoded rows into requests: which rows share one, and which get their own.

A batch cannot be compressed or delayed, and cannot go to a retry topic, so big bodies and delayed
messages are requests of their own. With order kept, such a row ends the batch before it; otherwise
all such rows come after the others.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from downrange.client.flows.producing.bulk import encoded_batch, encoded_message
from downrange.client.flows.producing.prepare import Outgoing
from downrange.model import QueueId
from downrange.spark.write.row_encoder import EncodedRows, batch_items, item_sizes
from downrange.wire.compression import Compression, compress
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.spark.write.queue_choice import Destination
    from downrange.spark.write.write_options import WriteOptions

#: Messages of one request; a broker answers with an id for each.
COUNT_MAX: Final = 4000
_COMPRESSIONS: Final = {
    "zlib": Compression.ZLIB,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to send.

    Attributes:
        outgoing: The content.
        target: The queue that it must go to; None for any.
        rows: The description of its rows, for errors.
        count: How many rows it holds.
        is_delayed: Whether the broker holds it back until it is due.
    """

    outgoing: Outgoing
    target: QueueId | None
    rows: str
    count: int
    is_delayed: bool = False


class _Run(NamedTuple):
    """The rows of one request: positions `start` to `end` in the order of sending."""

    code: int
    start: int
    end: int
    is_single: bool


def cut_requests(
    encoded: EncodedRows,
    destinations: Sequence[Destination],
    codes: NDArray[np.int64],
    producer: ProducerCore,
    options: WriteOptions,
) -> Iterator[WriteRequest]:
    """Cut rows into requests, in the order of sending.

    Args:
        encoded: The rows.
        destinations: The destinations of all rows.
        codes: For each row, the index of its destination.
        producer: The producer that sends.
        options: How large requests may be.
    """
    is_single = _is_single(encoded, options)
    order, is_single = _order(codes, is_single, is_ordered=options.is_ordered)
    small = order[~is_single]
    is_whole = len(small) == len(encoded) and bool((small[1:] > small[:-1]).all())
    bodies = encoded.bodies if is_whole else encoded.bodies.take(small)
    properties = encoded.properties if is_whole else encoded.properties.take(small)
    items = batch_items(bodies, properties)
    bounds = np.frombuffer(items.buffers()[1], np.int32)
    data = items.buffers()[2]
    # How many small rows come before each row.
    position = np.concatenate(([0], np.cumsum(~is_single)))
    runs = _runs(codes[order], is_single, position, bounds, options)
    for run in _round_robin(runs) if options.is_ordered else runs:
        first, last = int(order[run.start]), int(order[run.end - 1])
        destination = destinations[run.code]
        if run.is_single:
            yield _single_request(encoded, first, destination, producer, options)
            continue
        start, end = bounds[position[run.start]], bounds[position[run.end]]
        body = data.slice(int(start), int(end - start)).to_pybytes()
        count = run.end - run.start
        rows = encoded.rows
        yield WriteRequest(
            outgoing=encoded_batch(
                producer, destination.topic, body, count, encoded.ids[first].as_py().decode()
            ),
            target=destination.queue,
            rows=f"{count} rows from {rows.describe(first)} to {rows.describe(last)}, "
            f"{len(body)} bytes in total",
            count=count,
        )


def _is_single(encoded: EncodedRows, options: WriteOptions) -> NDArray[np.bool_]:
    """Return for each row whether it needs a request of its own."""
    sizes = item_sizes(encoded)
    body_sizes = np.diff(_offsets(encoded.bodies))
    is_single: NDArray[np.bool_] = (sizes > options.batch_bytes_max) | (
        body_sizes >= options.compress_over_bytes
    )
    if encoded.delays_ms is not None:
        is_single |= encoded.delays_ms > 0
    for code, topic in enumerate(encoded.topics):
        if topic.startswith(RETRY_PREFIX):
            is_single |= encoded.topic_codes == code
    return is_single


def _offsets(column: Any) -> NDArray[np.int32]:
    bounds = np.frombuffer(column.buffers()[1], np.int32)
    return bounds[column.offset : column.offset + len(column) + 1]


def _order(
    codes: NDArray[np.int64], is_single: NDArray[np.bool_], *, is_ordered: bool
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the rows in the order of sending, and which of them need their own request."""
    ranks = codes if is_ordered else codes + is_single * (int(codes.max()) + 1)
    order = np.argsort(ranks, kind="stable")
    return order, is_single[order]


def _runs(
    codes: NDArray[np.int64],
    is_single: NDArray[np.bool_],
    position: NDArray[np.intp],
    bounds: NDArray[np.int32],
    options: WriteOptions,
) -> Iterator[_Run]:
    """Cut rows, in the order of sending, where the queue changes or a request is full."""
    is_cut = np.ones(len(codes) + 1, np.bool_)
    is_cut[1:-1] = (codes[1:] != codes[:-1]) | is_single[1:] | is_single[:-1]
    cuts = np.flatnonzero(is_cut).tolist()
    for start, end in itertools.pairwise(cuts):
        code = int(codes[start])
        if is_single[start]:
            yield _Run(code, start, end, True)
            continue
        shift = start - int(position[start])
        while start < end:
            limit = int(bounds[start - shift]) + options.batch_bytes_max
            fitting = int(np.searchsorted(bounds, limit, side="right")) - 1 + shift
            stop = min(end, fitting, start + COUNT_MAX)
            yield _Run(code, start, stop, False)
            start = stop


def _round_robin(runs: Iterator[_Run]) -> list[_Run]:
    """Sort runs so that queues alternate: one request per queue is in flight, but of all queues.

    The order within a queue stays.
    """
    turns: dict[int, int] = {}
    sorted_runs: list[tuple[int, _Run]] = []
    for run in runs:
        turn = turns[run.code] = turns.get(run.code, 0) + 1
        sorted_runs.append((turn, run))
    sorted_runs.sort(key=lambda pair: pair[0])
    return [run for _, run in sorted_runs]


def _single_request(
    encoded: EncodedRows,
    index: int,
    destination: Destination,
    producer: ProducerCore,
    options: WriteOptions,
) -> WriteRequest:
    """Return the request of a row that is sent alone."""
    body: bytes = encoded.bodies[index].as_py()
    properties: str = encoded.properties[index].as_py().decode()
    delay_ms = 0 if encoded.delays_ms is None else int(encoded.delays_ms[index])
    if delay_ms:
        properties += encode_properties({PropertyKey.TIMER_DELAY_MS.value: str(delay_ms)})
    sys_flag = 0
    if len(body) >= options.compress_over_bytes:
        body, sys_flag = compress(body, _COMPRESSIONS[options.compression])
    return WriteRequest(
        outgoing=encoded_message(
            producer,
            destination.topic,
            body,
            properties=properties,
            message_id=encoded.ids[index].as_py().decode(),
            sys_flag=sys_flag,
        ),
        target=destination.queue,
        rows=encoded.rows.describe(index),
        count=1,
        is_delayed=delay_ms > 0,
    )
