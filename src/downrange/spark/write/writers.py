"""The writers: rows of a DataFrame, or of a stream, become messages.

A write stores each row at least once. Spark repeats a failed task, which sends its rows again, also
those that its first attempt stored; a sent message cannot be withdrawn. So each row has a unique id
that is the same in every attempt (option dedup, see `row_ids`), and `deduplicate.drop_duplicates`
drops the copies when they are read.

Methods run in different processes: the constructor on the driver, `write` on executors, `commit`
and `abort` on the driver again. The writer is pickled in between.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import OptionError
from downrange.spark.write.column_checks import check_columns
from downrange.spark.write.queue_choice import QueueChoice
from downrange.spark.write.requests import cut_requests
from downrange.spark.write.row_encoder import encode_rows
from downrange.spark.write.row_ids import RowIds, producer_ids
from downrange.spark.write.rows import Rows, in_chunks
from downrange.spark.write.send_window import QueueTotals, SendWindow, Totals, producer_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql.types import StructType

    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.model import QueueId
    from downrange.spark.write.write_options import WriteOptions

_log = logging.getLogger("downrange.spark")
#: Local properties in which Spark gives a task of a stream its query and batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
#: Seconds between two route lookups for a missing broker.
_ROUTE_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """The identity of a task.

    Attributes:
        partition: The number of its partition.
        attempt: The number of earlier attempts.
        query_id: The id of the stream, the same after a restart.
        batch_id: The number of the micro-batch.
    """

    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: str | None = None

    @classmethod
    def current(cls) -> Task:
        """Return the task that runs here; partition 0 if this is not a Spark task."""
        context = TaskContext.get()
        if context is None:
            return cls()
        return cls(
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
            query_id=context.getLocalProperty(_QUERY_ID),
            batch_id=context.getLocalProperty(_BATCH_ID),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """What one task has stored, all of it acknowledged.

    Attributes:
        partition: The number of its partition.
        attempt: The number of earlier attempts.
        rows: Stored rows.
        requests: Requests that carried them.
        wire_bytes: Bytes of the request bodies.
        retried: Attempts beyond the first.
        unsure: Rows that may be stored twice, because an attempt got no answer.
        delayed: Rows with a delay.
        late: Rows that were stored, but not flushed or replicated in time.
        queues: Count, lowest and highest offset by queue.
    """

    partition: int
    attempt: int
    rows: int
    requests: int = 0
    wire_bytes: int = 0
    retried: int = 0
    unsure: int = 0
    delayed: int = 0
    late: int = 0
    queues: dict[QueueId, QueueTotals] = field(default_factory=dict[Any, Any])


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        options: How to write.
        schema: The columns of the rows.
        overwrite: Whether the mode is "overwrite".

    Raises:
        OptionError: A column cannot be written, or the mode is "overwrite".
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                'mode("overwrite") is not supported: messages of a topic cannot be replaced; use '
                'mode("append")'
            )
        check_columns(schema, options)
        self._options = options
        #: The same for all tasks and attempts of this write.
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of a partition; return when all of them are acknowledged.

        Raises:
            InvalidMessage: A row is invalid; names it. Rows before it may be stored.
            RocketMQError: A broker rejected rows, or did not accept them in time.
        """
        task = Task.current()
        origin = f"job {self._job_id} partition {task.partition}"
        return write_rows(iterator, self._options, task, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was stored; nothing is left to do."""
        _log.info("write to %s: %s", self._options.topic or "topics", _describe(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was stored; it stays in the topics."""
        _log.warning(
            "write to %s failed; %s stay stored, and possibly rows of failed tasks; a new write "
            "sends all rows again%s",
            *(self._options.topic or "topics", _describe(messages)),
            "" if self._options.dedup == "column" else " under other ids",
        )


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream.

    Args:
        options: How to write.
        schema: The columns of the rows.
        overwrite: Whether the output mode is "complete".

    Raises:
        OptionError: A column cannot be written, or the output mode is "complete".
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                'output mode "complete" is not supported: messages of a topic cannot be replaced; '
                'use "append", or "update" to send each change'
            )
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of a partition; return when all of them are acknowledged.

        Raises:
            InvalidMessage: A row is invalid; names it. Rows before it may be stored.
            OptionError: Spark does not give the task the number of its batch.
            RocketMQError: A broker rejected rows, or did not accept them in time.
        """
        task = Task.current()
        if self._options.dedup == "key" and (task.query_id is None or task.batch_id is None):
            raise OptionError(
                f"this release of Spark does not set the task properties {_QUERY_ID} and "
                f"{_BATCH_ID}, which dedup=key needs; set dedup=column or dedup=none"
            )
        origin = f"query {task.query_id} batch {task.batch_id} partition {task.partition}"
        return write_rows(iterator, self._options, task, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was stored; nothing is left to do."""
        topic = self._options.topic or "topics"
        _log.info("batch %d to %s: %s", batchId, topic, _describe(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was stored; it stays in the topics, and the batch will be sent again."""
        _log.warning(
            "batch %d to %s failed; %s stay stored, and possibly rows of failed tasks; when the "
            "query is started again, the batch is sent again%s",
            *(batchId, self._options.topic or "topics", _describe(messages)),
            " under other ids" if self._options.dedup == "none" else " under the same ids",
        )


def write_rows(batches: Iterator[Any], options: WriteOptions, task: Task, origin: str) -> Written:
    """Send rows; return when all of them are acknowledged.

    Args:
        batches: The rows.
        options: How they are sent.
        task: The task that sends.
        origin: The text that ids are derived from, see `RowIds`.

    Raises:
        InvalidMessage: A row is invalid; names it.
        RocketMQError: A broker rejected rows, or did not accept them in time.
    """
    writer: _TaskWriter | None = None
    row_count = 0
    try:
        for batch in batches:
            for chunk in in_chunks(batch):
                if not chunk.num_rows:
                    continue
                if writer is None:  # a task without rows needs no connection
                    writer = _TaskWriter(options, task, origin)
                writer.add(Rows(chunk, row_count, task.partition))
                row_count += chunk.num_rows
        totals = Totals() if writer is None else writer.window.finish()
    except BaseException:
        if writer is not None:
            writer.window.cancel_all()
        raise
    assert totals.rows == row_count, f"{totals.rows} of {row_count} rows are acknowledged"
    return Written(
        partition=task.partition,
        attempt=task.attempt,
        rows=totals.rows,
        requests=totals.requests,
        wire_bytes=totals.wire_bytes,
        retried=totals.retried,
        unsure=totals.unsure,
        delayed=totals.delayed,
        late=totals.late,
        queues=totals.queues,
    )


class _TaskWriter:
    """The client, producer and requests in flight of a task that has rows."""

    def __init__(self, options: WriteOptions, task: Task, origin: str) -> None:
        client, producer = producer_for(options)
        self._options = options
        self._client = client
        self._producer = producer
        self._routes: dict[str, Sequence[QueueId]] = {}
        self._choice = QueueChoice(self._queues_of, task.partition, options.is_ordered)
        self._make_ids = _id_maker(options, producer, origin)
        self.window = SendWindow(client, producer, options)

    def add(self, rows: Rows) -> None:
        """Encode rows and send them."""
        namespace = self._client.options.namespace
        encoded = encode_rows(rows, self._options, namespace, self._make_ids)
        destinations, codes = self._choice.choose(encoded)
        for request in cut_requests(encoded, destinations, codes, self._producer, self._options):
            self.window.add(request)

    def _queues_of(self, topic: str, brokers: Collection[str]) -> Sequence[QueueId]:
        """Return a topic's writable queues; wait for named brokers that are missing."""
        client, producer = self._client, self._producer
        whole = with_namespace(topic, client.options.namespace)
        deadline = producer.deadline(self._options.timeout)
        queues = self._routes.get(topic)
        if queues is None:
            queues = self._routes[topic] = client.run(producer.find_route(whole, deadline)).writable
        while not {queue.broker for queue in queues}.issuperset(brokers):
            if client.core.clock.now() + _ROUTE_PAUSE >= deadline:
                break  # `QueueChoice` raises the error, with the row
            time.sleep(_ROUTE_PAUSE)
            route = client.run(refresh_route(client.core, whole, deadline))
            if route is not None and route.writable:
                queues = self._routes[topic] = route.writable
        return queues


def _id_maker(
    options: WriteOptions, producer: ProducerCore, origin: str
) -> Callable[[int, int], Any]:
    if options.dedup == "key":
        return RowIds(origin).of
    client = producer.client

    def make_ids(first_row: int, count: int) -> Any:
        return producer_ids(client.unique_ids, client.clock.wall_ms(), count)

    return make_ids


def _describe(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return what tasks have stored, for the log."""
    done = [message for message in messages if isinstance(message, Written)]
    total: Callable[[str], int] = partial(_sum_of, done)
    extras = [
        f"{count} {what}"
        for name, what in (
            ("delayed", "delayed"),
            ("unsure", "perhaps stored twice"),
            ("late", "not flushed or replicated in time"),
        )
        if (count := total(name))
    ]
    return (
        f"{total('rows')} rows in {total('requests')} requests of "
        f"{total('wire_bytes')} bytes by {len(done)} of {len(messages)} tasks"
        + (f" ({', '.join(extras)})" if extras else "")
    )


def _sum_of(messages: Sequence[Written], name: str) -> int:
    return sum(getattr(message, name) for message in messages)
