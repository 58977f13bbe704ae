"""Pipelines that are killed in the middle and started again: nothing is missing.

The lake holds every message once. Topics may hold one twice, with the same id.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from downrange import Message, Producer
from downrange.embedded import Cluster, drop
from downrange.pipelines.manifest import ManifestError, lake_files
from downrange.wire.codes import RequestCode
from tests.apache.processes import ChildProcess
from tests.contract.servers import Server
from tests.spark.java import skip_without_java
from tests.spark.patience import SENDING
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
ORDERS = 1000
FILES, ROWS = 8, 60
#: Topics that pipelines send to -> requests that pass before the kill.
HELD = {"copied": 25, "loaded": 15, "replayed": 15}


class Gate:
    """Lets some requests to each topic pass, and drops the rest until it is opened.

    Args:
        lake: Reads of the topic "landing" pass until it has two batches.
    """

    def __init__(self, lake: Path) -> None:
        self._second_batch = lake / "_spark_metadata" / "1"
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.is_open = False
        self.held: set[str] = set()

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        topic = request.fields.get("b") or request.fields.get("topic") or ""
        with self._lock:
            self._passed[topic] += 1
            if self.is_open or not self._is_enough(topic):
                return None
            self.held.add(topic)
            return drop()

    def _is_enough(self, topic: str) -> bool:
        if topic == "landing":
            return self._second_batch.exists()
        return topic in HELD and self._passed[topic] > HELD[topic]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    skip_without_java()
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    face = Server(cluster.name_server, cluster.brokers, None, lambda prefix: prefix)
    yield face
    face.close()


def start(name: str, arguments: list[str], folder: Path) -> ChildProcess:
    return ChildProcess(
        name,
        [sys.executable, *arguments],
        output=folder / f"{name}.log",
        directory=ROOT,
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_nothing_is_missing_after_a_kill(cluster: Cluster, server: Server, tmp_path: Path) -> None:
    for topic in ("orders", "landing", *HELD):
        server.topic(2, name=topic)
    with Producer(server.name_server, group="shop", **SENDING) as producer:
        for queue in [*producer.publish_queues("orders"), *producer.publish_queues("landing")]:
            producer.send_batch(
                [
                    Message(queue.topic, f"{queue} {number}".encode(), keys=f"k{number}")
                    for number in range(ORDERS // 4)
                ],
                queue=queue,
            )
    (tmp_path / "in").mkdir()
    rows = {f"{file}-{row}" for file in range(FILES) for row in range(ROWS)}
    for file in range(FILES):
        lines = [f"{file}-{row},text {file}-{row}\n" for row in range(ROWS)]
        (tmp_path / "in" / f"{file}.csv").write_text("id,text\n" + "".join(lines))
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"name_server": server.name_server, "folder": str(tmp_path)}))
    gate = Gate(tmp_path / "lake")
    for code in (
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
    ):
        cluster.intercept(code, gate)
    job_file = str(Path(__file__).with_name("pipelines_job.py"))
    first = start("first", [job_file, str(settings), "killed"], tmp_path)
    try:
        wait_until(lambda: _is_in_the_middle(first, gate), PATIENCE)
    finally:
        first.kill()
    gate.is_open = True
    landed = len(_lake_rows(tmp_path / "lake"))
    assert 0 < landed < ORDERS
    for topic in HELD:
        assert server.read_all(topic, 1)

    second = start("second", [job_file, str(settings)], tmp_path)
    assert second.wait(PATIENCE), second.tail(3000)
    assert second.exit_code == 0, second.tail(3000)
    done = json.loads(second.tail(10000).strip().splitlines()[-1])
    assert [summary["ended"] for summary in done] == ["finished"] * 4

    landing = server.read_all("landing", ORDERS)
    where = sorted((one.queue.broker, one.queue.number, one.offset) for one in landing)
    assert sorted(_lake_rows(tmp_path / "lake")) == where  # each once
    bodies = {one.body for one in server.read_all("orders", ORDERS)}
    for topic in ("copied", "replayed"):
        _check_copies(server, topic, bodies)
    _check_copies(server, "loaded", {f"text {row}".encode() for row in rows})


def _check_copies(server: Server, topic: str, bodies: set[bytes]) -> None:
    found = server.read_all(topic, len(bodies))
    assert {one.body for one in found} == bodies
    ids = {(one.message_id, one.body) for one in found}
    # One id for each body, however often it was sent; the kill caused some repeated sends.
    assert len(ids) == len({one.message_id for one in found}) == len(bodies)
    assert len(found) > len(bodies)


def _is_in_the_middle(job: ChildProcess, gate: Gate) -> bool:
    assert job.is_running, job.tail(3000)
    return gate.held == {*HELD, "landing"}


def _lake_rows(lake: Path) -> list[tuple[str, int, int]]:
    columns = ("broker_name", "queue_id", "offset")
    rows: list[tuple[str, int, int]] = []
    try:
        files = lake_files(lake)
    except ManifestError:  # there is no batch yet
        return rows
    for path in files:
        table: Any = pq.ParquetFile(path).read(columns=list(columns))
        rows += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return rows


def test_command_runs_until_a_signal_and_prints_its_summary(server: Server, tmp_path: Path) -> None:
    server.topic(2, name="orders")
    with Producer(server.name_server, group="shop", **SENDING) as producer:
        producer.send_batch([Message("orders", b"%d" % number) for number in range(40)])
    settings = tmp_path / "lake.toml"
    settings.write_text(
        f'[cluster]\nname_server = "{server.name_server}"\n'
        '[lake]\ntopics = ["orders"]\n'
        '[run]\nevery = 0.5\n[spark]\nmaster = "local[2]"\n'
        'conf = { "spark.driver.bindAddress" = "127.0.0.1", "spark.driver.host" = "127.0.0.1" }\n'
    )
    lake = tmp_path / "lake"
    command = ["-m", "downrange", "pipeline", "lake", "--config", str(settings)]
    job = start("lake", [*command, "--output", str(lake), "--json"], tmp_path)
    try:
        wait_until(lambda: len(_lake_rows(lake)) == 40, PATIENCE)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(PATIENCE), job.tail(3000)
    finally:
        job.kill()
    assert job.exit_code == 0, job.tail(3000)
    told = json.loads(job.tail(5000).strip().splitlines()[-1])
    assert (told["pipeline"], told["ended"], told["rows"]) == ("lake", "stopped", 40)
    assert re.search(r"^lake: [0-9]+ rows, [0-9]+ rows/s", job.tail(5000), re.MULTILINE)
