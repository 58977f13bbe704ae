"""Spark Connect: the same source, found by the server without registration."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from downrange import Producer
from downrange.embedded import Cluster
from downrange.model import Message
from tests.apache.processes import ChildProcess
from tests.contract.servers import Server
from tests.spark.patience import SENDING

for needed in ("grpc", "grpc_status", "pandas"):
    pytest.importorskip(needed, reason=f"Spark Connect needs {needed}")

_ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0


def test_batches_and_streams_are_read_and_written(java: None, tmp_path: Path) -> None:
    with Cluster(brokers=2) as cluster:
        server = Server(cluster.name_server, cluster.brokers, None, lambda name: f"{name}_c")
        source = server.topic(2, name="connect-source")
        target = server.topic(2, name="connect-target")
        with Producer(cluster.name_server, group="connect", **SENDING) as producer:
            for number in range(50):
                producer.send(Message(source, str(number), keys=[f"k-{number}"], tags="new"))
        folder = str(tmp_path / "checkpoint")
        job = ChildProcess(
            "connect_job",
            [
                *(sys.executable, "-m", "tests.spark.connect_job"),
                *(cluster.name_server, source, target, folder),
            ],
            output=tmp_path / "job.log",
            directory=_ROOT,
        )
        assert job.wait(_PATIENCE), job.tail(3000)
        said = (tmp_path / "job.log").read_text()
        assert job.exit_code == 0, said[-3000:]
        assert "rows 50" in said
        assert "streamed" in said
        found = server.read_all(target, 100)
        bodies = Counter(message.body for message in found)
        assert bodies == Counter({str(number).encode(): 2 for number in range(50)})
        assert {message.tags for message in found} == {"new"}
        server.close()
