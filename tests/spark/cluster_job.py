"""What the standalone cluster is given to do, as a user's own program; run by spark-submit.

    cluster_job.py write  NAME_SERVER TOPIC ROWS
    cluster_job.py mirror NAME_SERVER SOURCE TARGET FOLDER
    cluster_job.py land   NAME_SERVER SOURCE FOLDER

It works slowly on purpose, so that a worker can be killed in the middle.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import downrange.spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Rows of one Arrow batch, and the pause of a task after each.
ROWS_AT_ONCE = 100
PAUSE = 0.1


def slowly(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(PAUSE)
        yield batch


def write(spark: SparkSession, server: str, topic: str, rows: str) -> None:
    frame = spark.range(0, int(rows), 1, 4).select(
        F.concat(F.lit("row "), F.col("id")).alias("body"),
        F.col("id").cast("string").alias("keys"),
    )
    (
        frame.mapInArrow(slowly, frame.schema)
        .write.format("rocketmq")
        .mode("append")
        .option("nameServer", server)
        .option("topic", topic)
        .option("maxBatchBytes", 8192)
        .save()
    )


def mirror(spark: SparkSession, server: str, source: str, target: str, folder: str) -> None:
    frame = _stream(spark, server, source).select("body", "keys")
    query = (
        frame.mapInArrow(slowly, frame.schema)
        .writeStream.format("rocketmq")
        .option("nameServer", server)
        .option("topic", target)
        .option("maxBatchBytes", 8192)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def land(spark: SparkSession, server: str, source: str, folder: str) -> None:
    frame = _stream(spark, server, source)
    query = (
        frame.mapInArrow(slowly, frame.schema)
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _stream(spark: SparkSession, server: str, source: str) -> DataFrame:
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", server)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("minPartitions", 4)
        .option("batchRows", ROWS_AT_ONCE)
        .option("pullBatchSize", ROWS_AT_ONCE)
        .option("maxOffsetsPerTrigger", 2000)
        .load()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_AT_ONCE))
    downrange.spark.register(session)
    {"write": write, "mirror": mirror, "land": land}[sys.argv[1]](session, *sys.argv[2:])
    session.stop()
