"""Pop consumption by Java's push consumer and by hand-made requests, on our broker and on Apache's.

Both servers pass the same tests: ours must behave as 5.5.0 does.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command, encode
from downrange.wire.records import decode_records
from tests.apache import probe
from tests.apache.java_client import JavaClient, body_of, message
from tests.conversations.peers import Peer, SocketChannel
from tests.interop.scene import Addresses, Scene
from tests.support.pops import (
    ORDERLY_REVIVE_QUEUE,
    Receipt,
    batch_body,
    pop_fields,
    receipts,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from downrange.embedded import Cluster
    from downrange.wire.records import Record
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import Json

VERSION = "5.5.0"
BROKER = "broker-a"
# Long enough for a client on a busy machine to handle a message and to acknowledge it.
INVISIBLE_MS = 10_000
SHORT_MS = 6000
HOLD_MS = 30_000
HELD_MAX = 1024


@pytest.fixture(params=["ours", "apache"])
def scene(
    request: pytest.FixtureRequest,
    ours: Cluster,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
) -> Iterator[Scene]:
    """Give Java clients of 5.5.0 on our cluster, then on Apache's."""
    addresses = Addresses(ours.name_server, ours.brokers)
    if request.param == "apache":
        apache = apache_versions.cluster(VERSION)
        addresses = Addresses(apache.name_server, [one.address for one in apache.brokers])
    scene = Scene(apache_versions.java_client(VERSION), addresses, unique_name, stopper)
    yield scene
    scene.close()


# --- the Java client -----------------------------------------------------------------------------


def test_two_members_handle_every_message_once(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=4), scene.name("group"), scene.producer()
    mode = ["-b", scene.brokers[0], "-t", topic, "-g", group, "-m", "POP", "-q", "0"]
    assert "success" in scene.mqadmin("setConsumeMode", *mode)
    members = [_member(scene, topic, group) for _ in range(2)]
    sent: list[bytes] = []

    def both_have_some() -> bool:
        bodies = [f"{len(sent) + i:03}".encode() for i in range(8)]
        scene.send(producer, [message(topic, body) for body in bodies])
        sent.extend(bodies)
        return all(scene.java.received(member, 0) for member in members)

    wait_until(both_have_some)

    def deliveries() -> list[Json]:
        return [one for member in members for one in scene.java.received(member, 0)]

    wait_until(lambda: len(deliveries()) >= len(sent))
    # Each was popped, and each receipt is that of a pop of all queues by this group.
    for one in deliveries():
        words = one["properties"]["POP_CK"].split(" ")
        assert words[2] == str(INVISIBLE_MS)
        assert words[5:] == [BROKER, str(one["queueId"]), str(one["queueOffset"])]
    # An unacknowledged message would return before one that is popped now and stays invisible
    # for longer.
    _wait_for_return(scene, INVISIBLE_MS + 2000)
    assert sorted(body_of(one) for one in deliveries()) == sorted(sent)
    wait_until(lambda: scene.committed(group, topic, queues=4) == len(sent))


def test_refused_message_is_popped_again(scene: Scene) -> None:
    topic, group, producer = scene.topic(), scene.name("group"), scene.producer()
    _set_pop_mode(scene, topic, group)
    (sent,) = scene.send(producer, [message(topic, b"again", keys="k", properties={"a": "b"})])
    # It pauses, so that Apache's times of the pop and of the change differ.
    consumer = _member(scene, topic, group, failures=2, popRetrySeconds=1, pauseMs=10)
    got = scene.received(consumer, 3)
    assert [(one["reconsumeTimes"], one["accepted"]) for one in got] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert {(one["topic"], one["msgId"], body_of(one)) for one in got} == {
        (topic, sent["msgId"], b"again")
    }
    assert {one["properties"]["a"] for one in got} == {"b"}
    # What returns is the receipt of the change; that of the pop was acknowledged by it.
    popped_ms = int(got[0]["properties"]["POP_CK"].split(" ")[1])
    changed_ms = {int(one["properties"]["1ST_POP_TIME"]) for one in got[1:]}
    assert len(changed_ms) == 1
    assert changed_ms.pop() > popped_ms
    for before, after in itertools.pairwise(got):
        assert after["receivedAtMs"] - before["receivedAtMs"] >= 1000
    _wait_for_return(scene, INVISIBLE_MS + 2000)
    assert len(scene.java.received(consumer, 0)) == 3


def test_messages_of_a_member_that_crashed_go_to_another(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    _set_pop_mode(scene, topic, group)
    bodies = [b"0", b"1", b"2", b"3"]
    scene.send(producer, [message(topic, body) for body in bodies])
    with JavaClient(VERSION) as doomed_jvm:
        options = {"popInvisibleTime": INVISIBLE_MS}
        doomed_jvm.start_consumer(
            scene.name_server, group, {topic: "*"}, pop=True, pauseMs=600_000, options=options
        )
        queue = {"consumerGroup": group, "topic": topic, "queueId": "-1"}
        queue |= {"pollTime": "0", "bornTime": "0"}
        wait_until(lambda: _ask(scene, RequestCode.NOTIFICATION, queue).fields["hasMsg"] == "false")
        # It pops them again when their time is over, so it must be gone before.
        os.kill(doomed_jvm.pid, signal.SIGKILL)
    other = _member(scene, topic, group)
    got = scene.received(other, len(bodies))
    assert sorted(body_of(one) for one in got) == bodies
    assert {one["reconsumeTimes"] for one in got} == {1}


def test_member_receives_the_tags_it_subscribed_to(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    _set_pop_mode(scene, topic, group)
    consumer = _member(scene, {topic: "red || blue"}, group, failures=1, popRetrySeconds=1)
    for tag in ("red", "green", "blue", None):
        scene.send(producer, [message(topic, str(tag).encode(), tags=tag)])
    got = scene.received(consumer, 4)
    # Each is refused once, so it also passes the filter of the retry topic.
    assert sorted((body_of(one), one["reconsumeTimes"]) for one in got) == [
        (b"blue", 0),
        (b"blue", 1),
        (b"red", 0),
        (b"red", 1),
    ]


def test_member_receives_what_its_expression_matches(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    _set_pop_mode(scene, topic, group)
    consumer = _member(scene, {topic: "amount > 100 AND color = 'red'"}, group, sql=True)

    def send(amount: int, color: str) -> None:
        properties = {"amount": str(amount), "color": color}
        scene.send(producer, [message(topic, str(amount).encode(), properties=properties)])

    for amount, color in ((50, "red"), (150, "blue"), (151, "red"), (99, "red"), (152, "red")):
        send(amount, color)
    got = scene.received(consumer, 2)
    assert sorted(map(body_of, got)) == [b"151", b"152"]
    assert all("POP_CK" in one["properties"] for one in got)
    # By now its pops wait: one that does not match is passed over.
    send(98, "red")
    send(153, "red")
    assert sorted(map(body_of, scene.received(consumer, 3))) == [b"151", b"152", b"153"]
    wait_until(lambda: scene.committed(group, topic, queues=2) == 7)


# --- hand-made requests --------------------------------------------------------------------------


def test_batch_acknowledges_some_messages_of_a_pop(scene: Scene) -> None:
    topic, group = _filled(scene, 4), scene.name("group")
    found = _receipts(_pop(scene, topic, group, invisible_ms=SHORT_MS), topic, group)
    entry = found["0", 0, 0].batch_entry([0, 2, 3])
    body = batch_body(BROKER, [entry])
    assert _ask(scene, RequestCode.BATCH_ACK_MESSAGE, {}, body).code == 0
    answer = _held_pop(scene, topic, group, invisible_ms=SHORT_MS)
    (record,) = decode_records(answer.body)
    assert (record.body, record.reconsume_times, record.topic) == (b"1", 1, topic)
    # The message of the retry topic is acknowledged in a batch as well.
    (again,) = _receipts(answer, topic, group).values()
    body = batch_body(BROKER, [again.batch_entry([again.offset])])
    assert _ask(scene, RequestCode.BATCH_ACK_MESSAGE, {}, body).code == 0
    _wait_for_return(scene, SHORT_MS + 2000)
    assert _pop(scene, topic, group).code == ResponseCode.POLLING_TIMEOUT


def test_acknowledged_message_of_the_retry_topic_does_not_return(scene: Scene) -> None:
    topic, group = _filled(scene, 2), scene.name("group")
    _pop(scene, topic, group, invisible_ms=1000)
    returned: dict[bytes, Receipt] = {}
    while len(returned) < 2:
        answer = _held_pop(scene, topic, group, queue_id=-1, invisible_ms=SHORT_MS)
        found = _receipts(answer, topic, group).values()
        for record, receipt in zip(decode_records(answer.body), found, strict=True):
            assert record.properties()["POP_CK"] == receipt.text
            returned[record.body] = receipt
    done = returned[b"0"]
    assert done.topic == f"%RETRY%{group}_{topic}"
    assert _ask(scene, RequestCode.ACK_MESSAGE, done.fields()).code == 0
    answer = _held_pop(scene, topic, group)
    assert [(one.body, one.reconsume_times) for one in decode_records(answer.body)] == [(b"1", 2)]
    assert _pop(scene, topic, group, **_held(3000)).code == ResponseCode.POLLING_TIMEOUT


def test_pop_ends_before_256_kib_of_a_queue(scene: Scene) -> None:
    topic, group, producer = scene.topic(queues=2), scene.name("group"), scene.producer()
    for queue_id, count in ((0, 4), (1, 2)):
        # Random bytes, because the client compresses others.
        large = [message(topic, random.Random(1).randbytes(100_000))] * count
        scene.send(producer, large, mode="queue", queue=scene.queue(topic, queue_id))
    seen: list[tuple[str, int, int]] = []
    while len(seen) < 6:
        answer = _held_pop(scene, topic, group, queue_id=-1)
        found = _receipts(answer, topic, group)
        queues = Counter(queue_id for _, queue_id, _ in found)
        assert len(decode_records(answer.body)) == len(found)
        assert max(queues.values()) <= 2
        seen += found
    assert sorted(seen) == [("0", 0, at) for at in range(4)] + [("0", 1, 0), ("0", 1, 1)]


def test_orderly_pop_keeps_the_order_and_blocks_its_queue(scene: Scene) -> None:
    topic, group = _filled(scene, 5), scene.name("group")
    handled: list[bytes] = []
    refused = False
    attempt = 0
    while len(handled) < 5:
        attempt += 1
        given = {"order": "true", "attemptId": str(attempt)}
        answer = _held_pop(scene, topic, group, count=2, **given)
        assert answer.fields["reviveQid"] == str(ORDERLY_REVIVE_QUEUE)
        blocked = _pop(scene, topic, group, order="true", attemptId="other")
        assert blocked.code == ResponseCode.POLLING_TIMEOUT
        found = list(_receipts(answer, topic, group).values())
        records: list[Record] = decode_records(answer.body)
        if not refused and len(handled) == 2:
            # The batch returns as a whole, with its count, before anything after it.
            refused = True
            for receipt in found:
                fields = receipt.fields() | {"invisibleTime": "1000"}
                assert _ask(scene, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields).code == 0
            continue
        counted = answer.fields["orderCountInfo"].endswith("0 0 1")
        assert counted is (refused and len(handled) == 2)
        for receipt, record in zip(found, records, strict=True):
            assert _ask(scene, RequestCode.ACK_MESSAGE, receipt.fields()).code == 0
            handled.append(record.body)
            assert scene.committed(group, topic) == len(handled)
    assert handled == [b"0", b"1", b"2", b"3", b"4"]


def test_pop_is_refused_when_too_many_are_held(scene: Scene, ours: Cluster) -> None:
    topic, group = scene.topic(), scene.name("group")
    now_ms = int(time.time() * 1000)
    # All must be held before the first is answered.
    fields = pop_fields(topic, group, poll_ms=90_000, born_ms=now_ms)
    held = Command(int(RequestCode.POP_MESSAGE), fields)
    peers = [Peer(SocketChannel(scene.brokers[0]), codec=HeaderCodec.JSON) for _ in range(3)]
    for peer in peers[:2]:
        for _ in range(HELD_MAX // 2):
            peer.start(held)
    queue = {"consumerGroup": group, "topic": topic, "queueId": "0"}

    def held_count() -> int:
        return int(_ask(scene, RequestCode.POLLING_INFO, queue).fields["pollingNum"])

    wait_until(lambda: held_count() == HELD_MAX)
    # 5.5.0 holds one more than its limit, and another one if it just looks at the first of those
    # that it holds: it takes that out for a moment. So of three more, one is answered at once.
    for _ in range(2):
        peers[2].start(held)
    raw = Command(int(RequestCode.POP_MESSAGE), fields, request_id=77)
    first_answer = peers[2].exchange_raw(encode(raw))
    assert first_answer.code == ResponseCode.POLLING_FULL
    assert first_answer.fields["msgOffsetInfo"] == ""
    assert held_count() <= HELD_MAX + (1 if scene.brokers == ours.brokers else 2)
    for peer in peers:
        peer.close()


# --- tools ---------------------------------------------------------------------------------------


def _member(scene: Scene, topics: str | dict[str, str], group: str, **behaviour: Json) -> str:
    options = {"popInvisibleTime": INVISIBLE_MS, "instanceName": scene.name("member")}
    return scene.consumer(topics, group, pop=True, options=options, **behaviour)


def _set_pop_mode(scene: Scene, topic: str, group: str) -> None:
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    assert _ask(scene, code, {}, json.dumps(mode).encode()).code == 0


def _ask(
    scene: Scene, code: RequestCode, fields: dict[str, str], body: bytes = b""
) -> probe.Answer:
    return probe.call(scene.brokers[0], code, fields, body=body, timeout=HOLD_MS / 1000 + 10)


def _held(poll_ms: int) -> dict[str, int]:
    """Return the times of a pop that waits for a message."""
    return {"poll_ms": poll_ms, "born_ms": int(time.time() * 1000)}


def _pop(scene: Scene, topic: str, group: str, **given: Json) -> probe.Answer:
    return _ask(scene, RequestCode.POP_MESSAGE, pop_fields(topic, group, **given))


def _held_pop(scene: Scene, topic: str, group: str, **given: Json) -> probe.Answer:
    """Pop and wait for a message; again if none came while the broker held the pop."""

    def pop() -> probe.Answer | None:
        answer = _pop(scene, topic, group, **_held(HOLD_MS), **given)
        return None if answer.code == ResponseCode.POLLING_TIMEOUT else answer

    return wait_until(pop)


def _receipts(answer: probe.Answer, topic: str, group: str) -> dict[tuple[str, int, int], Receipt]:
    assert answer.code == 0, answer
    return receipts(answer.fields, topic, group, BROKER)


def _filled(scene: Scene, count: int) -> str:
    """Create a topic of one queue with messages "0", "1" and so on."""
    topic = scene.topic()
    producer = scene.producer()
    scene.send(producer, [message(topic, str(number).encode()) for number in range(count)])
    # Apache's broker answers a send before a pop can find the message.
    where = {"topic": topic, "queueId": "0"}
    wait_until(
        lambda: _ask(scene, RequestCode.GET_MAX_OFFSET, where).fields["offset"] == str(count)
    )
    return topic


def _wait_for_return(scene: Scene, invisible_ms: int) -> None:
    """Pop a message, and wait until it returns because its invisible time is over."""
    topic, group = _filled(scene, 1), scene.name("sentinel")
    _pop(scene, topic, group, invisible_ms=invisible_ms)
    answer = _held_pop(scene, topic, group)
    assert [one.reconsume_times for one in decode_records(answer.body)] == [1]
