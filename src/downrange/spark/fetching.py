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
from dataclasses import dataclass
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
        rows_max, bytes_max = self._options.batch_rows, self._options.batch_bytes
        chunks: list[bytes] = []
        rows = size = 0
        try:
            for body, count in self._bodies():
                if chunks and (rows + count > rows_max or size + len(body) > bytes_max):
                    yield self._decoded(chunks)
                    chunks, rows, size = [], 0, 0
                chunks.append(body)
                rows += count
                size += len(body)
            if chunks:
                yield self._decoded(chunks)
        finally:
            for stride in self._strides:  # a reader that is given up waits for nothing
                stride.answer.cancel()

    def _decoded(self, chunks: list[bytes]) -> pa.RecordBatch:
        decoded = decode(chunks, self._wanted)
        if decoded.damaged:
            _log.warning("%s: %d bodies cannot be unpacked", self._queue, decoded.damaged)
        return decoded.batch

    def _bodies(self) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of answers with about how many messages they hold."""
        self._fill()
        while self._strides:
            stride = self._strides.popleft()
            found = self._answer(stride)
            if found is None:
                continue  # asked again, or given up
            if self._is_filtered:
                self._next = found.next_offset
            elif found.next_offset < stride.end:
                # The broker gives less at a time: so do the strides to come, and the rest is next.
                self._stride = max(1, found.next_offset - stride.begin)
                self._ask_first(found.next_offset, stride.end)
            elif not self._next < self._end:
                pass
            self._fill()
            if found.body:
                yield found.body, found.next_offset - stride.begin

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
        try:
            found = stride.answer.result(self._options.pull_timeout + _MARGIN)
        except (TopicNotFound, RouteNotFound) as error:
            if stride.attempts <= self._options.fetch_retries:
                return self._again(stride, error)
            self._lose(stride, None, "the topic or its broker is gone")
            return self._skip(stride, stride.end)
        except RocketMQError as error:
            if not error.retryable or stride.attempts > self._options.fetch_retries:
                raise
            return self._again(stride, error)
        there = (found.min_offset, found.max_offset)
        if found.status is PullStatus.MOVED:
            problem = "they were deleted" if stride.begin < found.min_offset else "the queue is shorter"
            self._lose(stride, there, problem)
            return self._skip(stride, max(found.next_offset, found.min_offset))
        if found.status is PullStatus.NO_NEW:
            self._lose(stride, there, "the queue is shorter than it was")
            return self._skip(stride, stride.end)
        if found.next_offset <= stride.begin:
            return self._stuck(stride, there)
        if found.status is PullStatus.NO_MATCH and not self._is_filtered:
            self._lose(stride, there, "the broker leaves them out, as they are being deleted")
            return self._skip(stride, found.next_offset)
        return found

    def _stuck(self, stride: _Stride, there: tuple[int, int]) -> RawPull | None:
        """A broker that does not go on is asked again, then believed to have nothing."""
        if stride.attempts <= self._options.fetch_retries:
            return self._again(stride, None)
        self._lose(stride, there, "the broker does not give them out")
        return self._skip(stride, stride.end)

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

    def _lose(self, stride: _Stride, there: tuple[int, int] | None, problem: str) -> None:
        loss = DataLost(self._queue, (stride.begin, stride.end), there, problem)
        tell(loss, is_fatal=self._options.is_loss_fatal)

    def _skip(self, stride: _Stride, to: int) -> None:
        """Go on at an offset: in this stride, or behind it."""
        if to < stride.end:
            self._ask_first(to, stride.end)
        elif self._is_filtered:
            self._next = self._end if to >= self._end else to
        self._fill()
