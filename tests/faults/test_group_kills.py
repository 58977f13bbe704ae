"""Groups whose members, brokers and name servers are killed under load.

Every acknowledged message is handled at least once. In an orderly group no two handlers of a queue
run at a time, and messages are handled in order.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.faults.fleet import running_fleet
from tests.faults.group_load import Record
from tests.faults.group_worker import Worker
from tests.faults.producers import Load, producing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from downrange.options.consumers import ConsumeMode

TOPIC = "orders"


class Members:
    """The member processes of one group, and what they have handled."""

    def __init__(self, servers: str, mode: ConsumeMode, folder: Path) -> None:
        self._servers = servers
        self._mode: ConsumeMode = mode
        self._folder = folder
        self._names = itertools.count(1)
        self.files: list[Path] = []
        self.alive: list[Worker] = []
        self.record = Record()

    def begin(self) -> Worker:
        """Start a process."""
        self.files.append(self._folder / f"{self._mode}-{next(self._names)}")
        worker = Worker(self._servers, f"{self._mode}-group", TOPIC, self._mode, self.files[-1])
        self.alive.append(worker)
        return worker

    def kill_one(self) -> None:
        """Kill the oldest one, and start another."""
        self.alive.pop(0).kill()
        self.begin().wait()

    def wait_for_progress(self, count: int = 20) -> None:
        """Wait until more messages are handled."""
        self.record.read(self.files)
        target = self.record.count + count

        def has_progressed() -> bool:
            self.record.read(self.files)
            return self.record.count >= target

        wait_until(has_progressed)

    def has_handled(self, bodies: set[str]) -> bool:
        """Return whether all these messages are handled."""
        self.record.read(self.files)
        return bodies <= self.record.done()


@contextmanager
def running_members(servers: str, mode: ConsumeMode, folder: Path) -> Generator[Members]:
    """Run two members, and check that no process is left."""
    members = Members(servers, mode, folder)
    try:
        for worker in [members.begin(), members.begin()]:
            worker.wait()
        yield members
    finally:
        for worker in members.alive:
            worker.kill()


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_every_acknowledged_message_is_handled_whatever_is_killed(
    tmp_path: Path, mode: ConsumeMode
) -> None:
    with running_fleet(tmp_path, name_servers=2) as fleet:
        fleet.create_topic(TOPIC)
        with (
            producing("sync", fleet.addresses) as producer,
            running_members(fleet.addresses, mode, tmp_path) as members,
        ):
            with Load(producer, TOPIC, threads=1) as load:
                members.wait_for_progress()
                for server in (fleet.brokers[0], fleet.name_servers[0], fleet.brokers[1]):
                    members.kill_one()
                    members.wait_for_progress()
                    server.kill()
                    members.wait_for_progress()
                    server.start()
                    members.wait_for_progress()
            acknowledged = {one.body.decode() for one in load.sent}
            wait_until(lambda: members.has_handled(acknowledged))
            assert [worker.stop() for worker in members.alive] == [0, 0]
    record = members.record
    record.read(members.files)
    print(f"{mode}: {len(acknowledged)} acknowledged, {record.duplicates()} handled again")
    if mode == "orderly":
        assert not record.overlaps()
        assert not record.disorders()
