"""Java producers in every send mode, on our broker."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.java_client import JavaClient, JavaError, Json, body_of, message
from tests.apache.ports import draw_broker_ports
from tests.interop.scene import Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName

MODES = ("sync", "async", "oneway", "batch", "ordered", "queue")
MESSAGE_ILLEGAL = 13


def _send_in_every_mode(scene: Scene) -> None:
    topic = scene.topic(queues=4)
    producer, consumer = scene.producer(), scene.consumer(topic)
    for mode in MODES:
        bodies = [f"{mode} {i} ü".encode() for i in range(4)]
        messages = [
            message(topic, body, tags="red", keys=f"key-{i}", shardingKey="one", flag=i)
            | {"properties": {"number": str(i), "Größe": "青"}}
            for i, body in enumerate(bodies)
        ]
        results = scene.send(producer, messages, mode=mode, queue=scene.queue(topic, 3))
        got = scene.received(consumer, 4, clear=True)
        assert sorted(body_of(one) for one in got) == bodies
        _check_deliveries(scene, got, topic)
        _check_results(mode, results, got)


def _check_deliveries(scene: Scene, got: list[Json], topic: str) -> None:
    for one in got:
        assert one["properties"]["number"] == str(one["flag"])
        assert one["properties"]["Größe"] == "青"
        assert (one["tags"], one["topic"], one["brokerName"]) == ("red", topic, "broker-a")
        assert one["storeHost"] == scene.brokers[0]
        assert one["bornHost"].startswith("127.0.0.1:")
        assert one["bornTimestamp"] <= one["storeTimestamp"] <= time.time() * 1000


def _check_results(mode: str, results: list[Json], got: list[Json]) -> None:
    if mode == "oneway":
        assert results == [None] * 4
    else:
        assert {result["status"] for result in results} == {"SEND_OK"}
        assert {(result["regionId"], result["traceOn"]) for result in results} == {
            ("DefaultRegion", True)
        }
        for kind in ("msgId", "offsetMsgId"):
            sent = {name for result in results for name in result[kind].split(",")}
            assert sent == {one[kind] for one in got}
    if mode in ("batch", "ordered", "queue"):
        in_order = sorted(got, key=lambda one: one["queueOffset"])
        assert len({one["queueId"] for one in got}) == 1
        assert [body_of(one) for one in in_order] == sorted(body_of(one) for one in got)
    if mode == "queue":
        assert {one["queueId"] for one in got} == {3}


def test_consumer_receives_what_is_sent_in_every_mode(scene: Scene) -> None:
    _send_in_every_mode(scene)


@pytest.fixture
def binary_scene(
    java: JavaClient, ours: Cluster, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> Iterator[Scene]:
    properties = {"rocketmq.serialize.type": "ROCKETMQ"}
    with JavaClient(java.version, java.artifacts, properties=properties) as binary:
        yield Scene(binary, ours, unique_name, stopper)


def test_binary_headers_work_as_json_headers_do(binary_scene: Scene) -> None:
    _send_in_every_mode(binary_scene)
    assert '"brokerName":"broker-a"' in "".join(
        binary_scene.mqadmin("topicRoute", "-t", "TBW102").split()
    )


def test_message_to_a_missing_topic_creates_it(scene: Scene) -> None:
    topic = scene.name("created")
    producer = scene.producer(options={"defaultTopicQueueNums": 3})
    (sent,) = scene.send(producer, [message(topic, b"first")])
    assert sent["status"] == "SEND_OK"
    wait_until(lambda: probe.route(scene.name_server, topic))
    queues = scene.java.invoke(producer, "fetchPublishMessageQueues", topic)
    assert sorted(queue["queueId"] for queue in queues) == [0, 1, 2]
    consumer = scene.consumer(topic)
    assert [body_of(one) for one in scene.received(consumer, 1)] == [b"first"]


def test_producer_creates_a_topic_by_name(scene: Scene) -> None:
    topic, producer = scene.name("made"), scene.producer()
    attributes = None if scene.is_old else {"+message.type": "FIFO"}
    scene.java.call("topic.create", name=producer, topic=topic, queues=3, attributes=attributes)
    wait_until(lambda: probe.route(scene.name_server, topic))
    assert len(scene.java.invoke(producer, "fetchPublishMessageQueues", topic)) == 3


def test_compressed_bodies_arrive_as_they_were(scene: Scene) -> None:
    topic, body = scene.topic(), b"compress me " * 1000
    kinds: list[dict[str, Json]] = [{}]
    if not scene.is_old:
        kinds = [{"compressType": kind} for kind in ("LZ4", "ZSTD", "ZLIB")]
    for options in kinds:
        producer = scene.producer(options={"compressMsgBodyOverHowmuch": 100, **options})
        scene.send(producer, [message(topic, body)])
    got = scene.received(scene.consumer(topic), len(kinds))
    assert [body_of(one) for one in got] == [body] * len(kinds)
    assert all(one["storeSize"] < 1000 for one in got)


def test_body_may_be_as_large_as_allowed_and_no_larger(scene: Scene) -> None:
    topic = scene.topic()
    options = {"maxMessageSize": 8 << 20, "compressMsgBodyOverHowmuch": 8 << 20}
    producer = scene.producer(options={**options, "retryTimesWhenSendFailed": 0})
    body = os.urandom(4 << 20)
    with pytest.raises(JavaError) as refused:
        scene.send(producer, [message(topic, body + b"x")])
    assert refused.value.code == MESSAGE_ILLEGAL
    (sent,) = scene.send(producer, [message(topic, body)])
    # Not with a consumer of the driver, which needs 20 s to report a body of this size.
    offset = str(int(sent["offsetMsgId"][16:], 16))
    stored = probe.call(scene.brokers[0], RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    assert body in stored.body
    assert re.search(
        r"storeSize=4194[5-9]\d\d\b", scene.mqadmin("printMsg", "-t", topic, "-d", "false")
    )


def test_producer_finds_no_queue_of_a_topic_that_may_only_be_read(scene: Scene) -> None:
    topic, producer = scene.topic(perm=4), scene.producer()
    with pytest.raises(JavaError, match="No route info"):
        scene.send(producer, [message(topic, b"nowhere to go")])


def test_autobatching_producer_sends_all(scene: Scene) -> None:
    """Only 5.x batches messages automatically; all messages of a batch share one id."""
    if scene.is_old:
        return
    topic = scene.topic()
    producer = scene.producer(options={"autoBatch": True})
    bodies = [f"{i}".encode() for i in range(10)]
    results = scene.send(producer, [message(topic, body) for body in bodies], mode="async")
    assert {result["status"] for result in results} == {"SEND_OK"}
    got = scene.received(scene.consumer(topic), len(bodies))
    assert sorted(body_of(one) for one in got) == bodies


def test_a_java_client_uses_the_vip_channel_of_a_broker_that_has_one(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    vip = {"vipChannelEnabled": True}
    with Cluster(vip=True) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic = scene.topic()
        (result,) = scene.send(scene.producer(options=vip), [message(topic, b"x")])
        assert result["status"] == "SEND_OK"
        consumer = scene.consumer(topic, options=vip)
        assert [body_of(one) for one in scene.received(consumer, 1)] == [b"x"]
        scene.stop(*scene.started)
    # Two below a port that the system chooses, another test may have a server.
    port = draw_broker_ports().listen
    with Cluster(broker_port=port) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic = scene.topic()
        messages = [message(topic, b"x")]
        (result,) = scene.send(scene.producer(options=vip), messages, collect_errors=True)
        assert f"127.0.0.1:{port - 2}" in str(result["error"])
        scene.stop(*scene.started)
