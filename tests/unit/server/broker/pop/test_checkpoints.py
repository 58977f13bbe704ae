"""The table of open checkpoints: bits, committed offsets, and that its memory stays bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.pop import checkpoints as module
from downrange.server.broker.pop.checkpoints import Checkpoint, Checkpoints
from downrange.server.broker.tables.group_offsets import GroupOffsets

if TYPE_CHECKING:
    from collections.abc import Sequence


def a_checkpoint(
    offsets: Sequence[int], *, start: int | None = None, pop_ms: int = 5, invisible_ms: int = 10
) -> Checkpoint:
    name = ("T", "G", 0, offsets[0] if start is None else start, pop_ms)
    return Checkpoint(name, offsets, invisible_ms=invisible_ms, revive_queue=1)


def popped(table: Checkpoints, checkpoint: Checkpoint, timer_offset: int = 0) -> Checkpoint:
    """Add the checkpoint of a pop."""
    checkpoint.timer_offset = timer_offset
    table.add_first(checkpoint, checkpoint.offsets[-1] + 1)
    return checkpoint


def test_fields_and_bits() -> None:
    checkpoint = a_checkpoint([3, 5, 9], start=2)
    assert (checkpoint.topic, checkpoint.group, checkpoint.queue_id) == ("T", "G", 0)
    assert (checkpoint.start, checkpoint.pop_ms, checkpoint.due_ms) == (2, 5, 15)
    assert checkpoint.bits_of([5, 4, 9]) == 0b110
    checkpoint.open_bits = 0b011
    assert checkpoint.open_offsets() == [3, 5]
    assert checkpoint.bits_of([3, 9]) == 0b001


def test_committed_offset_is_that_of_the_oldest_open_checkpoint() -> None:
    offsets = GroupOffsets()
    table = Checkpoints(offsets)
    one, two, three = (popped(table, a_checkpoint([n, n + 1])) for n in (0, 2, 4))
    table.close(two, two.open_bits)
    assert offsets.get("G", "T", 0) == 0
    table.close(one, 1)
    assert offsets.get("G", "T", 0) == 0
    table.close(one, 2)
    assert offsets.get("G", "T", 0) == 4
    table.close(three, three.open_bits)
    assert offsets.get("G", "T", 0) == 6
    assert table.next_offset("T", "G", 0) == 6
    assert len(table) == 0


def test_checkpoint_that_was_read_again_closes_what_it_no_longer_lists() -> None:
    table = Checkpoints(GroupOffsets())
    checkpoint = a_checkpoint([0, 1, 2])
    table.add(checkpoint)
    table.add(a_checkpoint([0, 1, 2]))
    assert checkpoint.open_bits == 0b111
    table.add(a_checkpoint([1], start=0))
    assert checkpoint.open_bits == 0b010
    assert list(table) == [checkpoint]


def test_reset_without_progress() -> None:
    table = Checkpoints(GroupOffsets())
    table.reset("T", "G", 0, 5)
    assert table.next_offset("T", "G", 0) is None


def test_due_checkpoints() -> None:
    table = Checkpoints(GroupOffsets())
    late = popped(table, a_checkpoint([0], invisible_ms=20))
    early = popped(table, a_checkpoint([1], invisible_ms=10))
    closed = popped(table, a_checkpoint([2], invisible_ms=5))
    table.close(closed, closed.open_bits)
    assert table.next_due_ms() == 15
    assert table.take_due(14) is None
    assert table.take_due(15) is early
    table.put_back(early, 40)
    assert table.take_due(100) is late
    assert table.take_due(100) is early
    assert table.next_due_ms() is None


def test_first_offset_in_the_timers_queue() -> None:
    table = Checkpoints(GroupOffsets())
    assert table.first_timer_offset() is None
    one, two, three = (popped(table, a_checkpoint([n]), 10 * n) for n in (1, 2, 3))
    assert table.first_timer_offset() == 10
    table.close(two, two.open_bits)
    assert table.first_timer_offset() == 10
    table.moved({one: 99})
    assert table.first_timer_offset() == 30
    table.close(three, three.open_bits)
    assert table.first_timer_offset() == 99
    table.close(one, one.open_bits)
    assert table.first_timer_offset() is None
    table.moved({one: 100})  # it was acknowledged meanwhile
    assert table.first_timer_offset() is None


@pytest.mark.parametrize("is_long", [False, True])
def test_memory_is_bounded_with_one_old_open_checkpoint(
    is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is due first, or last: either is an end of the heap of times."""
    monkeypatch.setattr(module, "_CLOSED_MAX", 10)
    offsets = GroupOffsets()
    table = Checkpoints(offsets)
    old = popped(table, a_checkpoint([0], invisible_ms=10_000 if is_long else 1))
    for offset in range(1, 1_000):
        checkpoint = popped(table, a_checkpoint([offset], invisible_ms=100))
        table.close(checkpoint, checkpoint.open_bits)
    assert len(table) == 1
    limit = 2 * 2 + 10 + 1
    assert len(table._times) <= limit
    assert len(table._by_age) <= limit
    progress = table._progress["T", "G", 0]
    assert len(progress.first_pops) <= limit
    assert offsets.get("G", "T", 0) == 0
    table.close(old, old.open_bits)
    assert offsets.get("G", "T", 0) == 1_000
    assert not progress.first_pops
    assert not table._by_age
    assert table.next_due_ms() is None
    assert not table._times


def test_closing_twice_changes_nothing() -> None:
    offsets = GroupOffsets()
    table = Checkpoints(offsets)
    one = popped(table, a_checkpoint([0, 1]))
    table.close(one, one.open_bits)
    again = popped(table, a_checkpoint([2, 3]))
    table.close(one, one.open_bits)
    assert (len(table), offsets.get("G", "T", 0)) == (1, 2)
    table.close(again, again.open_bits)
    assert (len(table), offsets.get("G", "T", 0)) == (0, 4)
