"""A Spark Connect program: batches and streams, read and written, without registering the source.

connect_job.py NAME_SERVER SOURCE TARGET FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

_PATIENCE = 400


def run(name_server: str, source: str, target: str, folder: str) -> None:
    """Copy a topic by a batch, then by a stream."""
    builder: Any = SparkSession.builder
    spark = (
        builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    batch = spark.read.format("rocketmq").options(nameServer=name_server, subscribe=source).load()
    print("rows", batch.count())
    copied = batch.selectExpr("body", "keys", "tags")
    copied.write.format("rocketmq").options(nameServer=name_server, topic=target).mode(
        "append"
    ).save()
    stream = (
        spark.readStream.format("downrange")
        .options(nameServer=name_server, subscribe=source, startingOffsets="earliest")
        .load()
    )
    query = (
        stream.selectExpr("body", "keys", "tags")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=target, checkpointLocation=folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(_PATIENCE)
    assert not query.isActive, "the stream has not ended"
    failure = query.exception()
    assert failure is None, failure
    print("streamed")
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    run(*sys.argv[1:])
