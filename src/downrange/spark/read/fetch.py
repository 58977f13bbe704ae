"""What a task does: pull the ranges of its partition, several pulls under way, into Arrow batches.

A range is asked for in strides, each as long as the broker's last answers were, so that the next
pulls are on their way while the rows of the last one go to Spark. An answer may be shorter than its
stride; the rest is asked for again, before anything that comes later. One that is much shorter says
that strides are too long for this broker: all that are under way are given up, and cut anew. When
answers fill their strides for some time, strides grow again. Rows keep their order.

A pull by a filter may go far beyond a stride, so such a range has one pull under way.
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
from downrange.spark.read.record_decoder import DecodeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from downrange.spark.read.plan import Range, ReadPartition
    from downrange.spark.read.read_options import ReadOptions
    from downrange.spark.schema import RecordBatch

_log = logging.getLogger("downrange.spark")
#: How much longer than the request itself its future is waited for.
_MARGIN: Final = 5.0
_PROGRESS: Final = (PullStatus.FOUND, PullStatus.NO_MATCH)
#: Answers that fill their strides until longer ones are tried for the first time.
_FULL_ANSWERS_MIN: Final = 16


def read_partition(
    partition: ReadPartition, columns: Sequence[str], options: ReadOptions
) -> Iterator[RecordBatch]:
    """Yield the rows of a partition.

    Raises:
        DataLost: Messages are gone, and that is fatal.
        WireError: The broker's bytes are damaged.
        RocketMQError: A broker did not answer, again and again.
    """
    # By broker: the answers of one queue set the first strides of the next.
    stride_sizes: dict[str, _StrideSize] = {}
    for each in partition.ranges:
        stride_size = stride_sizes.setdefault(each.queue.broker, _StrideSize(options.pull_count))
        yield from _RangeReader(each, tuple(columns), options, stride_size).batches()


class _StrideSize:
    """How many messages a broker gives at a time, as its answers teach.

    It keeps to a count of messages, or to a size: then answers vary, and strides stay a little
    below them. Longer strides are tried now and then; the more seldom, the more often in vain.

    Attributes:
        count: Messages of the next strides.
    """

    def __init__(self, most: int) -> None:
        self.count = most
        self._most = most
        self._last_good = most  # until longer strides were tried
        self._is_measured = False
        self._full_answers = 0
        self._full_answers_needed = _FULL_ANSWERS_MIN

    def update(self, count: int, requested: int) -> None:
        """Take note of an answer's length, and of its stride's."""
        if count < requested:
            is_steady = not self._is_measured or count == self._last_good
            self.count = count if is_steady else max(1, count - count // 8)
            self._is_measured = True
            self._full_answers = 0
        elif requested == self.count < self._most:
            self._full_answers += 1
            if self._full_answers == 1 and self.count > self._last_good:
                self._full_answers_needed = _FULL_ANSWERS_MIN  # the longer ones are good
            elif self._full_answers == self._full_answers_needed:
                self._last_good, self.count = self.count, min(2 * self.count, self._most)
                self._full_answers = 0
                self._full_answers_needed *= 2


@dataclass(slots=True)
class _Stride:
    """A part of the range that one request is under way for."""

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
        self._there = (0, 0)  # the offsets that the queue has, as the last answer says
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
        # By a filter, rows are fewer than offsets, and nobody has counted them yet.
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
                # A batch that a broker stored whole may stand on the border of two strides, and is
                # in the answers to both: each takes its own part of it.
                is_cut = found.next_offset > stride.end
            if chunks:
                yield from self._decoded(chunks, begin, end)
        finally:
            self._cancel_all()  # a reader that is not read to its end waits for nothing

    def _decoded(self, chunks: list[bytes], begin: int, end: int) -> Iterator[RecordBatch]:
        decoded = decode(chunks, replace(self._spec, begin=begin, end=end))
        batch = decoded.batch
        if decoded.damaged:
            _log.warning("%s: %d bodies cannot be unpacked", self._queue, decoded.damaged)
        elif not self._is_filtered and batch.num_rows < end - begin:
            # A broker that deletes old messages passes over those that are gone already.
            problem = f"{end - begin - batch.num_rows} of them are not in the broker's answers"
            loss = DataLost(self._queue, (begin, end), self._there, problem)
            report_loss(loss, is_fatal=self._options.is_loss_fatal)
        rows_max = self._options.batch_rows
        for row in range(0, batch.num_rows, rows_max):
            yield batch.slice(row, rows_max)

    def _answers(self) -> Iterator[tuple[_Stride, RawPull]]:
        """Yield the answers that hold messages, with the strides that they are answers to."""
        self._fill()
        while self._strides:
            stride = self._strides.popleft()
            found = self._answer(stride)
            if found is None:
                continue  # asked again, or given up
            self._there = (found.min_offset, found.max_offset)
            if not self._is_filtered:
                self._request_rest(stride, found.next_offset)
            elif found.next_offset < stride.end:
                self._request_first(found.next_offset, stride.end)
            self._fill()
            if found.body:
                yield stride, found

    # ---- asking --------------------------------------------------------------------------------

    def _request_rest(self, stride: _Stride, next_offset: int) -> None:
        """Ask for what an answer has left out of its stride."""
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
        """Wait no more for what is under way."""
        while self._strides:
            self._strides.pop().answer.cancel()

    def _fill(self) -> None:
        """Have as many requests under way as wanted."""
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
        """Return an answer that goes on; None when the stride was asked for again, or given up.

        Raises:
            RocketMQError: See `read_partition`.
        """
        is_last = stride.attempts > self._options.fetch_retries
        try:
            found = stride.answer.result(self._options.pull_timeout + _MARGIN)
        except (TopicNotFound, RouteNotFound) as error:
            if not is_last:
                self._retry(stride, error)
            elif isinstance(error, TopicNotFound) or self._is_broker_there():
                self._report_lost(stride, None, "the topic was deleted", go_on_at=stride.end)
            else:  # a broker that is away may come back: nothing is lost yet
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
        else:  # a broker that was just started may not have read all of its store yet
            self._retry(stride, None)
        return None

    def _note(self, stride: _Stride) -> str:
        """Say what was asked for, which an error of the network does not know."""
        queue = self._queue
        return (
            f"Asked {stride.attempts} times for topic {queue.topic!r}, broker {queue.broker!r}, "
            f"queue {queue.number}, offsets {stride.begin} to {stride.end - 1}; "
            "fetchOffset.numRetries and fetchOffset.retryIntervalMs give servers more time."
        )

    def _problem_of(self, stride: _Stride, found: RawPull) -> str | None:
        """Return why an answer does not go on; None when it does."""
        if found.status is PullStatus.MOVED and stride.begin < found.min_offset:
            return "they were deleted"
        if found.status not in _PROGRESS:
            return "the queue is shorter than it was"
        if found.next_offset <= stride.begin:
            return "the broker does not give them out"
        if found.status is PullStatus.NO_MATCH and not self._is_filtered:
            return "they are being deleted"
        return None

    def _skip_lost(self, stride: _Stride, found: RawPull) -> None:
        """Leave out what an answer says is lost, and go on behind it."""
        problem = self._problem_of(stride, found) or ""
        there = (found.min_offset, found.max_offset)
        if found.min_offset > stride.begin:
            go_on_at = found.min_offset
        elif found.status is PullStatus.NO_MATCH and found.next_offset > stride.begin:
            go_on_at = found.next_offset
        else:
            go_on_at = stride.end
        self._report_lost(stride, there, problem, go_on_at=go_on_at)

    def _is_broker_there(self) -> bool:
        """Whether name servers know the queue's broker; if so, it is the topic that is gone."""
        client = self._client
        deadline = client.core.clock.now() + client.options.call_timeout
        facts = client.run(cluster_facts(client.core, deadline=deadline))
        return any(broker.name == self._queue.broker for broker in facts.brokers)

    def _retry(self, stride: _Stride, error: RocketMQError | None) -> None:
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
        self._request_first(stride.begin, stride.end)
        self._strides[0].attempts = stride.attempts + 1

    def _report_lost(
        self, stride: _Stride, there: tuple[int, int] | None, problem: str, *, go_on_at: int
    ) -> None:
        """Tell what is lost, and go on: in this stride, or behind it."""
        gone = (stride.begin, min(go_on_at, stride.end))
        report_loss(
            DataLost(self._queue, gone, there, problem), is_fatal=self._options.is_loss_fatal
        )
        if go_on_at < stride.end:
            self._request_first(go_on_at, stride.end)
        self._fill()
