"""Messages of our producer, read by the Java clients of both releases, on both servers."""

from __future__ import annotations

import asyncio
import os
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import pytest

import downrange as mq
from tests.apache.java_client import JavaError, body_of, message
from tests.interop.scene import Addresses, Scene, Servers
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor

    from downrange.embedded import Cluster
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient, Json


@pytest.fixture(params=[False, True], ids=["on-ours", "on-apache"])
def is_apache(request: pytest.FixtureRequest) -> bool:
    """Return whether the servers are Apache's."""
    return bool(request.param)


@pytest.fixture
def scene(
    is_apache: bool,
    ours: Cluster,
    java: JavaClient,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
) -> Iterator[Scene]:
    """Give Java clients on our cluster, or on Apache's cluster of the same release."""
    servers: Servers = ours
    if is_apache:
        cluster = apache_versions.cluster(java.version)
        servers = Addresses(cluster.name_server, [broker.address for broker in cluster.brokers])
    scene = Scene(java, servers, unique_name, stopper)
    yield scene
    scene.close()


@pytest.fixture
def producer(scene: Scene) -> Iterator[mq.Producer]:
    with mq.Producer(scene.name_server, group=scene.name("ours"), options=_options()) as producer:
        yield producer


def _options(**changes: Json) -> mq.ProducerOptions:
    return mq.ProducerOptions(timeout=WAIT_TIMEOUT, **changes)


def test_java_reads_every_part_of_a_message_as_it_was_given(
    scene: Scene, producer: mq.Producer
) -> None:
    topic = scene.topic(queues=2)
    given = [
        mq.Message(topic, b"plain"),
        mq.Message(topic, bytes(range(256)) * 3, flag=-7),
        mq.Message(topic, "Grüße, 青 \N{GRINNING FACE}", tags="Größe", keys=["k-1", "青"], flag=5),
        mq.Message(topic, b"\0", properties={"number": "1", "Größe": "青"}),
        mq.Message(topic, b"x" * 3000, tags="t", wait_stored=False),
    ]
    receipts = [producer.send(one) for one in given]
    got = {one["msgId"]: one for one in scene.received(scene.consumer(topic), len(given))}
    assert set(got) == {receipt.message_id for receipt in receipts}
    for sent, receipt in zip(given, receipts, strict=True):
        read = got[receipt.message_id]
        assert body_of(read) == sent.body
        assert (read["topic"], read["flag"], read["tags"]) == (topic, sent.flag, sent.tags)
        assert (read["keys"] or "") == " ".join(sent.keys)
        assert (read["queueId"], read["queueOffset"]) == (receipt.queue.number, receipt.offset)
        assert read["offsetMsgId"] == receipt.offset_id
        waits = "true" if sent.wait_stored else "false"
        assert read["properties"].get("WAIT", waits) == waits  # brokers of 4.9 do not keep it
        assert sent.properties.items() <= read["properties"].items()


def test_java_reads_what_was_sent_in_every_way(scene: Scene, producer: mq.Producer) -> None:
    topic = scene.topic(queues=4)

    def made(way: str) -> list[mq.Message]:
        return [mq.Message(topic, f"{way} {number}", keys=[way]) for number in range(3)]

    ids = [producer.send(one).message_id for one in made("send")]
    ids += [future.result().message_id for future in map(producer.submit, made("submit"))]
    ids += producer.send_batch(made("batch")).message_ids
    ids += producer.submit_batch(made("batch-later")).result().message_ids
    for one in made("oneway"):
        producer.send_oneway(one)

    async def play() -> list[str]:
        group = scene.name("ours")
        async with mq.AsyncProducer(scene.name_server, group=group, options=_options()) as other:
            receipts = await asyncio.gather(*map(other.send, made("async")))
            return [receipt.message_id for receipt in receipts]

    ids += asyncio.run(play())
    ways = ("send", "submit", "batch", "batch-later", "oneway", "async")
    got = scene.received(scene.consumer(topic), 18)
    assert sorted(body_of(one).decode() for one in got) == sorted(
        f"{way} {number}" for way in ways for number in range(3)
    )
    assert {one["msgId"] for one in got if one["keys"] != "oneway"} == set(ids)
    assert all(one["keys"] == body_of(one).decode().split()[0] for one in got)


def test_java_reads_what_came_with_each_kind_of_header(scene: Scene) -> None:
    topic = scene.topic()
    kinds: list[tuple[Literal["json", "binary"], int]] = [("json", 1), ("json", 2), ("binary", 2)]
    for codec, version in kinds:
        with mq.Producer(
            scene.name_server,
            group=scene.name("ours"),
            options=_options(header_version=version),
            client_options=mq.ClientOptions(header_codec=codec),
        ) as producer:
            producer.send(mq.Message(topic, f"one {codec} {version}", tags="t", keys=["k"]))
            producer.send_batch([mq.Message(topic, f"two {codec} {version}", tags="t")])
    got = scene.received(scene.consumer(topic), 6)
    assert sorted(body_of(one).decode() for one in got) == sorted(
        f"{word} {codec} {version}" for word in ("one", "two") for codec, version in kinds
    )
    assert {one["tags"] for one in got} == {"t"}


def test_java_unpacks_what_we_compress(scene: Scene) -> None:
    topic, body = scene.topic(), b"compress me " * 1000
    kinds = ("zlib",) if scene.is_old else ("zlib", "lz4", "zstd")  # 4.9 supports zlib only
    for compression in kinds:
        options = _options(compress_over_bytes=100, compression=compression)
        group = scene.name("ours")
        with mq.Producer(scene.name_server, group=group, options=options) as producer:
            producer.send(mq.Message(topic, body, keys=["k"]))
            producer.send_batch([mq.Message(topic, body)])  # batches are never compressed
    got = scene.received(scene.consumer(topic), 2 * len(kinds))
    assert {body_of(one) for one in got} == {body}
    sizes = sorted(int(one["storeSize"]) for one in got)
    assert max(sizes[: len(kinds)]) < 1000 < len(body) < min(sizes[len(kinds) :])


def test_java_reads_messages_that_were_gathered_into_batches(scene: Scene) -> None:
    topic, group = scene.topic(queues=2), scene.name("ours")
    options = _options(auto_batch=mq.AutoBatch(hold_ms=20))
    with mq.Producer(scene.name_server, group=group, options=options) as producer:
        futures = [
            producer.submit(mq.Message(topic, f"{number}", tags="t", keys=[f"k{number}"]))
            for number in range(40)
        ]
        receipts = [future.result() for future in futures]
    got = scene.received(scene.consumer(topic), 40)
    assert sorted(int(body_of(one)) for one in got) == list(range(40))
    assert {one["msgId"] for one in got} == {
        part for receipt in receipts for part in receipt.message_id.split(",")
    }
    assert all((one["tags"], one["keys"]) == ("t", f"k{int(body_of(one))}") for one in got)


def test_messages_of_one_key_are_in_one_queue_in_order_and_where_java_puts_them(
    scene: Scene, producer: mq.Producer
) -> None:
    topic, keys = scene.topic(queues=4), ["order-1", "青", "Aa", "BB", "x" * 40]
    chosen = scene.java.call("select.byHash", type="text", values=keys, queueCount=4)
    for number in range(10):
        for key, queue in zip(keys, chosen, strict=True):
            body = f"{key} {number}"
            kept = producer.send(mq.Message(topic, body, sharding_key=key, tags="sharded"))
            hashed = producer.send(mq.Message(topic, body, tags="hashed"), queue=mq.by_hash(key))
            assert kept.queue.number == hashed.queue.number == queue
    theirs = scene.producer()
    for key, queue in zip(keys, chosen, strict=True):
        (sent,) = scene.send(theirs, [message(topic, b"j", shardingKey=key)], mode="ordered")
        assert sent["queue"]["queueId"] == queue
    got = scene.received(scene.consumer({topic: "sharded"}, orderly=True), 10 * len(keys))
    for key in keys:
        mine = [one for one in got if body_of(one).decode().startswith(f"{key} ")]
        assert [body_of(one).decode() for one in mine] == [f"{key} {i}" for i in range(10)]
        assert {one["properties"]["__SHARDINGKEY"] for one in mine} == {key}


def test_numbers_choose_the_queue_that_java_chooses(scene: Scene, producer: mq.Producer) -> None:
    topic = scene.topic(queues=3)
    for kind, values in (
        ("int", [0, 1, -1, 2**31 - 1, -(2**31)]),
        ("long", [2**31, 2**63 - 1, -(2**63), 2**40 + 7]),
    ):
        chosen = scene.java.call("select.byHash", type=kind, values=values, queueCount=3)
        receipts = [
            producer.send(mq.Message(topic, b"x"), queue=mq.by_hash(value)) for value in values
        ]
        assert [receipt.queue.number for receipt in receipts] == chosen


def test_delays_are_kept(scene: Scene, producer: mq.Producer, is_apache: bool) -> None:
    topic = scene.topic()
    consumer = scene.consumer(topic)
    due_ms: dict[bytes, float] = {}
    expected = [b"level"]
    sent = {b"level": producer.send(mq.Message(topic, b"level", delay_level=1))}
    if not is_apache or not scene.is_old:  # brokers of 4.9 have no timers
        at = datetime.now(UTC) + timedelta(seconds=2)
        sent[b"at"] = producer.send(mq.Message(topic, b"at", deliver_at=at))
        due_ms[b"at"] = at.timestamp() * 1000
        sent[b"in"] = producer.send(mq.Message(topic, b"in", deliver_in=1.5))
        # Late enough that a busy machine recalls it before. The arrival of a later message shows
        # that it was skipped.
        recalled = producer.send(mq.Message(topic, b"recalled", deliver_in=8.0))
        assert producer.recall(recalled.recall_handle) == recalled.message_id
        sent[b"behind"] = producer.send(mq.Message(topic, b"behind", deliver_in=10.0))
        expected += [b"at", b"behind", b"in"]
    delays = {b"level": 1.0, b"in": 1.5, b"behind": 10.0}
    got = {body_of(one): one for one in scene.received(consumer, len(expected))}
    assert got.keys() == set(expected)
    for body, one in got.items():
        assert one["msgId"] == sent[body].message_id
        due = due_ms.get(body) or one["bornTimestamp"] + delays[body] * 1000
        assert one["receivedAtMs"] >= due - 200


def test_java_tools_find_our_messages_by_key_and_by_either_id(
    scene: Scene, producer: mq.Producer
) -> None:
    topic, admin = scene.topic(), scene.admin()
    receipts = [
        producer.send(mq.Message(topic, f"{number}", keys=[f"k{number}", "shared"]))
        for number in range(3)
    ]
    batch = producer.send_batch(
        [mq.Message(topic, f"b{number}", keys=[f"kb{number}"]) for number in range(3)]
    )

    def found(key: str) -> list[bytes]:
        answer = scene.java.invoke(admin, "queryMessage", topic, key, 10, 0, 2**62)
        return sorted(body_of(one) for one in answer["messages"])

    _wait_for_index(lambda: found("kb2") == [b"b2"])
    assert found("k1") == [b"1"]
    assert found("shared") == [b"0", b"1", b"2"]
    for name in (receipts[1].message_id, receipts[1].offset_id):
        viewed = scene.java.invoke(admin, "viewMessage", topic, name)
        assert (body_of(viewed), viewed["queueOffset"]) == (b"1", 1)
    for number, name in enumerate(batch.message_ids):
        viewed = scene.java.invoke(admin, "viewMessage", topic, name)
        assert body_of(viewed) == f"b{number}".encode()


def _wait_for_index(look: Callable[[], bool]) -> None:
    """Wait for a condition on an index, which is filled after the acknowledgement."""

    def is_there() -> bool:
        try:
            return look()
        except JavaError:  # raised when nothing is found
            return False

    wait_until(is_there)


def test_unique_ids_are_made_as_java_makes_them(scene: Scene, producer: mq.Producer) -> None:
    topic = scene.topic()
    before = int(time.time() * 1000)
    ip = producer.client.stats().client_id.partition("@")[0]
    ids = [producer.send(mq.Message(topic, b"x")).message_id for _ in range(3)]
    ids += producer.send_batch([mq.Message(topic, b"x")] * 3).message_ids
    made = time.time_ns() // 1_000_000
    theirs = scene.java.call("uniqueId")
    # Java takes an id of the current millisecond for one of the month before.
    wait_until(lambda: time.time_ns() // 1_000_000 > made)
    assert len(set(ids)) == 6
    assert {len(one) - _address_digits(ip) for one in ids} == {24}
    assert len(theirs["id"]) - _address_digits(theirs["ip"]) == 24
    for one in ids:
        read = scene.java.call("uniqueId", id=one)
        assert one == one.upper()
        assert (read["ip"], read["pid"]) == (ip, os.getpid() & 0xFFFF)
        assert before - 1000 <= read["timeMs"] <= time.time() * 1000 + 1000


def _address_digits(ip: str) -> int:
    """Return how many digits of an id are the address: Java uses IPv6 if the host has it."""
    return 32 if ":" in ip else 8


def test_java_decodes_our_trace_records(scene: Scene) -> None:
    topic, trace_topic, group = scene.topic(), scene.topic(), scene.name("ours")
    options = _options(trace=mq.Trace(topic=trace_topic, flush_interval=0.1))
    with mq.Producer(scene.name_server, group=group, options=options) as producer:
        single = producer.send(mq.Message(topic, b"123", tags="t", keys=["k1", "k2"]))
        later = producer.send(mq.Message(topic, b"later", delay_level=1))
    records: list[Json] = []
    keys: list[str] = []
    consumer, count = scene.consumer(trace_topic), 0
    by_id: dict[str, Json] = {}
    while len(by_id) < 2:  # in one message or in two, depending on the speed of the sends
        (*_, one) = scene.received(consumer, count + 1)[: count + 1]
        count += 1
        records += scene.java.call("trace.decode", text=b64decode(one["body"]).decode())
        keys += (one["keys"] or "").split()
        by_id = {record["traceBeans"][0]["msgId"]: record for record in records}
    assert by_id.keys() == {single.message_id, later.message_id}
    record = by_id[single.message_id]
    assert {"k1", "k2", single.message_id} <= set(keys)
    assert (record["traceType"], record["groupName"], record["success"]) == ("Pub", group, True)
    bean = record["traceBeans"][0]
    assert (bean["topic"], bean["tags"], bean["keys"]) == (topic, "t", "k1 k2")
    assert (bean["storeHost"], bean["bodyLength"]) == (scene.brokers[0], 3)
    assert (bean["msgType"], bean["offsetMsgId"]) == ("Normal_Msg", single.offset_id)


def test_transactions_end_as_our_producer_decides(scene: Scene, is_apache: bool) -> None:
    topic, group = scene.topic(), scene.name("ours")
    asked: list[bytes] = []

    outcomes = {b"checked": mq.Outcome.COMMIT, b"failed": mq.Outcome.ROLLBACK}

    def check(half: mq.ReceivedMessage) -> mq.Outcome | None:
        asked.append(half.body)
        # On a busy machine the broker asks about the others too, before they are ended.
        return outcomes.get(half.body)

    def fail(*_: object) -> mq.Outcome:
        raise ValueError("local work failed")

    consumer = scene.consumer(topic)
    with mq.TransactionProducer(
        scene.name_server, group=group, check=check, options=_options()
    ) as producer:
        with producer.transaction(mq.Message(topic, b"committed", tags="t", keys=["k"])) as done:
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction(mq.Message(topic, b"undone")):
            _ = 1 / 0
        producer.send_in_transaction(mq.Message(topic, b"back"), lambda *_: mq.Outcome.ROLLBACK)
        producer.send_in_transaction(mq.Message(topic, b"checked"), lambda *_: None)
        producer.send_in_transaction(mq.Message(topic, b"failed"), fail)
        got = {body_of(one): one for one in scene.received(consumer, 2)}
        assert got.keys() == {b"committed", b"checked"}
        assert got[b"committed"]["msgId"] == done.message_id
        assert (got[b"committed"]["tags"], got[b"committed"]["keys"]) == ("t", "k")
        wait_until(lambda: {b"checked", b"failed"} <= set(asked))
    at_last = [body_of(one) for one in scene.java.received(consumer, 0)]
    # Apache delivers a message a second time if the answers to two checks commit it.
    assert set(at_last) == {b"committed", b"checked"}
    assert is_apache or len(at_last) == 2


def test_java_consumer_answers_our_requests(scene: Scene, producer: mq.Producer) -> None:
    topic = scene.topic(queues=2)
    scene.consumer(topic, replyProducer=scene.producer())
    for number in range(3):
        reply = producer.request(mq.Message(topic, f"ping {number}"), timeout=WAIT_TIMEOUT)
        assert reply.body == f"re:ping {number}".encode()
