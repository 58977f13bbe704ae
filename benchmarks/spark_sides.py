"""The two connectors of the comparison with one interface: our `rocketmq`, and Spark's `kafka`.

A `Side` reads, follows and writes the messages of its broker through Spark. Both sides hold the
same messages in the same number of queues, and return all of their columns unless some are
selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.functions import col

from benchmarks.spark_sources import COMMON, fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.kafka import KafkaBroker
    from benchmarks.server_pair import Peer

READ_TOPIC = "bench-read"
WRITE_TOPIC = "bench-write"
BODY_COLUMN = 4
"""Index of the body among the common columns."""


class Side(Protocol):
    """A connector with its broker.

    Attributes:
        name: Name in the report.
    """

    name: str

    @property
    def pids(self) -> Sequence[int]:
        """The broker's processes."""
        ...

    def fill(self, messages: DataFrame, rows_per_queue: int) -> None:
        """Send the messages for the read jobs, the same number to each queue."""
        ...

    def read(self) -> DataFrame:
        """Return all messages with all columns."""
        ...

    def read_common(self) -> DataFrame:
        """Return all messages with the columns that both connectors have, in the same order."""
        ...

    def follow(self, trigger_rows: int) -> DataFrame:
        """Return the messages as a stream of small batches."""
        ...

    def write(self, messages: DataFrame) -> None:
        """Send keys and bodies of a table."""
        ...

    def check_written(self, expected: int) -> None:
        """Compare the number of rows that `write` sent with the messages in the broker.

        Raises:
            RuntimeError: The numbers differ.
        """
        ...

    def pause(self) -> None:
        """Stop the broker's processes, if an idle broker uses much CPU."""
        ...

    def resume(self) -> None:
        """Continue the broker's processes."""
        ...


@dataclass(slots=True)
class RocketMQSide:
    """Our data source, with a RocketMQ server."""

    spark: SparkSession
    peer: Peer
    name: str
    more_options: Mapping[str, str]

    @property
    def pids(self) -> Sequence[int]:
        """The server's processes."""
        return self.peer.pids

    def fill(self, messages: DataFrame, rows_per_queue: int) -> None:
        """Send with the producer, so that reading does not depend on the writer."""
        for topic in (READ_TOPIC, WRITE_TOPIC):
            self.peer.make_topic(topic)
        self.peer.acknowledged[READ_TOPIC] += fill(
            self.peer.name_server, READ_TOPIC, rows_per_queue
        )
        self.peer.check_counts()

    def read(self) -> DataFrame:
        """Return all messages with the default columns."""
        return self.spark.read.format("rocketmq").options(**self._reading()).load()

    def read_common(self) -> DataFrame:
        """Return the common columns, selected by a schema."""
        reader = self.spark.read.format("rocketmq").schema(COMMON)
        return reader.options(**self._reading()).load()

    def follow(self, trigger_rows: int) -> DataFrame:
        """Return the messages as a stream of small batches."""
        stream = self.spark.readStream.format("rocketmq").options(**self._reading())
        stream = stream.option("startingOffsets", "earliest")
        return stream.option("maxOffsetsPerTrigger", trigger_rows).load()

    def write(self, messages: DataFrame) -> None:
        """Send body, keys and tags."""
        writer = messages.select("body", "keys", "tags").write.format("rocketmq").mode("append")
        writer.options(nameServer=self.peer.name_server, topic=WRITE_TOPIC).save()

    def check_written(self, expected: int) -> None:
        """Compare with the ends of the queues."""
        self.peer.acknowledged[WRITE_TOPIC] = expected
        self.peer.check_counts()

    def pause(self) -> None:
        """Stop the server's processes."""
        self.peer.pause()

    def resume(self) -> None:
        """Continue the server's processes."""
        self.peer.resume()

    def _reading(self) -> dict[str, str]:
        options = {"nameServer": self.peer.name_server, "subscribe": READ_TOPIC}
        return {**options, **self.more_options}


@dataclass(slots=True)
class KafkaSide:
    """Spark's own connector, with a Kafka broker."""

    spark: SparkSession
    broker: KafkaBroker
    name: str = "kafka"

    @property
    def pids(self) -> Sequence[int]:
        """The broker's process."""
        return [self.broker.pid]

    def fill(self, messages: DataFrame, rows_per_queue: int) -> None:
        """Write with the connector, each file to one partition; this creates the topic."""
        table = messages.select(
            col("keys").alias("key"), col("body").alias("value"), col("queue_id").alias("partition")
        )
        table.write.format("kafka").options(**self._server(), topic=READ_TOPIC).save()

    def read(self) -> DataFrame:
        """Return all messages with the default columns."""
        reader = self.spark.read.format("kafka").options(**self._server())
        return reader.option("subscribe", READ_TOPIC).load()

    def read_common(self) -> DataFrame:
        """Return the common columns, under Kafka's names."""
        return self.read().select("topic", "partition", "offset", "key", "value", "timestamp")

    def follow(self, trigger_rows: int) -> DataFrame:
        """Return the messages as a stream of small batches."""
        stream = self.spark.readStream.format("kafka").options(**self._server())
        stream = stream.options(subscribe=READ_TOPIC, startingOffsets="earliest")
        return stream.option("maxOffsetsPerTrigger", trigger_rows).load()

    def write(self, messages: DataFrame) -> None:
        """Send key and value."""
        table = messages.select(col("keys").alias("key"), col("body").alias("value"))
        table.write.format("kafka").options(**self._server(), topic=WRITE_TOPIC).save()

    def check_written(self, expected: int) -> None:
        """Count by reading."""
        reader = self.spark.read.format("kafka").options(**self._server())
        stored = reader.option("subscribe", WRITE_TOPIC).load().count() if expected else 0
        if stored != expected:
            raise RuntimeError(f"kafka stored {stored} of {expected} in {WRITE_TOPIC}")

    def pause(self) -> None:
        """Do nothing: an idle Kafka uses 1 % of a core, a paused one loses its controller role."""

    def resume(self) -> None:
        """Do nothing, because it was not paused."""

    def _server(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.servers}
