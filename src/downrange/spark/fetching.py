"""What a task does: pull the ranges of its partition, several pulls under way, into Arrow batches.

A range is asked for in strides, each as long as the broker's last answers were, so that the next
pulls are on their way while the rows of the last one go to Spark. An answer may be shorter than its
stride; the rest is asked for again, before anything that comes later. Rows keep their order.

A pull by a filter may go far beyond a stride, so such a range has one pull under way.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from downrange.core.names import with_namespace
from downrange.core.pulling import PullStatus, RawPull, pull_raw
from downrange.core.routes import refresh_route
from downrange.errors import RocketMQError, RouteNotFound, TopicNotFound
from downrange.spark.columns import decode
from downrange.spark.decoding import Wanted
from downrange.spark.losses import DataLost, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from downrange.spark.planning import Range, ReadPartition
    from downrange.spark.read_options import ReadOptions

_log = logging.getLogger("downrange.spark")
#: How much longer than the request itself its future is waited for.
_MARGIN: Final = 5.0
_GOES_ON: Final = (PullStatus.FOUND, PullStatus.NO_MATCH)


def read_partition(
    partition: ReadPartition, columns: Sequence[str], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition.

    Raises:
        DataLost: Messages are gone, and that is fatal.
        WireError: The broker's bytes are damaged.
        RocketMQError: A broker did not answer, again and again.
    """
    for each in partition.ranges:
        yield from _RangeReader(each, tuple(columns), options).batches()


@dataclass(slots=True)
class _Stride:
    """A part of the range that one request is under way for."""

    begin: int
    end: int
    answer: Future[RawPull]
    attempts: int = 1


class _RangeReader:
    """Reads one range of one queue."""

    def __init__(self, wanted: Range, columns: tuple[str, ...], options: ReadOptions) -> None:
        self._queue = wanted.queue
        self._end = wanted.end
        self._options = options
        self._client = options.connection.client()
        self._filter = options.wanted
        self._is_filtered = options.wanted.kind != "TAG" or bool(options.wanted.tags)
        self._strides: deque[_Stride] = deque()
        self._next = wanted.begin  # where the next stride begins
        self._stride = options.pull_count
        self._wanted = Wanted(
            columns=columns,
            topic=wanted.queue.topic,
            broker=wanted.queue.broker,
            begin=wanted.begin,
            end=wanted.end,
            tags=options.wanted.tags,
            is_strict=options.is_loss_fatal,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in order."""
        bytes_max = self._options.batch_bytes
        # By a filter, rows are fewer than offsets, and nobody has counted them yet.
        rows_max = self._end if self._is_filtered else self._options.batch_rows
        chunks: list[bytes] = []
        begin = end = size = 0
        is_cut = False
        try:
            for stride, found in self._answers():
                last = min(found.next_offset, stride.end)
                is_full = last - begin > rows_max or size + len(found.body) > bytes_max
                if chunks and (is_full or is_cut):
                    yield self._decoded(chunks, begin, end)
                    chunks, size = [], 0
                if not chunks:
                    begin = stride.begin
                chunks.append(found.body)
                size += len(found.body)
                end = last
                # A batch that a broker stored whole may stand on the border of two strides, and is
                # in the answers to both: each takes its own part of it.
                is_cut = found.next_offset > stride.end
            if chunks:
                yield self._decoded(chunks, begin, end)
        finally:
            for stride in self._strides:  # a reader that is given up waits for nothing
                stride.answer.cancel()

    def _decoded(self, chunks: list[bytes], begin: int, end: int) -> pa.RecordBatch:
        wanted = replace(self._wanted, begin=begin, end=end)
        decoded = decode(chunks, wanted)
        if decoded.damaged:
            _log.warning("%s: %d bodies cannot be unpacked", self._queue, decoded.damaged)
        return decoded.batch

    def _answers(self) -> Iterator[tuple[_Stride, RawPull]]:
        """Yield the answers that hold messages, with the strides that they are answers to."""
        self._fill()
        while self._strides:
            stride = self._strides.popleft()
            found = self._answer(stride)
            if found is None:
                continue  # asked again, or given up
            if found.next_offset < stride.end:
                # The broker gives less at a time: so do the strides to come, and the rest is next.
                if not self._is_filtered:
                    self._stride = found.next_offset - stride.begin
                self._ask_first(found.next_offset, stride.end)
            self._fill()
            if found.body:
                yield stride, found

    # ---- asking --------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Have as many requests under way as wanted."""
        most = 1 if self._is_filtered else self._options.pull_concurrency
        while self._next < self._end and len(self._strides) < most:
            end = self._end if self._is_filtered else min(self._next + self._stride, self._end)
            self._strides.append(_Stride(self._next, end, self._submit(self._next, end)))
            self._next = end

    def _ask_first(self, begin: int, end: int) -> None:
        self._strides.appendleft(_Stride(begin, end, self._submit(begin, end)))

    def _submit(self, begin: int, end: int) -> Future[RawPull]:
        client, options = self._client, self._options
        return client.submit(
            pull_raw(
                client.core,
                self._queue,
                begin,
                group=options.group,
                max_count=min(end - begin, options.pull_count),
                max_bytes=options.pull_bytes,
                wanted=self._filter,
                deadline=client.core.clock.now() + options.pull_timeout,
            )
        )

    def _answer(self, stride: _Stride) -> RawPull | None:
        """Return an answer that goes on; None when the stride was asked for again, or given up.

        Raises:
            RocketMQError: See `read_partition`.
        """
        is_last = stride.attempts > self._options.fetch_retries
        try:
            found = stride.answer.result(self._options.pull_timeout + _MARGIN)
        except (TopicNotFound, RouteNotFound) as error:
            if not is_last:
                self._again(stride, error)
            else:
                self._lose(stride, None, "the topic or its broker is gone", go_on_at=stride.end)
            return None
        except RocketMQError as error:
            if not error.retryable or is_last:
                raise
            self._again(stride, error)
            return None
        if found.next_offset <= stride.begin and not is_last and found.status in _GOES_ON:
            self._again(stride, None)
            return None
        return found if self._is_good(stride, found) else None

    def _is_good(self, stride: _Stride, found: RawPull) -> bool:
        """Whether an answer goes on; what it says is lost is told, and left out."""
        there = (found.min_offset, found.max_offset)
        if found.status is PullStatus.MOVED and stride.begin < found.min_offset:
            self._lose(stride, there, "they were deleted", go_on_at=found.min_offset)
        elif found.status in (PullStatus.MOVED, PullStatus.NO_NEW):
            self._lose(stride, there, "the queue is shorter than it was", go_on_at=stride.end)
        elif found.next_offset <= stride.begin:
            self._lose(stride, there, "the broker does not give them out", go_on_at=stride.end)
        elif found.status is PullStatus.NO_MATCH and not self._is_filtered:
            self._lose(stride, there, "they are being deleted", go_on_at=found.next_offset)
        else:
            return True
        return False

    def _again(self, stride: _Stride, error: RocketMQError | None) -> None:
        """Ask once more, after a pause and a look where the broker is now."""
        _log.info("%s from %d on: asking again: %s", self._queue, stride.begin, error)
        time.sleep(self._options.retry_interval)
        client = self._client
        topic = with_namespace(self._queue.topic, client.options.namespace)
        deadline = client.core.clock.now() + client.options.call_timeout
        try:
            client.run(refresh_route(client.core, topic, deadline))
        except RocketMQError as failure:
            _log.info("no route of %s: %s", topic, failure)
        self._ask_first(stride.begin, stride.end)
        self._strides[0].attempts = stride.attempts + 1

    def _lose(
        self, stride: _Stride, there: tuple[int, int] | None, problem: str, *, go_on_at: int
    ) -> None:
        """Tell what is lost, and go on: in this stride, or behind it."""
        gone = (stride.begin, min(go_on_at, stride.end))
        tell(DataLost(self._queue, gone, there, problem), is_fatal=self._options.is_loss_fatal)
        if go_on_at < stride.end:
            self._ask_first(go_on_at, stride.end)
        self._fill()
