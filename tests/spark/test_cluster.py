"""A standalone cluster of separate processes, with a worker killed in the middle of its work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downrange import Producer
from downrange.client.flows.admin.topics import topic_stats
from downrange.model import Message
from downrange.spark import drop_duplicates
from tests.spark.patience import SENDING
from tests.spark.standalone import Job, StandaloneCluster
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from downrange.model import ReceivedMessage
    from tests.contract.servers import Server

JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 6000
#: Messages that exist when a worker is killed: in the middle, not at the end.
MIDDLE = 1000


@pytest.fixture(scope="module")
def workers(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


def _kill_in_the_middle(workers: StandaloneCluster, job: Job, server: Server, topic: str) -> None:
    """Kill a worker that has an executor, with all its processes, and start another one."""
    wait_until(lambda: _count(server, topic) >= MIDDLE or not job.process.is_running, 600)
    assert job.process.is_running, job.log.read_text()[-4000:]
    assert _count(server, topic) < ROWS
    workers.workers.pop(0).kill()
    workers.add_worker()


def _count(server: Server, topic: str) -> int:
    core = server.reader.core
    deadline = core.clock.now() + WAIT_TIMEOUT
    return sum(
        queue.count for queue in server.reader.run(topic_stats(core, topic, deadline=deadline))
    )


def _bodies(messages: list[ReceivedMessage]) -> Counter[bytes]:
    return Counter(message.body for message in messages)


def _assert_only_repeated_sends(messages: list[ReceivedMessage]) -> None:
    """Check that copies have the same id, and different messages different ids."""
    assert set(_bodies(messages)) == {b"row %d" % number for number in range(ROWS)}
    ids: dict[str, set[bytes]] = {}
    for message in messages:
        ids.setdefault(message.message_id, set()).add(message.body)
    assert len(ids) == ROWS
    assert all(len(bodies) == 1 for bodies in ids.values())


def _read(spark: SparkSession, server: Server, topic: str) -> DataFrame:
    return (
        spark.read.format("rocketmq")
        .option("nameServer", server.name_server)
        .option("subscribe", topic)
        .load()
    )


def test_a_write_survives_the_death_of_a_worker(
    workers: StandaloneCluster, server: Server, spark: SparkSession
) -> None:
    topic = server.topic(4)
    job = workers.submit(JOB, "write", server.name_server, topic, str(ROWS), name=f"write-{topic}")
    _kill_in_the_middle(workers, job, server, topic)
    job.finish(600)
    messages = server.read_all(topic, ROWS)
    _assert_only_repeated_sends(messages)
    assert drop_duplicates(_read(spark, server, topic)).count() == ROWS


def test_a_stream_from_topic_to_topic_survives_it(
    workers: StandaloneCluster, server: Server, tmp_path: Path
) -> None:
    source, target = _filled(server), server.topic(4)
    job = workers.submit(
        JOB, "mirror", server.name_server, source, target, str(tmp_path), name=f"mirror-{target}"
    )
    _kill_in_the_middle(workers, job, server, target)
    job.finish(600)
    _assert_only_repeated_sends(server.read_all(target, ROWS))


def _filled(server: Server) -> str:
    topic = server.topic(4)
    with Producer(server.name_server, group="cluster", **SENDING) as producer:
        for first in range(0, ROWS, 500):
            numbers = range(first, first + 500)
            producer.send_batch(Message(topic, b"row %d" % number) for number in numbers)
    return topic
