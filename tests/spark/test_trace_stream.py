"""Traces as a stream: the rows of a batch, each once, also after a kill."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Message, Producer, Trace
from downrange.client.flows.producing.trace_records import encode_contexts
from downrange.embedded import Cluster, drop
from downrange.pipelines.options import ClusterOptions, RunOptions
from downrange.pipelines.stream_run import StopRequest
from downrange.pipelines.trace.pipeline import TraceOptions, run_trace
from downrange.pipelines.trace.records import RECORD_SCHEMA
from downrange.pipelines.trace.tables import sends_of, trace_tables
from downrange.pipelines.trace.trace_stream import stream_tables
from downrange.wire.codes import RequestCode
from tests.apache.processes import ChildProcess
from tests.contract.servers import Server
from tests.spark.patience import SENDING
from tests.spark.trace_job import TRACE_TOPIC, stream_options
from tests.spark.traces import (
    CONSUMPTIONS,
    TRACE_SCHEMA,
    A,
    after,
    before,
    pub,
    trace_row,
    trace_rows,
    traces,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from downrange.pipelines.summary import Progress
    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
JOB = Path(__file__).with_name("trace_job.py")


def rows_of(table: DataFrame) -> list[tuple[Any, ...]]:
    """Return all rows, sorted, with columns sorted by name."""
    return sorted((tuple(row) for row in table.select(*sorted(table.columns)).collect()), key=str)


def test_a_stream_that_is_started_again_has_the_rows_of_a_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    stream = spark.readStream.schema(TRACE_SCHEMA).parquet(str(source))

    def run(*rows: Any) -> None:
        if rows:
            topic = spark.createDataFrame(rows, TRACE_SCHEMA).coalesce(1)
            topic.write.mode("append").parquet(str(source))
        stream_tables(stream, out, checkpoint=tmp_path / "check", once=True, within=300)

    sends, others, first_half, second_half, twice = trace_rows()
    run()  # no messages yet, which is allowed
    run(sends, first_half)
    run(others, second_half, twice)
    run()

    wanted = trace_tables(traces(spark))
    records = spark.read.schema(RECORD_SCHEMA).parquet(str(out / "records"))
    assert rows_of(sends_of(records)) == rows_of(wanted.sends.drop("broker", "attempt"))
    counts = {row["record_id"]: row["count"] for row in _counts(records)}
    # The topic holds a message twice, which a stream cannot detect.
    assert {name for name, count in counts.items() if count > 1} == {
        f"T4/{index}/0" for index in range(len(CONSUMPTIONS[9:]))
    }
    # A delivery without its end waits until the watermark has passed.
    paired = wanted.consumptions.where("outcome <> 'not finished'").drop("time")
    consumptions = spark.read.parquet(str(out / "consumptions"))
    assert rows_of(consumptions.drop("time")) == rows_of(paired)
    assert spark.read.parquet(str(out / "send_windows")).count() == 0

    # Hours later the windows are closed, and open deliveries wait no longer.
    hours = 10**7
    late = [pub("late", hours, 1), before("q", "late", "g1", hours), after("q", "late", 1, hours)]
    run(trace_row(late, "T9", hours, A))
    run(trace_row([pub("later", hours, 1)], "T10", hours, A))
    windows = spark.read.parquet(str(out / "send_windows")).collect()
    assert sum(row["message_count"] for row in windows if row["topic"] == "orders") == 9
    assert {row["broker"] for row in windows} == {A, "10.0.0.2:10911"}
    outcomes = {row["outcome"] for row in spark.read.parquet(str(out / "consumptions")).collect()}
    assert "not finished" in outcomes


def _counts(records: DataFrame) -> list[Any]:
    return records.groupBy("record_id").count().collect()


# ---- the pipeline on a cluster -------------------------------------------------------------------


@pytest.fixture
def cluster(java: None) -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    face = Server(cluster.name_server, cluster.brokers, None, lambda prefix: prefix)
    yield face
    face.close()


def send_traced(server: Server, count: int) -> list[str]:
    """Send messages with traces, and consumer traces for half of them; return the ids."""
    server.topic(2, name="orders")
    server.topic(2, name=TRACE_TOPIC)
    trace = Trace(topic=TRACE_TOPIC, batch_count=2, flush_interval=0.1)
    traced = {**SENDING, "options": replace(SENDING["options"], trace=trace)}
    with Producer(server.name_server, group="shop", **traced) as producer:
        receipts = [producer.send(Message("orders", b"%d" % n)) for n in range(count)]
    ids = [receipt.message_id for receipt in receipts]
    with Producer(server.name_server, group="audit", **SENDING) as producer:
        for number, message_id in enumerate(ids[: count // 2]):
            body = encode_contexts([before(f"q{number}", message_id, "g1", 0)])
            producer.send(Message(TRACE_TOPIC, body))
    return ids


def test_a_trace_topic_becomes_tables_and_a_report(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    ids = send_traced(server, 20)
    options = TraceOptions(
        output=str(tmp_path / "out"),
        trace_topic=TRACE_TOPIC,
        topics=("orders",),
        cluster=ClusterOptions(name_server=server.name_server),
        title="Orders & <more>",
    )
    seen: list[str] = []
    done = run_trace(options, spark, show=lambda time_at: seen.append(time_at.doing))
    assert (done.pipeline, done.ended) == ("trace", "finished")
    assert (done.facts["sends"], done.facts["consumptions"]) == (20, 10)
    assert done.facts["unconsumed"] == 20  # ten were not finished
    sends = spark.read.parquet(str(tmp_path / "out" / "sends"))
    assert {row["message_id"] for row in sends.collect()} == set(ids)
    counts = spark.read.parquet(str(tmp_path / "out" / "measures" / "queue_counts")).collect()
    assert sum(row["message_count"] for row in counts) == 20
    assert len({row["broker"] for row in counts}) == 2
    page = Path(done.facts["report"]).read_text()
    assert "Orders &amp; &lt;more&gt;" in page
    assert seen


def test_a_stream_runs_until_a_stop_is_requested(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send_traced(server, 10)
    stop = StopRequest()
    deadline = time.monotonic() + PATIENCE

    def look(_moment: Progress) -> None:
        # The last derived table starts after all others.
        if (tmp_path / "_downrange" / "checkpoint" / "consumption_windows" / "metadata").exists():
            stop.ask()
        if time.monotonic() > deadline:
            stop.ask()

    options = replace(stream_options(server.name_server, tmp_path), run=RunOptions(every=0.5))
    done = run_trace(options, spark, show=look, stop=stop)
    assert time.monotonic() < deadline
    assert (done.ended, done.lag) == ("stopped", 0)
    assert (done.facts["sends"], done.facts["consumptions"]) == (10, 5)
    assert not spark.streams.active
    assert "no traced consumer" not in Path(done.facts["report"]).read_text()


class Gate:
    """Drops reads of the trace topic after the first batch of the job, until it is opened."""

    def __init__(self, first_batch: Path) -> None:
        self._first_batch = first_batch
        self.is_open = False
        self.has_held = False

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        if self.is_open or request.fields.get("topic") != TRACE_TOPIC:
            return None
        if not self._first_batch.exists():
            return None
        self.has_held = True
        return drop()


def test_a_stream_that_is_killed_loses_and_repeats_nothing(
    spark: SparkSession, cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    ids = send_traced(server, 60)
    gate = Gate(tmp_path / "stream" / "records" / "_spark_metadata" / "0")
    cluster.intercept(RequestCode.PULL_MESSAGE, gate)
    job = ChildProcess(
        "trace",
        [sys.executable, str(JOB), server.name_server, str(tmp_path)],
        output=tmp_path.with_name(f"{tmp_path.name}.log"),
        directory=ROOT,
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    def is_in_the_middle() -> bool:
        assert job.is_running, job.tail(3000)
        return gate.has_held

    try:
        wait_until(is_in_the_middle, PATIENCE)
    finally:
        job.kill()
    gate.is_open = True
    landed = spark.read.schema(RECORD_SCHEMA).parquet(str(tmp_path / "stream" / "records"))
    assert 0 < landed.count() < 90

    done = run_trace(stream_options(server.name_server, tmp_path), spark)
    assert done.ended == "finished"
    assert (done.facts["sends"], done.facts["consumptions"]) == (60, 30)
    records = spark.read.schema(RECORD_SCHEMA).parquet(str(tmp_path / "stream" / "records"))
    assert {row["count"] for row in _counts(records)} == {1}
    found = sorted(row["message_id"] for row in records.where("kind = 'send'").collect())
    assert found == sorted(ids)
    assert Path(done.facts["report"]).exists()
