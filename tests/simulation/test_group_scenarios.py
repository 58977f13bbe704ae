"""Whole consumer groups keep their promises, whatever members come and go.

Each seed is one run of about a simulated minute. To repeat a failed run with all its lines:
`python -m tests.simulation --seconds 0 --whole --world group --seed SEED`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming import rebalance
from downrange.client.flows.consuming.group_member import GroupMember
from tests.simulation.group_world import GroupWorld

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.effects import Flow

#: Some of each kind: without faults, with kills, with cuts, with restarts of the broker.
SEEDS = (4, 7, 9, 3, 11, 1, 2, 8)


@cache
def finished_run(seed: int) -> GroupWorld:
    world = GroupWorld(seed)
    world.run()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_handled(seed: int) -> None:
    world = finished_run(seed)
    assert world.figures["messages handled"] > 100
    if world.is_calm:
        assert not world.figures["duplicates (calm)"]


def test_every_kind_of_run_is_there() -> None:
    kinds = {finished_run(seed).kind for seed in SEEDS}
    assert kinds == {"calm", "kills", "cuts", "faults"}


@pytest.mark.parametrize(
    "line",
    [
        "joins",
        "has left",
        "is killed",
        "kill",
        "LockLost",
        "QueueFailed",
        "it becomes a dead letter",
        "the queue waits",
        "it is given up",
    ],
)
def test_every_kind_of_event_happens_in_some_run(line: str) -> None:
    assert any(line in each for seed in SEEDS for each in finished_run(seed).lines)


def test_the_same_seed_gives_the_same_run_in_any_process() -> None:
    """Not even the order of a set may matter, so that every run can be repeated."""
    command = [sys.executable, "-m", "tests.simulation", "--seconds", "0", "--seed", "1"]
    command += ["--world", "group"]
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert finished_run(1).fingerprint() in other.stdout


def test_a_queue_that_is_taken_without_waiting_for_its_owner_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lock(_core: Any, _group: str, queues: Iterable[Any], *, deadline: float) -> Flow[Any]:
        return set(queues), set()
        yield

    monkeypatch.setattr(rebalance, "lock", lock)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        GroupWorld(4).run()


def test_a_member_that_leaves_without_a_commit_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def commit(_member: GroupMember, _windows: Any, _deadline: float) -> Flow[bool]:
        return True
        yield

    monkeypatch.setattr(GroupMember, "commit", commit)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        GroupWorld(4).run()
