"""Queries of Java clients about messages and queues, on our broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.apache.java_client import JavaError, body_of, message
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.java_client import Json
    from tests.interop.scene import Scene


def test_messages_are_found_by_key_and_by_id(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    sent = scene.send(producer, [message(topic, b"%d" % i, keys=f"k{i} shared") for i in range(5)])
    admin = scene.admin()

    def query(key: str, count: int = 10, begin_ms: int = 0, end_ms: int = 2**62) -> list[bytes]:
        found = scene.java.invoke(admin, "queryMessage", topic, key, count, begin_ms, end_ms)
        return sorted(body_of(one) for one in found["messages"])

    assert query("k3") == [b"3"]
    assert query("shared") == [b"0", b"1", b"2", b"3", b"4"]
    assert len(query("shared", count=2)) == 2
    with pytest.raises(JavaError):
        query("k3", end_ms=int(time.time() * 1000) - 3_600_000)
    with pytest.raises(JavaError):
        query("missing")
    for name in ("msgId", "offsetMsgId"):
        viewed = scene.java.invoke(admin, "viewMessage", topic, sent[3][name])
        assert (body_of(viewed), viewed["queueOffset"]) == (b"3", 3)
    with pytest.raises(JavaError):
        scene.java.invoke(admin, "viewMessage", topic, sent[3]["offsetMsgId"][:-6] + "FFFFFF")


def test_offsets_are_returned_and_found_by_time(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    consumer, queue = scene.pull_consumer(), scene.queue(topic)
    assert scene.java.invoke(consumer, "fetchSubscribeMessageQueues", topic) == [queue]
    assert scene.java.invoke(consumer, "maxOffset", queue) == 0

    def stored_at() -> int:
        found: Json = scene.java.call("pull", name=consumer, queue=queue, offset=0)
        return max(int(one["storeTimestamp"]) for one in found["messages"])

    scene.send(producer, [message(topic, b"x")] * 3)
    first = stored_at()
    wait_until(lambda: time.time() * 1000 > first + 2)
    scene.send(producer, [message(topic, b"y")])

    def search(time_ms: int) -> Json:
        return scene.java.invoke(consumer, "searchOffset", queue, time_ms)

    assert scene.java.invoke(consumer, "maxOffset", queue) == 4
    assert scene.java.invoke(consumer, "minOffset", queue) == 0
    last = stored_at()
    assert search(0) == 0
    assert search(last) == 3
    assert search(last - 1) == 3
    assert search(last + 100_000) == 4
    earliest = scene.java.invoke(consumer, "earliestMsgStoreTime", queue)
    assert 0 < earliest < last


def test_offset_that_a_tool_sets_is_what_a_consumer_reads(scene: Scene) -> None:
    topic, producer, group = scene.topic(), scene.producer(), scene.name("group")
    scene.send(producer, [message(topic, b"x")] * 3)
    queue = scene.queue(topic)
    consumer, admin = scene.pull_consumer(group), scene.admin()
    broker = scene.brokers[0]
    scene.java.invoke(admin, "createAndUpdateSubscriptionGroupConfig", broker, {"groupName": group})
    for offset in (2, 1):
        scene.java.invoke(admin, "updateConsumeOffset", broker, group, queue, offset)
        assert scene.java.invoke(consumer, "fetchConsumeOffset", queue, True) == offset
