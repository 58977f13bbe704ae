"""The two connectors of the comparison, behind one face: `rocketmq` of ours, `kafka` of Spark's.

A `Side` reads, follows and writes the messages of its broker through Spark. Both sides hold the
same messages in as many queues, and both give all columns they have unless a column is chosen.
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
    from benchmarks.peers import Peer

READ_TOPIC = "bench-read"
WRITE_TOPIC = "bench-write"
BODY_COLUMN = 4
"""Where the body is among the common columns."""


class Side(Protocol):
    """A connector with its broker.

    Attributes:
        name: For rows of the report.
    """

    name: str

    @property
    def pids(self) -> Sequence[int]:
        """The broker's processes."""
        ...

    def fill(self, messages: DataFrame, rows_per_queue: int) -> None:
        """Put the messages to read into the broker, as many into each queue."""
        ...

    def read(self) -> DataFrame:
        """Return all messages with all columns."""
        ...

    def read_common(self) -> DataFrame:
        """Return all messages with the columns that both connectors know, in the same order."""
        ...

    def follow(self, trigger_rows: int) -> DataFrame:
        """Return the messages as a stream of small batches."""
        ...

    def write(self, messages: DataFrame) -> None:
        """Send keys and bodies of a table."""
        ...

    def check_written(self, expected: int) -> None:
        """Compare what `write` sent in all with what the broker holds.

        Raises:
            RuntimeError: A message is missing, or there is one too many.
        """
        ...

    def pause(self) -> None:
        """Take all CPU from the broker, where an idle one needs much."""
        ...

    def resume(self) -> None:
        """Let the broker go on."""
        ...


@dataclass(slots=True)
class RocketMQSide:
    """Our data source, with a server that speaks RocketMQ's protocol."""

    spark: SparkSession
    peer: Peer
    name: str
    more_options: Mapping[str, str]

    @property
    def pids(self) -> Sequence[int]:
        """The server's processes."""
        return self.peer.pids

    def fill(self, messages: DataFrame, rows_per_queue: int) -> None:
        """Send by the producer, so that reading can be measured without the writer."""
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
        """Return what both know, chosen by a schema."""
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
        """Ask the server for the ends of its queues."""
        self.peer.acknowledged[WRITE_TOPIC] = expected
        self.peer.check_counts()

    def pause(self) -> None:
        """Take all CPU from the server."""
        self.peer.pause()

    def resume(self) -> None:
        """Let the server go on."""
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
        """Write by the connector, each file to one partition; this makes the topic."""
        table = messages.select(
            col("keys").alias("key"), col("body").alias("value"), col("queue_id").alias("partition")
        )
        table.write.format("kafka").options(**self._server(), topic=READ_TOPIC).save()

    def read(self) -> DataFrame:
        """Return all messages with the default columns."""
        reader = self.spark.read.format("kafka").options(**self._server())
        return reader.option("subscribe", READ_TOPIC).load()

    def read_common(self) -> DataFrame:
        """Return what both know, under Kafka's names."""
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
        """Do nothing: idle it takes about a hundredth of a core, and paused it loses its role."""

    def resume(self) -> None:
        """Do nothing, as it was not paused."""

    def _server(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.servers}
