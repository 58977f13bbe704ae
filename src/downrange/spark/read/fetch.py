"""A read task: pull the ranges of its partition, with several pulls in flight, into Arrow batches.

A range is requested in strides, each as long as the broker's last answers, so that the next pulls
are in flight while Spark takes the rows of the last one. If an answer is shorter than its stride,
the rest is requested before anything that comes later. An answer of half a stride or less shows
that strides are too long for this broker: all pulls in flight are cancelled and cut again. After a
number of full answers, strides grow again. Rows keep their order.

A filtered pull may advance far beyond a stride, so a filtered range has one pull in flight.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from downrange.client.flows.admin.clusters import cluster_facts
from downrange.client.flows.consuming.pull import PullStatus, RawPull, pull_raw
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import RocketMQError, RouteNotFound, TopicNotFound
from downrange.spark.connection import client_for
from downrange.spark.read.column_decoder import decode
from downrange.spark.read.losses import DataLost, report_loss
from downrange.spark.read.plan import ReadPartition
from downrange.spark.read.record_decoder import DecodeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from pyspark.sql.datasource import InputPartition

    from downrange.spark.read.plan import Range
    from downrange.spark.read.read_options import ReadOptions
    from downrange.spark.schema import RecordBatch

_log = logging.getLogger("downrange.spark")
#: Seconds to wait for a future beyond the timeout of its request.
_MARGIN: Final = 5.0
_PROGRESS: Final = (PullStatus.FOUND, PullStatus.NO_MATCH)
#: Full answers before longer strides are tried for the first time.
_FULL_ANSWERS_MIN: Final = 16


def read_partition(
    partition: InputPartition | None, columns: Sequence[str], options: ReadOptions
) -> Iterator[RecordBatch]:
    """Yield the rows of a partition; none for None, which Spark passes if there are no partitions.

    Raises:
        DataLost: Messages are gone, and failOnDataLoss is set.
        WireError: The broker's bytes are damaged.
        RocketMQError: A broker did not answer, in several attempts.
    """
    if not isinstance(partition, ReadPartition):
        return
    # By broker: the answers of one queue set the first strides of the next.
    stride_sizes: dict[str, _StrideSize] = {}
    for each in partition.ranges:
        stride_size = stride_sizes.setdefault(each.queue.broker, _StrideSize(options.pull_count))
        yield from _RangeReader(each, tuple(columns), options, stride_size).batches()


class _StrideSize:
    """The length of strides, derived from how many messages the broker's answers hold.

    A broker limits an answer by count or by size. With a limit by size answers vary, and strides
    stay a little below them. Longer strides are tried now and then, less often after each failure.

    Attributes:
        count: Messages of the next strides.
    """

    def __init__(self, most: int) -> None:
        self.count = most
        self._most = most
        self._last_good = most  # the length before longer strides were tried
        self._is_measured = False
        self._full_answers = 0
        self._full_answers_needed = _FULL_ANSWERS_MIN

    def update(self, count: int, requested: int) -> None:
        """Adapt to an answer: how many messages it has, and how many its stride has."""
        if count < requested:
            is_steady = not self._is_measured or count == self._last_good
            self.count = count if is_steady else max(1, count - count // 8)
            self._is_measured = True
            self._full_answers = 0
        elif requested == self.count < self._most:
            self._full_answers += 1
            if self._full_answers == 1 and self.count > self._last_good:
                self._full_answers_needed = _FULL_ANSWERS_MIN  # longer strides work
            elif self._full_answers == self._full_answers_needed:
                self._last_good, self.count = self.count, min(2 * self.count, self._most)
                self._full_answers = 0
                self._full_answers_needed *= 2


@dataclass(slots=True)
class _Stride:
    """A part of the range with one request in flight."""

    begin: int
    end: int
    answer: Future[RawPull]
    attempts: int = 1


class _RangeReader:
    """Reads one range of one queue."""

    def __init__(
        self,
        span: Range,
        columns: tuple[str, ...],
        options: ReadOptions,
        stride_size: _StrideSize,
    ) -> None:
        self._queue = span.queue
        self._end = span.end
        self._options = options
        self._client = client_for(options.connection)
        self._filter = options.message_filter
        self._is_filtered = options.message_filter.kind != "TAG" or bool(
            options.message_filter.tags
        )
        self._strides: deque[_Stride] = deque()
        self._next = span.begin  # where the next stride begins
        self._stride_size = stride_size
        self._available = (0, 0)  # the queue's offsets according to the last answer
        self._spec = DecodeSpec(
            columns=columns,
            topic=span.queue.topic,
            broker=span.queue.broker,
            begin=span.begin,
            end=span.end,
            tags=options.message_filter.tags,
            is_strict=options.is_loss_fatal,
        )

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows, in order."""
        bytes_max = self._options.batch_bytes
        # With a filter there are fewer rows than offsets, and their number is not known yet.
        rows_max = self._end if self._is_filtered else self._options.batch_rows
        chunks: list[bytes] = []
        begin = end = size = 0
        is_cut = False
        try:
            for stride, found in self._answers():
                last = min(found.next_offset, stride.end)
                is_full = last - begin > rows_max or size + len(found.body) > bytes_max
                if chunks and (is_full or is_cut or stride.begin != end):
                    yield from self._decoded(chunks, begin, end)
                    chunks, size = [], 0
                if not chunks:
                    begin = stride.begin
                chunks.append(found.body)
                size += len(found.body)
                end = last
                # A batch that a broker stores as one record may cross the border of two strides.
                # The answers to both hold it, and each stride takes its own part.
                is_cut = found.next_offset > stride.end
            if chunks:
                yield from self._decoded(chunks, begin, end)
        finally:
            self._cancel_all()  # also if the caller stops early

    def _decoded(self, chunks: list[bytes], begin: int, end: int) -> Iterator[RecordBatch]:
        decoded = decode(chunks, replace(self._spec, begin=begin, end=end))
        batch = decoded.batch
        if decoded.damaged:
            _log.warning("%s: %d bodies cannot be decompressed", self._queue, decoded.damaged)
        elif not self._is_filtered and batch.num_rows < end - begin:
            # A broker that deletes old messages skips those that are already gone.
            problem = f"the broker's answers lack {end - begin - batch.num_rows} of them"
            loss = DataLost(self._queue, (begin, end), self._available, problem)
            report_loss(loss, is_fatal=self._options.is_loss_fatal)
        rows_max = self._options.batch_rows
        for row in range(0, batch.num_rows, rows_max):
            yield batch.slice(row, rows_max)

    def _answers(self) -> Iterator[tuple[_Stride, RawPull]]:
        """Yield the answers that hold messages, each with its stride."""
        self._fill()
        while self._strides:
            stride = self._strides.popleft()
            found = self._answer(stride)
            if found is None:
                continue  # requested again, or skipped
            self._available = (found.min_offset, found.max_offset)
            if not self._is_filtered:
                self._request_rest(stride, found.next_offset)
            elif found.next_offset < stride.end:
                self._request_first(found.next_offset, stride.end)
            self._fill()
            if found.body:
                yield stride, found

    # ---- requests ------------------------------------------------------------------------------

    def _request_rest(self, stride: _Stride, next_offset: int) -> None:
        """Request the part of a stride that its answer does not cover."""
        count, requested = next_offset - stride.begin, stride.end - stride.begin
        self._stride_size.update(count, requested)
        if count >= requested:
            return
        if 2 * count > requested:
            self._request_first(next_offset, stride.end)
        else:
            self._cancel_all()
            self._next = next_offset

    def _cancel_all(self) -> None:
        """Cancel all requests in flight."""
        while self._strides:
            self._strides.pop().answer.cancel()

    def _fill(self) -> None:
        """Start requests up to the limit."""
        limit = 1 if self._is_filtered else self._options.pull_concurrency
        while self._next < self._end and len(self._strides) < limit:
            count = self._end if self._is_filtered else self._stride_size.count
            end = min(self._next + count, self._end)
            self._strides.append(_Stride(self._next, end, self._submit(self._next, end)))
            self._next = end

    def _request_first(self, begin: int, end: int) -> None:
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
                message_filter=self._filter,
                deadline=client.core.clock.now() + options.pull_timeout,
            )
        )

    def _answer(self, stride: _Stride) -> RawPull | None:
        """Return an answer that advances; None if the stride was requested again or skipped.

        Raises:
            RocketMQError: See `read_partition`.
        """
        is_last = stride.attempts > self._options.fetch_retries
        try:
            found = stride.answer.result(self._options.pull_timeout + _MARGIN)
        except (TopicNotFound, RouteNotFound) as error:
            if not is_last:
                self._retry(stride, error)
            elif isinstance(error, TopicNotFound) or self._is_broker_known():
                self._report_lost(stride, None, "the topic was deleted", continue_at=stride.end)
            else:  # the broker may come back, so nothing is lost yet
                error.add_note(self._note(stride))
                raise
            return None
        except RocketMQError as error:
            if not error.retryable or is_last:
                error.add_note(self._note(stride))
                raise
            self._retry(stride, error)
            return None
        if self._problem_of(stride, found) is None:
            return found
        if is_last or found.min_offset > stride.begin:
            self._skip_lost(stride, found)
        else:  # a broker that was just started may not have loaded all of its store
            self._retry(stride, None)
        return None

    def _note(self, stride: _Stride) -> str:
        """Return what was requested, for an error of the network that does not say it."""
        queue = self._queue
        return (
            f"Asked {stride.attempts} times for topic {queue.topic!r}, broker {queue.broker!r}, "
            f"queue {queue.number}, offsets {stride.begin} to {stride.end - 1}; "
            "fetchOffset.numRetries and fetchOffset.retryIntervalMs give servers more time."
        )

    def _problem_of(self, stride: _Stride, found: RawPull) -> str | None:
        """Return why an answer does not advance; None if it does."""
        if found.status is PullStatus.MOVED and stride.begin < found.min_offset:
            return "they were deleted"
        if found.status not in _PROGRESS:
            return "the queue is shorter than it was"
        if found.next_offset <= stride.begin:
            return "the broker does not deliver them"
        if found.status is PullStatus.NO_MATCH and not self._is_filtered:
            return "they are being deleted"
        return None

    def _skip_lost(self, stride: _Stride, found: RawPull) -> None:
        """Skip the offsets that an answer reports as lost."""
        problem = self._problem_of(stride, found) or ""
        there = (found.min_offset, found.max_offset)
        if found.min_offset > stride.begin:
            continue_at = found.min_offset
        elif found.status is PullStatus.NO_MATCH and found.next_offset > stride.begin:
            continue_at = found.next_offset
        else:
            continue_at = stride.end
        self._report_lost(stride, there, problem, continue_at=continue_at)

    def _is_broker_known(self) -> bool:
        """Whether name servers know the queue's broker; if so, the topic is gone."""
        client = self._client
        deadline = client.core.clock.now() + client.options.call_timeout
        facts = client.run(cluster_facts(client.core, deadline=deadline))
        return any(broker.name == self._queue.broker for broker in facts.brokers)

    def _retry(self, stride: _Stride, error: RocketMQError | None) -> None:
        """Request a stride again, after a pause and a new route lookup."""
        _log.info("%s from offset %d: requesting again: %s", self._queue, stride.begin, error)
        time.sleep(self._options.retry_interval)
        client = self._client
        topic = with_namespace(self._queue.topic, client.options.namespace)
        deadline = client.core.clock.now() + client.options.call_timeout
        try:
            client.run(refresh_route(client.core, topic, deadline))
        except RocketMQError as failure:
            _log.info("no route of %s: %s", topic, failure)
        self._request_first(stride.begin, stride.end)
        self._strides[0].attempts = stride.attempts + 1

    def _report_lost(
        self, stride: _Stride, there: tuple[int, int] | None, problem: str, *, continue_at: int
    ) -> None:
        """Report lost offsets, and continue at `continue_at`: in this stride, or behind it."""
        gone = (stride.begin, min(continue_at, stride.end))
        report_loss(
            DataLost(self._queue, gone, there, problem), is_fatal=self._options.is_loss_fatal
        )
        if continue_at < stride.end:
            self._request_first(continue_at, stride.end)
        self._fill()
