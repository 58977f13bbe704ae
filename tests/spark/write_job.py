"""A Spark program that writes, for tests that retry or kill it.

write_job.py retried NAME_SERVER TOPIC MARK      a task fails once after it has sent its rows
write_job.py stream NAME_SERVER TOPIC SOURCE CHECKPOINT    a stream of text files, until killed
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from downrange import Admin
from downrange import spark as downrange_spark
from downrange.pipelines.session import make_session
from downrange.spark.source import RocketMQDataSource
from downrange.spark.write.write_options import parse_write
from downrange.spark.write.writers import RocketMQWriter, Written
from tests.spark.patience import CLIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

ROWS = 2000


class FailingWriter(RocketMQWriter):
    """Fails in the first attempt of each task, after all its rows are in flight.

    Attributes:
        name_server: Of the cluster that it writes to.
    """

    name_server = ""

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send rows, and fail once."""
        context = TaskContext.get()
        assert context is not None
        is_first = context.attemptNumber() == 0

        def rows() -> Iterator[Any]:
            yield from iterator
            if is_first:
                self._wait_until_some_are_stored()
                raise OSError("the first attempt fails here")

        return super().write(rows())

    def _wait_until_some_are_stored(self) -> None:
        assert self._options.topic is not None
        deadline = time.monotonic() + 60
        with Admin(self.name_server, client_options=CLIENT) as admin:
            while not any(each.end for each in admin.queue_ranges(self._options.topic)):
                assert time.monotonic() < deadline, "nothing is stored"
                time.sleep(0.05)


class FailingSource(RocketMQDataSource):
    """The data source with such a writer."""

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Return the writer."""
        writer = FailingWriter(parse_write(self.options), schema, overwrite=overwrite)
        writer.name_server = self.options["nameServer"]
        return writer


def retried(name_server: str, topic: str) -> None:
    """Write rows; every task fails once, after its rows were passed to the sink."""
    session = make_session("write-job", master="local[2,3]", settings=SETTINGS)
    session.dataSource.register(FailingSource)
    rows = session.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    (
        rows.write.format("rocketmq")
        .options(nameServer=name_server, topic=topic, maxBatchBytes="2048")
        .mode("append")
        .save()
    )
    session.stop()


def stream(name_server: str, topic: str, source: str, checkpoint: str) -> None:
    """Write the lines of text files as they appear."""
    session = make_session("write-job", master="local[2]", settings=SETTINGS)
    downrange_spark.register(session)
    query = begin_stream(session, name_server, topic, source, checkpoint)
    query.awaitTermination()


def begin_stream(
    session: Any, name_server: str, topic: str, source: str, checkpoint: str, **trigger: Any
) -> Any:
    """Start the query of `stream`, which continues after the kill."""
    lines = session.readStream.format("text").load(source)
    writing = (
        lines.selectExpr("value AS body")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=topic, checkpointLocation=checkpoint)
        .option("maxBatchBytes", "2048")
    )
    if trigger:
        writing = writing.trigger(**trigger)
    return writing.start()


SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

if __name__ == "__main__":
    jobs: dict[str, Any] = {"retried": retried, "stream": stream}
    jobs[sys.argv[1]](*sys.argv[2:])
