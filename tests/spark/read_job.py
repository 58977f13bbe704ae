"""A Spark program that reads a stream into Parquet files, and kills itself within a batch.

read_job.py NAME_SERVER TOPIC FOLDER BATCH
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark import TaskContext
from pyspark.sql import functions

from downrange.pipelines.session import make_session

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
SCHEMA = "broker_name string, queue_id int, offset long, body binary"


def kill_in(batch_id: int, driver: int) -> Any:
    """Return a function that kills the driver at an offset of this batch."""

    def passed_on(offset: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") == str(batch_id):
            os.kill(driver, signal.SIGKILL)
        return offset

    return functions.udf(passed_on, "long", useArrow=False)


def begin(
    session: Any, name_server: str, topic: str, folder: str, kill: Any = None, **trigger: Any
) -> Any:
    """Start the query, or continue it."""
    rows = (
        session.readStream.format("rocketmq")
        .schema(SCHEMA)
        .options(nameServer=name_server, subscribe=topic, maxOffsetsPerTrigger="40")
        .options(batchRows="5", pullBatchSize="5")
        .load()
    )
    if kill is not None:
        rows = rows.withColumn("offset", kill("offset"))
    writing = rows.writeStream.format("parquet").options(
        path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint"
    )
    return (writing.trigger(**trigger) if trigger else writing).start()


def run(name_server: str, topic: str, folder: str, batch_id: str) -> None:
    """Run the query until it kills this program."""
    session = make_session("read-job", master="local[2]", settings=SETTINGS)
    jvm: Any = session.sparkContext._jvm
    driver = int(jvm.java.lang.ProcessHandle.current().pid())
    query = begin(session, name_server, topic, folder, kill_in(int(batch_id), driver))
    query.awaitTermination()


if __name__ == "__main__":
    run(*sys.argv[1:])
