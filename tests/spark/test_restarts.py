"""A driver is killed in its first batch and in a later one: no message is lost or read twice."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from downrange import Producer
from downrange.embedded import Cluster, deliver
from downrange.model import Message, QueueId
from downrange.wire.codes import RequestCode
from tests.apache.processes import ChildProcess
from tests.contract.servers import Server
from tests.spark import read_job
from tests.spark.patience import SENDING
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

_ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0


class SlowEnds:
    """Lets the first request for ends pass (the start), and delays the next (end of batch 0).

    The delay is for messages that are sent in between; without it when they are stored.
    """

    def __init__(self, queues: int) -> None:
        self.is_begun = threading.Event()
        self.is_sent = threading.Event()
        self._left = queues

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        """Count a request."""
        self._left -= 1
        if self._left >= 0:
            if self._left == 0:
                self.is_begun.set()
            return None
        return None if self.is_sent.is_set() else deliver(after=5.0)


def run_until_killed(arguments: list[str], folder: Path) -> None:
    job = ChildProcess(
        "read_job",
        [sys.executable, "-m", "tests.spark.read_job", *arguments],
        output=folder / "job.log",
        directory=_ROOT,
    )
    assert job.wait(_PATIENCE), job.tail(3000)
    assert job.exit_code != 0, "it was not killed"
    assert (folder / "checkpoint/offsets/0").exists(), job.tail(3000)


def test_a_driver_that_is_killed_twice_reads_each_message_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        Cluster(brokers=2) as cluster,
        Producer(cluster.name_server, group="restarts", **SENDING) as producer,
    ):
        server = Server(
            cluster.name_server, cluster.brokers, None, lambda name: f"{name}_{os.getpid()}"
        )
        topic = server.topic(1)

        def send(first: int, last: int) -> None:
            for broker in ("broker-a", "broker-b"):
                messages = [Message(topic, f"{broker} {number}") for number in range(first, last)]
                producer.send_batch(messages, queue=QueueId(topic, broker, 0))

        send(0, 10)  # before the stream begins, so not part of it
        slow = SlowEnds(2)
        cluster.intercept(RequestCode.GET_MAX_OFFSET, slow)

        def send_in_time() -> None:
            assert slow.is_begun.wait(_PATIENCE)
            send(10, 30)
            slow.is_sent.set()

        sending = threading.Thread(target=send_in_time, daemon=True)
        sending.start()
        arguments = [cluster.name_server, topic, str(tmp_path)]
        run_until_killed([*arguments, "0"], tmp_path)
        sending.join(_PATIENCE)
        assert not sending.is_alive()
        cluster.intercept(RequestCode.GET_MAX_OFFSET, None)
        logged = (tmp_path / "checkpoint/offsets/0").read_text()
        assert '"init"' in logged
        assert not (tmp_path / "checkpoint/commits/0").exists()

        send(30, 130)
        run_until_killed([*arguments, "2"], tmp_path)
        commits = sorted(path.name for path in (tmp_path / "checkpoint/commits").glob("[0-9]*"))
        assert commits == ["0", "1"]

        send(130, 140)
        query = read_job.begin(spark, *arguments, availableNow=True)
        assert query.awaitTermination(int(_PATIENCE))
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        places = [(row.broker_name, row.queue_id, row.offset) for row in rows]
        wanted = [
            (broker, 0, offset) for broker in ("broker-a", "broker-b") for offset in range(10, 140)
        ]
        assert sorted(places) == wanted
        assert {(row.broker_name, row.offset, bytes(row.body).decode()) for row in rows} == {
            (broker, offset, f"{broker} {offset}") for broker, _, offset in wanted
        }
        wait_until(lambda: not query.isActive)
        server.close()
