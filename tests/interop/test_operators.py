"""What operators see and do with Apache's tools: rates, progress, resets, forbidden topics.

The rates are compared with those of Apache's own brokers under the same traffic.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.artifacts import VERSIONS
from tests.apache.java_client import body_of, message
from tests.interop.scene import Addresses, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient


@pytest.fixture
def apache_scene(
    java: JavaClient,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
) -> Iterator[Scene]:
    """Give the same Java clients on the shared Apache cluster of their own release."""
    cluster = apache_versions.cluster(java.version)
    addresses = Addresses(cluster.name_server, [broker.address for broker in cluster.brokers])
    scene = Scene(java, addresses, unique_name, stopper)
    yield scene
    scene.close()


def _rows(printed: str, first: str) -> list[list[str]]:
    return [row for line in printed.splitlines() if (row := line.split()) and row[0] == first]


# ---- rates -------------------------------------------------------------------------------------


def _traffic(scene: Scene, topic: str, group: str) -> None:
    """Send six messages, read four and then two, and commit five."""
    address = scene.brokers[0]
    sent = [message(topic, b"x" * 10, keys=f"k{number}") for number in range(6)]
    scene.send(scene.producer(), sent)
    ends = {"topic": topic, "queueId": "0"}
    wait_until(
        lambda: probe.call(address, RequestCode.GET_MAX_OFFSET, ends).fields["offset"] == "6"
    )
    reader = scene.pull_consumer(group)
    for offset, count in ((0, 4), (4, 32)):
        scene.java.call(
            "pull",
            name=reader,
            queue=scene.queue(topic),
            offset=offset,
            count=count,
            expression="*",
        )
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "5"}
    assert probe.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
    wait_until(lambda: probe.route(scene.name_server, f"%RETRY%{group}"))  # the tools ask for it


def _figures(scene: Scene) -> dict[str, object]:
    """Return what the tools print after the same traffic; rates only as "more than none"."""
    topic, group = scene.topic(), scene.name("group")
    _traffic(scene, topic, group)
    rows: list[list[str]] = []
    other = scene.pull_consumer()

    def is_sampled() -> bool:
        rows[:] = [
            row for row in _rows(scene.mqadmin("statsAll", "-t", topic), topic) if group in row
        ]
        return [row[-2:] for row in rows] == [["6", "6"]]

    def has_found() -> bool:
        # In the first minute of a broker, its rates cover ten seconds only, which may be over.
        scene.java.call("pull", name=other, queue=scene.queue(topic), offset=0)
        # The tool prints no figures if the broker does not answer in 5 s.
        printed = scene.mqadmin("brokerStatus", "-b", scene.brokers[0])
        return any(float(rate) > 0 for row in _rows(printed, "getFoundTps") for rate in row[2:])

    wait_until(is_sampled)
    wait_until(has_found)
    ((_, _, behind, rate_in, rate_out, *_),) = rows
    progress, everyone = scene.mqadmin_all(
        f"consumerProgress -g {group}", f"brokerConsumeStats -b {scene.brokers[0]}"
    )
    (own,) = _rows(progress, topic)
    (listed,) = [row for row in _rows(everyone, topic) if row[1] == group]
    consumed = re.search(r"Consume TPS: ([\d.]+)", progress)
    total = re.search(r"Diff Total: (\d+)", progress)
    assert consumed is not None
    assert total is not None
    return {
        "behind": behind,
        "rates": [float(rate) > 0 for rate in (rate_in, rate_out, consumed[1])],
        "progress": own[1:6],
        "total": total[1],
        "under way": re.findall(r"Inflight Total: (\d+)", progress),  # 5.x
        "everyone": listed[2:7],
    }


def test_the_same_traffic_gives_the_same_figures_as_with_apache(
    scene: Scene, apache_scene: Scene
) -> None:
    expected = _figures(apache_scene)
    assert expected["rates"] == [True] * 3
    assert _figures(scene) == expected


# ---- resets ------------------------------------------------------------------------------------


def _consume(scene: Scene) -> tuple[str, str, str]:
    """Return a topic with three messages, a group that has read them, and its consumer."""
    topic, group = scene.topic(), scene.name("group")
    scene.send(scene.producer(), [message(topic, b"%d" % number) for number in range(3)])
    consumer = scene.consumer(topic, group)
    scene.received(consumer, 3)
    return topic, group, consumer


def _bodies(scene: Scene, consumer: str) -> list[bytes]:
    """Return the bodies of six deliveries, sorted: a listener gets them in several threads."""
    return sorted(body_of(one) for one in scene.received(consumer, 6))


def test_a_tool_of_the_other_release_resets_a_consumer(
    scene: Scene, apache_versions: ApacheVersions
) -> None:
    topic, group, consumer = _consume(scene)
    (other,) = {*VERSIONS} - {scene.java.version}
    tool = apache_versions.java_client(other)
    arguments = ("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert ["broker-a", "0", "0"] in [
        line.split()[:3] for line in tool.mqadmin(scene.name_server, *arguments).splitlines()
    ]
    assert _bodies(scene, consumer) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    # The reset is over: the consumer commits again.
    scene.stop(consumer)
    wait_until(lambda: scene.committed(group, topic) == 3)


def test_members_are_reset_by_a_request_where_the_setting_is_off(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster(broker=BrokerOptions(is_reset_by_pull=False)) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic, group, consumer = _consume(scene)
        printed = scene.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        assert ["broker-a", "0", "0"] in [line.split()[:3] for line in printed.splitlines()]
        assert _bodies(scene, consumer) == [b"0", b"0", b"1", b"1", b"2", b"2"]
        scene.stop(*scene.started)


def test_a_group_that_is_offline_skips_what_it_has_not_read(scene: Scene) -> None:
    topic, group, consumer = _consume(scene)
    scene.stop(consumer)
    wait_until(lambda: scene.committed(group, topic) == 3)
    producer = scene.producer()
    scene.send(producer, [message(topic, b"skipped")] * 5)
    skipped = scene.mqadmin("skipAccumulatedMessage", "-g", group, "-t", topic)
    assert any(
        row[:2] == ["broker-a", "0"] and row[-1] == "8"
        for row in map(str.split, skipped.splitlines())
    )
    assert scene.committed(group, topic) == 8
    again = scene.consumer(topic, group)
    scene.send(producer, [message(topic, b"read")])
    assert [body_of(one) for one in scene.received(again, 1)] == [b"read"]


def test_offsets_of_members_are_shown(scene: Scene) -> None:
    topic, group, _ = _consume(scene)
    admin = scene.admin()

    def offsets() -> list[dict[str, int]]:
        return list(scene.java.invoke(admin, "getConsumeStatus", topic, group, "").values())

    wait_until(lambda: offsets() == [{f"{topic}/broker-a/0": 3}])


# ---- forbidden topics --------------------------------------------------------------------------


def test_a_consumer_gets_nothing_while_its_group_is_forbidden_to_read(scene: Scene) -> None:
    if scene.is_old:
        pytest.skip("4.9 has no such request")
    topic, group, address = scene.topic(), scene.name("group"), scene.brokers[0]
    admin = scene.admin()

    def allow(readable: bool) -> bool:
        method = "updateAndGetGroupReadForbidden"
        answer = scene.java.invoke(admin, method, address, group, topic, readable)
        return bool(answer["value"]["readable"])

    assert not allow(False)
    consumer, other = scene.consumer(topic, group), scene.consumer(topic)
    scene.send(scene.producer(), [message(topic, b"secret")])
    scene.received(other, 1)
    assert scene.java.received(consumer, 0) == []
    assert allow(True)
    assert [body_of(one) for one in scene.received(consumer, 1)] == [b"secret"]
