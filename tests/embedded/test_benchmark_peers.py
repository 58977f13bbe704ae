"""Our clients of the comparison with other Python clients, as its workers run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers.processes import Failed, Worker
from downrange.embedded import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("module", ["downrange_asyncio", "downrange_threads"])
def test_worker_sends_both_ways(cluster: Cluster, module: str) -> None:
    addresses = {"name_server": cluster.name_server}
    worker = Worker(Path(sys.executable), module, addresses, f"peers-{module}", 100)
    try:
        total = 0
        for way in ("one", "many"):
            sent, seconds, cpu = worker.run(way, 0.2)
            assert sent > 0
            assert seconds >= 0.2
            assert cpu > 0
            total += sent
        assert worker.sent == total
    finally:
        worker.close()


def test_worker_that_cannot_start_has_a_reason() -> None:
    worker = Worker(Path(sys.executable), "no_such_client", {}, "peers-none", 100)
    try:
        with pytest.raises(Failed, match="No module named"):
            worker.run("one", 0.1)
    finally:
        worker.close()
