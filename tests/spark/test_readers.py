"""Readers step by step, without Spark, with Apache servers: the same as with ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.spark.connection import close_clients
from downrange.spark.read.losses import DataLost
from downrange.spark.write import writers
from downrange.spark.write.write_options import parse_write
from tests.apache.artifacts import VERSIONS
from tests.embedded.spark.stage import Query, Stage, numbers
from tests.embedded.spark.stream_scenario import run_scenario
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apache.fixtures import ApacheVersions

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def stage(apache_versions: ApacheVersions) -> Iterator[Stage]:
    """Yield the stage of the Apache cluster."""
    cluster = apache_versions.cluster(VERSIONS[0])
    own = Stage(cluster.name_server, [broker.address for broker in cluster.brokers])
    yield own
    own.close()


def first_queue(stage: Stage, topic: str) -> QueueId:
    return QueueId(topic, stage.server.route_brokers(topic)[0], 0)


@pytest.mark.parametrize("seed", range(4))
def test_each_message_arrives_once(stage: Stage, seed: int) -> None:
    run_scenario(stage, None, seed)


def test_strides_follow_what_the_broker_gives(stage: Stage) -> None:
    topic = stage.topic(1)
    queue = first_queue(stage, topic)
    stage.send(topic, numbers(0, 3000), broker=queue.broker, tags="many")
    stage.send(topic, [b"last"], broker=queue.broker, tags="few")
    assert stage.bodies(subscribe=topic) == [*numbers(0, 3000), b"last"]
    assert stage.bodies(subscribe=topic, tags="few") == [b"last"]
    assert stage.bodies(subscribe=topic, tags="many") == numbers(0, 3000)


def test_topics_that_are_deleted_and_re_created_are_losses(stage: Stage) -> None:
    topic = stage.topic(1)
    queue = first_queue(stage, topic)
    stage.send(topic, numbers(0, 10), broker=queue.broker)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    assert query.step() == numbers(0, 10)
    partitions = query.reader.partitions(Query(stage.stream(**options)).start, query.start)
    stage.admin.delete_topic(topic)
    wait_until(lambda: stage.server.route(topic) is None)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        query.step()
    with pytest.raises(DataLost, match="was deleted"):
        list(query.reader.read(partitions[0]))
    brave = Query(stage.stream(**options, failOnDataLoss="false"), query.start)
    assert brave.step() == []
    stage.topic(1, name=topic)
    stage.send(topic, numbers(10, 13), broker=queue.broker)
    assert wait_until(lambda: brave.step()) == numbers(10, 13)
    assert brave.position[queue] == 3


def test_group_offsets_follow_the_stream(stage: Stage) -> None:
    topic = stage.topic(1)
    queue = first_queue(stage, topic)
    stage.send(topic, numbers(0, 10), broker=queue.broker)
    reader = stage.stream(
        subscribe=topic, startingOffsets="earliest", group="spark-readers", commitGroupOffsets="yes"
    )
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    assert query.step() == numbers(0, 10)
    assert query.step() == []
    assert stage.admin.group_offset("spark-readers", queue) == 10
    late = {"startingOffsets": "group", "group": "spark-readers"}
    stage.send(topic, numbers(10, 12), broker=queue.broker)
    assert stage.bodies(subscribe=topic, **late) == numbers(10, 12)


# ---- static topics -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def static_topic(stage: Stage, apache_versions: ApacheVersions) -> str:
    """Create a static topic of two queues."""
    java, topic = apache_versions.java_client(VERSIONS[0]), "static_topic_of_readers"
    options = ("-t", topic, "-qn", "2", "-c", "DefaultCluster")
    java.mqadmin(stage.server.name_server, "updateStaticTopic", *options)
    wait_until(lambda: stage.server.route(topic))
    return topic


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern"])
def test_a_static_topic_is_not_read(stage: Stage, static_topic: str, way: str) -> None:
    """Its records have other queue numbers and offsets than its logical queues."""
    problem = f"'{static_topic}' is a static topic, which this data source cannot read"
    with pytest.raises(OptionError, match=problem):
        stage.bodies(**{way: static_topic})


def test_a_static_topic_is_written_to(
    stage: Stage, static_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = writers.Task(3, 0, "q", "7")
    monkeypatch.setattr(writers.Task, "current", classmethod(lambda cls: task))
    options = parse_write({"nameServer": stage.name_server, "topic": static_topic})
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"0", b"1", b"2", b"3"], pa.binary()),
            "queue_id": pa.array([1, 0, 1, None], pa.int32()),
        }
    )
    schema = StructType([StructField("body", BinaryType()), StructField("queue_id", IntegerType())])
    writers.RocketMQWriter(options, schema, overwrite=False).write(iter([rows]))
    close_clients()
    stored = {each.body: each.queue for each in stage.server.read_all(static_topic, 4)}
    first, second = (QueueId(static_topic, "__syslo__global__", number) for number in range(2))
    assert (stored[b"0"], stored[b"1"], stored[b"2"]) == (second, first, second)
    assert stored[b"3"] in (first, second)
