"""Flows that a caller waits for, and that do not end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.background import to_its_end
from downrange.client.flows.effects import Pause, UserCall, Wait
from tests.unit.client.flows.fake_servers import FakeServers

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow


def two_steps(steps: list[int]) -> Flow[None]:
    steps.append(1)
    yield Pause(1.0)
    steps.append(2)


def test_a_flow_goes_on_when_its_caller_gives_up() -> None:
    steps: list[int] = []
    spawned: list[Flow[None]] = []
    servers = FakeServers()
    waiting = to_its_end(servers.core, spawned.append, two_steps(steps))
    call = next(waiting)
    assert isinstance(call, UserCall)
    servers.perform(call)
    assert isinstance(next(waiting), Wait)
    waiting.close()
    servers.run(spawned[0])
    assert steps == [1, 2]


def test_a_caller_waits_until_the_flow_has_ended() -> None:
    steps: list[int] = []
    spawned: list[Flow[None]] = []
    servers = FakeServers()
    waiting = to_its_end(servers.core, spawned.append, two_steps(steps))
    servers.perform(next(waiting))
    first = next(waiting)
    assert isinstance(first, Wait)
    assert first.deadline == servers.clock.now() + 60
    assert isinstance(waiting.send(False), Wait)
    servers.run(spawned[0])
    assert first.signal.is_fired
    with pytest.raises(StopIteration):
        waiting.send(True)
