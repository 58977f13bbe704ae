"""The jobs of the standalone cluster, as a user's program for spark-submit.

    cluster_job.py write  NAME_SERVER TOPIC ROWS
    cluster_job.py mirror NAME_SERVER SOURCE TARGET FOLDER

It works slowly on purpose, so that a worker can be killed in the middle.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import downrange.spark

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a task takes for each row: long enough for a kill in the middle on a busy machine.
PAUSE = 0.004


@F.udf(returnType=StringType())
def slowly(text: str) -> str:
    time.sleep(PAUSE)
    return text


def write(spark: SparkSession, server: str, topic: str, rows: str) -> None:
    frame = spark.range(0, int(rows), 1, 4).select(
        slowly(F.concat(F.lit("row "), F.col("id"))).alias("body"),
        F.col("id").cast("string").alias("keys"),
    )
    (
        frame.write.format("rocketmq")
        .mode("append")
        .option("nameServer", server)
        .option("topic", topic)
        .option("maxBatchBytes", 8192)
        .save()
    )


def mirror(spark: SparkSession, server: str, source: str, target: str, folder: str) -> None:
    query = (
        _stream(spark, server, source)
        .select(slowly(F.col("body").cast("string")).alias("body"))
        .writeStream.format("rocketmq")
        .option("nameServer", server)
        .option("topic", target)
        .option("maxBatchBytes", 8192)
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
        .option("maxOffsetsPerTrigger", 2000)
        .load()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
    downrange.spark.register(session)
    work: dict[str, Callable[..., None]] = {"write": write, "mirror": mirror}
    work[sys.argv[1]](session, *sys.argv[2:])
    session.stop()
