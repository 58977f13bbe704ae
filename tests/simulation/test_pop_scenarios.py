"""Pop consumption keeps its promises through kills, power losses, full disks and cut connections.

To repeat a failed run: `python -m tests.simulation --seconds 0 --whole --world pop --seed SEED`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.pop import dead_letters_in_order
from downrange.server.broker.pop.checkpoint_records import PopRecords
from downrange.server.broker.pop.checkpoints import Checkpoints
from downrange.server.broker.pop.orders import Orders
from tests.simulation import world
from tests.simulation.pop_world import PopWorld

if TYPE_CHECKING:
    from downrange.server.broker.pop.orders import DeadHead, Place
    from downrange.server.broker.state import BrokerState

SEEDS = range(8)


@cache
def finished_run(seed: int) -> PopWorld:
    run = PopWorld(seed)
    run.run()
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_about_pops_holds(seed: int) -> None:
    finished = finished_run(seed)
    assert finished.pops.done
    assert finished.orders.delivered


def test_a_run_without_faults_delivers_every_message_exactly_once() -> None:
    """`PopWorld.finish` checks it."""
    calm = [seed for seed in SEEDS if finished_run(seed).is_calm]
    assert calm
    assert all(finished_run(seed).pops.deliveries for seed in calm)


@pytest.mark.parametrize(
    "line",
    [
        "kill",
        "stop",
        "power is lost",
        "200050: 0 FOUND",
        "200050: 210",
        "200050: no answer came",
        "200050: the connection was cut",
        "200051: 0",
        "200051: the connection was cut",
        "200151: 0",
        "200053: 0",
        "200053: 208 the receipt is no longer valid",
        "forgets",
    ],
)
def test_every_kind_of_event_happens_in_some_run(line: str) -> None:
    assert any(line in each for seed in SEEDS for each in finished_run(seed).lines)


def test_messages_are_delivered_again_and_become_dead_letters_in_some_run() -> None:
    assert any(finished_run(seed).pops.repeated() for seed in SEEDS)
    assert any(finished_run(seed).dead_letters for seed in SEEDS)
    assert any(finished_run(seed).ordered_dead_letters for seed in SEEDS)


def test_the_same_seed_gives_the_same_run_in_any_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seconds", "0", "--seed", "2"]
    command += ["--world", "pop"]
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert finished_run(2).fingerprint() in other.stdout
    assert finished_run(3).fingerprint() not in other.stdout


def _run_all() -> None:
    for seed in SEEDS:
        PopWorld(seed).run()


def test_acknowledgements_that_are_not_read_at_a_start_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PopRecords, "_read_acknowledgement", lambda _records, _data: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()


def test_checkpoints_that_are_not_read_at_a_start_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PopRecords, "_read_checkpoint", lambda *_: None)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()


def test_messages_that_are_never_revived_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Checkpoints, "take_due", lambda _checkpoints, _now_ms: None)
    monkeypatch.setattr(world, "RECOVERY_SECONDS", 30.0)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        PopWorld(0).run()


def test_heads_that_are_passed_without_a_dead_letter_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(_state: BrokerState, _place: Place, dead: DeadHead, _now_ms: int) -> int:
        dead.log_end = 0
        return 0

    monkeypatch.setattr(dead_letters_in_order, "_store", forget)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()


def test_a_queue_that_is_never_blocked_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Orders, "is_blocked", lambda *_: False)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors"):
        _run_all()
