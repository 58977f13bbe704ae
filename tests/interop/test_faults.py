"""Java clients while our broker stops, starts again, or is killed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster, handle_then_cut
from downrange.wire.codes import RequestCode
from tests.apache.java_client import body_of, message
from tests.interop.scene import PATIENCE, Scene, wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient


class Sending(threading.Thread):
    """Sends numbered messages until told to end, and remembers which were acknowledged."""

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
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted)

    def end(self) -> None:
        """Send no more, and wait for the last answer."""
        self._is_over.set()
        self.join(PATIENCE)
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
        # A consumer of 4.9 does not notice that the connection of a waiting pull is gone for 30 s.
        early = None if scene.is_old else scene.consumer(topic)
        sending = Sending(scene, producer, topic)
        sending.start()
        for _ in range(2):
            sending.wait_for_more()
            (cluster.stop_broker if way == "stop" else cluster.kill_broker)()
            cluster.restart_broker()
        sending.wait_for_more()
        sending.end()
        wanted = set(sending.acknowledged)
        consumer = early or scene.consumer(topic)
        wait_until(lambda: wanted <= {body_of(one) for one in scene.java.received(consumer, 0)})
        scene.stop(producer, consumer)


def test_producer_sends_to_another_broker_when_the_connection_is_cut_before_the_answer(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster(brokers=2) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic = scene.topic(queues=2)
        producer = scene.producer(options={"sendMsgTimeout": 8000})
        scene.send(producer, [message(topic, b"first")])
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, handle_then_cut(), broker=0)
        results = scene.send(
            producer, [message(topic, b"%d" % i) for i in range(2)], collect_errors=True
        )
        assert [result.get("status") for result in results] == ["SEND_OK"] * 2
        assert {result["queue"]["brokerName"] for result in results} == {"broker-b"}
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)
        consumer = scene.consumer(topic)
        got = scene.received(consumer, 4)
        assert {body_of(one) for one in got} == {b"first", b"0", b"1"}
        scene.stop(producer, consumer)
