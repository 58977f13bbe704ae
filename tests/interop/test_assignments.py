"""Java consumers of 5.5.0 whose queues our broker shares out, with short heartbeats, and kills."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.wire.bodies import ConsumerConnectionsBody, HeartbeatBody, decode_body
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.java_client import JavaClient, body_of, message
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES
from tests.support.waiting import WAIT_SCALE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import Json


class Requests:
    """The requests that a cluster got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: list[tuple[int, bytes]] = []

    def __call__(self, request: Command, peer: Peer) -> None:
        with self._lock:
            self._seen.append((request.code, request.body))

    def bodies(self, code: RequestCode) -> list[bytes]:
        """Return the bodies of the requests with this code."""
        with self._lock:
            return [body for seen, body in self._seen if seen == code]


@pytest.fixture(scope="module")
def java(apache_versions: ApacheVersions) -> JavaClient:
    """Give the Java client of 5.5.0; 4.9 has none of this."""
    return apache_versions.java_client("5.5.0")


@pytest.fixture
def requests() -> Requests:
    """Keep all requests to the brokers of `own_scene`."""
    return Requests()


@pytest.fixture
def cluster(requests: Requests, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a cluster for one test; its brokers are two if the test says so."""
    with Cluster(brokers=getattr(request, "param", 1), broker=SHORT_TIMES) as cluster:
        for server in cluster.server.brokers:
            server.intercept = requests
        yield cluster


@pytest.fixture
def own_scene(
    cluster: Cluster, java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> Iterator[Scene]:
    """Give Java clients on that cluster."""
    scene = Scene(java, cluster, unique_name, stopper)
    yield scene
    scene.stop(*scene.started)


def _send_everywhere(scene: Scene, producer: str, topic: str, queues: int) -> None:
    for number in range(len(scene.brokers)):
        for queue_id in range(queues):
            queue = scene.queue(topic, queue_id, f"broker-{'ab'[number]}")
            scene.send(producer, [message(topic, b"x")], mode="queue", queue=queue)


def _queues(messages: Sequence[Json]) -> set[tuple[str, int]]:
    return {(one["storeHost"], one["queueId"]) for one in messages}


# ---- queues shared out by the broker -----------------------------------------------------------


@pytest.mark.parametrize("cluster", [1, 2], indirect=True, ids=["one broker", "two brokers"])
def test_members_read_the_queues_that_the_broker_gives_them(
    own_scene: Scene, requests: Requests
) -> None:
    scene = own_scene
    topic, group, producer = scene.topic(queues=4), scene.name("group"), scene.producer()
    options = {"clientRebalance": False}
    stays, leaves = (scene.consumer(topic, group, options=options) for _ in range(2))
    everything = 4 * len(scene.brokers)

    def queues_of(member: str) -> set[tuple[str, int]]:
        _send_everywhere(scene, producer, topic, queues=4)
        return _queues(scene.java.received(member, 0, clear=True))

    taken = wait_until(lambda: len(queues := queues_of(leaves)) == everything // 2 and queues)
    # Until it has given up its part, the first member reads some of those queues as well.
    kept = wait_until(
        lambda: len(queues := queues_of(stays)) == everything // 2 and not queues & taken and queues
    )
    scene.stop(leaves)
    wait_until(lambda: queues_of(stays) == kept | taken)
    queries = [json.loads(body) for body in requests.bodies(RequestCode.QUERY_ASSIGNMENT)]
    assert {query["consumerGroup"] for query in queries} == {group}
    assert {query["topic"] for query in queries} == {topic, f"%RETRY%{group}"}


def test_a_tool_sets_the_message_request_mode(own_scene: Scene) -> None:
    scene = own_scene
    topic, group, address = scene.topic(), scene.name("group"), scene.brokers[0]
    made = scene.mqadmin("updateSubGroup", "-b", address, "-g", group)
    assert "success" in made
    words = ["setConsumeMode", "-t", topic, "-g", group, "-m", "POP", "-q", "2"]
    done = scene.mqadmin(*words, "-b", address)
    assert re.search(rf"set consume mode to {address} success", done), done
    answer = probe.call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {})
    expected = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 2}
    assert json.loads(answer.body) == {"messageRequestModeMap": {topic: {group: expected}}}
    words[words.index("POP")] = "PULL"
    assert "success" in scene.mqadmin(*words, "-c", "DefaultCluster")
    answer = probe.call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {})
    modes = json.loads(answer.body)["messageRequestModeMap"]
    assert modes[topic][group]["mode"] == "PULL"
    refused = scene.mqadmin("setConsumeMode", "-t", "none", "-g", group, "-m", "POP", "-b", address)
    assert "CODE: 17" in refused


# ---- short heartbeats --------------------------------------------------------------------------


def _subscribed(scene: Scene, group: str) -> dict[str, str]:
    fields = {"consumerGroup": group}
    answer = probe.call(scene.brokers[0], RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    if answer.code != 0:
        return {}
    body = decode_body(ConsumerConnectionsBody, answer.body)
    return {topic: one.sub_string for topic, one in body.subscription_table.items()}


def test_subscriptions_arrive_with_short_heartbeats_also_after_a_restart(
    own_scene: Scene, cluster: Cluster, requests: Requests
) -> None:
    scene = own_scene
    first, second, group = scene.topic(), scene.topic(), scene.name("group")
    producer = scene.producer()
    options = {"useHeartbeatV2": True, "heartbeatBrokerInterval": 1000}
    consumer = scene.consumer({first: "red"}, group, options=options)

    def short_heartbeats() -> int:
        beats = [
            decode_body(HeartbeatBody, body) for body in requests.bodies(RequestCode.HEART_BEAT)
        ]
        return sum(bool(beat.without_sub and beat.heartbeat_fingerprint) for beat in beats)

    def receive(topic: str, body: bytes) -> None:
        scene.send(producer, [message(topic, body, tags="red")])
        wait_until(lambda: body in [body_of(one) for one in scene.java.received(consumer, 0)])

    receive(first, b"1")
    wait_until(lambda: short_heartbeats() >= 2)
    assert _subscribed(scene, group) == {first: "red", f"%RETRY%{group}": "*"}
    scene.java.invoke(consumer, "subscribe", second, "blue || red")
    wait_until(lambda: _subscribed(scene, group).get(second) == "blue || red")
    receive(second, b"2")
    scene.java.invoke(consumer, "unsubscribe", first)
    wait_until(lambda: first not in _subscribed(scene, group))
    before = short_heartbeats()
    wait_until(lambda: short_heartbeats() > before)

    cluster.restart_broker()
    cluster.server.brokers[0].intercept = requests
    wait_until(lambda: _subscribed(scene, group).get(second) == "blue || red")
    receive(second, b"3")


# ---- locks -------------------------------------------------------------------------------------


def test_queues_of_a_killed_orderly_member_are_read_at_once(own_scene: Scene) -> None:
    scene = own_scene
    topic, group, producer = scene.topic(queues=4), scene.name("group"), scene.producer()
    with JavaClient(scene.java.version) as other:
        killed = other.start_consumer(scene.name_server, group, {topic: "*"}, orderly=True)
        stays = scene.consumer(topic, group, orderly=True)

        def queues_of(java: JavaClient, member: str) -> set[tuple[str, int]]:
            _send_everywhere(scene, producer, topic, queues=4)
            return _queues(java.received(member, 0, clear=True))

        wait_until(lambda: len(queues_of(scene.java, stays)) == 2)
        wait_until(lambda: len(queues_of(other, killed)) == 2)
        os.kill(other.pid, signal.SIGKILL)
        begun = time.monotonic()
        wait_until(lambda: len(queues_of(scene.java, stays)) == 4)
        # Without the broker's help the locks of the killed member last 60 s.
        assert time.monotonic() - begun < 45 * WAIT_SCALE
