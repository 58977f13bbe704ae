"""Read a topic as a DataFrame, select columns, and write rows as messages; needs no jar.

python examples/spark_batch.py

It needs the extra `spark` (pyspark), and Java 17.
"""

from __future__ import annotations

from pyspark.sql import functions as F

import downrange as mq
import downrange.spark
from downrange.pipelines.session import make_session


def main() -> None:
    spark = make_session("example", master="local[2]")
    with mq.Cluster(brokers=2) as cluster:
        address = cluster.name_server
        with mq.Producer(address, group="shop") as producer:
            producer.create_topic("orders", queues=2)
            producer.create_topic("totals", queues=2)
            for number in range(300):
                producer.send(
                    mq.Message(
                        "orders",
                        f"{number % 7}.50",
                        tags="paid" if number % 3 else "new",
                        keys=[f"o-{number}"],
                    )
                )

        orders = (
            spark.read.format("rocketmq")
            .option("nameServer", address)
            .option("subscribe", "orders")
            .load()
        )
        print("messages per queue:")
        orders.groupBy("broker_name", "queue_id").count().orderBy("broker_name", "queue_id").show()

        # A schema selects columns: only these are decoded. The broker filters by tag.
        paid = (
            spark.read.format("rocketmq")
            .schema("offset LONG, tags STRING")
            .option("nameServer", address)
            .option("subscribe", "orders")
            .option("tags", "paid")
            .load()
        )
        print("paid:", paid.count())

        totals = (
            orders.withColumn("amount", F.col("body").cast("string").cast("decimal(10,2)"))
            .groupBy("tags")
            .agg(F.sum("amount").alias("total"))
            .select(
                F.to_json(F.struct("tags", "total")).alias("body"),
                F.col("tags").alias("keys"),
            )
        )
        (
            totals.write.format("rocketmq")
            .mode("append")
            .option("nameServer", address)
            .option("topic", "totals")
            .save()
        )
        stored = (
            spark.read.format("rocketmq")
            .option("nameServer", address)
            .option("subscribe", "totals")
            .load()
        )
        # A task that Spark runs again sends its messages again, with the same ids.
        for row in downrange.spark.drop_duplicates(stored).orderBy("keys").collect():
            print(row.keys, bytes(row.body).decode())
    spark.stop()


if __name__ == "__main__":
    main()
