"""A writer in this process with an embedded cluster: queues, requests and acknowledgements."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from downrange.client.flows.routing.selectors import by_hash
from downrange.embedded import Cluster, cut, deliver, drop, lose_reply, refuse
from downrange.errors import (
    CallTimeout,
    ClientClosed,
    InvalidMessage,
    OptionError,
    RouteNotFound,
    SendFailed,
)
from downrange.model import Message, QueueId, ReceivedMessage
from downrange.spark.connection import client_for, close_clients
from downrange.spark.write import requests as write_requests
from downrange.spark.write import send_window
from downrange.spark.write import writers as writing
from downrange.spark.write.write_options import parse_write
from downrange.spark.write.writers import RocketMQStreamWriter, RocketMQWriter, Task, Written
from downrange.wire.codes import RequestCode, ResponseCode, SysFlag
from downrange.wire.records import decode_batch
from tests.contract.conftest import Embedded
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

BATCH, SINGLE = int(RequestCode.SEND_BATCH_MESSAGE), int(RequestCode.SEND_MESSAGE_V2)
ARROW: dict[str, Any] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "sharding_key": pa.string(),
    "broker_name": pa.string(),
    "msg_id": pa.string(),
    "queue_id": pa.int32(),
    "delay_time_ms": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()),
}
SPARK: dict[str, Any] = {
    "body": BinaryType(),
    "queue_id": IntegerType(),
    "delay_time_ms": LongType(),
    "properties": MapType(StringType(), StringType()),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def module_server(cluster: Cluster) -> Iterator[Embedded]:
    face = Embedded(cluster)
    yield face
    face.close()


@pytest.fixture
def server(cluster: Cluster, module_server: Embedded) -> Iterator[Embedded]:
    """Yield the cluster; remove faults and close clients afterwards."""
    yield module_server
    for code in (BATCH, SINGLE):
        cluster.intercept(code, None)
    close_clients()


@pytest.fixture(autouse=True)
def spark_task(monkeypatch: pytest.MonkeyPatch) -> None:
    be_task(monkeypatch, Task(3, 0, "q", "7"))


def be_task(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    monkeypatch.setattr(writing.Task, "current", classmethod(lambda cls: task))


def batch_of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            name: values if isinstance(values, pa.Array) else pa.array(values, ARROW[name])
            for name, values in columns.items()
        }
    )


def schema_of(batch: Any) -> StructType:
    return StructType(
        [
            StructField(
                field.name,
                ArrayType(StringType())
                if pa.types.is_list(field.type)
                else SPARK.get(field.name, StringType()),
            )
            for field in batch.schema
        ]
    )


def writer_for(server: Embedded, batch: Any, **settings: str) -> RocketMQWriter:
    options = parse_write({"nameServer": server.name_server, **settings})
    return RocketMQWriter(options, schema_of(batch), overwrite=False)


def write(server: Embedded, *batches: Any, **settings: str) -> Written:
    return writer_for(server, batches[0], **settings).write(iter(batches))


def bodies(count: int, size: int = 10) -> list[bytes]:
    return [f"{number:08}".encode().ljust(size, b".") for number in range(count)]


class Requests:
    """Records the requests that brokers get."""

    def __init__(self, cluster: Cluster, then: Any = None) -> None:
        self.seen: list[Command] = []
        self._then = then
        for code in (BATCH, SINGLE):
            cluster.intercept(code, self.listen)

    def listen(self, request: Command, peer: Peer) -> Interception | None:
        self.seen.append(request)
        return None if self._then is None else self._then(len(self.seen) - 1, request)

    @property
    def counts(self) -> list[int]:
        return [
            len(decode_batch(request.body)) if request.code == BATCH else 1 for request in self.seen
        ]


class Gate:
    """Makes brokers answer SYSTEM_BUSY until the gate is opened.

    Args:
        cluster: The cluster of the brokers.
        is_stopped: Chooses the requests; all by default.
    """

    def __init__(self, cluster: Cluster, is_stopped: Any = lambda _: True) -> None:
        self.seen: list[Command] = []
        self._is_stopped = is_stopped
        self._is_open = threading.Event()
        self._work: Future[Written]
        for code in (BATCH, SINGLE):
            cluster.intercept(code, self._decide)

    def _decide(self, request: Command, peer: Peer) -> Interception | None:
        if self._is_open.is_set() or not self._is_stopped(request):
            return None
        self.seen.append(request)
        return refuse(ResponseCode.SYSTEM_BUSY, "later")

    @contextlib.contextmanager
    def held(self, work: Callable[[], Written]) -> Generator[None]:
        """Start the work; it can finish when the block has ended."""
        with ThreadPoolExecutor(1) as pool:
            self._work = pool.submit(work)
            try:
                yield
            finally:
                self._is_open.set()

    @property
    def is_done(self) -> bool:
        return self._work.done()

    def result(self) -> Written:
        return self._work.result(30)


# ---- stored messages -----------------------------------------------------------------------------


def test_every_column_arrives(server: Embedded) -> None:
    topic = server.topic()
    batch = batch_of(
        topic=[topic, topic],
        body=["grün".encode(), b"2"],
        keys=pa.array([["k1", "k2"], None]),
        tags=["new", None],
        properties=[[("color", "red"), ("UNIQ_KEY", "forged")], None],
        sharding_key=["s", None],
    )
    written = write(server, batch)
    first, second = sorted(server.read_all(topic, 2), key=lambda one: -len(one.body))
    assert (first.body, first.keys, first.tags) == ("grün".encode(), ["k1", "k2"], "new")
    assert first.properties["color"] == "red"
    assert first.properties["__SHARDINGKEY"] == "s"
    assert (second.body, second.keys, second.tags) == (b"2", [], None)
    assert (written.rows, written.partition, written.attempt) == (2, 3, 0)
    assert {first.message_id[:20], second.message_id[:20]} == {first.message_id[:16] + "0000"}
    assert [first.message_id[-4:], second.message_id[-4:]] == ["0000", "0001"]


def test_text_and_several_topics_may_be_written(server: Embedded) -> None:
    one, two = server.topic(), server.topic(2)
    batch = batch_of(topic=[one, two, one], body=pa.array(["a", "b", "c"]))
    batch = pa.RecordBatch.from_pydict({name: batch.column(name) for name in ("body", "topic")})
    options = parse_write({"nameServer": server.name_server})
    schema = StructType([StructField("body", StringType()), StructField("topic", StringType())])
    written = RocketMQWriter(options, schema, overwrite=False).write(iter([batch]))
    assert sorted(found.body for found in server.read_all(one, 2)) == [b"a", b"c"]
    assert [found.body for found in server.read_all(two, 1)] == [b"b"]
    assert {queue.topic for queue in written.queues} == {one, two}


def test_the_commit_message_says_where_rows_are(server: Embedded) -> None:
    topic = server.topic(2)
    for start in (0, 300):
        written = write(server, batch_of(body=bodies(300)), topic=topic, maxBatchBytes="4096")
        assert (written.rows, written.delayed, written.unsure, written.late) == (300, 0, 0, 0)
        assert written.requests >= 6
        assert sum(queue.count for queue in written.queues.values()) == 300
        assert pickle.loads(pickle.dumps(written)) == written
        stored: dict[QueueId, list[int]] = {}
        for one in server.read_all(topic, start + 300):
            stored.setdefault(one.queue, []).append(int(one.offset))
        for queue, totals in written.queues.items():
            assert totals.last == stored[queue][-1]
            assert totals.first + totals.count - 1 == totals.last


def test_a_task_without_rows_does_not_connect() -> None:
    batch = batch_of(body=[b"1"])
    options = parse_write({"nameServer": "127.0.0.1:1", "topic": "orders"})
    writer = RocketMQWriter(options, schema_of(batch), overwrite=False)
    assert writer.write(iter([])) == writer.write(iter([batch.slice(0, 0)]))
    assert writer.write(iter([])).rows == 0


def test_a_missing_topic_is_an_error_or_created_on_all_brokers(server: Embedded) -> None:
    topic = server._unique_name("fresh")
    with pytest.raises(RouteNotFound, match=f"downrange topic create {topic}"):
        write(server, batch_of(body=[b"1"]), topic=topic)
    write(server, batch_of(body=[b"1"]), topic=topic, autoCreate="balanced")
    assert len(server.route_brokers(topic)) == 2
    assert len(server.read_all(topic, 1)) == 1


def test_a_namespace_is_put_before_topics(server: Embedded) -> None:
    topic = server._unique_name("orders")
    server.topic(name=f"prod%{topic}")
    batch = batch_of(body=[b"1", b"x" * 5000], sharding_key=["a", "b"])
    written = write(server, batch, topic=topic, namespace="prod")
    stored = server.read_all(f"prod%{topic}", 2)
    assert {one.properties.get("INSTANCE_ID") for one in stored} >= {"prod"}
    assert {queue.topic for queue in written.queues} == {topic}


# ---- requests ------------------------------------------------------------------------------------


def test_requests_hold_no_more_bytes_and_rows_than_they_may(
    server: Embedded, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = server.topic()
    requests = Requests(cluster)
    write(server, batch_of(body=bodies(200, 100)), topic=topic, maxBatchBytes="4096")
    assert max(len(request.body) for request in requests.seen) <= 4096
    assert sum(requests.counts) == 200
    assert max(requests.counts) > 10
    monkeypatch.setattr(write_requests, "COUNT_MAX", 7)
    requests = Requests(cluster)
    write(server, batch_of(body=bodies(20)), topic=topic)
    assert sorted(requests.counts) == [6, 7, 7]


def test_batches_alternate_over_all_queues(server: Embedded, cluster: Cluster) -> None:
    topic = server.topic(4)
    written = write(
        server, batch_of(body=bodies(800, 100)), topic=topic, maxBatchBytes="1024", inFlight="4"
    )
    assert len(written.queues) == 8
    counts = [totals.count for totals in written.queues.values()]
    assert max(counts) - min(counts) <= 16


def test_a_batch_has_no_id_of_its_own(server: Embedded, cluster: Cluster) -> None:
    """A broker of 4.9 would give it to all messages of the batch."""
    requests = Requests(cluster)
    write(server, batch_of(body=bodies(9)), topic=server.topic())
    assert [request.fields["i"] for request in requests.seen] == ["WAIT\x01true\x02"]


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_big_bodies_are_sent_alone_and_compressed(
    server: Embedded, cluster: Cluster, compression: str
) -> None:
    topic = server.topic()
    big = b"tall tale " * 500
    requests = Requests(cluster)
    written = write(
        server,
        batch_of(body=[b"1", big, b"2", b"3" * 99]),
        topic=topic,
        compressOver="100",
        compression=compression,
    )
    assert sorted(requests.counts) == [1, 3]
    single = next(request for request in requests.seen if request.code == SINGLE)
    assert int(single.fields["f"]) & SysFlag.COMPRESSED
    assert len(single.body) < 1000
    assert sorted(one.body for one in server.read_all(topic, 4)) == [b"1", b"2", b"3" * 99, big]
    assert (written.rows, written.requests) == (4, 2)


def test_a_body_that_fits_no_batch_is_sent_alone_uncompressed(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic()
    big = os.urandom(3_000_000)
    requests = Requests(cluster)
    write(server, batch_of(body=[b"1", big]), topic=topic, compressOver="10000000")
    # They may go to different brokers, and so arrive in either order.
    assert sorted(request.code for request in requests.seen) == sorted([BATCH, SINGLE])
    assert big in [one.body for one in server.read_all(topic, 2)]


def test_delayed_rows_are_sent_alone_and_come_later(server: Embedded, cluster: Cluster) -> None:
    topic = server.topic()
    requests = Requests(cluster)
    started = time.time() * 1000
    written = write(
        server,
        batch_of(body=[b"now", b"later", b"at once"], delay_time_ms=[None, 1500, 0]),
        topic=topic,
    )
    assert sorted(requests.counts) == [1, 2]
    assert (written.rows, written.delayed) == (3, 1)
    assert sum(queue.count for queue in written.queues.values()) == 2
    found = {one.body: one for one in server.read_all(topic, 3)}
    assert found[b"later"].stored_at_ms - started >= 1000


def test_a_retry_topic_takes_no_batches(server: Embedded, cluster: Cluster) -> None:
    topic = server.topic(1, name=f"%RETRY%{server._unique_name('group')}")
    requests = Requests(cluster)
    write(server, batch_of(body=[b"1", b"2"], topic=[topic, topic]))
    assert requests.counts == [1, 1]


# ---- queues --------------------------------------------------------------------------------------


def by_body(messages: list[ReceivedMessage]) -> dict[bytes, QueueId]:
    return {one.body: one.queue for one in messages}


def test_a_sharding_key_chooses_the_queue_that_a_java_producer_chooses(server: Embedded) -> None:
    topic = server.topic(4)
    keys = [f"customer-{number % 37}" for number in range(200)]
    keys[7] = "größe"
    write(server, batch_of(body=bodies(200), sharding_key=keys), topic=topic)
    route = server.route(topic)
    assert route is not None
    queues = by_body(server.read_all(topic, 200))
    for body, key in zip(bodies(200), keys, strict=True):
        assert queues[body] == by_hash(key)(route.writable, Message(topic, b""))


def test_a_queue_of_a_broker_is_taken_as_named(server: Embedded) -> None:
    topic = server.topic(3)
    brokers = server.route_brokers(topic)
    wanted = [QueueId(topic, brokers[n % 2], n % 3) for n in range(60)]
    write(
        server,
        batch_of(
            body=bodies(60),
            queue_id=[queue.number for queue in wanted],
            broker_name=[queue.broker for queue in wanted],
            sharding_key=["ignored"] * 60,
        ),
        topic=topic,
    )
    assert by_body(server.read_all(topic, 60)) == dict(zip(bodies(60), wanted, strict=True))


def test_equal_queue_numbers_meet_in_one_queue_and_null_goes_anywhere(server: Embedded) -> None:
    topic = server.topic(4)
    first, second = server.route_brokers(topic)
    numbers = [n % 4 if n % 5 else None for n in range(100)]
    batch = batch_of(body=bodies(100), queue_id=numbers, broker_name=[None] * 100)
    written = write(server, batch, topic=topic)
    queues = by_body(server.read_all(topic, 100))
    home = {0: first, 1: second, 2: first, 3: second}
    for body, number in zip(bodies(100), numbers, strict=True):
        if number is not None:
            assert queues[body] == QueueId(topic, home[number], number)
    assert written.rows == 100


def test_rows_of_one_topic_may_name_queues_and_those_of_another_none(server: Embedded) -> None:
    one, two = server.topic(2), server.topic(2)
    batch = batch_of(topic=[one, two, one], body=bodies(3), queue_id=[1, None, 1])
    write(server, batch)
    assert {found.queue.number for found in server.read_all(one, 2)} == {1}
    assert len(server.read_all(two, 1)) == 1


@pytest.mark.parametrize(
    ("numbers", "brokers", "problem"),
    [
        ([0, 9], [None, None], r"row 1 .*has no queue 9 that can be written to; it has 4 on 'bro"),
        ([0, 0], [None, "nobody"], r"row 1 .*has no queue 0 on broker 'nobody' that"),
        ([0, -2], [None, None], "row 1 .*queue_id is -2; queues are numbered from 0"),
    ],
)
def test_a_queue_that_does_not_exist_is_an_error(
    server: Embedded, numbers: list[int], brokers: list[str | None], problem: str
) -> None:
    batch = batch_of(body=[b"1", b"2"], queue_id=numbers, broker_name=brokers)
    with pytest.raises(InvalidMessage, match=problem):
        write(server, batch, topic=server.topic(4), sendTimeoutMs="3000")


# ---- order ---------------------------------------------------------------------------------------


def numbers_by_queue(server: Embedded, topic: str, count: int) -> dict[QueueId, list[bytes]] | None:
    """Return the bodies of each queue by first appearance; None until all are stored."""
    found: dict[QueueId, dict[bytes, None]] = {}
    for one in server.read_all(topic, count):
        found.setdefault(one.queue, {})[one.body[:8]] = None
    is_whole = sum(map(len, found.values())) == count
    return {queue: list(numbers) for queue, numbers in found.items()} if is_whole else None


def mixed(count: int) -> list[bytes]:
    """Return bodies, some of which need their own request."""
    return [body.ljust(300 if n % 17 == 3 else 20, b".") for n, body in enumerate(bodies(count))]


@pytest.mark.parametrize("way", ["sharding_key", "queue_id", "partition"])
def test_order_within_a_queue_is_that_of_the_rows(
    server: Embedded, cluster: Cluster, way: str
) -> None:
    """Also with slow, lost and compressed requests."""
    topic = server.topic(2)
    columns: dict[str, Any] = {"sharding_key": [f"c-{n % 23}" for n in range(300)]}
    if way == "queue_id":
        columns = {"queue_id": [n % 2 for n in range(300)]}
    elif way == "partition":
        columns = {}
    batch = batch_of(body=mixed(300), **columns)

    def trouble(number: int, request: Command) -> Interception | None:
        return {
            3: deliver(after=0.05),
            5: refuse(ResponseCode.SYSTEM_BUSY, "later"),
            7: cut(),
        }.get(number % 16)

    requests = Requests(cluster, trouble)
    written = write(
        server,
        *(batch.slice(start, 100) for start in range(0, 300, 100)),
        topic=topic,
        orderBy="queue",
        maxBatchBytes="1024",
        compressOver="200",
    )
    assert written.retried > 0
    assert {SINGLE, BATCH} == {request.code for request in requests.seen}
    # Other requests of a closed connection are sent again, also in order.
    by_queue = wait_until(lambda: numbers_by_queue(server, topic, 300))
    assert all(found == sorted(found) for found in by_queue.values())
    if way == "partition":
        assert len(by_queue) == 1
    else:
        assert len(by_queue) > 1


def test_with_order_one_request_per_queue_is_in_flight_but_of_all_queues(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic(2)
    gate = Gate(cluster)
    batch = batch_of(body=bodies(400), queue_id=[n % 2 for n in range(400)])
    with gate.held(
        lambda: write(server, batch, topic=topic, orderBy="queue", maxBatchBytes="4096")
    ):
        wait_until(lambda: len(gate.seen) >= 8)
        asked = {(one.fields["n"], one.fields["e"], one.body) for one in gate.seen}
        assert len(asked) == len({one[:2] for one in asked}) == 2
    assert gate.result().rows == 400


# ---- acknowledgements and faults -----------------------------------------------------------------


def test_a_write_ends_when_the_last_acknowledgement_is_there(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic()
    gate = Gate(cluster, lambda request: b"00000007" in request.body)
    batch = batch_of(body=bodies(90))
    with gate.held(lambda: write(server, batch, topic=topic, maxBatchBytes="1024")):
        missing = len(decode_batch(wait_until(lambda: gate.seen)[0].body))
        assert 1 < missing < 90
        assert len(server.read_all(topic, 90 - missing)) == 90 - missing
        wait_until(lambda: len(gate.seen) >= 3)
        assert not gate.is_done
    assert gate.result().rows == 90
    assert len(server.read_all(topic, 90)) == 90


@pytest.mark.parametrize("order", ["none", "queue"])
def test_no_more_requests_are_in_flight_than_allowed(
    server: Embedded, cluster: Cluster, order: str
) -> None:
    topic = server.topic(3)
    gate = Gate(cluster)
    batch = batch_of(body=bodies(300), queue_id=[n % 3 for n in range(300)])
    with gate.held(
        lambda: write(server, batch, topic=topic, maxBatchBytes="1024", inFlight="2", orderBy=order)
    ):
        wait_until(lambda: len(gate.seen) >= 8)
        assert len({one.body for one in gate.seen}) == 2
    assert gate.result().rows == 300


def test_a_refusal_ends_the_write_and_names_the_rows(server: Embedded, cluster: Cluster) -> None:
    Requests(
        cluster,
        lambda number, _: refuse(ResponseCode.MESSAGE_ILLEGAL, "too big") if number == 2 else None,
    )
    batch = batch_of(body=bodies(900), keys=[f"o-{n}" for n in range(900)])
    with pytest.raises(SendFailed, match="code 13: too big") as caught:
        write(server, batch, topic=server.topic(), maxBatchBytes="1024", inFlight="2")
    note = caught.value.__notes__[0]
    assert "rows from row " in note
    assert "of partition 3 (keys 'o-" in note
    assert "rows of the task are stored" in note


def test_a_lost_answer_is_asked_for_again_under_the_same_ids(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic()
    Requests(cluster, lambda number, _: lose_reply() if number == 0 else None)
    # The first attempt takes a part of the time, and the second must not be given up as well.
    written = write(server, batch_of(body=bodies(5)), topic=topic, sendTimeoutMs="9000")
    assert (written.rows, written.retried, written.unsure) == (5, 1, 5)
    stored = server.read_all(topic, 10)
    assert len({one.message_id for one in stored}) == 5


def test_requests_for_any_queue_go_elsewhere_when_a_broker_is_gone(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic()
    batch = batch_of(body=bodies(600))
    is_killed = threading.Event()
    # Slow until the kill: on a busy machine all rows could be written before.
    requests = Requests(cluster, lambda *_: deliver(after=0.05 if is_killed.is_set() else 0.4))

    def kill() -> None:
        # Each of the eight queues has answered once: both brokers have messages.
        wait_until(lambda: len(requests.seen) > 12)
        cluster.kill_broker(0)
        is_killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        written = write(server, batch, topic=topic, maxBatchBytes="1024", inFlight="4")
    finally:
        killer.join()
        cluster.restart_broker(0)
    assert written.rows == 600
    assert written.retried > 0
    found = wait_until(lambda: numbers_by_queue(server, topic, 600))
    assert {queue.broker for queue in found} == {"broker-a", "broker-b"}


def test_rows_of_a_queue_wait_for_its_broker(server: Embedded, cluster: Cluster) -> None:
    topic = server.topic(1)
    brokers = server.route_brokers(topic)
    batch = batch_of(
        body=bodies(100),
        queue_id=[0] * 100,
        broker_name=[brokers[n % 2] for n in range(100)],
    )
    write(server, batch, topic=topic)  # its route is cached now
    cluster.kill_broker(0)
    timer = threading.Timer(1.0, cluster.restart_broker, [0])
    timer.start()
    try:
        written = write(server, batch, topic=topic, maxBatchBytes="1024")
    finally:
        timer.join()
    assert {queue.broker: found.count for queue, found in written.queues.items()} == dict.fromkeys(
        brokers, 50
    )


def test_a_queue_whose_broker_stays_away_fails_with_all_attempts(
    server: Embedded, cluster: Cluster
) -> None:
    topic = server.topic(1)
    broker = server.route_brokers(topic)[0]
    batch = batch_of(body=[b"1"], queue_id=[0], broker_name=[broker])
    Requests(cluster, lambda *_: cut())
    with pytest.raises(SendFailed, match=r"not confirmed after [3-9] attempts.*\n.*Connection"):
        write(server, batch, topic=topic, sendTimeoutMs="6000")


def test_a_broker_that_never_answers_is_given_up_in_time(
    server: Embedded, cluster: Cluster
) -> None:
    Requests(cluster, lambda *_: drop())
    with pytest.raises(SendFailed, match="no answer within"):
        write(server, batch_of(body=[b"1"]), topic=server.topic(), sendTimeoutMs="3000")


def test_a_task_without_any_answer_ends(
    server: Embedded, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_window, "_MARGIN", -59.5)  # as if requests had no deadline
    Requests(cluster, lambda *_: drop())
    with pytest.raises(CallTimeout, match=r"the cluster: no answer within 0\.5 s"):
        write(server, batch_of(body=[b"1"]), topic=server.topic())


def test_rows_before_an_invalid_one_may_be_stored_and_the_others_are_cancelled(
    server: Embedded,
) -> None:
    topic = server.topic()
    good, bad = batch_of(body=bodies(5)), batch_of(body=[b"1", None])
    with pytest.raises(InvalidMessage, match="row 6 of partition 3"):
        write(server, good, bad, topic=topic)


def test_an_error_of_the_row_source_cancels_the_requests_in_flight(
    server: Embedded, cluster: Cluster
) -> None:
    Requests(cluster, lambda *_: deliver(after=30.0))

    def rows() -> Iterator[Any]:
        yield batch_of(body=bodies(5))
        raise OSError("the shuffle file is gone")

    writer = writer_for(server, batch_of(body=[b"1"]), topic=server.topic())
    started = time.monotonic()
    with pytest.raises(OSError, match="shuffle file"):
        writer.write(rows())
    assert time.monotonic() - started < 25


def test_a_client_that_is_closed_meanwhile_ends_the_write(
    server: Embedded, cluster: Cluster
) -> None:
    requests = Requests(cluster, lambda *_: deliver(after=600.0))
    topic = server.topic()
    client = client_for(parse_write({"nameServer": server.name_server}).connection)

    def close() -> None:
        wait_until(lambda: requests.seen)
        client.close(0.1)

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(ClientClosed):
        write(server, batch_of(body=bodies(5)), topic=topic)
    closer.join()


def test_other_settings_get_a_producer_of_their_own(server: Embedded) -> None:
    topic, other = server.topic(), server._unique_name("fresh")
    write(server, batch_of(body=[b"1"]), topic=topic)
    write(server, batch_of(body=[b"1"]), topic=other, autoCreate="balanced")
    write(server, batch_of(body=[b"1"]), topic=topic)
    assert len(server.read_all(topic, 2)) == 2


# ---- ids -----------------------------------------------------------------------------------------


def ids(server: Embedded, topic: str, count: int) -> list[str]:
    return [one.message_id for one in server.read_all(topic, count)]


def test_an_attempt_that_is_tried_again_sends_the_same_ids(
    server: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = server.topic()
    batch = batch_of(body=bodies(50))
    writer = writer_for(server, batch, topic=topic, maxBatchBytes="1024")
    half = batch.slice(0, 25)

    def fails() -> Iterator[Any]:
        yield half
        yield batch_of(body=[None])

    with pytest.raises(InvalidMessage):
        writer.write(fails())
    be_task(monkeypatch, Task(3, 1, "q", "7"))
    written = pickle.loads(pickle.dumps(writer)).write(iter([half, batch.slice(25)]))
    assert written.attempt == 1
    stored = server.read_all(topic, 50)
    assert len({one.message_id for one in stored}) == 50
    assert len({(one.message_id, one.body) for one in stored}) == 50
    be_task(monkeypatch, Task(4, 0, "q", "7"))
    writer.write(iter([batch]))
    assert len(set(ids(server, topic, len(stored) + 50))) == 100
    write(server, batch, topic=topic)
    assert len(set(ids(server, topic, len(stored) + 100))) == 150


def test_a_stream_sends_the_same_ids_for_the_same_batch(
    server: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = server.topic()
    batch = batch_of(body=bodies(10))
    options = parse_write({"nameServer": server.name_server, "topic": topic})
    seen: list[int] = []
    for task in (Task(3, 0, "q", "7"), Task(3, 2, "q", "7"), Task(3, 0, "q", "8")):
        be_task(monkeypatch, task)
        writer = RocketMQStreamWriter(options, schema_of(batch), overwrite=False)
        assert writer.write(iter([batch])).rows == 10
        seen.append(len(set(ids(server, topic, 10 * (len(seen) + 1)))))
    assert seen == [10, 10, 20]


def test_a_stream_without_a_batch_number_is_rejected(
    server: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_task(monkeypatch, Task())
    batch = batch_of(body=[b"1"])
    settings = {"nameServer": server.name_server, "topic": server.topic()}
    writer = RocketMQStreamWriter(parse_write(settings), schema_of(batch), overwrite=False)
    with pytest.raises(OptionError, match=r"streaming\.sql\.batchId.*dedup=column or dedup=none"):
        writer.write(iter([batch]))
    by_chance = parse_write({**settings, "dedup": "none"})
    RocketMQStreamWriter(by_chance, schema_of(batch), overwrite=False).write(iter([batch]))
    assert len(ids(server, settings["topic"], 1)) == 1


def test_ids_come_from_a_column_or_from_the_producer(server: Embedded) -> None:
    topic = server.topic()
    batch = batch_of(body=[b"1", b"x" * 5000], msg_id=["order-1", "order-2"])
    write(server, batch, topic=topic, dedup="column")
    write(server, batch, topic=topic, dedup="column")
    assert sorted(ids(server, topic, 4)) == ["order-1", "order-1", "order-2", "order-2"]
    batch = batch_of(body=[b"1", b"2"])
    writer = writer_for(server, batch, topic=topic, dedup="none")
    writer.write(iter([batch]))
    writer.write(iter([batch]))
    assert len(set(ids(server, topic, 8))) == 6


def test_a_task_is_the_first_one_where_there_is_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Task.current() == Task(0, 0, None, None)


# ---- the end -------------------------------------------------------------------------------------


def test_commit_and_abort_say_what_was_stored(caplog: pytest.LogCaptureFixture) -> None:
    batch = batch_of(body=[b"1"])
    options = parse_write({"nameServer": "127.0.0.1:1", "topic": "orders"})
    writer = RocketMQWriter(options, schema_of(batch), overwrite=False)
    stream = RocketMQStreamWriter(options, schema_of(batch), overwrite=False)
    done = Written(partition=0, attempt=0, rows=7, requests=2, wire_bytes=99, delayed=3, unsure=2)
    with caplog.at_level(logging.INFO, "downrange.spark"):
        writer.commit([done, done])
        writer.abort([done, None])
        stream.commit([done], 4)
        stream.abort([None], 5)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == (
        "write to orders: 14 rows in 4 requests of 198 bytes by 2 of 2 tasks "
        "(6 delayed, 4 perhaps stored twice)"
    )
    assert "7 rows in 2 requests of 99 bytes by 1 of 2 tasks" in told[1]
    assert told[1].endswith("sends all rows again under other ids")
    assert told[2].startswith("batch 4 to orders: 7 rows")
    assert "0 rows in 0 requests of 0 bytes by 0 of 1 tasks stay stored" in told[3]
    assert told[3].endswith("under the same ids")


def test_a_compressed_body_is_what_zlib_makes(server: Embedded, cluster: Cluster) -> None:
    requests = Requests(cluster)
    write(server, batch_of(body=[b"a" * 5000]), topic=server.topic())
    assert zlib.decompress(requests.seen[0].body) == b"a" * 5000
