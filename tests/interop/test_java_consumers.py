"""Java consumers of every kind on our broker: push, pull, lite pull."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from tests.apache import probe
from tests.apache.java_client import JavaError, body_of, message
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.java_client import Json


def _bodies(messages: list[Json]) -> list[bytes]:
    return sorted(body_of(one) for one in messages)


def _numbered(topic: str, count: int, **fields: Json) -> list[dict[str, Json]]:
    return [message(topic, f"{i:03}".encode(), **fields) for i in range(count)]


# --- push ----------------------------------------------------------------------------------------


def test_consumer_receives_the_tags_it_subscribed_to(scene: Scene) -> None:
    topic, producer = scene.topic(queues=2), scene.producer()
    consumer = scene.consumer({topic: "red || blue"})
    for tag in ("red", "green", "blue", None, "Aa", "BB"):
        scene.send(producer, [message(topic, str(tag).encode(), tags=tag)])
    assert _bodies(scene.received(consumer, 2)) == [b"blue", b"red"]
    # These two tags have the same hash code, and a broker compares only hash codes.
    other = scene.consumer({topic: "Aa"})
    assert _bodies(scene.received(other, 1)) == [b"Aa"]
    scene.send(producer, [message(topic, b"last", tags="red")])
    assert _bodies(scene.received(consumer, 3)) == [b"blue", b"last", b"red"]
    assert len(scene.received(other, 1)) == 1


def test_waiting_consumer_is_woken_at_once(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    consumer = scene.consumer(topic)
    scene.send(producer, [message(topic, b"first")])
    scene.received(consumer, 1)
    delays: list[int] = []
    # One that comes at once is enough, because the machine may be busy. Without a wake-up, each
    # would come seconds later, when the broker looks at waiting pulls.
    while not delays or (min(delays) >= 200 and len(delays) < 30):
        scene.send(producer, [message(topic, b"next")])
        last = scene.received(consumer, len(delays) + 2)[-1]
        delays.append(last["receivedAtMs"] - last["storeTimestamp"])
    assert min(delays) < 200


def test_orderly_consumer_keeps_the_order_over_a_refusal(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    scene.send(producer, _numbered(topic, 3))
    options = {"suspendCurrentQueueTimeMillis": 100}
    consumer = scene.consumer(topic, orderly=True, failures=1, options=options)
    got = scene.received(consumer, 6)
    assert [(body_of(one), one["accepted"]) for one in got] == [
        (f"{i:03}".encode(), accepted) for i in range(3) for accepted in (False, True)
    ]


def test_orderly_members_share_queues_one_each(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    members = [scene.consumer(topic, group, orderly=True) for _ in range(2)]

    def queues_of(member: str) -> set[int]:
        return {one["queueId"] for one in scene.java.received(member, 0, clear=True)}

    def is_shared() -> bool:
        # Before the second member started, the first had both queues.
        for queue_id in range(2):
            queue = scene.queue(topic, queue_id)
            scene.send(producer, [message(topic, b"early")], mode="queue", queue=queue)
        one, two = map(queues_of, members)
        return len(one) == len(two) == 1 and one != two

    wait_until(is_shared)
    keyed = [
        message(topic, f"{i:03}".encode(), shardingKey=str(i % 2), keys=str(i % 2))
        for i in range(20)
    ]
    scene.send(producer, keyed, mode="ordered")

    def all_deliveries() -> list[list[Json]] | None:
        got = [
            [one for one in scene.java.received(member, 0) if body_of(one) != b"early"]
            for member in members
        ]
        return got if sum(map(len, got)) >= 20 else None

    got = wait_until(all_deliveries)
    for deliveries in got:
        by_queue: dict[int, list[bytes]] = {}
        for one in deliveries:
            by_queue.setdefault(one["queueId"], []).append(body_of(one))
        for bodies in by_queue.values():
            assert bodies == sorted(bodies)
    assert sorted(body_of(one) for part in got for one in part) == [
        f"{i:03}".encode() for i in range(20)
    ]


def test_every_broadcast_member_receives_everything(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    options = {"messageModel": "BROADCASTING"}
    members = [
        scene.consumer(topic, group, options={**options, "instanceName": scene.name("one")})
        for _ in range(2)
    ]
    scene.send(producer, _numbered(topic, 4))
    for member in members:
        assert _bodies(scene.received(member, 4)) == [b"000", b"001", b"002", b"003"]


def test_members_share_queues_and_take_over_those_of_one_that_left(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=4), scene.name("group"), scene.producer()
    stays, leaves = scene.consumer(topic, group), scene.consumer(topic, group)

    def send_to(queue_ids: Iterable[int]) -> None:
        for queue_id in queue_ids:
            queue = scene.queue(topic, queue_id)
            scene.send(producer, [message(topic, b"x")], mode="queue", queue=queue)

    def queues_of(member: str) -> set[int]:
        send_to(range(4))
        return {one["queueId"] for one in scene.java.received(member, 0, clear=True)}

    def is_shared() -> bool:
        # Before the second member started, the first had all queues.
        taken, kept = queues_of(leaves), queues_of(stays)
        return len(taken) == len(kept) == 2 and not taken & kept

    wait_until(is_shared)
    scene.stop(leaves)
    wait_until(lambda: queues_of(stays) == set(range(4)))


def test_consumer_continues_where_the_last_one_stopped(scene: Scene) -> None:
    topic, group, producer = scene.topic(), scene.name("group"), scene.producer()
    scene.send(producer, _numbered(topic, 3))
    first = scene.consumer(topic, group)
    scene.received(first, 3)
    scene.stop(first)
    wait_until(lambda: scene.committed(group, topic) == 3)
    scene.send(producer, [message(topic, b"later")])
    second = scene.consumer(topic, group)
    assert _bodies(scene.received(second, 1)) == [b"later"]


def test_new_group_gets_all_of_a_young_queue_although_it_starts_at_the_end(scene: Scene) -> None:
    """A broker returns offset 0 while a queue is complete and its start is in memory."""
    topic, producer = scene.topic(), scene.producer()
    scene.send(producer, _numbered(topic, 2))
    consumer = scene.consumer(topic, options={"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"})
    assert _bodies(scene.received(consumer, 2)) == [b"000", b"001"]


# --- refusals ------------------------------------------------------------------------------------


def test_refused_message_is_delivered_again_and_ends_as_a_dead_letter(scene: Scene) -> None:
    topic, group, producer = scene.topic(), scene.name("group"), scene.producer()
    (sent,) = scene.send(producer, [message(topic, b"bad", keys="k1", properties={"a": "b"})])
    consumer = scene.consumer(
        topic, group, failures=9, retryDelayLevel=1, options={"maxReconsumeTimes": 2}
    )
    got = scene.received(consumer, 3)
    assert [(one["reconsumeTimes"], one["topic"]) for one in got] == [
        (0, topic),
        (1, topic),
        (2, topic),
    ]
    assert {(one["msgId"], one["properties"]["a"]) for one in got} == {(sent["msgId"], "b")}
    for before, after in itertools.pairwise(got):
        assert after["receivedAtMs"] - before["receivedAtMs"] >= 1000
    dead = f"%DLQ%{group}"
    wait_until(lambda: probe.route(scene.name_server, dead))
    (letter,) = scene.received(scene.consumer(dead), 1)
    assert (body_of(letter), letter["msgId"]) == (b"bad", sent["msgId"])
    assert letter["properties"]["a"] == "b"
    assert letter["properties"]["RETRY_TOPIC"] == topic


def test_refused_message_of_an_orderly_consumer_ends_as_a_dead_letter(scene: Scene) -> None:
    topic, group, producer = scene.topic(), scene.name("group"), scene.producer()
    scene.send(producer, [message(topic, b"bad"), message(topic, b"good")])
    options = {"maxReconsumeTimes": 1, "suspendCurrentQueueTimeMillis": 100}
    consumer = scene.consumer(topic, group, orderly=True, failures=1000, options=options)
    got = scene.received(consumer, 4)
    assert [body_of(one) for one in got] == [b"bad", b"bad", b"good", b"good"]
    wait_until(lambda: probe.route(scene.name_server, f"%DLQ%{group}"))


def test_consumer_sends_a_message_back_to_wait(scene: Scene) -> None:
    topic, group, producer = scene.topic(), scene.name("group"), scene.producer()
    scene.send(producer, [message(topic, b"again")])
    consumer = scene.consumer(topic, group, failures=1, retryDelayLevel=2)
    first, second = scene.received(consumer, 2)
    assert (first["accepted"], second["accepted"]) == (False, True)
    assert second["reconsumeTimes"] == 1
    assert second["receivedAtMs"] - first["receivedAtMs"] >= 2000


def _with_amounts(topic: str, *amounts: int) -> list[dict[str, Json]]:
    return [
        message(topic, str(amount).encode(), properties={"amount": str(amount)})
        for amount in amounts
    ]


def test_consumer_receives_what_its_expression_matches(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    scene.send(producer, _with_amounts(topic, 50, 150, 99, 101))
    # Deliveries that are refused once come back by the retry topic, which is not filtered.
    consumer = scene.consumer(
        {topic: "amount > 100 AND TAGS IS NULL"},
        group,
        sql=True,
        failures=1,
        retryDelayLevel=1,
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
    )
    assert set(_bodies(scene.received(consumer, 4))) == {b"101", b"150"}
    # By now its pulls wait; messages that do not match wake none of them.
    scene.send(producer, _with_amounts(topic, 5, 500))
    got = scene.received(consumer, 6)
    assert set(_bodies(got)) == {b"101", b"150", b"500"}


def test_wrong_expression_is_refused_at_the_start(scene: Scene) -> None:
    topic = scene.topic()
    with pytest.raises(JavaError) as caught:
        scene.consumer({topic: "amount >"}, sql=True)
    assert caught.value.code == 23


def test_expression_is_refused_at_the_start_if_they_are_switched_off(
    scene: Scene, stopper: ThreadPoolExecutor
) -> None:
    options = dataclasses.replace(SHORT_TIMES, is_sql_enabled=False)
    with Cluster(broker=options) as cluster:
        other = Scene(scene.java, cluster, scene.name, stopper)
        with pytest.raises(JavaError, match="does not support consumer to filter message by SQL92"):
            other.consumer({other.topic(): "amount > 100"}, sql=True)
        other.close()


# --- pull ----------------------------------------------------------------------------------------


def test_pull_returns_status_and_next_offset(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    scene.send(producer, _numbered(topic, 5, tags="red"))
    consumer, queue = scene.pull_consumer(), scene.queue(topic)

    def pull(offset: int, **given: Json) -> Json:
        return scene.java.call("pull", name=consumer, queue=queue, offset=offset, **given)

    found = pull(2, count=2)
    assert (found["status"], found["nextBeginOffset"]) == ("FOUND", 4)
    assert [one["queueOffset"] for one in found["messages"]] == [2, 3]
    assert (found["minOffset"], found["maxOffset"]) == (0, 5)
    found = pull(5)
    assert (found["status"], found["nextBeginOffset"]) == ("NO_NEW_MSG", 5)
    found = pull(9)
    assert (found["status"], found["nextBeginOffset"]) == ("OFFSET_ILLEGAL", 5)
    found = pull(0, expression="green")
    assert (found["status"], found["nextBeginOffset"]) == ("NO_MATCHED_MSG", 5)
    found = pull(0, expression="red")
    assert len(found["messages"]) == 5


def test_pull_returns_what_its_expression_matches(scene: Scene) -> None:
    topic, producer = scene.topic(), scene.producer()
    scene.send(producer, _with_amounts(topic, 50, 150, 99, 101))
    # The client learns from the first heartbeat after the first pull that the broker is not older
    # than SQL filters.
    consumer = scene.pull_consumer(options={"heartbeatBrokerInterval": 1000})
    queue = scene.queue(topic)

    def pull(expression: str) -> Json:
        return scene.java.call(
            "pull", name=consumer, queue=queue, offset=0, expression=expression, sql=True
        )

    def first_pull() -> Json:
        try:
            return pull("amount > 100")
        except JavaError as error:
            if "does not upgrade" in error.message:
                return None
            raise

    scene.java.call("pull", name=consumer, queue=queue, offset=0)
    found = wait_until(first_pull)
    assert (found["status"], found["nextBeginOffset"]) == ("FOUND", 4)
    assert [body_of(one) for one in found["messages"]] == [b"150", b"101"]
    found = pull("amount > 1000")
    assert (found["status"], found["nextBeginOffset"]) == ("NO_MATCHED_MSG", 4)
    with pytest.raises(JavaError) as caught:
        pull("amount >")
    assert caught.value.code == 23


def test_lite_pull_consumer_polls_what_its_expression_matches(scene: Scene) -> None:
    topic, producer, group = scene.topic(queues=2), scene.producer(), scene.name("group")
    scene.send(producer, _with_amounts(topic, 50, 150, 99, 101))
    scene.java.call(
        "litePull.start",
        name=group,
        group=group,
        nameServers=scene.name_server,
        subscriptions={topic: "amount > 100"},
        sql=True,
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
    )
    assert _bodies(scene.polled(group, 2)) == [b"101", b"150"]
    scene.send(producer, _with_amounts(topic, 5, 500))
    assert _bodies(scene.polled(group, 1)) == [b"500"]
    scene.java.stop(group)


def test_lite_pull_consumer_polls_from_the_offset_of_a_seek(scene: Scene) -> None:
    topic, producer, group = scene.topic(), scene.producer(), scene.name("group")
    scene.send(producer, _numbered(topic, 4))
    queue = scene.queue(topic)
    scene.java.call(
        "litePull.start", name=group, group=group, nameServers=scene.name_server, queues=[queue]
    )
    # Poll all messages first: those fetched before a seek may still be returned after it.
    assert [body_of(one) for one in scene.polled(group, 4)] == [b"000", b"001", b"002", b"003"]
    scene.java.call("litePull.seek", name=group, queue=queue, offset=2)
    assert [body_of(one) for one in scene.polled(group, 2)] == [b"002", b"003"]
    scene.java.stop(group)


def test_lite_pull_consumer_subscribes_and_commits(scene: Scene) -> None:
    topic, producer, group = scene.topic(queues=2), scene.producer(), scene.name("group")
    scene.send(producer, _numbered(topic, 4))

    def start(name: str) -> None:
        scene.java.call(
            "litePull.start",
            name=name,
            group=group,
            nameServers=scene.name_server,
            subscriptions={topic: "*"},
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )

    first, second = scene.name("first"), scene.name("second")
    start(first)
    assert _bodies(scene.polled(first, 4)) == [b"000", b"001", b"002", b"003"]
    scene.java.invoke(first, "commitSync")
    scene.java.stop(first)
    wait_until(lambda: scene.committed(group, topic, queues=2) == 4)
    scene.send(producer, [message(topic, b"later")])
    start(second)
    assert _bodies(scene.polled(second, 1)) == [b"later"]
    scene.java.stop(second)


# --- names ---------------------------------------------------------------------------------------


def test_namespace_is_part_of_names_on_the_broker_only(scene: Scene) -> None:
    space, short = scene.name("space"), scene.name("topic")
    options = {"namespace": space}
    scene.topic(name=f"{space}%{short}")
    producer = scene.producer(options=options)
    consumer = scene.consumer(short, options=options)
    scene.send(producer, [message(short, b"inside")])
    (got,) = scene.received(consumer, 1)
    assert (body_of(got), got["topic"]) == (b"inside", short)
    outside = scene.consumer(f"{space}%{short}")
    assert _bodies(scene.received(outside, 1)) == [b"inside"]
