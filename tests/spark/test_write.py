"""Writing through Spark: rows arrive complete, also after a failed task or driver."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import downrange.spark
from downrange.embedded import Cluster, refuse
from downrange.errors import OptionError
from downrange.spark import drop_duplicates
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.records import decode_batch
from tests.apache import probe
from tests.apache.processes import ChildProcess
from tests.contract.servers import Server
from tests.spark import write_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def session(spark: SparkSession) -> SparkSession:
    downrange.spark.register(spark)
    return spark


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Yield a cluster for fault injection."""
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def own(own_cluster: Cluster) -> Iterator[Server]:
    face = Server(
        own_cluster.name_server, own_cluster.brokers, None, lambda prefix: f"{prefix}_{os.getpid()}"
    )
    yield face
    face.close()


def save(rows: DataFrame, server: Server, **options: str) -> None:
    writing = rows.write.format("rocketmq").option("nameServer", server.name_server)
    writing.options(**options).mode("append").save()


def load(session: SparkSession, server: Server, topic: str) -> DataFrame:
    reading = session.read.format("rocketmq").option("nameServer", server.name_server)
    return reading.option("subscribe", topic).load()


# ---- batches -------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(session: SparkSession, server: Server) -> None:
    topic = server.topic(4)
    rows = session.range(0, 5000, 1, 3).select(
        f.concat(f.lit("order "), "id").alias("body"),
        f.array(f.concat(f.lit("k-"), "id"), f.lit("all")).alias("keys"),
        f.when(f.col("id") % 3 == 0, f.lit("new")).alias("tags"),
        f.create_map(
            *(f.lit("colour"), f.lit("grün"), f.lit("UNIQ_KEY"), f.lit("forged")),
            # The context of OpenTelemetry, which a job passes on row by row.
            *(f.lit("traceparent"), f.format_string("00-%032x-%016x-01", "id", "id")),
        ).alias("properties"),
        f.concat(f.lit("customer-"), f.col("id") % 50).alias("sharding_key"),
    )
    save(rows, server, topic=topic)
    server.read_all(topic, 5000)
    found = load(session, server, topic).orderBy(f.col("body").cast("string")).collect()
    expected = sorted((f"order {n}", n) for n in range(5000))
    assert [bytes(row.body).decode() for row in found] == [text for text, _ in expected]
    for row, (_, number) in zip(found, expected, strict=True):
        assert row["keys"] == f"k-{number} all"
        assert row.tags == ("new" if number % 3 == 0 else None)
        assert row.properties["colour"] == "grün"
        assert row.properties["traceparent"] == f"00-{number:032x}-{number:016x}-01"
        assert row.properties["__SHARDINGKEY"] == f"customer-{number % 50}"
    assert len({row.msg_id for row in found}) == 5000
    assert {len(row.msg_id) for row in found} == {32}
    homes = {(row.properties["__SHARDINGKEY"], row.broker_name, row.queue_id) for row in found}
    assert len(homes) == 50


def test_big_bodies_delays_queues_and_own_ids_are_written(
    session: SparkSession, server: Server
) -> None:
    topic = server.topic(2)
    rows = session.createDataFrame(
        [
            (topic, b"x" * 50_000, "id-0", 1, None),
            (topic, b"now", "id-1", 0, None),
            (topic, b"later", "id-2", None, 1000),
        ],
        "topic string, body binary, msg_id string, queue_id int, delay_time_ms long",
    )
    save(rows, server, dedup="column", compression="zstd")
    found = {one.message_id: one for one in server.read_all(topic, 3)}
    assert (found["id-0"].body, found["id-0"].queue.number) == (b"x" * 50_000, 1)
    assert (found["id-1"].body, found["id-1"].queue.number) == (b"now", 0)
    assert found["id-2"].body == b"later"
    assert found["id-2"].stored_at_ms >= found["id-1"].born_at_ms + 900


def test_the_broker_finds_messages_by_the_ids_of_rows(
    session: SparkSession, server: Server
) -> None:
    topic = server.topic(1)
    save(session.range(3).selectExpr("'x' AS body"), server, topic=topic)
    first = server.read_all(topic, 3)[0]
    fields = {
        "topic": topic,
        "key": first.message_id,
        "maxNum": "8",
        "beginTimestamp": "0",
        "endTimestamp": str(2**62),
        "_UNIQUE_KEY_QUERY": "true",
    }

    def asked() -> bool:
        return probe.call(server.brokers[0], RequestCode.QUERY_MESSAGE, fields).code == 0

    wait_until(asked)


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_an_invalid_write_fails_with_a_hint(session: SparkSession, server: Server) -> None:
    topic = server.topic(1)
    rows = session.range(3).selectExpr("CAST(id AS STRING) AS body")
    with pytest.raises(PySparkException, match="'colour' cannot be written"):
        save(rows.withColumn("colour", f.lit("red")), server, topic=topic)
    with pytest.raises(PySparkException, match="did you mean topic"):
        save(rows, server, topik=topic)
    with pytest.raises(PySparkException, match="a topic cannot be replaced"):
        rows.write.format("rocketmq").options(nameServer=server.name_server, topic=topic).mode(
            "overwrite"
        ).save()
    with pytest.raises(PySparkException, match=r"row 1 of partition \d: its body is null"):
        save(
            session.createDataFrame([("1",), (None,)], "body string").coalesce(1),
            server,
            topic=topic,
        )
    with pytest.raises(PySparkException, match="downrange topic create nowhere"):
        save(rows, server, topic="nowhere")


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_a_topic_is_mirrored_queue_by_queue(session: SparkSession, server: Server) -> None:
    """The columns of a read, without the read-only ones, can be written."""
    one, two = server.topic(3), server.topic(3)
    rows = session.range(300).select(
        f.col("id").cast("string").alias("body"),
        f.concat(f.lit("k-"), "id").alias("keys"),
        f.lit("t").alias("tags"),
        f.create_map(f.lit("colour"), f.lit("red")).alias("properties"),
    )
    save(rows, server, topic=one)
    server.read_all(one, 300)
    columns = ("body", "keys", "tags", "properties", "queue_id", "broker_name", "msg_id")
    copy = load(session, server, one).select(*columns)
    save(copy, server, topic=two, dedup="column", orderBy="queue")
    server.read_all(two, 300)
    kept = ("msg_id", "keys", "tags", "body", "broker_name", "queue_id", "offset")
    first, second = (
        {tuple(row) for row in load(session, server, topic).select(*kept).collect()}
        for topic in (one, two)
    )
    assert first == second
    assert len(first) == 300


def test_a_task_that_is_tried_again_sends_copies_with_equal_ids(
    session: SparkSession, own: Server, own_cluster: Cluster, tmp_path: Path
) -> None:
    topic = own.topic(2)
    stored = Counter[str]()

    def count(request: Command, peer: Peer) -> Interception | None:
        stored.update(item.property_bytes.decode() for item in decode_batch(request.body))
        return None

    own_cluster.intercept(BATCH, count)
    run_job(["retried", own.name_server, topic], tmp_path).wait_for_end(600)
    assert max(stored.values()) == 2
    own.read_all(topic, write_job.ROWS + 1)
    found = load(session, own, topic)
    assert found.count() > write_job.ROWS
    pairs = found.select("msg_id", "body").distinct()
    assert pairs.count() == write_job.ROWS
    once = drop_duplicates(found)
    assert once.count() == write_job.ROWS
    assert once.columns == found.columns
    lowest = found.groupBy("msg_id").agg(
        f.min(f.struct("broker_name", "queue_id", "offset")).alias("place")
    )
    kept = once.select("msg_id", f.struct("broker_name", "queue_id", "offset").alias("place"))
    assert kept.exceptAll(lowest).count() == 0


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_is_written(session: SparkSession, server: Server, tmp_path: Path) -> None:
    topic = server.topic(2)
    (tmp_path / "in").mkdir()
    for part in range(2):
        lines = "\n".join(f"{part}-{number}" for number in range(500))
        (tmp_path / "in" / f"{part}.txt").write_text(lines)
        query = write_job.begin_stream(
            session,
            server.name_server,
            topic,
            str(tmp_path / "in"),
            str(tmp_path / "checkpoint"),
            availableNow=True,
        )
        assert query.awaitTermination(300)
    found = server.read_all(topic, 1000)
    assert {one.body.decode() for one in found} == {
        f"{part}-{number}" for part in range(2) for number in range(500)
    }
    assert len({one.message_id for one in found}) == len(found) == 1000


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_output_mode_complete_is_refused(
    session: SparkSession, server: Server, tmp_path: Path
) -> None:
    counts = (
        session.readStream.format("rate")
        .load()
        .groupBy("timestamp")
        .count()
        .selectExpr("CAST(count AS STRING) AS body")
    )
    query = (
        counts.writeStream.format("rocketmq")
        .options(nameServer=server.name_server, topic=server.topic(1))
        .option("checkpointLocation", str(tmp_path))
        .outputMode("complete")
        .start()
    )
    with pytest.raises(PySparkException, match="cannot be replaced"):
        query.awaitTermination(300)


def test_a_stream_that_was_killed_after_sending_sends_the_same_ids_again(
    session: SparkSession, own: Server, own_cluster: Cluster, tmp_path: Path
) -> None:
    """The driver is killed after rows are stored and before the batch is committed."""
    topic = own.topic(2)
    (tmp_path / "in").mkdir()
    lines = [f"line {number:04}" for number in range(400)]
    (tmp_path / "in" / "1.txt").write_text("\n".join(lines))
    held = b"line 0399"

    is_held = threading.Event()

    def hold(request: Command, peer: Peer) -> Interception | None:
        if held not in request.body:
            return None
        is_held.set()
        return refuse(ResponseCode.SYSTEM_BUSY, "later")

    own_cluster.intercept(BATCH, hold)
    places = (str(tmp_path / "in"), str(tmp_path / "checkpoint"))
    job = run_job(["stream", own.name_server, topic, *places], tmp_path)
    try:
        assert is_held.wait(600), job.tail(3000)
        before = own.read_all(topic, 300)
    finally:
        job.kill()
    own_cluster.intercept(BATCH, None)
    query = write_job.begin_stream(session, own.name_server, topic, *places, availableNow=True)
    assert query.awaitTermination(300)
    after = own.read_all(topic, len(before) + 400)
    assert len({(one.message_id, one.body) for one in after}) == 400
    assert len({one.message_id for one in after}) == 400
    once = drop_duplicates(load(session, own, topic))
    assert sorted(bytes(row.body).decode() for row in once.collect()) == lines


def test_a_stream_drops_duplicates_within_its_watermark(
    session: SparkSession, own: Server, tmp_path: Path
) -> None:
    topic = own.topic(2)
    rows = session.range(50).selectExpr("CAST(id AS STRING) AS body", "CONCAT('m-', id) AS msg_id")
    for _ in range(2):
        save(rows, own, topic=topic, dedup="column")
    own.read_all(topic, 100)
    stream = (
        session.readStream.format("rocketmq")
        .options(nameServer=own.name_server, subscribe=topic, startingOffsets="earliest")
        .load()
    )
    query = (
        drop_duplicates(stream)
        .writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    found = session.table("once")
    assert (found.count(), found.columns) == (50, stream.columns)


# ---- duplicates ----------------------------------------------------------------------------------


def test_rows_without_an_id_are_all_kept_and_topics_are_apart(session: SparkSession) -> None:
    rows = session.createDataFrame(
        [
            ("t", "b", 0, 7, "k", "1"),
            ("t", "a", 1, 9, "k", "2"),
            ("t", "a", 1, 8, "k", "3"),
            ("u", "a", 1, 9, "k", "4"),
            ("t", "a", 0, 1, None, "5"),
            ("t", "a", 0, 2, None, "6"),
        ],
        "topic string, broker_name string, queue_id int, offset long, keys string, body string",
    )
    once = drop_duplicates(rows, by="keys")
    assert sorted(row.body for row in once.collect()) == ["3", "4", "5", "6"]
    assert once.columns == rows.columns
    with pytest.raises(OptionError, match="msg_id is missing: drop duplicates before selecting"):
        drop_duplicates(rows)
    with pytest.raises(OptionError, match="queue_id, offset are missing"):
        drop_duplicates(rows.drop("queue_id", "offset"), by="keys")


class _Job(ChildProcess):
    """A program with its own Spark session."""

    def wait_for_end(self, timeout: float) -> None:
        """Wait until it has ended with success."""
        assert self.wait(timeout), self.tail(3000)
        assert self.exit_code == 0, self.tail(3000)


def run_job(arguments: list[str], folder: Path) -> _Job:
    return _Job(
        "write_job",
        [sys.executable, "-m", "tests.spark.write_job", *arguments],
        output=folder / "job.log",
        directory=_ROOT,
    )
