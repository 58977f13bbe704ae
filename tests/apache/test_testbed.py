"""Tests of the test bed itself, on both releases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.apache import probe
from tests.apache.artifacts import VERSIONS, ApacheUnavailable, resolve
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import ACCOUNTS
from tests.apache.java_client import JavaClient, JavaClientDied, JavaError, Json, body_of, message
from tests.apache.ports import draw_broker_ports, is_free
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.fixtures import ApacheVersions, UniqueName

USER = ACCOUNTS.others[0]
BODIES = [
    "ClusterInfo",
    "ConsumeStats",
    "ConsumerConnection",
    "HeartbeatData",
    "LockBatchRequestBody",
    "ResetOffsetBody",
    "SubscriptionGroupWrapper",
    "TopicConfigSerializeWrapper",
    "TopicStatsTable",
]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_dead(pids: list[int], timeout: float = 60.0) -> list[int]:
    deadline = time.monotonic() + timeout
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def make_topic(java: JavaClient, cluster: ApacheCluster, topic: str, queues: int = 4) -> None:
    admin = java.start_admin(cluster.name_server)
    config = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    for broker in cluster.brokers:
        java.invoke(admin, "createAndUpdateTopicConfig", broker.address, config)
    wait_until(lambda: len(probe.route(cluster.name_server, topic)) == len(cluster.brokers))
    java.stop(admin)


def wait_until_offline(java: JavaClient, admin: str, group: str) -> None:
    # While the broker still lists a stopped consumer, it sends an offset reset to that consumer.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            java.invoke(admin, "examineConsumerConnectionInfo", group)
        except JavaError:
            return
        time.sleep(0.1)
    pytest.fail(f"{group} is still online")


# --- the plain cluster ---------------------------------------------------------------------------


def test_cluster_hands_out_the_route_of_its_broker(apache: ApacheCluster) -> None:
    assert probe.route(apache.name_server, "TBW102") == {"broker-a": [apache.brokers[0].address]}


def test_cluster_keeps_its_files_in_its_own_folder(apache: ApacheCluster) -> None:
    broker = apache.brokers[0]
    assert broker.store.is_relative_to(apache.folder)
    assert (broker.store / "lock").exists()
    command = Path(f"/proc/{apache.processes()[0].pid}/cmdline").read_bytes()
    assert f"-Duser.home={apache.folder}".encode() in command


def test_java_client_is_of_the_release(apache: ApacheCluster, java_client: JavaClient) -> None:
    assert java_client.call("version") == f"V{apache.version.replace('.', '_')}"


def test_java_consumer_receives_what_a_java_producer_sends_in_every_mode(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    make_topic(java_client, apache, topic)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    consumer = java_client.start_consumer(apache.name_server, unique_name("group"), {topic: "*"})
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 3}
    for mode in ("sync", "async", "oneway", "batch", "ordered", "queue"):
        bodies = [f"{mode}-{i}".encode() for i in range(4)]
        messages = [
            message(topic, body, tags="red", keys=f"key-{i}", shardingKey="one", flag=i)
            | {"properties": {"number": str(i)}}
            for i, body in enumerate(bodies)
        ]
        results = java_client.send(producer, messages, mode=mode, queue=queue)
        got = java_client.received(consumer, 4, clear=True)
        assert sorted(body_of(one) for one in got) == bodies
        for one in got:
            assert one["properties"]["number"] == str(one["flag"])
            assert (one["tags"], one["topic"], one["brokerName"]) == ("red", topic, "broker-a")
            assert one["storeHost"] == apache.brokers[0].address
            assert one["bornHost"].startswith("127.0.0.1:")
        if mode == "oneway":
            assert results == [None] * 4
        else:
            assert {result["status"] for result in results} == {"SEND_OK"}
            sent = {name for result in results for name in result["msgId"].split(",")}
            assert sent == {one["msgId"] for one in got}
        if mode in ("batch", "ordered", "queue"):
            assert len({one["queueId"] for one in got}) == 1
            in_order = sorted(got, key=lambda one: one["queueOffset"])
            assert [body_of(one) for one in in_order] == bodies
        if mode == "queue":
            assert {one["queueId"] for one in got} == {3}
    java_client.stop(consumer)
    java_client.stop(producer)


def test_transactions_follow_their_script(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    make_topic(java_client, apache, topic)
    group = unique_name("producer")
    producer = java_client.start_producer(apache.name_server, group, transaction=True)
    consumer = java_client.start_consumer(apache.name_server, unique_name("group"), {topic: "*"})
    results = java_client.send(
        producer,
        [
            message(topic, b"committed", local="COMMIT_MESSAGE"),
            message(topic, b"rolled back", local="ROLLBACK_MESSAGE"),
            message(topic, b"checked", local="UNKNOW", checks=["UNKNOW", "COMMIT_MESSAGE"]),
        ],
        mode="transaction",
    )
    states = [result["localTransactionState"] for result in results]
    assert states == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    got = java_client.received(consumer, 2)
    assert sorted(body_of(one) for one in got) == [b"checked", b"committed"]
    checks = java_client.call("producer.checks", name=producer, count=2, timeoutMs=30_000)
    # On a busy machine the broker asks once more before an answer arrives, which is then repeated,
    # and it asks about the others before they are ended.
    first, *others = [one["outcome"] for one in checks if body_of(one) == b"checked"]
    assert (first, set(others)) == ("UNKNOW", {"COMMIT_MESSAGE"})
    java_client.stop(consumer)
    java_client.stop(producer)


def test_request_is_answered_by_a_replying_consumer(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    make_topic(java_client, apache, topic)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    answering = java_client.start_producer(apache.name_server, unique_name("producer"))
    consumer = java_client.start_consumer(
        apache.name_server, unique_name("group"), {topic: "*"}, replyProducer=answering
    )
    reply = java_client.call(
        "producer.request", name=producer, message=message(topic, b"ping"), timeoutMs=60_000
    )
    assert body_of(reply) == b"re:ping"
    for name in (consumer, producer, answering):
        java_client.stop(name)


def test_refused_message_is_delivered_again(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    make_topic(java_client, apache, topic)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    consumer = java_client.start_consumer(
        apache.name_server,
        unique_name("group"),
        {topic: "color = 'red' AND size > 3"},
        sql=True,
        failures=1,
        retryDelayLevel=1,
    )
    java_client.send(
        producer,
        [
            message(topic, b"small", properties={"color": "red", "size": "1"}),
            message(topic, b"large", properties={"color": "red", "size": "9"}),
        ],
    )
    got = java_client.received(consumer, 2)
    assert [(body_of(one), one["accepted"], one["reconsumeTimes"]) for one in got] == [
        (b"large", False, 0),
        (b"large", True, 1),
    ]
    java_client.stop(consumer)
    java_client.stop(producer)


def test_orderly_consumer_keeps_the_order_over_a_refusal(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    make_topic(java_client, apache, topic, queues=1)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    java_client.send(producer, [message(topic, bytes([i])) for i in range(3)])
    consumer = java_client.start_consumer(
        apache.name_server, unique_name("group"), {topic: "*"}, orderly=True, failures=1
    )
    got = java_client.received(consumer, 6)
    assert [(body_of(one)[0], one["accepted"]) for one in got] == [
        (i, accepted) for i in range(3) for accepted in (False, True)
    ]
    java_client.stop(consumer)
    java_client.stop(producer)


def test_offsets_and_messages_of_a_queue_are_found(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    make_topic(java_client, apache, topic, queues=1)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    assert java_client.invoke(producer, "fetchPublishMessageQueues", topic) == [queue]
    sent = java_client.send(
        producer, [message(topic, bytes([i]) * 10, keys=f"{topic}-{i}") for i in range(5)]
    )
    pull = java_client.call("pull.start", name=group, group=group, nameServers=apache.name_server)
    assert pull
    # The broker answers a send before the message can be found.
    wait_until(lambda: java_client.invoke(group, "maxOffset", queue) == 5)
    found = java_client.call("pull", name=group, queue=queue, offset=2, count=2)
    assert found["status"] == "FOUND"
    assert [one["queueOffset"] for one in found["messages"]] == [2, 3]
    assert found["nextBeginOffset"] == 4
    assert java_client.invoke(group, "minOffset", queue) == 0
    assert java_client.invoke(group, "searchOffset", queue, 0) == 0
    viewed = java_client.invoke(group, "viewMessage", topic, sent[3]["offsetMsgId"])
    assert (viewed["queueOffset"], body_of(viewed)) == (3, bytes([3]) * 10)
    now_ms = int(time.time() * 1000)

    def query() -> Json:
        times = (now_ms - 3_600_000, now_ms + 3_600_000)
        try:
            return java_client.invoke(group, "queryMessage", topic, f"{topic}-4", 10, *times)
        except JavaError:  # nothing is found until the index is filled
            return None

    queried = wait_until(query)
    assert [body_of(one) for one in queried["messages"]] == [bytes([4]) * 10]
    made = unique_name("topic")
    java_client.call("topic.create", name=producer, topic=made, queues=3)
    wait_until(lambda: probe.route(apache.name_server, made))
    assert len(java_client.invoke(producer, "fetchPublishMessageQueues", made)) == 3
    with pytest.raises(JavaError) as refused:
        java_client.invoke(group, "viewMessage", topic, "7F" * 16)
    assert refused.value.java_class.startswith("org.apache.rocketmq.")
    java_client.stop(group)
    java_client.stop(producer)


def test_lite_pull_consumer_polls_from_the_offset_of_a_seek(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    make_topic(java_client, apache, topic, queues=1)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    java_client.send(producer, [message(topic, bytes([i])) for i in range(4)])
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    java_client.call(
        "litePull.start", name=group, group=group, nameServers=apache.name_server, queues=[queue]
    )

    def poll(count: int) -> list[bytes]:
        got: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(got) < count and time.monotonic() < deadline:
            polled = java_client.call("litePull.poll", name=group, timeoutMs=2000)
            got += [body_of(one) for one in polled]
        return got

    # Poll all messages first: those fetched before a seek may still be returned after it.
    assert poll(4) == [b"\x00", b"\x01", b"\x02", b"\x03"]
    java_client.call("litePull.seek", name=group, queue=queue, offset=2)
    assert poll(2) == [b"\x02", b"\x03"]
    java_client.stop(group)
    java_client.stop(producer)


def test_admin_client_returns_stats_and_resets_offsets(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    make_topic(java_client, apache, topic, queues=1)
    admin = java_client.start_admin(apache.name_server)
    producer = java_client.start_producer(apache.name_server, unique_name("producer"))
    # Otherwise a stopping consumer does not commit what its listener has just accepted.
    patient = {"awaitTerminationMillisWhenShutdown": 30_000}
    consumer = java_client.start_consumer(apache.name_server, group, {topic: "*"}, options=patient)
    java_client.send(producer, [message(topic, b"x")] * 3)
    assert len(java_client.received(consumer, 3)) == 3
    key = f"{topic}/broker-a/0"
    route = java_client.invoke(admin, "examineTopicRouteInfo", topic)
    assert route["value"]["queueDatas"][0]["writeQueueNums"] == 1
    assert '"brokerName":"broker-a"' in route["json"]
    cluster = java_client.invoke(admin, "examineBrokerClusterInfo")
    assert cluster["value"]["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    stats = java_client.invoke(admin, "examineTopicStats", topic)
    assert stats["value"]["offsetTable"][key]["maxOffset"] == 3
    java_client.stop(consumer)

    def committed() -> int:
        consumed = java_client.invoke(admin, "examineConsumeStats", group)
        return int(consumed["value"]["offsetTable"][key]["consumerOffset"])

    wait_until(lambda: committed() == 3)  # the last commit has no answer
    made = {"groupName": group, "retryMaxTimes": 5}
    address = apache.brokers[0].address
    java_client.invoke(admin, "createAndUpdateSubscriptionGroupConfig", address, made)
    kept = java_client.invoke(admin, "examineSubscriptionGroupConfig", address, group)
    assert kept["value"]["retryMaxTimes"] == 5
    wait_until_offline(java_client, admin, group)
    java_client.invoke(admin, "resetOffsetNew", group, topic, 0)
    again = java_client.start_consumer(apache.name_server, group, {topic: "*"})
    assert len(java_client.received(again, 3)) == 3
    for name in (again, producer, admin):
        java_client.stop(name)


def test_timer_message_can_be_recalled_on_5(
    apache_versions: ApacheVersions, unique_name: UniqueName
) -> None:
    cluster, java = apache_versions.cluster("5.5.0"), apache_versions.java_client("5.5.0")
    topic = unique_name("topic")
    make_topic(java, cluster, topic)
    producer = java.start_producer(cluster.name_server, unique_name("producer"))
    consumer = java.start_consumer(cluster.name_server, unique_name("group"), {topic: "*"})
    # Late enough that a busy machine recalls it before.
    kept, recalled = java.send(
        producer,
        [message(topic, text, options={"delayTimeSec": 8}) for text in (b"kept", b"recalled")],
    )
    handle = recalled["recallHandle"]
    assert handle
    result = java.call("producer.recall", name=producer, topic=topic, recallHandle=handle)
    assert result == recalled["msgId"]
    # The arrival of a later message shows that the recalled one was skipped.
    [behind] = java.send(producer, [message(topic, b"behind", options={"delayTimeSec": 10})])
    # A listener gets them in several threads, and a broker that stalls delivers both at once.
    got = [one["msgId"] for one in java.received(consumer, 2)]
    assert sorted(got) == sorted([kept["msgId"], behind["msgId"]])
    java.stop(consumer)
    java.stop(producer)


# --- the codec classes ---------------------------------------------------------------------------


@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
def test_driver_encodes_and_decodes_commands(java_client: JavaClient, serialize: str) -> None:
    given: dict[str, Json] = {"code": 105, "fields": {"topic": "T"}, "remark": "r", "opaque": -3}
    given |= {"flag": 1, "version": 401, "serialize": serialize, "body": "Ym9keQ=="}
    frame = java_client.call("command.encode", **given)
    decoded = java_client.call("command.decode", hex=frame)
    assert decoded == given | {"language": "JAVA"}
    if serialize == "ROCKETMQ":
        bare = java_client.call(
            "command.encode", code=105, fields={"topic": "T"}, remark="r", serialize=serialize
        )
        expected = "00000026 01000022 0069 00 0000 00000000 00000000 00000001 72"
        expected += "0000000c 0005 746f706963 00000001 54"
        assert bare == expected.replace(" ", "")


def test_driver_runs_the_message_codecs(java_client: JavaClient) -> None:
    record = java_client.call(
        "record.encode",
        message=message("TopicTest", b"hello", systemProperties={"TAGS": "TagA"}),
        queueId=2,
        queueOffset=5,
        commitLogOffset=1024,
        storeHost="10.0.0.2:10911",
    )
    decoded = java_client.call("record.decode", hex=record)
    assert (decoded["queueId"], decoded["queueOffset"]) == (2, 5)
    assert (body_of(decoded), decoded["tags"], decoded["bodyCRC"]) == (b"hello", "TagA", 907060870)
    assert decoded["offsetMsgId"] == "0A00000200002A9F0000000000000400"
    assert len(java_client.call("record.decodeAll", hex=record * 2)) == 2
    batch = java_client.call("batch.encode", messages=[message("T", b"a"), message("T", b"bc")])
    bodies = [body_of(one) for one in java_client.call("batch.decode", hex=batch)]
    assert bodies == [b"a", b"bc"]
    text = java_client.call("properties.encode", properties={"a": "1", "b": "2"})
    assert java_client.call("properties.decode", text=text) == {"a": "1", "b": "2"}
    split = java_client.call("offsetId.decode", id=decoded["offsetMsgId"])
    assert split == {"host": "10.0.0.2", "port": 10911, "offset": 1024}
    assert java_client.call("offsetId.encode", **split) == decoded["offsetMsgId"]
    assert java_client.call("crc32", hex=b"hello".hex()) == 907060870
    made = java_client.call("uniqueId")
    assert made["pid"] == java_client.pid & 0xFFFF
    fields = {"topic": "T", "queueId": "7", "group": "g", "unknown": "x"}
    kept = java_client.call("header.roundtrip", type="GetMaxOffsetRequestHeader", fields=fields)
    assert (kept["topic"], kept["queueId"], "unknown" in kept) == ("T", "7", False)
    assert java_client.call("hash", texts=["TagA", "中文"]) == [2598919, 646394]
    signed = java_client.call(
        "sign",
        fields={"AccessKey": "RocketMQ", "b": "2", "topic": "TopicTest"},
        body="Ym9keQ==",
        secretKey="12345678",
    )
    assert signed["signature"] == "5sHPfHQeF4j2/J4kztTO4De8AKY="
    assert bytes.fromhex(signed["content"]) == b"RocketMQ2TopicTestbody"


def test_driver_reads_and_writes_json_bodies(java_client: JavaClient) -> None:
    route = '{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b"}],"queueDatas":[]}'
    result = java_client.call("json.roundtrip", type="TopicRouteData", json=route)
    assert '"brokerAddrs":{0:"a:1"}' in result["json"]
    assert result["value"]["brokerDatas"][0]["brokerAddrs"] == {"0": "a:1"}
    for name in BODIES:
        assert java_client.call("json.roundtrip", type=name, json="{}")["json"]
    version = {"counter": 7, "timestamp": 5}
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": {}, "dataVersion": version}}
    for compressed in (True, False):
        packed = java_client.call(
            "registerBody.encode", json=json.dumps(body), compressed=compressed
        )
        unpacked = java_client.call("registerBody.decode", hex=packed, compressed=compressed)
        kept = unpacked["value"]["topicConfigSerializeWrapper"]["dataVersion"]
        assert kept["counter"] == 7


# --- variants ------------------------------------------------------------------------------------


def test_acl_refuses_unsigned_and_accepts_signed(apache_acl: ApacheCluster) -> None:
    broker = apache_acl.brokers[0].address
    fields = {"topic": "OpenTopic", "producerGroup": "g", "defaultTopic": "TBW102", "queueId": "0"}
    fields |= {"defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
    refusal = 16 if apache_acl.version.startswith("5.") else 1

    def send(topic: str, access_key: str | None, secret_key: str = "") -> int:
        given = fields | {"topic": topic}
        answer = probe.call(
            broker, 10, given, body=b"x", access_key=access_key, secret_key=secret_key
        )
        return answer.code

    assert send("OpenTopic", None) == refusal
    assert send("OpenTopic", USER.access_key, USER.secret_key + "x") == refusal
    assert send("OtherTopic", USER.access_key, USER.secret_key) == refusal
    assert send("OpenTopic", USER.access_key, USER.secret_key) == 0
    assert send("OtherTopic", ACCOUNTS.admin.access_key, ACCOUNTS.admin.secret_key) == 0


def test_mqadmin_lists_the_cluster_with_signed_requests(apache_acl: ApacheCluster) -> None:
    # Only the broker reports its version, and this one answers signed requests only. The tool
    # leaves the version out if the broker does not answer in 5 s, so it is called again then.
    version = f"V{apache_acl.version.replace('.', '_')}"
    listed: list[str] = []

    def is_listed() -> bool:
        listed.append(apache_acl.mqadmin("clusterList"))
        return version in listed[-1]

    wait_until(is_listed)
    assert apache_acl.brokers[0].address in listed[-1]


def test_acl_works_with_the_java_client(
    apache_acl: ApacheCluster, apache_versions: ApacheVersions, unique_name: UniqueName
) -> None:
    java = apache_versions.java_client(apache_acl.version)
    signed = java.start_producer(apache_acl.name_server, unique_name("p"), account=USER)
    unsigned = java.start_producer(apache_acl.name_server, unique_name("p"))
    assert java.send(signed, [message("OpenTopic", b"1")])[0]["status"] == "SEND_OK"
    with pytest.raises(JavaError):
        java.send(unsigned, [message("OpenTopic", b"2")])
    consumer = java.start_consumer(
        apache_acl.name_server, "OpenGroup", {"OpenTopic": "*"}, account=USER
    )
    wait_until(lambda: b"1" in [body_of(one) for one in java.received(consumer, 0)])
    assert b"2" not in [body_of(one) for one in java.received(consumer, 0)]
    for name in (consumer, signed, unsigned):
        java.stop(name)


def test_tls_refuses_plain_text_and_serves_the_java_client(
    apache_tls: ApacheCluster, unique_name: UniqueName
) -> None:
    assert apache_tls.tls is not None
    for address in (apache_tls.name_server, apache_tls.brokers[0].address):
        with pytest.raises(OSError, match=r"closed|reset"):
            probe.call(address, probe.GET_ROUTE, {"topic": "TBW102"})
    found = probe.route(apache_tls.name_server, "TBW102", tls=apache_tls.tls.client_context())
    assert found == {"broker-a": [apache_tls.brokers[0].address]}
    topic = unique_name("topic")
    with JavaClient(apache_tls.version, tls=apache_tls.tls) as java:
        patient = {"sendMsgTimeout": 30_000}  # the first TLS handshake of two JVMs takes a while
        producer = java.start_producer(apache_tls.name_server, unique_name("p"), options=patient)
        assert java.send(producer, [message(topic, b"secret")])[0]["status"] == "SEND_OK"
        consumer = java.start_consumer(apache_tls.name_server, unique_name("g"), {topic: "*"})
        assert [body_of(one) for one in java.received(consumer, 1)] == [b"secret"]
        plain = java.start_producer(
            apache_tls.name_server,
            unique_name("p"),
            options={
                "useTLS": False,
                "sendMsgTimeout": 2000,
                "mqClientApiTimeout": 3000,  # 4.9 waits so long for answers on a closed connection
                "retryTimesWhenSendFailed": 0,
            },
        )
        with pytest.raises(JavaError):
            java.send(plain, [message(topic, b"open")], timeout=60)


def test_two_brokers_appear_in_one_route(
    apache_two_brokers: ApacheCluster, apache_versions: ApacheVersions, unique_name: UniqueName
) -> None:
    names = {broker.name: [broker.address] for broker in apache_two_brokers.brokers}
    assert sorted(names) == ["broker-a", "broker-b"]
    assert probe.route(apache_two_brokers.name_server, "TBW102") == names
    java = apache_versions.java_client(apache_two_brokers.version)
    topic = unique_name("topic")
    make_topic(java, apache_two_brokers, topic, queues=2)
    producer = java.start_producer(apache_two_brokers.name_server, unique_name("p"))
    sent = java.send(producer, [message(topic, b"x")] * 8)
    assert {result["queue"]["brokerName"] for result in sent} == {"broker-a", "broker-b"}
    java.stop(producer)


# --- start and stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_survive_stop_kill_and_start_of_a_broker(
    apache_versions: ApacheVersions, unique_name: UniqueName, version: str
) -> None:
    java = apache_versions.java_client(version)
    topic = unique_name("topic")
    with ApacheCluster(version, broker_options={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        broker = cluster.brokers[0]
        make_topic(java, cluster, topic, queues=1)
        producer = java.start_producer(cluster.name_server, unique_name("p"))
        java.send(producer, [message(topic, b"before the stop")])
        assert (broker.store / "abort").exists()
        assert cluster.stop_broker(0)
        assert not (broker.store / "abort").exists()
        wait_until(lambda: probe.route(cluster.name_server, topic) == {})
        cluster.start_broker(0)
        java.send(producer, [message(topic, b"before the kill")])
        cluster.kill_broker(0)
        assert (broker.store / "abort").exists()
        cluster.start_broker(0)
        consumer = java.start_consumer(cluster.name_server, unique_name("g"), {topic: "*"})
        got = java.received(consumer, 2)
        assert sorted(body_of(one) for one in got) == [b"before the kill", b"before the stop"]
        pids = [child.pid for child in cluster.processes()]
        folder = cluster.folder
        assert all(is_alive(pid) for pid in pids)
        java.stop(consumer)
        java.stop(producer)
    assert wait_until_dead(pids, timeout=0) == []
    assert not folder.exists()


def test_servers_end_with_a_killed_test_run(
    apache_versions: ApacheVersions, tmp_path: Path
) -> None:
    artifacts = apache_versions.cluster("4.9.4").artifacts
    program = (
        "import sys, time\n"
        "from tests.apache.cluster import ApacheCluster\n"
        "from tests.apache.java_client import JavaClient\n"
        "cluster, java = ApacheCluster('4.9.4'), JavaClient('4.9.4')\n"
        "cluster.start(), java.start()\n"
        "print(java.pid, *(child.pid for child in cluster.processes()))\n"
        "sys.stdout.flush()\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"DOWNRANGE_APACHE_CACHE": str(artifacts.home.parent)}
    environment["TMPDIR"] = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, env=environment, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        pids = [int(number) for number in run.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert wait_until_dead(pids) == []


def test_cluster_starts_although_a_drawn_port_is_taken(
    apache_versions: ApacheVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = apache_versions.cluster("4.9.4")
    draws = iter([shared.brokers[0].ports])
    monkeypatch.setattr(
        "tests.apache.cluster.draw_broker_ports", lambda: next(draws, None) or draw_broker_ports()
    )
    with ApacheCluster("4.9.4") as cluster:
        assert cluster.brokers[0].address != shared.brokers[0].address
        assert not is_free(cluster.brokers[0].ports.fast)


def test_dead_driver_fails_the_call_at_once(apache_versions: ApacheVersions) -> None:
    artifacts = apache_versions.cluster("4.9.4").artifacts
    with JavaClient("4.9.4", artifacts) as java:
        begun = time.monotonic()
        with pytest.raises(JavaClientDied):
            java.call("exit", timeout=300.0)
        assert time.monotonic() - begun < 60


def test_slow_call_ends_at_its_deadline(
    apache: ApacheCluster, java_client: JavaClient, unique_name: UniqueName
) -> None:
    consumer = java_client.start_consumer(
        apache.name_server, unique_name("g"), {unique_name("topic"): "*"}
    )
    with pytest.raises(TimeoutError):
        java_client.call("consumer.received", name=consumer, count=1, timeoutMs=5000, timeout=0.2)
    java_client.stop(consumer)


def test_reason_is_clear_when_the_cache_cannot_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apache_versions: ApacheVersions
) -> None:
    java = apache_versions.cluster("4.9.4").artifacts.java
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "java").symlink_to(java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setenv("DOWNRANGE_APACHE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ApacheUnavailable, match="no mvn in PATH"):
        resolve("4.9.4")
    (bin_folder / "mvn").write_text("#!/bin/sh\necho no route to the registry\nexit 1\n")
    (bin_folder / "mvn").chmod(0o755)
    with pytest.raises(ApacheUnavailable, match=r"exit 1.*no route to the registry"):
        resolve("4.9.4")
    (bin_folder / "java").unlink()
    with pytest.raises(ApacheUnavailable, match="no java in PATH"):
        resolve("4.9.4")


def test_full_cache_is_used_without_maven(
    monkeypatch: pytest.MonkeyPatch, apache_versions: ApacheVersions
) -> None:
    artifacts = apache_versions.cluster("4.9.4").artifacts
    monkeypatch.setenv("DOWNRANGE_APACHE_CACHE", str(artifacts.home.parent))
    monkeypatch.setattr("tests.apache.artifacts._fetch", lambda *_: pytest.fail("mvn was run"))
    assert resolve("4.9.4") == artifacts
