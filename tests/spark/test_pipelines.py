"""Pipelines on a real Spark: the results are what was sent."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from downrange import Message, Producer
from downrange.embedded import Cluster
from downrange.errors import OptionError, RouteNotFound
from downrange.pipelines import compact
from downrange.pipelines.compact import CompactOptions, run_compact
from downrange.pipelines.folders import FolderBusy, HadoopFolder, lock_folder
from downrange.pipelines.lake import LakeOptions, run_lake
from downrange.pipelines.load import LoadOptions, run_load
from downrange.pipelines.manifest import lake_files
from downrange.pipelines.mirror import MirrorOptions, run_mirror
from downrange.pipelines.options import ClusterOptions, RunOptions, SparkOptions
from downrange.pipelines.replay import ReplayOptions, run_replay
from downrange.pipelines.stream_run import PipelineFailed, StopRequest
from downrange.pipelines.topic_copy import TargetOptions
from tests.contract.servers import Server
from tests.spark.patience import SENDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from downrange.model import ReceivedMessage
    from downrange.pipelines.summary import Progress

ONCE = RunOptions(once=True)
FUTURE = date(2100, 1, 1)

only_embedded = pytest.mark.parametrize("server", ["embedded"], indirect=True, scope="session")


@pytest.fixture(scope="module")
def home() -> Iterator[Server]:
    """Yield a cluster of two brokers, besides `server`."""
    with Cluster(brokers=2) as cluster:
        own = Server(
            cluster.name_server,
            cluster.brokers,
            None,
            lambda prefix: f"{prefix}_{secrets.token_hex(5)}",
        )
        yield own
        own.close()


def send(server: Server, topic: str, numbers: Sequence[int]) -> None:
    """Send messages with all features, spread over queues."""
    with Producer(server.name_server, group="pipelines", **SENDING) as producer:
        route = producer.publish_queues(topic)
        for index, queue in enumerate(route):
            mine = [number for number in numbers if number % len(route) == index]
            if mine:
                producer.send_batch([message(topic, number) for number in mine], queue=queue)


def message(topic: str, number: int) -> Message:
    return Message(
        topic,
        f"body {number}".encode(),
        keys=[f"k{number}", "all"],
        tags="even" if number % 2 == 0 else "odd",
        properties={"number": str(number), "colour": "blue"},
    )


def cluster_of(server: Server) -> ClusterOptions:
    return ClusterOptions(name_server=server.name_server)


def places(session: SparkSession, output: Path) -> list[tuple[str, str, int, int]]:
    """Return the positions of the rows of a lake, as a Spark reader sees them."""
    rows = session.read.parquet(str(output)).select("topic", "broker_name", "queue_id", "offset")
    return sorted(tuple(row) for row in rows.collect())


def sent_places(server: Server, topic: str, count: int) -> list[tuple[str, str, int, int]]:
    return sorted(
        (topic, one.queue.broker, one.queue.number, one.offset)
        for one in server.read_all(topic, count)
    )


# ---- lake ----------------------------------------------------------------------------------------


@only_embedded
def test_lake_is_the_same_to_its_readers_however_it_is_compacted(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction is interrupted before and after its atomic step; rows and files are checked."""
    topics = (server.topic(2), server.topic(1))
    for topic in topics:
        send(server, topic, range(100))
    output = tmp_path / "lake"
    options = LakeOptions(
        topics=topics,
        output=str(output),
        cluster=cluster_of(server),
        batch_messages_max=50,
        body="text",
        run=ONCE,
    )
    reports: list[Progress] = []
    summary = run_lake(options, spark, show=reports.append)
    assert (summary.rows, summary.ended, summary.lag) == (200, "finished", 0)
    assert summary.batches is not None
    assert summary.batches >= 4
    assert reports
    sent = sorted(place for topic in topics for place in sent_places(server, topic, 100))
    assert places(spark, output) == sent
    bodies = {row.body for row in spark.read.parquet(str(output)).collect()}
    assert bodies == {f"body {number}" for number in range(100)}
    before = len(lake_files(output))
    started_before = spark.read.parquet(str(output))  # planned with the old list

    settings = CompactOptions(output=str(output), before=FUTURE, grace=3600)
    with monkeypatch.context() as cut:
        cut.setattr(compact, "replace_files", _die)
        with pytest.raises(KeyboardInterrupt):
            run_compact(settings, spark)
    assert len(lake_files(output)) == before
    assert places(spark, output) == sent

    with monkeypatch.context() as cut:
        cut.setattr(compact, "delete_unlisted", _die)
        with pytest.raises(KeyboardInterrupt):
            run_compact(settings, spark)
    after = lake_files(output)
    assert len(after) < before
    assert places(spark, output) == sent
    assert started_before.count() == 200

    # Another run finds nothing to do, and deletes files that no list names.
    done = run_compact(CompactOptions(output=str(output), before=FUTURE, grace=0), spark)
    assert done.rows == 0
    assert done.facts["files_after"] == len(after)
    on_disk = set(output.glob("topic=*/date=*/*.parquet"))
    assert on_disk == set(lake_files(output))
    assert places(spark, output) == sent

    # The lake continues, beyond the next condensed list of Spark.
    send(server, topics[0], range(100, 300))
    assert run_lake(options, spark).rows == 200
    more = sorted([*sent_places(server, topics[0], 300), *sent_places(server, topics[1], 100)])
    assert places(spark, output) == more
    table = pa.concat_tables([pq.ParquetFile(path).read() for path in lake_files(output)])
    assert table.num_rows == len(more)


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@only_embedded
def test_lake_rejects_options_that_would_lose_messages(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    topic = server.topic(1)
    send(server, topic, range(5))
    options = {"cluster": cluster_of(server), "output": str(tmp_path / "lake")}
    run_lake(LakeOptions(topics=(topic,), run=ONCE, **options), spark)  # type: ignore[arg-type]
    elsewhere = RunOptions(once=True, checkpoint=str(tmp_path / "other"))
    with pytest.raises(OptionError, match="was written with another checkpoint"):
        run_lake(LakeOptions(topics=(topic,), run=elsewhere, **options), spark)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="belongs to another job: its topics"):
        run_lake(LakeOptions(topics=("x",), run=ONCE, **options), spark)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"(?i)unknown option 'pullConcurency'; did you mean"):
        run_lake(
            LakeOptions(
                topics=(topic,),
                output=str(tmp_path / "new"),
                cluster=cluster_of(server),
                read={"pullConcurency": "1"},
            ),
            spark,
        )
    with lock_folder(tmp_path / "lake", "the lake"), pytest.raises(FolderBusy, match="stop it"):
        run_compact(CompactOptions(output=str(tmp_path / "lake")), spark)
    with pytest.raises(OptionError, match="give either a session or settings"):
        run_lake(
            LakeOptions(topics=(topic,), spark=SparkOptions(master="local"), **options),  # type: ignore[arg-type]
            spark,
        )
    with pytest.raises(OptionError, match="is not on this machine"):
        run_compact(CompactOptions(output="hdfs://there/lake"), spark)


@only_embedded
def test_lake_stops_when_asked_to(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    topic = server.topic(1)
    send(server, topic, range(20))
    stop = StopRequest()

    def show(progress: Progress) -> None:
        if progress.rows == 20:
            stop.ask()

    options = LakeOptions(
        topics=(topic,),
        output=str(tmp_path / "lake"),
        cluster=cluster_of(server),
        run=RunOptions(every=0.5),
    )
    summary = run_lake(options, spark, show=show, stop=stop)
    assert (summary.ended, summary.rows, summary.lag) == ("stopped", 20, 0)
    assert len(places(spark, tmp_path / "lake")) == 20


def test_small_files_of_any_file_system_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    place = HadoopFolder(f"file://{tmp_path}/deep", spark)
    assert place.read("job.json") is None
    for text in ("one ü", "two"):
        place.write("job.json", text)
        assert place.read("job.json") == text
    assert place.exists("job.json")
    assert (tmp_path / "deep" / "job.json").read_text() == "two"
    assert not place.is_file()
    assert HadoopFolder(f"file://{tmp_path}/deep/job.json", spark).is_file()


# ---- load ----------------------------------------------------------------------------------------


@only_embedded
def test_rows_of_csv_become_messages_and_bad_ones_go_to_a_folder(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    topic = server.topic(2)
    files = tmp_path / "in"
    files.mkdir()
    for name in ("a", "b"):
        rows = [f"{name}{number},text {number},red,1\n" for number in range(30)]
        (files / f"{name}.csv").write_text("id,text,colour,wait\n" + "".join(rows))
    bad = ["c0,,red,0\n", "c1,short\n", "c2,good,,0\n", "c3,x,red,soon\n", '"c 4",x,red,0\n']
    (files / "c.csv").write_text("id,text,colour,wait\n" + "".join(bad))
    options = LoadOptions(
        path=str(files),
        topic=topic,
        cluster=cluster_of(server),
        body="text",
        keys=("id",),
        tags="colour",
        properties={"of": "id"},
        delay="wait",
        bad_rows=str(tmp_path / "bad"),
        run=RunOptions(checkpoint=str(tmp_path / "check")),
    )
    summary = run_load(options, spark)
    assert (summary.rows, summary.facts["bad"]) == (65, 4)
    found = server.read_all(topic, 61)
    assert {(*one.keys, one.body.decode(), one.tags, one.properties["of"]) for one in found} == {
        *(
            (f"{name}{number}", f"text {number}", "red", f"{name}{number}")
            for name in "ab"
            for number in range(30)
        ),
        ("c2", "good", None, "c2"),
    }
    assert len({one.message_id for one in found}) == 61
    lines = [
        json.loads(line)
        for path in (tmp_path / "bad").glob("batch=*/*.json")
        for line in path.read_text().splitlines()
    ]
    told = {int(line["row"]): line["problem"] for line in lines}
    assert told == {
        1: "column 'text' is null, and a message needs a body",
        2: "it cannot be parsed",
        4: "column 'wait' is not a delay: soon",
        5: "a key of id contains a blank, which separates keys",
    }
    assert all(line["file"].endswith("/in/c.csv") for line in lines)
    # Files that were sent are not sent again; new files are.
    (files / "d.csv").write_text("id,text,colour,wait\nd,last,red,0\n")
    stop = StopRequest()

    def show(progress: Progress) -> None:
        if progress.rows:
            stop.ask()

    watched = run_load(replace(options, watch=True), spark, show=show, stop=stop)
    assert (watched.rows, watched.ended) == (1, "stopped")
    assert len(server.read_all(topic, 62)) == 62


@only_embedded
def test_bad_row_is_named(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    topic = server.topic(1)
    (tmp_path / "in.jsonl").write_text('{"a": "1"}\n{"a": "2"}\n{"a": \n')
    options = LoadOptions(
        path=str(tmp_path / "in.jsonl"),
        topic=topic,
        cluster=cluster_of(server),
        body="a",
        run=RunOptions(checkpoint=str(tmp_path / "check")),
    )
    with pytest.raises(PipelineFailed, match=r"in\.jsonl, row 3: it cannot be parsed"):
        run_load(options, spark)
    wrong = LoadOptions(
        path=str(tmp_path / "in.jsonl"),
        topic=topic,
        cluster=cluster_of(server),
        body="aa",
        run=RunOptions(checkpoint=str(tmp_path / "check")),
    )
    with pytest.raises(OptionError, match="body: the files have no column 'aa'; did you mean 'a'"):
        run_load(wrong, spark)


@only_embedded
def test_whole_rows_of_parquet_become_json(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    topic = server.topic(1)
    more = pa.array([[("p", "v")], []], pa.map_(pa.string(), pa.string()))
    table = pa.table({"id": ["x1", "x2"], "count": [1, None], "more": more})
    pq.write_table(table, tmp_path / "rows.parquet")
    options = LoadOptions(
        path=str(tmp_path / "rows.parquet"),
        topic=topic,
        cluster=cluster_of(server),
        body_json=True,
        id="id",
        sharding_key="id",
        properties_column="more",
        run=RunOptions(checkpoint=str(tmp_path / "check")),
    )
    assert run_load(options, spark).rows == 2
    found = {one.message_id: one for one in server.read_all(topic, 2)}
    assert {name: json.loads(one.body) for name, one in found.items()} == {
        "x1": {"id": "x1", "count": 1, "more": {"p": "v"}},
        "x2": {"id": "x2", "count": None, "more": {}},
    }
    assert found["x1"].properties["p"] == "v"


# ---- mirror and replay ---------------------------------------------------------------------------


def test_mirror_keeps_messages_and_their_order_to_another_cluster_and_back(
    spark: SparkSession, home: Server, server: Server, tmp_path: Path
) -> None:
    """The other cluster is embedded, then Apache; it has fewer queues."""
    topic, far, back = home.topic(3), server.topic(2), home.topic(3)
    send(home, topic, range(120))
    there = MirrorOptions(
        topics=(topic,),
        cluster=cluster_of(home),
        target=TargetOptions(name_server=server.name_server),
        target_topic=far,
        batch_messages_max=70,
        run=RunOptions(once=True, checkpoint=str(tmp_path / "there")),
    )
    assert run_mirror(there, spark).rows == 120
    again = MirrorOptions(
        topics=(far,),
        cluster=cluster_of(server),
        target=TargetOptions(name_server=home.name_server),
        target_topic=back,
        run=RunOptions(once=True, checkpoint=str(tmp_path / "back")),
    )
    assert run_mirror(again, spark).rows == 120
    source = home.read_all(topic, 120)
    for copied in (server.read_all(far, 120), home.read_all(back, 120)):
        assert sorted(map(_content, copied)) == sorted(map(_content, source))
        assert len({one.message_id for one in copied}) == 120
        assert _is_in_order(source, copied)


def _content(one: ReceivedMessage) -> tuple[Any, ...]:
    own = {name: one.properties[name] for name in ("number", "colour")}
    return one.body, one.keys, one.tags, tuple(own.items())


def _is_in_order(source: Sequence[ReceivedMessage], copied: Sequence[ReceivedMessage]) -> bool:
    """Whether messages of one queue are in one queue again, in the same order."""
    home = {one.body: one.queue for one in source}
    orders: defaultdict[Any, list[bytes]] = defaultdict(list)
    homes: defaultdict[Any, set[Any]] = defaultdict(set)
    for one in copied:
        orders[home[one.body]].append(one.body)
        homes[home[one.body]].add(one.queue)
    wanted: defaultdict[Any, list[bytes]] = defaultdict(list)
    for one in source:
        wanted[one.queue].append(one.body)
    return orders == wanted and all(len(queues) == 1 for queues in homes.values())


@only_embedded
def test_mirror_creates_topics_if_asked_to(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    topic = server.topic(3)
    send(server, topic, range(6))
    settings: dict[str, Any] = {
        "topics": (topic,),
        "cluster": cluster_of(server),
        "target_topic": "copy-{topic}",
        "run": RunOptions(once=True, checkpoint=str(tmp_path / "check")),
    }
    with pytest.raises(RouteNotFound):
        run_mirror(MirrorOptions(**settings), spark)
    run_mirror(MirrorOptions(create=True, **settings), spark)
    copied = server.read_all(f"copy-{topic}", 6)
    # Brokers have the same names here, so each message is in the queue of the same number.
    assert {(one.queue.broker, one.queue.number, one.body) for one in copied} == {
        (one.queue.broker, one.queue.number, one.body) for one in server.read_all(topic, 6)
    }


@only_embedded
def test_replay_sends_what_was_asked_for(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    topic, target = server.topic(2), server.topic(2)
    send(server, topic, range(50))
    middle = max(one.stored_at_ms for one in server.read_all(topic, 50)) + 1
    time.sleep(0.01)
    send(server, topic, range(100, 120))
    common: dict[str, Any] = {
        "topic": topic,
        "target_topic": target,
        "cluster": cluster_of(server),
    }
    late = ReplayOptions(from_time=str(middle), dry_run=True, **common)
    counted = run_replay(late, spark)
    assert (counted.rows, counted.facts["sent"]) == (20, 0)
    (tmp_path / "keys").write_text("k7\nk119\nnone\n")
    by_key = ReplayOptions(keys=("k3",), keys_file=str(tmp_path / "keys"), **common)
    reports: list[Progress] = []
    summary = run_replay(by_key, spark, show=reports.append)
    assert (summary.rows, summary.facts["sent"], summary.ended) == (3, 3, "finished")
    found = server.read_all(target, 3)
    assert {one.properties["number"] for one in found} == {"3", "7", "119"}
    origin = {one.body: one for one in server.read_all(topic, 70)}
    for one in found:
        was = origin[one.body]
        assert _content(one) == _content(was)
        assert {name: text for name, text in one.properties.items() if "origin." in name} == {
            "origin.topic": topic,
            "origin.broker": was.queue.broker,
            "origin.queue": str(was.queue.number),
            "origin.offset": str(was.offset),
            "origin.stored_at": str(was.stored_at_ms),
        }
    # The same replay has the same ids; with another label it has other ids.
    run_replay(by_key, spark)
    assert len({one.message_id for one in server.read_all(target, 6)}) == 3
    run_replay(ReplayOptions(keys=("k3",), label="again", **common), spark)
    assert len({one.message_id for one in server.read_all(target, 7)}) == 4
    both = ReplayOptions(to_time=str(middle), tags="even", dry_run=True, **common)
    assert run_replay(both, spark).rows == 25
