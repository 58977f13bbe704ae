"""Commands of Apache's mqadmin, of both releases, on our servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from tests.apache import probe
from tests.apache.java_client import body_of, message
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient


@pytest.fixture
def own_scene(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> Iterator[Scene]:
    """Give a cluster for one test, which may change its settings."""
    with Cluster(broker=SHORT_TIMES) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        yield scene
        scene.stop(*scene.started)


def _table(printed: str) -> list[list[str]]:
    """Return the cells of the rows below the headings."""
    lines = printed.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("#")][:1]
    return [line.split() for line in lines[start + 1 :] if line.strip()]


def _packed(printed: str) -> str:
    return "".join(printed.split())


def test_cluster_and_brokers_are_described(scene: Scene) -> None:
    address = scene.brokers[0]
    clusters, totals, status, settings, name_server, topics, stats = scene.mqadmin_all(
        "clusterList",
        "clusterList -m",
        f"brokerStatus -b {address}",
        f"getBrokerConfig -b {address}",
        "getNamesrvConfig",
        "topicList",
        "statsAll",
    )
    assert _table(clusters)[0][:5] == ["DefaultCluster", "broker-a", "0", address, "V5_5_0"]
    assert _table(totals)[0][:2] == ["DefaultCluster", "broker-a"]
    assert re.search(r"commitLogMaxOffset +: \d+", status)
    assert re.search(r"brokerVersionDesc +: V5_5_0", status)
    assert re.search(r"maxMessageSize += +4194304", settings)
    assert re.search(r"brokerName += +broker-a", settings)
    assert re.search(r"brokerPermission += +6", settings)
    assert re.search(r"fileReservedTime += +72", settings)
    assert re.search(r"orderMessageEnable += +false", name_server)
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(topics.split())
    assert "TBW102" in stats


def test_topics_are_created_described_changed_and_deleted(scene: Scene) -> None:
    topic, address = scene.name("topic"), scene.brokers[0]
    made = scene.mqadmin("updateTopic", "-t", topic, "-b", address, "-r", "3", "-w", "2")
    assert f"create topic to {address} success" in made
    scene.send(scene.producer(), [message(topic, b"x")] * 2, mode="queue", queue=scene.queue(topic))
    wait_until(lambda: probe.route(scene.name_server, topic))
    route, status, clusters, allocation, stats = scene.mqadmin_all(
        f"topicRoute -t {topic}",
        f"topicStatus -t {topic}",
        f"topicClusterList -t {topic}",
        f"allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2",
        f"statsAll -t {topic}",
    )
    assert '"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":2' in _packed(route)
    assert f'"{address}"' in route
    assert [row[:4] for row in _table(status)[:3]] == [
        ["broker-a", "0", "0", "2"],
        ["broker-a", "1", "0", "0"],
        ["broker-a", "2", "0", "0"],
    ]
    assert "DefaultCluster" in clusters.split()
    assert _packed(allocation).count('"queueId"') == 3
    assert topic in stats
    changed = scene.mqadmin("updateTopicPerm", "-t", topic, "-c", "DefaultCluster", "-p", "4")
    assert "success" in changed
    wait_until(lambda: '"perm":4' in _packed(scene.mqadmin("topicRoute", "-t", topic)))
    deleted = scene.mqadmin("deleteTopic", "-t", topic, "-c", "DefaultCluster")
    assert f"delete topic [{topic}] from cluster [DefaultCluster] success" in deleted
    assert probe.route(scene.name_server, topic) == {}
    assert "CODE: 17" in scene.mqadmin("topicRoute", "-t", topic)


def test_groups_are_created_described_and_deleted(scene: Scene) -> None:
    group, address = scene.name("group"), scene.brokers[0]
    made = scene.mqadmin("updateSubGroup", "-b", address, "-g", group, "-r", "7")
    assert f"create subscription group to {address} success" in made
    admin = scene.admin()
    kept = scene.java.invoke(admin, "examineSubscriptionGroupConfig", address, group)
    assert kept["value"]["retryMaxTimes"] == 7
    deleted = scene.mqadmin("deleteSubGroup", "-b", address, "-g", group)
    assert f"delete subscription group [{group}] from broker [{address}] success" in deleted
    assert not any(group in line for line in scene.mqadmin("consumerProgress").splitlines())


def test_clients_and_their_progress_are_described(scene: Scene) -> None:
    topic, group, producers = scene.topic(queues=2), scene.name("group"), scene.name("producers")
    producer = scene.producer(producers)
    scene.send(producer, [message(topic, b"x")] * 4)
    consumer = scene.consumer({topic: "red || blue || *"}, group)
    scene.send(producer, [message(topic, b"x", tags="red")] * 4)
    scene.received(consumer, 4)
    wait_until(lambda: scene.is_registered(producers))
    connection, sender, status, everyone = scene.mqadmin_all(
        f"consumerConnection -g {group}",
        f"producerConnection -g {producers} -t {topic}",
        f"consumerStatus -g {group}",
        "consumerProgress",
    )
    assert "127.0.0.1:" in connection
    assert re.search(rf"^{topic} +red \|\| blue \|\| \*", connection, re.MULTILINE)
    assert "MessageModel: CLUSTERING" in connection
    version = f"V{scene.java.version.replace('.', '_')}"
    assert version in sender
    assert "Rebalance OK" in status
    assert re.search(rf"^{group} +1 +{version} +PUSH +CLUSTERING", everyone, re.MULTILINE)
    scene.stop(consumer)
    wait_until(lambda: scene.committed(group, topic, queues=2) == 8)
    rows = _table(scene.mqadmin("consumerProgress", "-g", group))
    progress = [row[:6] for row in rows if row[0] == topic]
    assert progress == [[topic, "broker-a", str(i), "4", "4", "0"] for i in range(2)]


def test_messages_are_found_and_printed(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    sent = scene.send(producer, [message(topic, b"text %d" % i, keys=f"k{i}") for i in range(3)])
    unique_id, offset_id = sent[1]["msgId"], sent[1]["offsetMsgId"]
    by_offset_id = f"queryMsgById -i {offset_id}" + ("" if scene.is_old else f" -t {topic}")
    by_key, by_id, by_unique_key, by_offset, printed, consumed, indexed = scene.mqadmin_all(
        f"queryMsgByKey -t {topic} -k k1",
        by_offset_id,
        f"queryMsgByUniqueKey -t {topic} -i {unique_id}",
        f"queryMsgByOffset -t {topic} -b broker-a -i 0 -o 1",
        f"printMsg -t {topic} -d true",
        f"consumeMessage -t {topic} -b broker-a -i 0 -o 1 -c 1",
        f"queryCq -t {topic} -q 0 -i 1 -c 1 -b {scene.brokers[0]}",
    )
    assert _table(by_key)[0][:3] == [unique_id, "0", "1"]
    for text in (by_id, by_unique_key, by_offset):
        # The tool writes the body to a file in a fixed folder.
        Path(text.partition("Message Body Path:")[2].split()[0]).unlink(missing_ok=True)
        assert re.search(rf"Topic: +{topic}", text)
        assert re.search(r"Queue Offset: +1", text)
        assert "KEYS=k1" in text
    assert [f"text {i}" in printed for i in range(3)] == [True] * 3
    assert "text 1" in consumed
    assert "text 0" not in consumed
    assert "physicSize=" in indexed


def test_tools_send_messages(scene: Scene) -> None:
    topic = scene.topic(queues=2)
    printed = scene.mqadmin(
        "sendMessage", "-t", topic, "-p", "from a tool", "-k", "key", "-c", "tag"
    )
    assert "SEND_OK" in printed
    (got,) = scene.received(scene.consumer(topic), 1)
    assert (body_of(got), got["keys"], got["tags"]) == (b"from a tool", "key", "tag")
    assert "Avg RT" in scene.mqadmin("checkMsgSendRT", "-t", topic, "-a", "3", "-s", "10")
    assert "SEND_OK" in scene.mqadmin("sendMsgStatus", "-b", "broker-a", "-s", "10", "-c", "2")


def test_offsets_are_reset_and_cloned(scene: Scene) -> None:
    topic, group, other = scene.topic(), scene.name("group"), scene.name("other")
    producer = scene.producer()
    scene.send(producer, [message(topic, b"%d" % i) for i in range(3)])
    consumer = scene.consumer(topic, group)
    scene.received(consumer, 3)
    # The broker notifies a consumer that is online; the consumer continues ten seconds later.
    online = scene.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert ["broker-a", "0", "0"] in [row[:3] for row in _table(online)]
    assert len(scene.received(consumer, 6)) == 6
    scene.stop(consumer)
    wait_until(lambda: scene.committed(group, topic) == 3)
    made = scene.mqadmin("updateSubGroup", "-b", scene.brokers[0], "-g", other)
    assert "success" in made
    clone = scene.mqadmin("cloneGroupOffset", "-s", group, "-d", other, "-t", topic, "-o", "1")
    assert "clone group offset success" in clone
    scene.send(producer, [message(topic, b"new")])
    copy = scene.consumer(topic, other)
    assert [body_of(one) for one in scene.received(copy, 1)] == [b"new"]
    scene.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    again = scene.consumer(topic, group)
    assert len(scene.received(again, 4)) == 4


def test_settings_are_changed(own_scene: Scene) -> None:
    scene, address = own_scene, own_scene.brokers[0]
    changed = scene.mqadmin(
        "updateBrokerConfig", "-b", address, "-k", "maxMessageSize", "-v", "999"
    )
    assert f"update broker config success, {address}" in changed
    assert re.search(r"maxMessageSize += +999", scene.mqadmin("getBrokerConfig", "-b", address))
    (result,) = scene.send(
        scene.producer(options={"compressMsgBodyOverHowmuch": 1 << 20}),
        [message(scene.topic(), b"x" * 1000)],
        collect_errors=True,
    )
    assert result["error"]["code"] == 13
    changed = scene.mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert "success" in changed
    assert re.search(r"orderMessageEnable += +true", scene.mqadmin("getNamesrvConfig"))


def test_permission_and_retention_are_changed_and_kept_over_a_restart(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster() as cluster:
        scene, address = Scene(java, cluster, unique_name, stopper), cluster.brokers[0]
        # The producer keeps its route, so that the broker refuses and not the producer.
        topic, producer = scene.topic(), scene.producer(options={"pollNameServerInterval": 600_000})
        scene.send(producer, [message(topic, b"x")])
        for name, value in (("brokerPermission", "4"), ("fileReservedTime", "48")):
            changed = scene.mqadmin("updateBrokerConfig", "-b", address, "-k", name, "-v", value)
            assert f"update broker config success, {address}" in changed
        # The broker waits a second for the name server, which may be slow.
        wait_until(lambda: '"perm":4' in _packed(scene.mqadmin("topicRoute", "-t", topic)))
        (refused,) = scene.send(producer, [message(topic, b"x")], collect_errors=True)
        assert refused["error"]["code"] == 16
        cluster.restart_broker()
        settings = scene.mqadmin("getBrokerConfig", "-b", address)
        assert re.search(r"brokerPermission += +4", settings)
        assert re.search(r"fileReservedTime += +48", settings)
        scene.mqadmin("updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v", "6")
        wait_until(lambda: '"perm":6' in _packed(scene.mqadmin("topicRoute", "-t", topic)))
        (result,) = scene.send(scene.producer(), [message(topic, b"x")])
        assert result["status"] == "SEND_OK"
        scene.stop(*scene.started)


def test_a_setting_that_cannot_be_changed_is_refused_with_the_reason(own_scene: Scene) -> None:
    scene, address = own_scene, own_scene.brokers[0]
    fixed = scene.mqadmin("updateBrokerConfig", "-b", address, "-k", "listenPort", "-v", "1")
    assert "CODE: 16" in fixed
    assert "cannot be changed: change it in the configuration" in fixed
    unknown = scene.mqadmin("updateBrokerConfig", "-b", address, "-k", "fileReserved", "-v", "1")
    assert "did you mean fileReservedTime?" in unknown


def test_name_server_keeps_values_and_takes_write_permission_away(own_scene: Scene) -> None:
    scene = own_scene
    topic = scene.topic()
    assert "success" in scene.mqadmin("updateKvConfig", "-s", "space", "-k", "a", "-v", "1")
    admin = scene.admin()
    assert scene.java.invoke(admin, "getKVConfig", "space", "a") == "1"
    assert "success" in scene.mqadmin("deleteKvConfig", "-s", "space", "-k", "a")
    put = scene.mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:1")
    assert "success" in put
    assert "broker-a:1" in scene.mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    wiped = scene.mqadmin("wipeWritePerm", "-b", "broker-a")
    assert "OK" in wiped
    assert '"perm":4' in _packed(scene.mqadmin("topicRoute", "-t", topic))
    assert "OK" in scene.mqadmin("addWritePerm", "-b", "broker-a")
    assert '"perm":6' in _packed(scene.mqadmin("topicRoute", "-t", topic))


def test_trace_of_a_message_is_kept(scene: Scene) -> None:
    topic, group, producers = scene.topic(), scene.name("group"), scene.name("producers")
    traced = {"enableTrace": True}
    producer = scene.producer(producers, options=traced)
    consumer = scene.consumer(topic, group, options=traced)
    (sent,) = scene.send(producer, [message(topic, b"traced")])
    scene.received(consumer, 1)

    def both_traces() -> str | None:
        printed = scene.mqadmin("queryMsgTraceById", "-i", sent["msgId"])
        return printed if producers in printed and group in printed else None

    printed = wait_until(both_traces)
    assert "Pub" in printed
    assert "success" in printed


def test_a_static_topic_is_refused_with_the_next_step(
    scene: Scene, apache_versions: ApacheVersions
) -> None:
    """Only the tool of 5.x can create one."""
    java, topic = apache_versions.java_client("5.5.0"), scene.name("static")
    options = ("-t", topic, "-qn", "3", "-c", "DefaultCluster")
    printed = java.mqadmin(scene.name_server, "updateStaticTopic", *options)
    assert "static topics are not supported: a queue of this broker cannot move" in printed
    assert probe.route(scene.name_server, topic) == {}
