"""What a loss of power does to pops: torn writes, and orders of messages that are gone."""

from __future__ import annotations

import pytest

from downrange.server.broker.pop.orders import Order, Orders
from downrange.store.files import MemoryFiles
from tests.unit.server.broker.broker_stage import Stage
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    RETRY_TOPIC,
    TIMER_TOPIC,
    PopStage,
    change_request,
)

_LOG = "commitlog/00000000000000000000"


def restart_after_power_loss(stage: PopStage, log_offset: int) -> PopStage:
    """Return a broker on the files of another one, with the log up to a position."""
    files = stage.files
    assert isinstance(files, MemoryFiles)
    end = stage.state.store.log.end
    files.open(_LOG).write(log_offset, [bytes(end - log_offset)])
    again = PopStage(files)
    again.now_ms = stage.now_ms
    assert again.state.store.log.end >= log_offset
    assert again.state.recovered_end == log_offset
    again.tick()
    return again


def a_stage(*bodies: str) -> PopStage:
    stage = PopStage()
    stage.send(*bodies)
    return stage


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_messages_whose_copy_was_stored_are_not_revived_again(kept: int) -> None:
    """The acknowledgement that ends the write is lost, with some of the copies."""
    stage = a_stage("a", "b", "c")
    assert len(stage.pop()) == 3
    Stage.tick(stage, INVISIBLE_MS)
    copies = stage.records(RETRY_TOPIC)
    assert [copy.body for copy in copies] == [b"a", b"b", b"c"]
    last = [*copies, stage.records(TIMER_TOPIC)[-1]][kept]
    again = restart_after_power_loss(stage, last.log_offset)
    again.drain(INVISIBLE_MS)
    assert sorted(again.again()) == ["a", "b", "c"]
    assert len(again.state.checkpoints) == 0


def test_a_dead_letter_is_not_stored_twice() -> None:
    stage = a_stage("a")
    stage.group(retry_max_times=0)
    stage.pop()
    Stage.tick(stage, INVISIBLE_MS)
    assert stage.again("%DLQ%G") == ["a"]
    again = restart_after_power_loss(stage, stage.records(TIMER_TOPIC)[-1].log_offset)
    again.drain(INVISIBLE_MS)
    assert (again.again(), again.again("%DLQ%G")) == ([], ["a"])


def test_a_change_closes_the_old_checkpoint_although_its_second_record_is_lost() -> None:
    stage = a_stage("a", "b")
    popped = stage.pop()
    stage.hand_in(change_request(popped[0], 3 * INVISIBLE_MS))
    stage.commit()
    again = restart_after_power_loss(stage, stage.records(TIMER_TOPIC)[-1].log_offset)
    assert sorted(list(one.open_offsets()) for one in again.state.checkpoints) == [[0], [1]]
    again.drain(INVISIBLE_MS)
    assert again.again() == ["b"]
    again.drain(3 * INVISIBLE_MS)
    assert again.again() == ["b", "a"]


def test_what_a_start_completed_stays_so_after_the_next_start() -> None:
    stage = a_stage("a")
    stage.pop()
    Stage.tick(stage, INVISIBLE_MS)
    again = restart_after_power_loss(stage, stage.records(TIMER_TOPIC)[-1].log_offset)
    again.send("later")
    again.restart()
    again.drain(INVISIBLE_MS)
    assert again.again() == ["a"]


# ---- pops in order -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "committed", "kept", "is_blocked"),
    [
        (9, 6, [5, 6, 7], True),  # nothing is lost
        (7, 6, [5, 6], True),
        (6, 6, [5], False),
        (5, 5, [4], False),
        (3, 3, [2], False),
        (0, 0, None, False),
    ],
)
def test_an_order_ends_where_the_log_ends(
    end: int, committed: int, kept: list[int] | None, is_blocked: bool
) -> None:
    """The table is durable before the log; other messages get the offsets of the lost ones."""
    orders, place = Orders(), ("T", "G", 0)
    orders.pop(place, Order([5, 6, 7], 1_000, 500, "attempt"))
    assert orders.acknowledge(place, 5, 1_000, 1_100) == 6
    version = orders.version
    assert orders.committed(lambda _topic, _queue_id: end) == [(place, committed)]
    order = orders.get(place)
    assert (None if order is None else order.offsets) == kept
    assert orders.is_blocked(place, None, 1_200) == is_blocked
    assert (orders.version > version) == (end < 8)
    assert orders.committed(lambda _topic, _queue_id: end) == ([(place, committed)] if end else [])
