"""Checkpoints that are stored again at a stop: in portions, and all or the old ones hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import StoreError
from downrange.server.broker.pop import handover
from tests.unit.server.broker.pop_stage import INVISIBLE_MS, RETRY_TOPIC, TIMER_TOPIC, PopStage

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT = 7


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> PopStage:
    """A broker with seven open pops, of which three are stored together at most."""
    monkeypatch.setattr(handover, "_PORTION", 3)
    stage = PopStage()
    stage.send(*map(str, range(COUNT)))
    for _ in range(COUNT):
        stage.pop(count=1)
    return stage


def stop(stage: PopStage) -> list[str]:
    """Stop the broker, and return the warnings."""
    stage.state.unwritable = "the broker stops"
    stage.notes.clear()
    stage.act(stage.broker.close(stage.now_ms))
    return [note.text for note in stage.notes]


def test_checkpoints_are_stored_again_in_portions(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    append_run = stage.state.store.append_run

    def count(form: Any, items: Sequence[Any], now_ms: int) -> int:
        sizes.append(len(items))
        return append_run(form, items, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append_run", count)
        assert stop(stage) == []
    assert sizes == [3, 3, 1]
    assert stage.state.checkpoints.first_timer_offset() == COUNT
    stage.restart(stage.progress())
    assert stage.state.checkpoints.first_timer_offset() == COUNT
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.again(RETRY_TOPIC)) == [str(number) for number in range(COUNT)]


def test_old_records_hold_if_a_portion_cannot_be_stored(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_run = stage.state.store.append_run

    def fail_later(form: Any, items: Sequence[Any], now_ms: int) -> int:
        if len(stage.records(TIMER_TOPIC)) > COUNT:
            raise StoreError("broken")
        return append_run(form, items, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append_run", fail_later)
        assert stop(stage) == ["checkpoints are not stored again: broken"]
    assert len(stage.records(TIMER_TOPIC)) == COUNT + 3
    assert stage.state.checkpoints.first_timer_offset() == 0
    stage.restart(stage.progress())
    assert len(stage.state.checkpoints) == COUNT
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.again(RETRY_TOPIC)) == [str(number) for number in range(COUNT)]


def test_stop_without_open_pops_stores_nothing() -> None:
    stage = PopStage()
    assert stop(stage) == []
    assert stage.records(TIMER_TOPIC) == []
