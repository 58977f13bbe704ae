"""Groups whose members join and leave all the time, whose network fails, and that close under load.

Without a crash or a cut nothing is handled twice. `make campaign` runs longer:

    python -m tests.faults.test_group_storms [--seconds 60] [--closes 100]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from downrange import Admin
from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from tests.contract.blocking import LoopThread
from tests.faults.group_load import Record, join, options
from tests.faults.producers import KINDS, Load, producing
from tests.faults.proxy import OUTSIDE, proxy_before
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from downrange import PushConsumer
    from downrange.options.consumers import ConsumeMode
    from tests.faults.producers import Kind

TOPIC = "orders"
QUEUES = 4
MODES: tuple[ConsumeMode, ...] = ("concurrent", "orderly")


class Group:
    """A group whose members come and go; they take turns with threads and asyncio."""

    def __init__(self, servers: str, mode: ConsumeMode, loop: LoopThread) -> None:
        self.record = Record()
        self.mode: ConsumeMode = mode
        self._servers = servers
        self._loop = loop
        self._numbers = itertools.count()
        self.members: list[PushConsumer] = []

    def add(self) -> PushConsumer:
        """Start a member."""
        number = next(self._numbers)
        handler = self.record.handler(f"member-{number}", 0.001)
        loop = self._loop if number % 2 else None
        member = join(self._servers, self.mode, TOPIC, handler, options(self.mode), loop)
        self.members.append(member)
        return member

    def remove(self) -> None:
        """Close the oldest member."""
        self.members.pop(0).close()

    def close(self) -> None:
        """Close all members."""
        while self.members:
            self.remove()

    def wait_for_progress(self, count: int = 20) -> None:
        """Wait until more messages are handled."""
        target = self.record.count + count
        wait_until(lambda: self.record.count >= target)

    def wait_for_all(self, load: Load) -> None:
        """Wait until all acknowledged messages are handled."""
        sent = {one.body.decode() for one in load.sent}
        wait_until(lambda: sent <= self.record.done())

    def check_order(self) -> None:
        """Check that an orderly group kept the order, one handler at a time."""
        if self.mode == "orderly":
            assert not self.record.overlaps()
            assert not self.record.disorders()


@contextlib.contextmanager
def running_groups(servers: str) -> Generator[list[Group]]:
    """Give a group of each mode, without members."""
    loop = LoopThread()
    with contextlib.ExitStack() as ends:
        ends.callback(loop.close)
        groups = [Group(servers, mode, loop) for mode in MODES]
        for group in groups:
            ends.callback(group.close)
        yield groups


def create_topic(cluster: Cluster) -> None:
    """Create the topic."""
    with Admin(cluster.name_server) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)


class Outcome(NamedTuple):
    """What a run gave."""

    acknowledged: int
    rebalances: int
    duplicates: dict[str, int]


def storm(seconds: float) -> Outcome:
    """Let members of two groups join and leave every second, under load."""
    changes = 0
    with Cluster() as cluster:
        create_topic(cluster)
        with (
            running_groups(cluster.name_server) as groups,
            producing("sync", cluster.name_server) as producer,
        ):
            for group in groups:
                group.add()
            with Load(producer, TOPIC, threads=1) as load:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    began = time.monotonic()
                    for group in groups:
                        changes += 1
                        if len(group.members) < 3 or changes % 8 < 4:
                            group.add()
                        if len(group.members) > 2:
                            group.remove()
                    time.sleep(max(0.0, began + 1.0 - time.monotonic()))
            for group in groups:
                group.wait_for_all(load)
                group.close()
                group.check_order()
    return Outcome(
        len(load.sent), changes, {group.mode: group.record.duplicates() for group in groups}
    )


def test_members_that_join_and_leave_every_second_lose_and_repeat_nothing() -> None:
    outcome = storm(20.0)
    print(outcome)
    assert outcome.duplicates == {"concurrent": 0, "orderly": 0}


def close_often(kind: Kind, closes: int) -> tuple[int, int]:
    """Close and start a consumer under load; return the numbers of messages and of repetitions."""
    record, loop = Record(), LoopThread()
    handler = record.handler("one", 0.001)
    used = loop if kind == "async" else None
    with Cluster() as cluster:
        create_topic(cluster)
        with producing("sync", cluster.name_server) as producer:
            with Load(producer, TOPIC, threads=2) as load:
                load.wait_for(1)
                for _ in range(closes):
                    before = record.count
                    consumer = join(
                        *(cluster.name_server, "closes", TOPIC, handler),
                        *(options("concurrent", concurrency=20), used),
                    )
                    wait_until(lambda before=before: record.count > before + 5)  # type: ignore[misc]
                    consumer.close()
            last = join(cluster.name_server, "closes", TOPIC, handler, options("concurrent"), used)
            sent = {one.body.decode() for one in load.sent}
            wait_until(lambda: sent <= record.done())
            last.close()
    loop.close()
    return len(sent), record.duplicates()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_handled_again_after_many_closes_under_load(kind: Kind) -> None:
    acknowledged, duplicates = close_often(kind, 20)
    assert acknowledged > 50
    assert duplicates == 0


def test_every_acknowledged_message_is_handled_over_a_bad_network() -> None:
    with (
        Cluster(broker=BrokerOptions(advertised_host=OUTSIDE)) as cluster,
        proxy_before(cluster.brokers[0]) as proxy,
    ):
        create_topic(cluster)
        with (
            running_groups(cluster.name_server) as groups,
            producing("sync", cluster.name_server) as producer,
            Load(producer, TOPIC, threads=1) as load,
        ):
            for group in groups:
                group.add()
                group.add()
            for fault in (proxy.cut, proxy.forget_connections, proxy.cut, proxy.cut):
                for group in groups:
                    group.wait_for_progress()
                fault()
                time.sleep(0.5)
                if fault == proxy.forget_connections:
                    proxy.cut()  # what notices it first is not the subject here
            proxy.fall_silent()
            time.sleep(2.0)
            proxy.recover()
            for group in groups:
                group.wait_for_progress()
            load.stop()
            for group in groups:
                group.wait_for_all(load)
                group.close()
                # Nothing about order: a cut frees the locks at once, as a crash does.
                print(group.mode, len(load.sent), group.record.duplicates())


def main() -> None:
    """Run the long form, and print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--closes", type=int, default=100)
    given = parser.parse_args()
    outcome = storm(given.seconds)
    print(f"storm of {given.seconds:g} s: {outcome}")
    assert not any(outcome.duplicates.values()), outcome
    for kind in KINDS:
        acknowledged, duplicates = close_often(kind, given.closes)
        print(f"{given.closes} closes, {kind}: {acknowledged} messages, {duplicates} handled again")
        assert not duplicates


if __name__ == "__main__":
    main()
