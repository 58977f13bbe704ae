"""The messages of the benchmarks: as prebuilt Arrow batches, as Parquet files, and in a topic.

`PrebuiltDataSource` yields the same Arrow batch repeatedly: the maximum rate of a Python data
source in Spark, with nothing to fetch or decode. It has the columns of the `rocketmq` source.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from downrange import BatchReceipt, Message, Producer
from downrange.spark.schema import COLUMNS, arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql.types import StructType

BODY_BYTES: Final = 1024
BATCH_ROWS: Final = 2000
#: The columns that both connectors have, as a schema.
COMMON: Final = (
    "topic string, queue_id int, offset bigint, keys string, body binary, store_timestamp timestamp"
)
_START_US: Final = 1_800_000_000_000_000
_QUEUE_ID: Final = COLUMNS.index("queue_id")
_SEND_ROWS: Final = 100
_IN_FLIGHT: Final = 16
_SEND_TIMEOUT: Final = 60.0


@functools.cache
def message_batch() -> Any:
    """Return a record batch with the columns of the `rocketmq` source; bodies do not compress."""
    numbers = range(BATCH_ROWS)
    noise = np.random.default_rng(7).bytes(BATCH_ROWS * BODY_BYTES)
    keys = [f"order-{number}" for number in numbers]
    ids = [f"7F00000100010000{number:016X}" for number in numbers]
    times = pa.array([_START_US + number for number in numbers], pa.timestamp("us", tz="UTC"))
    columns = {
        "topic": ["bench-read"] * BATCH_ROWS,
        "broker_name": ["broker-a"] * BATCH_ROWS,
        "queue_id": [0] * BATCH_ROWS,
        "offset": list(numbers),
        "msg_id": ids,
        "keys": keys,
        "tags": ["paid"] * BATCH_ROWS,
        "body": [noise[at : at + BODY_BYTES] for at in range(0, len(noise), BODY_BYTES)],
        "properties": [
            [("KEYS", key), ("UNIQ_KEY", unique), ("TAGS", "paid"), ("WAIT", "true")]
            for key, unique in zip(keys, ids, strict=True)
        ],
        "born_timestamp": times,
        "store_timestamp": times,
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(COLUMNS))


class PrebuiltDataSource(DataSource):
    """The source `prebuilt`; options `tasks` and `rows` (of each task)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "prebuilt"

    def schema(self) -> StructType:
        """Return the columns of the `rocketmq` source."""
        return spark_schema(include_metadata=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the selected columns."""
        return PrebuiltReader(
            int(self.options["tasks"]), int(self.options["rows"]), tuple(schema.names)
        )


class PrebuiltReader(DataSourceReader):
    """Yields prebuilt batches."""

    def __init__(self, tasks: int, rows: int, columns: Sequence[str]) -> None:
        """Take the number of tasks, the rows of each, and the columns."""
        self._tasks = tasks
        self._rows = rows
        self._columns = list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per task."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""
        batch = message_batch().select(self._columns)
        for first in range(0, self._rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, self._rows - first))


def write_messages(folder: Path, tasks: int, rows: int) -> None:
    """Write uncompressed Parquet files with the source's columns; one per task and queue."""
    folder.mkdir(parents=True)
    for number in range(tasks):
        with pq.ParquetWriter(
            folder / f"{number}.parquet",
            arrow_schema(COLUMNS),
            compression="none",
            use_dictionary=False,
        ) as writer:
            for batch in PrebuiltReader(tasks, rows, COLUMNS).read(InputPartition(number)):
                queue_ids = pa.array([number] * batch.num_rows, pa.int32())
                writer.write_batch(batch.set_column(_QUEUE_ID, "queue_id", queue_ids))


def fill(name_server: str, topic: str, rows: int) -> int:
    """Send `rows` messages to every queue of a topic; return their total number."""
    batch = message_batch()
    messages = [
        Message(topic, body, keys=[key], tags="paid")
        for body, key in zip(
            batch.column("body").to_pylist(), batch.column("keys").to_pylist(), strict=True
        )
    ]
    waiting: deque[Future[BatchReceipt]] = deque()
    with Producer(name_server, group="bench-fill") as producer:
        queues = producer.publish_queues(topic)
        for sent in range(0, rows, _SEND_ROWS):
            first = sent % BATCH_ROWS
            part = messages[first : first + min(_SEND_ROWS, rows - sent)]
            for queue in queues:
                waiting.append(producer.submit_batch(part, queue=queue))
                if len(waiting) > _IN_FLIGHT:
                    waiting.popleft().result(_SEND_TIMEOUT)
        for future in waiting:
            future.result(_SEND_TIMEOUT)
    return rows * len(queues)
