"""Streams through Spark, from the embedded and the Apache server."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from downrange import Admin, Producer
from downrange.embedded import Cluster
from downrange.model import Message, QueueId
from downrange.spark import LagListener
from downrange.spark.read.offsets import Positions
from downrange.wire.codes import RequestCode
from tests.contract.servers import Server
from tests.embedded.spark.stage import unique_name
from tests.spark.patience import CLIENT, SENDING
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from downrange.server.outputs import Peer
    from downrange.spark.read.lag import Lag
    from downrange.wire.command import Command

_TIMEOUT = 300


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a cluster for fault injection."""
    with Cluster() as own:
        yield own


@pytest.fixture
def face(cluster: Cluster) -> Iterator[Server]:
    """Yield the test interface of that cluster."""
    own = Server(cluster.name_server, cluster.brokers, None, unique_name)
    yield own
    own.close()


def stream(spark: SparkSession, server: Server, topic: str, **options: Any) -> DataFrame:
    texts = {name.replace("__", "."): str(text) for name, text in options.items()}
    reading = spark.readStream.format("rocketmq").option("nameServer", server.name_server)
    return reading.options(subscribe=topic, **texts).load()


def land(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writing = rows.writeStream.format("parquet").options(
        path=str(folder / "rows"), checkpointLocation=str(folder / "checkpoint")
    )
    return (writing.trigger(**trigger) if trigger else writing).start()


def landed(spark: SparkSession, folder: Path) -> list[int]:
    """Return the numbers in the files, sorted, with duplicates."""
    rows = spark.read.parquet(str(folder / "rows")).select("body").collect()
    return sorted(int(row.body) for row in rows)


def send(server: Server, topic: str, first: int, last: int) -> None:
    """Store numbers in the first queue of the first broker."""
    queue = QueueId(topic, server.route_brokers(topic)[0], 0)
    before = len(server.read_all(topic, 0))
    with Producer(server.name_server, group="streams", **SENDING) as producer:
        producer.send_batch(
            [Message(topic, str(number)) for number in range(first, last)], queue=queue
        )
    server.read_all(topic, before + last - first)


@pytest.fixture
def lags(spark: SparkSession) -> Iterator[list[Lag]]:
    """Return the list that a listener fills."""
    heard: list[Lag] = []
    listener = LagListener(heard.append)
    spark.streams.addListener(listener)
    yield heard
    spark.streams.removeListener(listener)


def test_a_stream_runs_in_bounded_batches_and_continues(
    spark: SparkSession, server: Server, tmp_path: Path, lags: list[Lag]
) -> None:
    topic = server.topic(2)
    queue = QueueId(topic, server.route_brokers(topic)[0], 0)
    group = unique_name("group")
    with Admin(server.name_server, client_options=CLIENT) as admin:
        admin.create_group(group)
        send(server, topic, 0, 100)
        rows = stream(
            spark,
            server,
            topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=40,
            group=group,
            commitGroupOffsets="true",
        )
        query = land(rows, tmp_path, availableNow=True)
        assert query.awaitTermination(_TIMEOUT)
        counts = [progress.numInputRows for progress in query.recentProgress]
        assert [count for count in counts if count] == [40, 40, 20]
        assert admin.group_offset(group, queue) == 100
    assert landed(spark, tmp_path) == [*range(100)]
    last = query.lastProgress
    assert last is not None
    assert Positions.from_json(json.loads(last.sources[0].endOffset))[queue] == 100
    wait_until(lambda: [lag.queues[queue] for lag in lags if lag.rows] == [60, 20, 0])

    send(server, topic, 100, 130)
    again = land(stream(spark, server, topic), tmp_path, once=True)
    assert again.awaitTermination(_TIMEOUT)
    assert landed(spark, tmp_path) == [*range(130)]
    pasted = (
        spark.read.format("rocketmq")
        .options(nameServer=server.name_server, subscribe=topic)
        .option("startingOffsets", last.sources[0].endOffset)
        .load()
    )
    assert sorted(int(row.body) for row in pasted.collect()) == [*range(100, 130)]


def test_trigger_once_ignores_the_limit(spark: SparkSession, face: Server, tmp_path: Path) -> None:
    topic = face.topic(1)
    send(face, topic, 0, 30)
    rows = stream(spark, face, topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query = land(rows, tmp_path, once=True)
    assert query.awaitTermination(_TIMEOUT)
    assert [progress.numInputRows for progress in query.recentProgress] == [30]


def test_an_idle_stream_asks_seldom_and_wakes_up(
    spark: SparkSession, cluster: Cluster, face: Server, tmp_path: Path, lags: list[Lag]
) -> None:
    """Also after its broker was down for a moment."""
    topic = face.topic(2)
    asked: Counter[int] = Counter()

    def count(request: Command, _peer: Peer) -> None:
        asked[request.code] += 1

    rows = stream(
        spark,
        face,
        topic,
        metadataIntervalMs=500,
        fetchOffset__numRetries=100,
        fetchOffset__retryIntervalMs=100,
    )
    query = land(rows, tmp_path)
    wait_until(lambda: query.lastProgress is not None, _TIMEOUT)
    cluster.intercept(RequestCode.GET_MAX_OFFSET, count)
    began = time.monotonic()
    wait_until(lambda: asked[RequestCode.GET_MAX_OFFSET] >= 6, _TIMEOUT)
    rounds = (time.monotonic() - began) / 0.5
    assert asked[RequestCode.GET_MAX_OFFSET] <= 2 * (rounds + 2)  # once per queue and interval
    assert query.lastProgress is not None
    assert query.lastProgress.batchId == 0
    cluster.intercept(RequestCode.GET_MAX_OFFSET, None)
    send(face, topic, 0, 10)
    wait_until(lambda: sum(lag.rows for lag in lags) == 10, _TIMEOUT)
    cluster.restart_broker()
    send(face, topic, 10, 20)
    wait_until(lambda: sum(lag.rows for lag in lags) == 20, _TIMEOUT)
    assert query.isActive
    query.stop()
    assert landed(spark, tmp_path) == [*range(20)]
    assert lags[-1].total == 0


def test_a_stream_waits_for_enough_messages_from_its_first_batch_on(
    spark: SparkSession, face: Server, tmp_path: Path, lags: list[Lag]
) -> None:
    topic = face.topic(1)
    query = land(stream(spark, face, topic, minOffsetsPerTrigger=5), tmp_path)
    wait_until(lambda: query.lastProgress is not None, _TIMEOUT)
    send(face, topic, 0, 3)
    time.sleep(0.5)
    send(face, topic, 3, 6)
    wait_until(lambda: sum(lag.rows for lag in lags) == 6, _TIMEOUT)
    query.stop()
    assert [lag.rows for lag in lags if lag.rows] == [6]
    assert landed(spark, tmp_path) == [*range(6)]


def test_a_re_created_topic_fails_the_query_unless_losses_are_allowed(
    spark: SparkSession, face: Server, tmp_path: Path
) -> None:
    topic = face.topic(1)
    send(face, topic, 0, 10)
    first = land(
        stream(spark, face, topic, startingOffsets="earliest"), tmp_path, availableNow=True
    )
    assert first.awaitTermination(_TIMEOUT)
    with Admin(face.name_server, client_options=CLIENT) as admin:
        admin.delete_topic(topic)
    face.topic(1, name=topic)
    send(face, topic, 10, 14)
    failing = land(stream(spark, face, topic), tmp_path, availableNow=True)
    with pytest.raises(StreamingQueryException, match="DataLost") as caught:
        failing.awaitTermination(_TIMEOUT)
    for word in (topic, "broker-a", "queue 0", "0 to 3", "failOnDataLoss=false"):
        assert word in str(caught.value)
    brave = land(stream(spark, face, topic, failOnDataLoss="false"), tmp_path, availableNow=True)
    assert brave.awaitTermination(_TIMEOUT)
    assert landed(spark, tmp_path) == [*range(14)]


def test_options_of_batches_fail_in_a_stream(
    spark: SparkSession, face: Server, tmp_path: Path
) -> None:
    rows = stream(spark, face, face.topic(1), endingOffsets="latest")
    query = land(rows, tmp_path, availableNow=True)
    with pytest.raises(StreamingQueryException, match="are for batches"):
        query.awaitTermination(_TIMEOUT)
