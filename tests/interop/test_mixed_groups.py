"""Java and Python members in one group, on our broker and on Apache's of the same release."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from downrange import (
    Average,
    AverageByCircle,
    ConsistentHash,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from downrange.model import QueueId
from downrange.wire.bodies import GroupMembersBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.consumer_bodies import RunningStateBody
from tests.apache import probe
from tests.apache.java_client import JavaClient, body_of
from tests.faults.group_load import Record, join, options
from tests.faults.group_worker import Worker
from tests.interop.scene import Addresses, Scene
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from downrange.allocation import Strategy
    from downrange.embedded import Cluster
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import Json

QUEUES = 8


class Handled(NamedTuple):
    """A message, and the member that handled it."""

    member: str
    queue: int
    body: str


class MixedGroup:
    """A group with members of both languages, and a producer."""

    def __init__(self, scene: Scene, producer: Producer, folder: Path) -> None:
        self.scene = scene
        self.topic = scene.topic(QUEUES)
        self.group = scene.name("mixed")
        self.record = Record()
        self.java: list[str] = []
        self.python: list[PushConsumer] = []
        self.folder = folder
        self._producer = producer
        self._numbers = itertools.count()

    def add_java(self, **behaviour: Json) -> str:
        """Start a Java member."""
        self.java.append(self.scene.consumer(self.topic, self.group, **behaviour))
        return self.java[-1]

    def add_python(self, **chosen: Json) -> PushConsumer:
        """Start a member with threads."""
        handler = self.record.handler(f"python-{len(self.python)}")
        given = options(chosen.pop("mode", "concurrent"), **chosen)
        member = join(self.scene.name_server, self.group, self.topic, handler, given)
        self.python.append(member)
        return member

    def send(self, per_queue: int) -> set[str]:
        """Send to each queue; return the bodies."""
        bodies = set()
        for _ in range(per_queue):
            for number in range(QUEUES):
                body = f"{next(self._numbers):05}"
                where = QueueId(self.topic, "broker-a", number)
                self._producer.send(Message(self.topic, body), queue=where)
                bodies.add(body)
        return bodies

    def handled(self) -> list[Handled]:
        """Return what the members of both languages handled."""
        ours = [
            Handled(each.member, each.queue.number, each.body) for each in self.record.handlings
        ]
        return ours + [
            Handled(name, one["queueId"], body_of(one).decode())
            for name in self.java
            for one in self.scene.java.received(name, 0)
        ]

    def members(self) -> list[str]:
        """Return the client ids that the broker knows, in their order."""
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = probe.call(self.scene.brokers[0], code, {"consumerGroup": self.group})
        if answer.code != 0:
            return []
        return sorted(decode_body(GroupMembersBody, answer.body).consumer_id_list)

    def shares(self) -> list[list[int]]:
        """Return the queues of each member that has some, as it tells the broker now."""
        found: list[list[int]] = []
        for client_id in self.members():
            fields = {"consumerGroup": self.group, "clientId": client_id, "jstackEnable": "false"}
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            answer = probe.call(self.scene.brokers[0], code, fields)
            if answer.code == 0:
                table = decode_body(RunningStateBody, answer.body).mq_table or {}
                found.append(sorted(each.number for each in table if each.topic == self.topic))
        return sorted(filter(None, found))

    def who_handles(self, bodies: set[str]) -> dict[str, set[int]]:
        """Wait until messages are handled; return which member had which queues."""
        found: list[Handled] = []

        def is_complete() -> bool:
            found[:] = [each for each in self.handled() if each.body in bodies]
            return {each.body for each in found} == bodies

        wait_until(is_complete)
        parts: dict[str, set[int]] = {}
        for each in found:
            parts.setdefault(each.member, set()).add(each.queue)
        return parts

    def wait_for_shares(self, *sizes: int) -> None:
        """Wait until each queue has one member, and the members have so many queues."""

        def is_divided() -> bool:
            shares = self.who_handles(self.send(1)).values()
            return sorted(map(len, shares)) == sorted(sizes)

        wait_until(is_divided)


@pytest.fixture(params=["embedded", "apache"])
def mixed(
    request: pytest.FixtureRequest,
    java: JavaClient,
    ours: Cluster,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
    tmp_path: Path,
) -> Iterator[MixedGroup]:
    """Give a group without members, on each server in turn."""
    servers = Addresses(ours.name_server, ours.brokers)
    if request.param == "apache":
        cluster = apache_versions.cluster(java.version)
        servers = Addresses(cluster.name_server, [each.address for each in cluster.brokers])
    scene = Scene(java, servers, unique_name, stopper)
    # A second attempt could store a message twice.
    options = ProducerOptions(timeout=WAIT_TIMEOUT, retries=0)
    with Producer(servers.name_server, group=unique_name("senders"), options=options) as producer:
        group = MixedGroup(scene, producer, tmp_path)
        yield group
        for member in group.python:
            member.close()
    scene.close()


STRATEGIES: dict[str, tuple[Strategy, dict[str, Json]]] = {
    "Average": (Average(), {}),
    "AverageByCircle": (AverageByCircle(), {}),
    "ConsistentHash": (ConsistentHash(), {"virtualNodes": 10}),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_of_both_languages_share_queues_without_overlap_or_hole(
    mixed: MixedGroup, strategy: str
) -> None:
    ours, settings = STRATEGIES[strategy]
    for _ in range(2):
        mixed.add_java(strategy=strategy, **settings)
        mixed.add_python(strategy=ours)

    def wanted_shares() -> list[list[int]]:
        members = wait_until(lambda: len(found := mixed.members()) == 4 and found)
        queues = [QueueId(mixed.topic, "broker-a", number) for number in range(QUEUES)]
        shares = [ours.allocate(mixed.group, each, queues, members) for each in members]
        return sorted([queue.number for queue in share] for share in shares if share)

    wanted = wanted_shares()

    def is_divided() -> bool:
        shares = mixed.who_handles(mixed.send(1))
        assigned = [
            {queue.number for queue in each.assignment() if queue.topic == mixed.topic}
            for each in mixed.python
        ]
        views = [shares.get(f"python-{number}", set()) for number in range(2)]
        return sorted(map(sorted, shares.values())) == wanted and views == assigned

    wait_until(is_divided)
    # A member of Java that is late may still read a queue that another one has handled by now.
    wait_until(lambda: mixed.shares() == wanted)
    assert sorted(itertools.chain(*wanted)) == list(range(QUEUES))
    last = mixed.send(3)
    parts = mixed.who_handles(last)
    if strategy != "ConsistentHash":
        assert sorted(map(len, parts.values())) == [2, 2, 2, 2]
    counts = Counter(each.body for each in mixed.handled() if each.body in last)
    assert set(counts.values()) == {1}


def test_orderly_members_of_both_languages_exclude_each_other(mixed: MixedGroup) -> None:
    mixed.add_java(orderly=True)
    sent = mixed.send(4)
    mixed.add_python(mode="orderly")
    sent |= mixed.send(4)
    mixed.wait_for_shares(4, 4)
    mixed.python[0].close()
    sent |= mixed.send(4)
    mixed.wait_for_shares(8)
    mixed.add_python(mode="orderly")
    sent |= mixed.send(4)
    mixed.wait_for_shares(4, 4)
    mixed.who_handles(sent)
    assert _wrongly_handled_again(mixed) == set()
    timed = [(each.begun, each.queue.number, each.offset) for each in mixed.record.handlings]
    ours = _in_order(timed)
    theirs = _in_order(
        [
            (one["receivedAtMs"], one["queueId"], one["queueOffset"])
            for one in mixed.scene.java.received(mixed.java[0], 0)
        ]
    )
    assert ours
    assert theirs


def _wrongly_handled_again(mixed: MixedGroup) -> set[str]:
    """Return what was handled twice, except where Java gave its queue away meanwhile.

    Java does not commit the message that it is handling then, so the next member begins with it.
    """
    ours = mixed.record.handlings
    places = {(each.queue.number, each.offset) for each in ours}
    first = {each.body for each in ours if (each.queue.number, each.offset - 1) not in places}
    own = Counter(each.body for each in ours)
    java = Counter(each.body for each in mixed.handled() if each.member in mixed.java)
    twice = {body for counts in (own, java) for body, count in counts.items() if count > 1}
    return twice | ((own.keys() & java.keys()) - first)


def _in_order(calls: list[tuple[float, int, int]]) -> bool:
    by_queue: dict[int, list[int]] = {}
    for _, queue, offset in sorted(calls):
        by_queue.setdefault(queue, []).append(offset)
    return all(offsets == sorted(offsets) for offsets in by_queue.values())


def test_a_python_member_takes_over_from_a_java_member_that_dies(mixed: MixedGroup) -> None:
    with JavaClient(mixed.scene.java.version, mixed.scene.java.artifacts) as other:
        dying = other.start_consumer(mixed.scene.name_server, mixed.group, {mixed.topic: "*"})
        mixed.add_python()
        wait_until(lambda: mixed.send(1) and other.received(dying, 0))
        wait_until(lambda: _own(mixed) == QUEUES // 2)
        os.kill(other.pid, signal.SIGKILL)
        sent = mixed.send(2)
        assert mixed.who_handles(sent) == {"python-0": set(range(QUEUES))}
    assert _own(mixed) == QUEUES


def _own(mixed: MixedGroup) -> int:
    return sum(queue.topic == mixed.topic for queue in mixed.python[0].assignment())


def test_a_java_member_takes_over_from_a_python_member_that_dies(mixed: MixedGroup) -> None:
    file = mixed.folder / "worker"
    worker = Worker(mixed.scene.name_server, mixed.group, mixed.topic, "concurrent", file)
    try:
        worker.wait()
        java = mixed.add_java()
        wait_until(lambda: mixed.send(1) and mixed.scene.java.received(java, 0))
        record = Record()

        def has_handled() -> bool:
            mixed.send(1)
            record.read([file])
            return record.count > 0

        wait_until(has_handled)
    finally:
        worker.kill()
    sent = mixed.send(2)
    assert mixed.who_handles(sent) == {java: set(range(QUEUES))}
