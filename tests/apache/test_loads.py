"""Tests of the driver's operations for benchmarks."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from tests.apache import probe
from tests.apache.java_client import JavaError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient

GET_MAX_OFFSET = 30
QUEUES = 4


def stored(cluster: ApacheCluster, topic: str) -> int:
    return sum(
        int(
            probe.call(
                cluster.brokers[0].address,
                GET_MAX_OFFSET,
                {"topic": topic, "queueId": str(queue)},
            ).fields["offset"]
        )
        for queue in range(QUEUES)
    )


def stored_in_time(cluster: ApacheCluster, topic: str, count: int) -> int:
    """Return the number of stored messages, after waiting up to a minute for `count`."""
    deadline = time.monotonic() + 60.0
    while (found := stored(cluster, topic)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("mode", "threads", "width"),
    [
        ("sync", 1, 1),
        ("sync", 8, 1),
        ("async", 1, 16),
        ("batch", 1, 10),
        ("batch", 4, 10),
        ("oneway", 1, 50),
    ],
)
def test_bench_counts_what_the_server_stored(
    mode: str,
    threads: int,
    width: int,
    apache: ApacheCluster,
    java_client: JavaClient,
    unique_name: UniqueName,
) -> None:
    topic = unique_name("topic")
    producer = java_client.start_producer(apache.name_server, unique_name("group"))
    found = java_client.call(
        "producer.bench",
        name=producer,
        topic=topic,
        mode=mode,
        threads=threads,
        width=width,
        durationMs=200,
    )
    assert found["messages"] == stored_in_time(apache, topic, found["messages"]) > 0
    assert found["elapsedNs"] >= 200_000_000
    assert (found["p50Ns"] is None) == (mode == "oneway")
    assert mode == "oneway" or found["p50Ns"] <= found["p99Ns"]


def test_bench_counts_messages_whose_transactions_were_committed(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    producer = java_client.start_producer(
        apache.name_server, unique_name("group"), transaction=True, commits=True
    )
    found = java_client.call(
        "producer.bench",
        name=producer,
        topic=topic,
        mode="transaction",
        threads=4,
        durationMs=200,
    )
    assert found["messages"] == stored_in_time(apache, topic, found["messages"]) > 0
    assert found["p50Ns"] <= found["p99Ns"]


def test_bench_waits_for_messages_that_the_client_gathers(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    if java_client.version.startswith("4."):
        pytest.skip("the client of 4.9 does not batch messages itself")
    topic = unique_name("topic")
    producer = java_client.start_producer(
        apache.name_server, unique_name("group"), options={"autoBatch": True}
    )
    found = java_client.call(
        "producer.bench", name=producer, topic=topic, mode="async", width=64, durationMs=200
    )
    assert found["messages"] == stored_in_time(apache, topic, found["messages"]) > 0


def test_bench_reads_a_topic_again_and_again(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    producer = java_client.start_producer(apache.name_server, group)
    sent = java_client.call(
        "producer.bench", name=producer, topic=topic, mode="batch", width=10, durationMs=50
    )["messages"]
    java_client.call("pull.start", name=group, group=group, nameServers=apache.name_server)
    assert stored_in_time(apache, topic, sent) == sent > 0
    durations_ms = itertools.chain((500,), itertools.repeat(8000))

    def reads_some_again() -> bool:
        duration_ms = next(durations_ms)  # a busy machine needs longer to read all once
        found = java_client.call("pull.bench", name=group, topic=topic, durationMs=duration_ms)
        assert found["elapsedNs"] >= duration_ms * 1_000_000
        return bool(found["messages"] > stored(apache, topic))

    wait_until(reads_some_again)


def test_bench_ends_at_the_first_refusal(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    producer = java_client.start_producer(apache.name_server, unique_name("group"))
    with pytest.raises(JavaError, match="body size over max"):
        java_client.call(
            "producer.bench",
            name=producer,
            topic=unique_name("topic"),
            mode="sync",
            bodyBytes=5_000_000,
            durationMs=200,
        )
