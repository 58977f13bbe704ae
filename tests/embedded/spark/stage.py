"""An embedded cluster, and the readers of the Spark data source in this process, without Spark.

    with staged() as stage:
        topic = stage.topic()
        stage.send(topic, [b"1", b"2"])
        assert stage.bodies(subscribe=topic) == [b"1", b"2"]

A test does the steps of Spark: ask where a stream begins and where its next batch ends, plan the
batch, and read each partition.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from downrange import Admin, Producer
from downrange.client.flows.consuming.offsets import max_offset
from downrange.embedded import Cluster
from downrange.errors import RocketMQError
from downrange.model import Message, QueueId
from downrange.options import BrokerOptions, ClientOptions, ProducerOptions
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.runner import ServerThread
from downrange.spark.connection import close_clients
from downrange.spark.read.offsets import Positions
from downrange.spark.source import RocketMQDataSource
from downrange.store.message_store import StoreOptions
from downrange.store.retention import RetentionOptions
from tests.contract.servers import Server
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.spark.read.batch_reader import RocketMQReader
    from downrange.spark.read.stream_reader import RocketMQStreamReader
    from downrange.wire.command import Command

ALL = ReadAllAvailable()
#: For a busy machine.
PATIENT = ClientOptions(call_timeout=WAIT_TIMEOUT)
#: Few attempts without pauses, and no caches, so that no test waits.
QUICK = {
    "fetchOffset.numRetries": "2",
    "fetchOffset.retryIntervalMs": "10",
    "metadataIntervalMs": "0",
    "routeIntervalMs": "0",
}


class Stage:
    """A cluster, with a sender and readers.

    Args:
        name_server: Its address.
        brokers: The brokers' addresses.
    """

    def __init__(self, name_server: str, brokers: Sequence[str]) -> None:
        self.name_server = name_server
        self.server = Server(name_server, brokers, None, unique_name)
        self.admin = Admin(name_server, client_options=PATIENT).start()
        # A message that is sent again after a time-out would be stored twice.
        options = ProducerOptions(timeout=WAIT_TIMEOUT)
        self.producer = Producer(
            name_server, group="stage", options=options, client_options=PATIENT
        ).start()

    def close(self) -> None:
        """Close all clients."""
        self.producer.close()
        self.admin.close()
        self.server.close()
        close_clients()

    # ---- sending -------------------------------------------------------------------------------

    def topic(self, queues: int = 2, *, name: str | None = None) -> str:
        """Create a topic with this many queues on every broker."""
        return self.server.topic(queues, name=name)

    def send(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        broker: str = "broker-a",
        queue: int = 0,
        **settings: Any,
    ) -> None:
        """Store messages in one queue, and wait until they can be read."""
        place = QueueId(topic, broker, queue)
        messages = [Message(topic, body, **settings) for body in bodies]
        receipt = self.producer.send_batch(messages, queue=place)
        end = receipt.receipts[-1].offset + receipt.counts[-1]
        wait_until(lambda: self._end(place) >= end)

    def _end(self, queue: QueueId) -> int:
        client = self.server.reader
        deadline = client.core.clock.now() + 10.0
        try:
            return client.run(max_offset(client.core, queue, deadline=deadline))
        except RocketMQError:  # a restarted broker has closed its connections
            return -1

    # ---- reading -------------------------------------------------------------------------------

    def source(self, **options: Any) -> RocketMQDataSource:
        """Make the data source; two underscores in a name stand for a dot."""
        texts = {name.replace("__", "."): str(value) for name, value in options.items()}
        return RocketMQDataSource({"nameServer": self.name_server, **QUICK, **texts})

    def batch(self, **options: Any) -> RocketMQReader:
        """Make the reader of a batch."""
        source = self.source(**options)
        return source.reader(source.schema())

    def stream(self, **options: Any) -> RocketMQStreamReader:
        """Make the reader of a stream."""
        source = self.source(**options)
        return source.streamReader(source.schema())

    def table(self, **options: Any) -> Any:
        """Read a batch."""
        reader = self.batch(**options)
        return read(reader, reader.partitions())

    def bodies(self, **options: Any) -> list[bytes]:
        """Read the bodies of a batch."""
        return self.table(**options)["body"].to_pylist()  # type: ignore[no-any-return]


def numbers(first: int, last: int) -> list[bytes]:
    """Return bodies: the numbers from `first` up to, but not including, `last`."""
    return [b"%d" % number for number in range(first, last)]


def unique_name(prefix: str) -> str:
    """Make a name that no other test uses."""
    return f"{prefix}_{secrets.token_hex(5)}"


def read(
    reader: RocketMQReader | RocketMQStreamReader, partitions: Sequence[InputPartition]
) -> Any:
    """Read partitions one after the other, like Spark's tasks."""
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches) if batches else pa.table({"body": pa.array([], "binary")})


class Query:
    """Does the part of Spark for a stream: stores the end of each batch, asks for the next.

    Args:
        reader: The reader of the stream.
        start: The end of the last batch of a checkpoint; None without a checkpoint.
    """

    def __init__(self, reader: RocketMQStreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.start = reader.initialOffset() if start is None else start
        self.batches: list[list[bytes]] = []

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return where the next batch ends; converted through JSON, as in Spark."""
        chosen = self.reader.getDefaultReadLimit() if limit is None else limit
        return json.loads(json.dumps(self.reader.latestOffset(self.start, chosen)))  # type: ignore[no-any-return]

    def step(self, limit: ReadLimit | None = None) -> list[bytes]:
        """Run the next batch, if there is one; return its bodies."""
        end = self.plan(limit)
        if json.dumps(end) == json.dumps(self.start):
            return []
        table = read(self.reader, self.reader.partitions(self.start, end))
        bodies: list[bytes] = table["body"].to_pylist()
        self.batches.append(bodies)
        self.start = end
        return bodies

    @property
    def rows(self) -> list[bytes]:
        """The bodies of all batches."""
        return [body for batch in self.batches for body in batch]

    @property
    def position(self) -> Positions:
        """The current position."""
        return Positions.from_json(self.start)


class Counting:
    """Counts requests, and applies the rules to the first ones."""

    def __init__(self, *rules: Interception | None) -> None:
        self.codes: Counter[int] = Counter()
        self._rules = [*rules]

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        """Count a request, and return the next rule."""
        self.codes[request.code] += 1
        return self._rules.pop(0) if self._rules else None


@contextmanager
def staged(**settings: Any) -> Generator[tuple[Stage, Cluster]]:
    """Start a cluster; settings are those of `Cluster`."""
    with Cluster(**settings) as cluster:
        stage = Stage(cluster.name_server, cluster.brokers)
        try:
            yield stage, cluster
        finally:
            stage.close()


class RetentionStage(Stage):
    """A cluster of one broker that drops old messages on request."""

    def __init__(self, server: ClusterServer, thread: ServerThread) -> None:
        self._server = server
        self._thread = thread
        super().__init__(server.name_server.address, [server.brokers[0].address])

    def drop_old(self, topic: str) -> int:
        """Drop all but the last segment; return the new first offset of the first queue."""
        before = self._first(topic)

        async def drop() -> None:
            self._server.brokers[0].state.retention = RetentionOptions(keep_hours=1e-9)

        async def keep() -> None:
            self._server.brokers[0].state.retention = RetentionOptions()

        async def is_done() -> bool:
            return len(self._server.brokers[0].state.store.log.segment_starts) == 1

        self._thread.run(drop())
        # Segments that are not durable yet stay until the next checkpoint.
        wait_until(lambda: self._thread.run(is_done()))
        self._thread.run(keep())
        first = self._first(topic)
        assert first > before
        return first

    def _first(self, topic: str) -> int:
        states = self.admin.topic_stats(topic)
        return min(state.min_offset for state in states if state.queue.number == 0)


@contextmanager
def retention_stage(folder: Path) -> Generator[RetentionStage]:
    """Start a cluster whose log has small segments."""
    server = ClusterServer(
        ClusterOptions(
            store=str(folder),
            broker=BrokerOptions(retention_interval=0.05, checkpoint_interval=0.05),
            store_files=StoreOptions(log_segment_bytes=65_536),
        )
    )
    thread = ServerThread(server)
    with thread:
        stage = RetentionStage(server, thread)
        try:
            yield stage
        finally:
            stage.close()
