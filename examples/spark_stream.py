"""A stream from a topic to Parquet: exactly once, in bounded batches, with a lag listener.

python examples/spark_stream.py

It needs the extra `spark` (pyspark), and Java 17.
"""

from __future__ import annotations

import tempfile

import downrange as mq
from downrange.pipelines.session import make_session
from downrange.spark import LagListener


def main() -> None:
    spark = make_session("example", master="local[2]")
    listener = LagListener(
        lambda lag: print(f"batch {lag.batch}: {lag.rows} rows, {lag.total} messages behind")
    )
    spark.streams.addListener(listener)
    with mq.Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        with mq.Producer(cluster.name_server, group="shop") as producer:
            producer.send_batch(mq.Message("orders", f"order {number}") for number in range(1000))

        def write_stored() -> None:
            """Write all stored messages, then end; the next run starts at the checkpoint."""
            query = (
                spark.readStream.format("rocketmq")
                .option("nameServer", cluster.name_server)
                .option("subscribe", "orders")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", 400)
                .load()
                .writeStream.format("parquet")
                .option("path", f"{folder}/orders")
                .option("checkpointLocation", f"{folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(60)

        write_stored()
        with mq.Producer(cluster.name_server, group="shop") as producer:
            producer.send(mq.Message("orders", "one more"))
        write_stored()
        print("rows in Parquet:", spark.read.parquet(f"{folder}/orders").count())
        print(
            "distinct:", spark.read.parquet(f"{folder}/orders").select("msg_id").distinct().count()
        )
    spark.stop()


if __name__ == "__main__":
    main()
