"""mqadmin sees and steers our group consumers through the real brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange import (
    ClientOptions,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange import ReceivedMessage
    from downrange.client.consumer_stats import QueueHealth
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient

OPTIONS = ConsumerOptions(start="earliest", commit_interval=0.2, suspend=1.0)
# A commit that is late on a busy machine would let messages be handled again.
PATIENT = ClientOptions(connect_timeout=30.0, call_timeout=30.0)
# A second attempt could store a message twice.
SEND_ONCE = ProducerOptions(timeout=WAIT_TIMEOUT, retries=0)


class Scene:
    """A consumer that has handled three messages, and the tool."""

    def __init__(self, apache: ApacheCluster, java: JavaClient, name: UniqueName) -> None:
        self._where, self._java = apache.name_server, java
        self.topic, self.group = name("topic"), name("group")
        self.bodies: list[str] = []
        fields = {"topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": "2"}
        fields |= {"writeQueueNums": "2", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        fields |= {"topicSysFlag": "0", "order": "false"}
        address = apache.brokers[0].address
        assert probe.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
        wait_until(lambda: probe.route(self._where, self.topic))
        self.consumer = PushConsumer(
            self._where,
            group=self.group,
            subscribe=self.topic,
            handler=self._handle,
            options=OPTIONS,
            client_options=PATIENT,
        )

    def _handle(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body.decode())

    def tool(self, *arguments: str) -> str:
        return self._java.mqadmin(self._where, *arguments)


@pytest.fixture
def scene(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> Iterator[Scene]:
    scene = Scene(apache, java_client, unique_name)
    senders = Producer(apache.name_server, group=unique_name("senders"), options=SEND_ONCE)
    with scene.consumer, senders as producer:
        for number in range(3):
            producer.send(Message(scene.topic, f"{number}"))
        wait_until(lambda: len(scene.bodies) == 3)
        wait_until(lambda: probe.route(apache.name_server, f"%RETRY%{scene.group}"))
        yield scene


def test_mqadmin_sees_a_member(scene: Scene) -> None:
    client_id = scene.consumer.client.core.client_id
    connections = scene.tool("consumerConnection", "-g", scene.group)
    for text in (client_id, "PYTHON", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", scene.topic):
        assert text in connections
    status = scene.tool("consumerStatus", "-g", scene.group, "-i", client_id, "-s")
    for text in (scene.topic, "CONSUME_PASSIVELY", "downrange"):
        assert text in status
    assert "Rebalance OK" in scene.tool("consumerStatus", "-g", scene.group)
    wait_until(lambda: "Diff Total: 0" in scene.tool("consumerProgress", "-g", scene.group))


def _queues(scene: Scene) -> list[QueueHealth]:
    return [each for each in scene.consumer.health().queues if each.queue.topic == scene.topic]


def test_mqadmin_moves_a_running_group_back(scene: Scene) -> None:
    which = ["-g", scene.group, "-t", scene.topic]
    # A 4.9 broker moves only groups that have committed an offset in every queue.
    wait_until(lambda: all(each.committed for each in _queues(scene)))
    printed = scene.tool("resetOffsetByTime", *which, "-s", "0", "-f", "true")
    assert scene.topic in printed, printed
    wait_until(lambda: sorted(scene.bodies) == ["0", "0", "1", "1", "2", "2"])


def test_mqadmin_has_a_member_handle_a_message(scene: Scene, apache: ApacheCluster) -> None:
    with Producer(apache.name_server, group="tool", options=SEND_ONCE) as producer:
        receipt = producer.send(Message(scene.topic, "now"))
    wait_until(lambda: scene.bodies.count("now") == 1)
    which = ["-i", receipt.offset_id, "-g", scene.group]
    which += ["-d", scene.consumer.client.core.client_id]
    if apache.version.startswith("5."):
        which += ["-t", scene.topic]
    assert "CR_SUCCESS" in scene.tool("queryMsgById", *which)
    assert scene.bodies.count("now") == 2
