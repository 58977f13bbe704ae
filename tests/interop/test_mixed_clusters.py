"""Addresses clusters: our broker under Apache's name server, Apache's broker under ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from downrange import Message, Producer, ProducerOptions, QueueId
from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.runner import ServerThread
from downrange.wire.codes import RequestCode
from downrange.wire.headers import CreateTopicRequest
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.java_client import body_of, message
from tests.interop.scene import Addresses, Scene
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient


def _send_over_both(scene: Scene, names: set[str]) -> None:
    topic = scene.topic(queues=2)
    assert set(probe.route(scene.name_server, topic)) == names
    producer, consumer = scene.producer(), scene.consumer(topic)
    bodies = [f"{i}".encode() for i in range(8)]
    sent = scene.send(producer, [message(topic, body) for body in bodies])
    assert {result["queue"]["brokerName"] for result in sent} == names
    got = scene.received(consumer, 8)
    assert sorted(body_of(one) for one in got) == bodies
    assert {one["brokerName"] for one in got} == names
    listed = scene.mqadmin("clusterList")
    assert all(address in listed for address in scene.brokers)
    scene.stop(producer, consumer)


def test_our_broker_serves_under_an_apache_name_server(
    java: JavaClient,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    apache = apache_versions.cluster(java.version)
    name = unique_name("ours")
    options = BrokerOptions(
        name=name, cluster=unique_name("cluster"), name_servers=(apache.name_server,)
    )
    broker = BrokerServer(tmp_path, options)
    with ServerThread(broker):
        addresses = [apache.brokers[0].address, broker.address]
        scene = Scene(java, Addresses(apache.name_server, addresses), unique_name, stopper)
        _send_over_both(scene, {"broker-a", name})
    wait_until(lambda: name not in probe.route(apache.name_server, "TBW102"))


def test_the_permission_of_our_broker_is_in_the_routes_of_an_apache_name_server(
    java: JavaClient, apache_versions: ApacheVersions, unique_name: UniqueName, tmp_path: Path
) -> None:
    names = apache_versions.cluster(java.version).name_server
    name, topic = unique_name("ours"), unique_name("topic")
    options = BrokerOptions(name=name, cluster=unique_name("cluster"), name_servers=(names,))

    def perm() -> int | None:
        answer = probe.call(names, probe.GET_ROUTE, {"topic": topic})
        queues = json.loads(answer.body)["queueDatas"] if answer.code == 0 else []
        return queues[0]["perm"] if queues else None

    def change(permission: int) -> None:
        body = f"brokerPermission={permission}\n".encode()
        answer = probe.call(broker.address, RequestCode.UPDATE_BROKER_CONFIG, {}, body=body)
        assert answer.code == 0

    broker = BrokerServer(tmp_path, options)
    with ServerThread(broker) as thread:
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6
        )
        fields = header.to_fields()
        created = probe.call(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert created.code == 0
        # The broker waits a second for the name server, which may be slow.
        wait_until(lambda: perm() == 6)
        change(4)
        wait_until(lambda: perm() == 4)
        thread.run(broker.stop())
        thread.run(broker.start())
        wait_until(lambda: perm() == 4)
        change(6)
        wait_until(lambda: perm() == 6)


def test_apache_broker_serves_under_our_name_server(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with (
        Cluster(broker=BrokerOptions(name="ours")) as ours,
        ApacheCluster(
            java.version, artifacts=java.artifacts, more_name_servers=[ours.name_server]
        ) as apache,
    ):
        address = apache.brokers[0].address
        scene = Scene(
            java, Addresses(ours.name_server, [*ours.brokers, address]), unique_name, stopper
        )
        _send_over_both(scene, {"ours", "broker-a"})
        apache.kill_broker(0)  # its connection ends with it
        wait_until(lambda: set(probe.route(ours.name_server, "TBW102")) == {"ours"})


def test_our_name_server_has_the_queue_mapping_of_a_static_topic(
    apache_versions: ApacheVersions, unique_name: UniqueName
) -> None:
    java, topic = apache_versions.java_client("5.5.0"), unique_name("static")

    def mapping(name_server: str) -> object:
        answer = probe.call(name_server, probe.GET_ROUTE, {"topic": topic})
        body = json.loads(answer.body) if answer.code == 0 else {}
        return body.get("topicQueueMappingByBroker")

    with (
        Cluster(broker=BrokerOptions(name="ours")) as ours,
        ApacheCluster("5.5.0", more_name_servers=[ours.name_server]) as apache,
    ):
        options = ("-t", topic, "-qn", "3", "-c", "DefaultCluster")
        java.mqadmin(apache.name_server, "updateStaticTopic", *options)
        expected = wait_until(lambda: mapping(apache.name_server))
        wait_until(lambda: mapping(ours.name_server) == expected)
        # A send that fails would be repeated in another queue.
        patient = ProducerOptions(timeout=WAIT_TIMEOUT, retries=0)
        group = unique_name("group")
        with Producer(ours.name_server, group=group, options=patient) as producer:
            receipts = [producer.send(Message(topic, b"x")) for _ in range(3)]
        assert sorted(receipt.queue for receipt in receipts) == [
            QueueId(topic, "__syslo__global__", number) for number in range(3)
        ]
