"""Tests of the op that benchmarks send by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apache import probe
from tests.apache.java_client import JavaError

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


@pytest.mark.parametrize(("mode", "width"), [("sync", 1), ("async", 16), ("batch", 10)])
def test_bench_counts_what_the_server_stored(
    mode: str,
    width: int,
    apache: ApacheCluster,
    java_client: JavaClient,
    unique_name: UniqueName,
) -> None:
    topic = unique_name("topic")
    producer = java_client.start_producer(apache.name_server, unique_name("group"))
    found = java_client.call(
        "producer.bench", name=producer, topic=topic, mode=mode, width=width, durationMs=200
    )
    assert found["messages"] == stored(apache, topic) > 0
    assert found["elapsedNs"] >= 200_000_000
    assert (found["p50Ns"] is None) == (mode == "async")


def test_bench_ends_with_the_first_refusal(
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
