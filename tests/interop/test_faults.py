"""Java clients while our broker stops, starts again, or is killed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster, handle_then_cut, refuse
from downrange.wire.codes import RequestCode, ResponseCode
from tests.apache.java_client import body_of, message
from tests.interop.scene import Scene
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient


class SendThread(threading.Thread):
    """Sends numbered messages until `end`, and records which were acknowledged."""

    def __init__(self, scene: Scene, producer: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._scene, self._producer, self._topic = scene, producer, topic
        self._is_over = threading.Event()
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            bodies = [f"{number + i:06}".encode() for i in range(10)]
            number += 10
            results = self._scene.send(
                self._producer,
                [message(self._topic, body) for body in bodies],
                collect_errors=True,
            )
            self.acknowledged += [
                body
                for body, result in zip(bodies, results, strict=True)
                if result.get("status") == "SEND_OK"
            ]

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until `count` more messages are acknowledged."""
        expected = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= expected)

    def end(self) -> None:
        """Stop sending, and wait for the last answer."""
        self._is_over.set()
        self.join(WAIT_TIMEOUT)
        assert not self.is_alive()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_what_was_acknowledged_is_received_after_the_broker_comes_back(
    way: str, java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster(flush="sync") as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic = scene.topic(queues=4)
        options = {"sendMsgTimeout": 2000, "pollNameServerInterval": 1000}
        producer = scene.producer(options=options)
        # A consumer of 4.9 needs 30 s to notice that the connection of a waiting pull is closed.
        early = None if scene.is_old else scene.consumer(topic)
        sending = SendThread(scene, producer, topic)
        sending.start()
        for _ in range(2):
            sending.wait_for_more()
            (cluster.stop_broker if way == "stop" else cluster.kill_broker)()
            cluster.restart_broker()
        sending.wait_for_more()
        sending.end()
        expected = set(sending.acknowledged)
        consumer = early or scene.consumer(topic)
        wait_until(lambda: expected <= {body_of(one) for one in scene.java.received(consumer, 0)})
        scene.stop(producer, consumer)


def test_producer_switches_to_another_broker_when_one_fails(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster(brokers=2) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic, producer = scene.topic(queues=2), scene.producer()
        scene.send(producer, [message(topic, b"first")])
        rules = [refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "on purpose")]
        if not scene.is_old:  # a 4.9 producer waits for the answer on the closed connection
            rules.append(handle_then_cut())
        for rule in rules:
            cluster.intercept(RequestCode.SEND_MESSAGE_V2, rule, broker=0)
            results = scene.send(producer, [message(topic, b"%d" % i) for i in range(3)])
            assert {result["queue"]["brokerName"] for result in results} == {"broker-b"}
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)
        consumer = scene.consumer(topic)
        wait_until(
            lambda: (
                {body_of(one) for one in scene.java.received(consumer, 0)}
                == {b"first", b"0", b"1", b"2"}
            )
        )
        scene.stop(producer, consumer)
