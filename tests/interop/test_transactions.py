"""Transactions of Java producers, checked by our broker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from downrange.embedded import Cluster
from tests.apache import probe
from tests.apache.java_client import body_of, message
from tests.interop.conftest import OPTIONS
from tests.interop.scene import PATIENCE, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient

DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


def test_transactions_end_as_their_producer_says(scene: Scene) -> None:
    topic = scene.topic(queues=2)
    producer = scene.producer(transaction=True)
    consumer = scene.consumer(topic)
    results = scene.send(
        producer,
        [
            message(topic, b"committed", local="COMMIT_MESSAGE", keys="k", tags="t"),
            message(topic, b"rolled back", local="ROLLBACK_MESSAGE"),
            message(topic, b"checked", local="UNKNOW", checks=["UNKNOW", "COMMIT_MESSAGE"]),
            message(topic, b"checked away", local="THROW", checks=["ROLLBACK_MESSAGE"]),
        ],
        mode="transaction",
        collect_errors=True,
    )
    states = [result.get("localTransactionState") for result in results[:3]]
    assert states == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    got = sorted(scene.received(consumer, 2), key=body_of)
    assert [body_of(one) for one in got] == [b"checked", b"committed"]
    assert [one["msgId"] for one in got] == [results[2]["msgId"], results[0]["msgId"]]
    assert {one["topic"] for one in got} == {topic}
    assert (got[1]["tags"], got[1]["keys"]) == ("t", "k")
    checks = scene.java.call(
        "producer.checks",
        name=producer,
        count=3,
        timeoutMs=int(PATIENCE * 1000),
        timeout=PATIENCE + 10,
    )
    told = sorted((body_of(one), one["outcome"]) for one in checks)
    assert told == [
        (b"checked", "COMMIT_MESSAGE"),
        (b"checked", "UNKNOW"),
        (b"checked away", "ROLLBACK_MESSAGE"),
    ]
    assert len(scene.java.received(consumer, 0)) == 2


def test_check_goes_to_another_producer_of_the_group(scene: Scene) -> None:
    topic, group = scene.topic(), scene.name("producers")
    gone = scene.producer(group, transaction=True)
    scene.send(gone, [message(topic, b"left behind", local="UNKNOW")], mode="transaction")
    scene.stop(gone)
    heir = scene.producer(group, transaction=True)
    # A producer tells its group by a heartbeat, which only a topic that it knows gives it.
    scene.send(heir, [message(topic, b"mine", local="COMMIT_MESSAGE")], mode="transaction")
    checks = scene.java.call(
        "producer.checks",
        name=heir,
        count=1,
        timeoutMs=int(PATIENCE * 1000),
        timeout=PATIENCE + 10,
    )
    assert body_of(checks[0]) == b"left behind"


def test_message_that_nobody_decides_is_set_aside(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    options = dataclasses.replace(OPTIONS, transaction_checks_max=2)
    with Cluster(broker=options) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic, group = scene.topic(), scene.name("producers")
        producer = scene.producer(group, transaction=True)
        scene.send(producer, [message(topic, b"ended")], mode="transaction")
        # A check counts even if nobody is there to be asked.
        wait_until(lambda: scene.is_known(group))
        scene.send(producer, [message(topic, b"never", local="UNKNOW")], mode="transaction")
        wait_until(lambda: probe.route(scene.name_server, DISCARDED))
        consumer = scene.consumer(DISCARDED)
        assert [body_of(one) for one in scene.received(consumer, 1)] == [b"never"]
        checks = scene.java.call("producer.checks", name=producer)
        assert len(checks) == 2
        scene.stop(producer, consumer)
