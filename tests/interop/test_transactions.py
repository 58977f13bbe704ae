"""Transactions of Java producers, checked by our broker."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from downrange.embedded import Cluster
from tests.apache import probe
from tests.apache.java_client import body_of, message
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient

DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


def test_transactions_end_as_their_producer_decides(scene: Scene) -> None:
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
    outcomes = _outcomes_at_the_end(scene, producer)
    # A producer that answers late is asked again meanwhile, and repeats its last answer.
    first, *others = outcomes[b"checked"]
    assert (first, set(others)) == ("UNKNOW", {"COMMIT_MESSAGE"})
    assert set(outcomes[b"checked away"]) == {"ROLLBACK_MESSAGE"}
    assert len(scene.java.received(consumer, 0)) == 2


def _outcomes_at_the_end(scene: Scene, producer: str) -> dict[bytes, list[str]]:
    """Return the answers to checks by message, once the broker has stopped asking."""

    def answers() -> list[tuple[bytes, str]]:
        return [(body_of(one), one["outcome"]) for one in scene.checks(producer, 3)]

    def are_over() -> list[tuple[bytes, str]] | None:
        before = answers()
        time.sleep(4 * SHORT_TIMES.transaction_check_interval)
        ends = {(b"checked", "COMMIT_MESSAGE"), (b"checked away", "ROLLBACK_MESSAGE")}
        return before if ends <= {*before} and answers() == before else None

    outcomes: dict[bytes, list[str]] = {}
    for body, outcome in wait_until(are_over):
        outcomes.setdefault(body, []).append(outcome)
    return outcomes


def test_check_goes_to_another_producer_of_the_group(scene: Scene) -> None:
    topic, group = scene.topic(), scene.name("producers")
    gone = scene.producer(group, transaction=True)
    scene.send(gone, [message(topic, b"left behind", local="UNKNOW")], mode="transaction")
    scene.stop(gone)
    other = scene.producer(group, transaction=True)
    # A producer sends heartbeats only to brokers of topics that it has used.
    scene.send(other, [message(topic, b"mine", local="COMMIT_MESSAGE")], mode="transaction")
    # It is asked about its own message too if it ends that late.
    wait_until(lambda: b"left behind" in map(body_of, scene.checks(other, 1)))


def test_undecided_message_is_set_aside_after_the_last_check(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    options = dataclasses.replace(SHORT_TIMES, transaction_checks_max=2)
    with Cluster(broker=options) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic, group = scene.topic(), scene.name("producers")
        producer = scene.producer(group, transaction=True)
        scene.send(producer, [message(topic, b"ended")], mode="transaction")
        # A check counts even if no producer is registered, so wait for the registration.
        wait_until(lambda: scene.is_registered(group))
        scene.send(producer, [message(topic, b"never", local="UNKNOW")], mode="transaction")
        wait_until(lambda: probe.route(scene.name_server, DISCARDED))
        consumer = scene.consumer(DISCARDED)
        assert [body_of(one) for one in scene.received(consumer, 1)] == [b"never"]

        def checks() -> list[bytes]:
            # The first message is checked too if its end comes late.
            return [body for one in scene.checks(producer, 2) if (body := body_of(one)) == b"never"]

        wait_until(lambda: len(checks()) >= 2)
        assert len(checks()) == 2
        scene.stop(producer, consumer)
