"""The clients of the benchmarks count the same messages as the server."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, TypeVar

import pytest

from benchmarks.load import Work
from benchmarks.load import run as run_generator
from benchmarks.matrix import asyncio_client, thread_client
from benchmarks.matrix.cells import READS, WORK_TITLES
from benchmarks.matrix.tasks import Task
from benchmarks.matrix.topic_filler import fill
from benchmarks.server_pair import Peer
from downrange.embedded import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.load import Measured as Loaded
    from benchmarks.load import Mode
    from benchmarks.matrix.cells import ClientName, WorkName
    from benchmarks.matrix.tasks import Measured

SECONDS = 0.1
#: Used if that was too short: on a busy machine a tenth of a second may not be enough.
MORE_SECONDS = (1.0, 5.0)
FoundT = TypeVar("FoundT")


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Cluster() as cluster:
        yield Peer(
            name="downrange",
            name_server=cluster.name_server,
            broker=cluster.brokers[0],
            pids=[os.getpid()],
        )


def run(
    client: ClientName, work: WorkName, peer: Peer, topic: str, seconds: float = SECONDS
) -> Measured:
    task = Task(
        client=client,
        work=work,
        name_server=peer.name_server,
        topic=topic,
        stored=peer.acknowledged[topic],
        body_bytes=100,
        seconds=seconds,
        lead_in=seconds,
        pids=tuple(peer.pids),
    )
    if client == "asyncio":
        return asyncio.run(asyncio_client.run(task))
    return thread_client.run(task)


def run_until_enough(
    work: Callable[[float], FoundT], is_enough: Callable[[FoundT], object]
) -> FoundT:
    """Run a client with growing durations until it has counted something."""
    found = work(SECONDS)
    for seconds in MORE_SECONDS:
        if is_enough(found):
            break
        found = work(seconds)
    return found


WORKS = [
    *(
        (client, work)
        for work in WORK_TITLES
        if work not in READS
        for client in ("threads", "asyncio")
    ),
    ("awake", "sync-1"),
]


@pytest.mark.parametrize(("client", "work"), WORKS)
def test_client_counts_what_is_stored(client: ClientName, work: WorkName, peer: Peer) -> None:
    topic = f"{client}-{work}"
    peer.make_topic(topic)

    def send(seconds: float) -> Measured:
        found = run(client, work, peer, topic, seconds)
        peer.acknowledged[topic] += found.messages + found.messages_before
        peer.check_count(topic)
        assert found.seconds >= seconds
        return found

    found = run_until_enough(send, lambda found: found.messages and found.messages_before)
    assert found.messages > 0
    assert found.messages_before > 0
    assert found.client_bytes > 0
    if work == "one-way":
        assert found.latencies_us is None
    else:
        assert found.latencies_us is not None
        assert found.latencies_us[0] <= found.latencies_us[1]


@pytest.mark.parametrize("client", ["threads", "asyncio"])
def test_client_reads_a_topic_repeatedly(client: ClientName, peer: Peer) -> None:
    topic = f"{client}-pull"
    peer.make_topic(topic)
    fill(peer, topic, 800, 100)
    peer.check_count(topic)
    found = run_until_enough(
        lambda seconds: run(client, "pull", peer, topic, seconds),
        lambda found: found.messages + found.messages_before > 800,
    )
    assert found.messages + found.messages_before > 800


@pytest.mark.parametrize("client", ["threads", "asyncio"])
def test_push_consumer_handles_a_topic_from_first_to_last(client: ClientName, peer: Peer) -> None:
    topic = f"{client}-push"
    peer.make_topic(topic)
    fill(peer, topic, 800, 100)
    peer.check_count(topic)
    found = run(client, "push", peer, topic)
    assert found.messages >= 800
    assert found.messages % 800 == 0
    assert found.seconds > 0


@pytest.mark.parametrize("client", ["threads", "asyncio"])
def test_client_that_reads_more_than_was_stored_fails(client: ClientName, peer: Peer) -> None:
    topic = f"{client}-pull-more"
    peer.make_topic(topic)
    fill(peer, topic, 800, 100)
    peer.acknowledged[topic] -= 100
    with pytest.raises(RuntimeError, match="were left"):  # as soon as it has read too many
        run(client, "pull", peer, topic, MORE_SECONDS[-1])


@pytest.mark.parametrize("mode", ["single", "window", "batch", "senders"])
def test_generator_counts_what_is_stored(mode: Mode, peer: Peer) -> None:
    topic = f"generator-{mode}"
    peer.make_topic(topic)

    def send(seconds: float) -> Loaded:
        found = run_generator(
            Work(mode=mode, address=peer.broker, topic=topic, seconds=seconds, lead_in=seconds)
        )
        peer.acknowledged[topic] += found.messages + found.messages_before
        peer.check_count(topic)
        return found

    found = run_until_enough(send, lambda found: found.messages)
    assert found.messages > 0
    assert found.load_bytes > 0


@pytest.mark.parametrize("mode", ["pull", "commit", "pop"])
def test_generator_reads_a_topic_repeatedly(mode: Mode, peer: Peer) -> None:
    topic = f"generator-{mode}"
    peer.make_topic(topic)
    fill(peer, topic, 800, 100)
    peer.check_count(topic)

    def read(seconds: float) -> Loaded:
        return run_generator(
            Work(mode=mode, address=peer.broker, topic=topic, seconds=seconds, lead_in=seconds)
        )

    found = run_until_enough(read, lambda found: found.messages + found.messages_before > 800)
    assert found.messages + found.messages_before > 800
