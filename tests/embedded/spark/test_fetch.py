"""Pulls of tasks over real sockets: lost requests are repeated."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Producer
from downrange.embedded import Cluster, cut, drop, handle_then_cut, refuse
from downrange.errors import RocketMQError, RouteNotFound
from downrange.model import Message, QueueId
from downrange.options import TLS, BrokerOptions, Credentials, ListenerOptions
from downrange.spark.connection import close_clients
from downrange.spark.read.losses import DataLost
from downrange.spark.read.plan import Range, ReadPartition
from downrange.spark.source import RocketMQDataSource
from downrange.tls import client_context, server_context
from downrange.wire.codes import RequestCode
from tests.apache.fixtures import ACCOUNTS
from tests.apache.security import make_tls_files
from tests.embedded.spark.stage import Counting, Query, numbers, read, retention_stage, staged
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.embedded.spark.stage import RetentionStage, Stage

PULL = RequestCode.PULL_MESSAGE


# ---- lost answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [cut(), drop(), handle_then_cut(), refuse(1, "failed")],
    ids=["cut", "drop", "lost", "no"],
)
def test_a_lost_pull_is_repeated(stage: Stage, cluster: Cluster, fault: Any) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 200))
    counting = Counting(None, fault, None, fault)
    cluster.intercept(PULL, counting)
    options = {"subscribe": topic, "pullBatchSize": "20", "pullTimeoutMs": "300"}
    assert stage.bodies(**options, fetchOffset__numRetries=100) == numbers(0, 200)
    assert counting.codes[PULL] > 10


def test_a_broker_that_never_answers_fails_the_read(stage: Stage, cluster: Cluster) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 5))
    counting = Counting(*[drop()] * 10)
    cluster.intercept(PULL, counting)
    for loss in ("true", "false"):
        with pytest.raises(RocketMQError, match="no answer within 0"):
            stage.bodies(subscribe=topic, pullTimeoutMs=500, failOnDataLoss=loss)
    wait_until(lambda: counting.codes[PULL] >= 6)  # the last one may still be on its way
    assert counting.codes[PULL] == 6  # two reads, three attempts each


def test_a_broker_that_gives_little_at_a_time_is_read_wholly() -> None:
    """As an Apache broker does."""
    broker = BrokerOptions(pull_messages_max=8, bulk_pull_messages_max=8, pull_bytes_max=900)
    with staged(broker=broker) as (stage, cluster):
        topic = stage.topic(1)
        stage.send(topic, numbers(0, 1000))
        counting = Counting()
        cluster.intercept(PULL, counting)
        assert stage.bodies(subscribe=topic) == numbers(0, 1000)
        assert counting.codes[PULL] >= 125
        some = stage.bodies(subscribe=topic, pullConcurrency=1, pullBatchSize=5)
        assert some == numbers(0, 1000)


def test_messages_as_large_as_they_get_are_read(stage: Stage) -> None:
    topic = stage.topic(1)
    large = [bytes([number]) * 4_000_000 for number in range(5)]
    for body in large:
        stage.send(topic, [body])
    stage.send(topic, [b"small"])
    assert stage.bodies(subscribe=topic) == [*large, b"small"]
    reader = stage.batch(subscribe=topic, batchBytes=1024)
    batches = [*reader.read(reader.partitions()[0])]
    assert [batch.num_rows for batch in batches][:4] == [1] * 4


def test_pulls_request_as_much_as_configured(stage: Stage, cluster: Cluster) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 100))
    asked: list[dict[str, str]] = []
    cluster.intercept(PULL, lambda request, _peer: asked.append(dict(request.fields)))
    options = {"pullBatchSize": 40, "pullBatchBytes": 300_000, "group": "gatherers"}
    assert len(stage.bodies(subscribe=topic, **options)) == 100
    assert [fields["maxMsgNums"] for fields in asked] == ["40", "40", "20"]
    assert {fields["maxMsgBytes"] for fields in asked} == {"300000"}
    assert {fields["consumerGroup"] for fields in asked} == {"gatherers"}


def test_a_reader_that_is_closed_leaves_no_thread_behind(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 1000))
    close_clients()
    before = set(threading.enumerate())
    reader = stage.batch(subscribe=topic, pullBatchSize=10, batchRows=10)
    (partition,) = reader.partitions()
    batches: Any = reader.read(partition)
    next(batches)
    batches.close()
    close_clients()

    def left() -> list[threading.Thread]:
        """Return the new threads, without those that the brokers in this process start."""
        new = set(threading.enumerate()) - before
        return [thread for thread in new if not thread.name.startswith("downrange-broker")]

    wait_until(lambda: not left())


# ---- brokers and topics that disappear -----------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Stage, Cluster]]:
    """Yield a cluster whose brokers a test may kill."""
    with staged(brokers=2) as found:
        yield found


def test_a_broker_that_dies_in_the_middle_and_comes_back_is_read_on(
    pair: tuple[Stage, Cluster],
) -> None:
    stage, cluster = pair
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 500), broker="broker-b")
    reader = stage.batch(
        subscribe=topic, pullBatchSize=50, batchRows=50, fetchOffset__numRetries=6000
    )
    (partition,) = reader.partitions()
    rows: list[bytes] = []
    restart: threading.Thread | None = None
    for batch in reader.read(partition):
        rows += batch.column("body").to_pylist()
        if len(rows) == 100:
            cluster.kill_broker(1)
            restart = threading.Timer(0.3, cluster.restart_broker, [1])
            restart.start()
    assert restart is not None
    restart.join()
    assert rows == numbers(0, 500)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_broker_that_is_away_for_good_fails_the_read_but_loses_nothing(
    pair: tuple[Stage, Cluster], loss: str
) -> None:
    """It may come back, so its messages are not skipped, even if losses are allowed."""
    stage, cluster = pair
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 10), broker="broker-b")
    reader = stage.batch(subscribe=topic, failOnDataLoss=loss)
    partitions = reader.partitions()
    cluster.kill_broker(1)
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a"])
    with pytest.raises(RouteNotFound, match="broker-b"):
        read(reader, partitions)
    cluster.restart_broker(1)
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a", "broker-b"])
    assert read(reader, partitions)["body"].to_pylist() == numbers(0, 10)


def test_a_topic_that_is_deleted_under_a_task_is_a_loss(stage: Stage) -> None:
    topic, other = stage.topic(1), stage.topic(1)
    stage.send(topic, numbers(0, 5))
    stage.send(other, numbers(5, 10))
    partition = ReadPartition(
        [Range(QueueId(name, "broker-a", 0), 0, 5) for name in (topic, other)]
    )
    options = {"subscribe": f"{topic},{other}"}
    strict, brave = stage.batch(**options), stage.batch(**options, failOnDataLoss="false")
    assert read(brave, [partition])["body"].to_pylist() == numbers(0, 10)
    stage.admin.delete_topic(topic)
    with pytest.raises(DataLost, match=f"topic '{topic}'.*wanted offsets 0 to 4.*was deleted"):
        read(strict, [partition])
    assert read(brave, [partition])["body"].to_pylist() == numbers(5, 10)
    # A worker that never read the topic gets the same from the name server.
    close_clients()
    with pytest.raises(DataLost, match="was deleted"):
        read(strict, [partition])
    assert read(brave, [partition])["body"].to_pylist() == numbers(5, 10)


# ---- retention -----------------------------------------------------------------------------------


@pytest.fixture
def retention(tmp_path: Path) -> Iterator[RetentionStage]:
    """Yield a broker that drops old messages."""
    with retention_stage(tmp_path) as stage:
        yield stage


def fill(stage: RetentionStage, topic: str, first: int, last: int) -> None:
    """Send messages; about six fill a file."""
    for number in range(first, last):
        stage.send(topic, [b"%d" % number + bytes(10_000)])


def heads(bodies: list[bytes]) -> list[int]:
    return [int(body.rstrip(b"\0")) for body in bodies]


def test_messages_that_are_deleted_before_they_are_read_are_a_loss(
    retention: RetentionStage, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading continues at the first message after that."""
    stage = retention
    topic = stage.topic(1)
    fill(stage, topic, 0, 3)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    assert heads(query.step()) == [0, 1, 2]
    fill(stage, topic, 3, 30)
    first = stage.drop_old(topic)
    assert 3 < first < 30
    queue = QueueId(topic, "broker-a", 0)
    with pytest.raises(DataLost) as caught:
        query.step()
    assert (caught.value.queue, caught.value.wanted) == (queue, (3, first))
    assert caught.value.available == (first, 30)
    for word in (
        topic,
        "broker-a",
        "queue 0",
        f"3 to {first - 1}",
        f"{first} to 29",
        "failOnDataLoss",
    ):
        assert word in str(caught.value)
    brave = Query(stage.stream(**options, failOnDataLoss="false"), query.start)
    assert heads(brave.step()) == [*range(first, 30)]
    assert "messages are lost, reading continues" in caplog.text
    assert brave.position[queue] == 30
    fill(stage, topic, 30, 32)
    assert heads(brave.step()) == [30, 31]


def test_messages_that_are_deleted_while_they_are_read_are_a_loss(
    retention: RetentionStage,
) -> None:
    stage = retention
    topic = stage.topic(1)
    fill(stage, topic, 0, 30)
    small = {"subscribe": topic, "pullBatchSize": 2, "pullConcurrency": 1, "batchRows": 2}
    strict, brave = stage.batch(**small), stage.batch(**small, failOnDataLoss="false")
    (partition,) = strict.partitions()
    batches = strict.read(partition)
    rows = heads(next(batches).column("body").to_pylist())
    first = stage.drop_old(topic)
    with pytest.raises(DataLost, match="they were deleted"):
        rows += [row for batch in batches for row in heads(batch.column("body").to_pylist())]
    assert rows == [0, 1]
    assert heads(read(brave, [partition])["body"].to_pylist()) == [*range(first, 30)]


def test_a_batch_that_begins_before_the_first_message_is_a_loss(
    retention: RetentionStage,
) -> None:
    stage = retention
    topic = stage.topic(1)
    fill(stage, topic, 0, 30)
    first = stage.drop_old(topic)
    assert heads(stage.bodies(subscribe=topic)) == [*range(first, 30)]
    from_zero = {
        "subscribe": topic,
        "startingOffsets": f'{{"{topic}": {{"broker-a": {{"0": 0}}}}}}',
    }
    with pytest.raises(DataLost, match="the first messages were deleted"):
        stage.bodies(**from_zero)
    assert heads(stage.bodies(**from_zero, failOnDataLoss="false")) == [*range(first, 30)]


# ---- accounts and TLS ----------------------------------------------------------------------------


def test_a_cluster_with_accounts_and_tls_is_read(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS.plain_acl_yaml(), encoding="utf-8")
    user = ACCOUNTS.others[0]
    with Cluster(
        access=accounts,
        tls=server_context(files.certificate, files.key),
        client_tls=client_context(ca=files.authority, is_name_checked=False),
        listener=ListenerOptions(tls_mode="enforcing"),
    ) as cluster:
        with Producer(
            cluster.name_server,
            group="stage",
            tls=TLS(ca=files.authority),
            credentials=Credentials(user.access_key, user.secret_key),
        ) as producer:
            producer.send(Message("OpenTopic", b"1"))
        options = {
            "nameServer": cluster.name_server,
            "subscribe": "OpenTopic",
            "tls.ca": str(files.authority),
            "accessKey": user.access_key,
            "secretKey": user.secret_key,
            "group": "OpenGroup",
        }

        def bodies(**changes: str) -> list[bytes]:
            source = RocketMQDataSource({**options, **changes})
            reader = source.reader(source.schema())
            return read(reader, reader.partitions())["body"].to_pylist()  # type: ignore[no-any-return]

        try:
            assert bodies() == [b"1"]
            with pytest.raises(RocketMQError) as caught:
                bodies(secretKey="wrong-sesame")
            assert "sesame" not in str(caught.value)
            assert user.secret_key not in str(caught.value)
            del options["tls.ca"]
            with pytest.raises(RocketMQError, match=r"127\.0\.0\.1"):
                bodies(callTimeoutMs="2000")
        finally:
            close_clients()
