"""Rewinds: what a start knows of groups that were set back."""

from __future__ import annotations

import pytest

from downrange.errors import MalformedBody
from downrange.server.broker.pop.rewinds import PROGRESS_PATH, RewindProgress, Rewinds
from tests.unit.server.broker.pop_stage import PopStage

PLACE = ("T", "G", 1)
OTHER = ("T", "H", 1)


@pytest.fixture
def rewinds() -> Rewinds:
    rewinds = Rewinds()
    rewinds.add(PLACE, 5, timer_end=10)
    return rewinds


def test_records_from_before_a_rewind_are_known(rewinds: Rewinds) -> None:
    assert rewinds.is_before(PLACE, 9)
    assert not rewinds.is_before(PLACE, 10)
    assert not rewinds.is_before(OTHER, 9)


def test_the_last_rewind_of_a_queue_counts(rewinds: Rewinds) -> None:
    rewinds.add(PLACE, 3, timer_end=20)
    assert rewinds.is_before(PLACE, 19)
    assert list(rewinds.unsaved()) == [(PLACE, 3)]
    assert len(rewinds) == 1


def test_a_start_knows_which_rewinds_the_saved_offsets_contain(rewinds: Rewinds) -> None:
    progress = RewindProgress(rewinds).dump()
    rewinds.add(OTHER, 2, timer_end=11)
    again = Rewinds()
    again.load(rewinds.dump())
    RewindProgress(again).load(progress)
    assert list(again.unsaved()) == [(OTHER, 2)]
    assert again.is_before(PLACE, 9)
    again.add(PLACE, 0, timer_end=12)
    assert again.last_number == 3


def test_numbers_rise_after_the_table_was_lost(rewinds: Rewinds) -> None:
    rewinds.add(OTHER, 2, timer_end=11)
    again = Rewinds()
    RewindProgress(again).load(RewindProgress(rewinds).dump())
    again.add(PLACE, 0, timer_end=12)
    assert list(again.unsaved()) == [(PLACE, 0)]


def test_a_queue_of_the_timer_that_was_cut(rewinds: Rewinds) -> None:
    rewinds.cut(10)
    assert rewinds.version == 1
    rewinds.cut(4)
    assert rewinds.version == 2
    assert rewinds.is_before(PLACE, 3)
    assert not rewinds.is_before(PLACE, 4)


def test_a_reset_drops_what_was_stored_before_it_and_is_read_again(rewinds: Rewinds) -> None:
    assert not rewinds.is_dropped(PLACE, 5, 0)  # all was known
    rewinds.add(PLACE, 5, timer_end=10, drops_unread=True)
    assert rewinds.is_dropped(PLACE, 5, 9)
    assert not rewinds.is_dropped(PLACE, 4, 9)
    assert not rewinds.is_dropped(PLACE, 5, 10)
    assert not rewinds.is_dropped(OTHER, 5, 9)


def test_what_a_reset_drops_is_known_after_a_start(rewinds: Rewinds) -> None:
    rewinds.add(PLACE, 5, timer_end=10, drops_unread=True)
    rewinds.add(PLACE, 3, timer_end=12)  # a commit
    again = Rewinds()
    again.load(rewinds.dump())
    assert again.is_dropped(PLACE, 5, 9)
    assert not again.is_dropped(PLACE, 4, 9)
    assert not again.is_dropped(PLACE, 5, 10)
    again.drop_nothing()
    assert not again.is_dropped(PLACE, 5, 9)
    assert (again.version, again.is_before(PLACE, 11)) == (1, True)
    again.drop_nothing()
    assert again.version == 1


def test_a_reset_drops_nothing_that_is_stored_after_a_cut(rewinds: Rewinds) -> None:
    rewinds.add(PLACE, 5, timer_end=10, drops_unread=True)
    rewinds.cut(4)
    assert rewinds.is_dropped(PLACE, 5, 3)
    assert not rewinds.is_dropped(PLACE, 5, 4)


def test_deleted_topics_and_groups_are_forgotten(rewinds: Rewinds) -> None:
    rewinds.add(OTHER, 2, timer_end=11)
    version = rewinds.version
    rewinds.forget(lambda _, group: group == "G")
    assert list(rewinds.unsaved()) == [(OTHER, 2)]
    assert rewinds.version > version


@pytest.mark.parametrize("table", [Rewinds(), RewindProgress(Rewinds())])
def test_a_damaged_file_is_an_error(table: Rewinds | RewindProgress) -> None:
    with pytest.raises(MalformedBody):
        table.load(b"[")


def test_only_what_sets_a_group_back_is_kept() -> None:
    stage = PopStage()
    rewinds = stage.state.rewinds
    stage.send(*"abcd")
    stage.set_offset(3)
    stage.set_offset(1)  # the group only pulls
    assert len(rewinds) == 0
    stage.ack(*stage.pop(count=2))
    stage.set_offset(4)
    assert len(rewinds) == 0
    stage.set_offset(0)
    assert len(rewinds) == 1
    assert b'"included":1' in stage.progress()[PROGRESS_PATH]


def test_a_deleted_topic_takes_its_rewinds_along() -> None:
    stage = PopStage()
    stage.send(*"ab")
    stage.ack(*stage.pop())
    stage.reset(0)
    assert len(stage.state.rewinds) == 1
    stage.state.forget_topic("T")
    assert len(stage.state.rewinds) == 0
