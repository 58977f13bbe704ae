"""Delayed messages of Java producers on our broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from downrange.embedded import Cluster
from tests.apache.java_client import body_of, message
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient, Json


def _wait_of(delivery: Json) -> int:
    """Return the milliseconds from the creation of a message to its delivery."""
    waited: int = delivery["receivedAtMs"] - delivery["bornTimestamp"]
    return waited


def test_delay_levels_are_kept(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    consumer = scene.consumer(topic)
    levels = {1: 1000, 2: 2000}
    for level in levels:
        (sent,) = scene.send(
            producer, [message(topic, f"{level}".encode(), delayTimeLevel=level, tags="t")]
        )
        assert sent["status"] == "SEND_OK"
    got = scene.received(consumer, 2)
    # A listener gets them in several threads, and a broker that stalls delivers both at once.
    assert sorted(body_of(one) for one in got) == [b"1", b"2"]
    for one in got:
        assert _wait_of(one) >= levels[int(body_of(one))]
        assert (one["topic"], one["tags"]) == (topic, "t")


def test_timed_messages_arrive_at_their_time_unless_recalled(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    consumer = scene.consumer(topic)
    at = int(time.time() * 1000) + 2000
    # Late enough that a busy machine recalls it before.
    recalled_at = at if scene.is_old else at + 4000
    timings = {
        b"in seconds": {"TIMER_DELAY_SEC": "1"},
        b"in ms": {"TIMER_DELAY_MS": "1500"},
        b"at": {"TIMER_DELIVER_MS": str(at)},
        b"recalled": {"TIMER_DELIVER_MS": str(recalled_at)},
    }
    sent = scene.send(
        producer,
        [message(topic, body, systemProperties=timing) for body, timing in timings.items()],
    )
    if not scene.is_old:  # clients of 4.9 cannot recall a message
        handle = sent[3]["recallHandle"]
        message_id = scene.java.call(
            "producer.recall", name=producer, topic=topic, recallHandle=handle
        )
        assert message_id == sent[3]["msgId"]
    expected = [b"at", b"in ms", b"in seconds"] + ([b"recalled"] if scene.is_old else [])
    got = scene.received(consumer, len(expected))
    assert sorted(body_of(one) for one in got) == expected
    waits = {body_of(one): _wait_of(one) for one in got}
    assert waits[b"in seconds"] >= 1000
    assert waits[b"in ms"] >= 1500
    assert next(one for one in got if body_of(one) == b"at")["receivedAtMs"] >= at
    # The arrival of a later message shows that the recalled one was skipped.
    behind = {"TIMER_DELIVER_MS": str(recalled_at + 1000)}
    scene.send(producer, [message(topic, b"behind", systemProperties=behind)])
    got = scene.received(consumer, len(expected) + 1)
    assert sorted(body_of(one) for one in got) == sorted([*expected, b"behind"])


def test_delayed_messages_outlive_a_restart(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    with Cluster(broker=SHORT_TIMES) as cluster:
        scene = Scene(java, cluster, unique_name, stopper)
        topic, producer = scene.topic(), scene.producer()
        scene.send(
            producer,
            [
                message(topic, b"level", delayTimeLevel=2),
                message(topic, b"timer", systemProperties={"TIMER_DELAY_SEC": "2"}),
            ],
        )
        cluster.restart_broker()
        consumer = scene.consumer(topic)
        got = scene.received(consumer, 2)
        assert sorted(body_of(one) for one in got) == [b"level", b"timer"]
        assert all(_wait_of(one) >= 2000 for one in got)
        scene.stop(producer, consumer)
