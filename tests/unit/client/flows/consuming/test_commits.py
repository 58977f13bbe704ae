"""How the progress of a group is saved."""

from __future__ import annotations

import re
from typing import Any

import pytest

from downrange.client.flows.consuming.commits import BrokerCommits, LocalCommits, NoCommits
from downrange.client.flows.effects import Gather, UserCall, Wait
from downrange.client.offset_stores import MemoryOffsets
from downrange.errors import ConnectFailed, StoreError
from downrange.model import QueueId, QueueOffset
from downrange.wire.codes import RequestCode
from tests.unit.client.flows.consuming.group_stage import A0, A1, GROUP, Stage
from tests.unit.client.flows.consuming.test_delivery_window import window_at


def test_only_positions_that_changed_are_committed() -> None:
    stage = Stage()
    commits = BrokerCommits(stage.servers.core, GROUP)
    windows = [window_at(3, queue=queue) for queue in (A0, A1, A1, A1, A1)]
    moved, same, dropped, lost, reset = windows
    same.committed = QueueOffset(3)
    reset.reset_to = QueueOffset(0)
    dropped.drop()
    lost.is_lost = True
    assert stage.run(commits.save(windows, 103)) == []
    assert stage.committed == {A0: 3}
    assert moved.committed == 3
    assert stage.run(commits.save([moved], 103)) == []
    assert stage.asked(RequestCode.UPDATE_CONSUMER_OFFSET) == 1


def test_a_commit_that_failed_is_returned_and_repeated() -> None:
    stage = Stage()
    commits = BrokerCommits(stage.servers.core, GROUP)
    window = window_at(3)
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    stage.servers.answer("a:1", code, ConnectFailed("a:1", "away"))
    assert [error.brief for error in stage.run(commits.save([window], 103))] == ["away"]
    assert window.committed is None
    stage.open("a")
    assert stage.run(commits.save([window], 103)) == []
    assert stage.committed == {A0: 3}


def test_one_commit_of_a_queue_at_a_time() -> None:
    """Or a broker with several threads could take the later one first."""
    stage = Stage()
    commits = BrokerCommits(stage.servers.core, GROUP)
    window = window_at(3)
    first, second = commits.save([window], 103), commits.save([window], 103)
    assert isinstance(next(first), Gather)
    waiting = next(second)
    assert isinstance(waiting, Wait)
    window.next_offset = QueueOffset(8)
    first.close()  # its caller gave up
    assert waiting.signal.is_fired
    assert isinstance(second.send(True), Gather)
    assert window.saving is not None


def test_a_commit_does_not_wait_for_ever_for_another_one() -> None:
    stage = Stage()
    commits = BrokerCommits(stage.servers.core, GROUP)
    window = window_at(3)
    stuck = commits.save([window], 103)
    next(stuck)
    assert stage.run(commits.save([window], 103)) == []
    assert stage.now == 103


class BrokenStore:
    def load(self, group: str) -> dict[QueueId, int]:
        return {}

    def save(self, group: str, offsets: dict[QueueId, int]) -> None:
        raise StoreError("the disk is full")


def test_offsets_of_a_broadcast_are_in_its_store() -> None:
    stage = Stage()
    store = MemoryOffsets()
    store.save(GROUP, {A1: 7})
    commits = LocalCommits(store, GROUP)
    stage.run(commits.load())
    assert commits.offsets == {A1: 7}
    window = window_at(3)
    assert stage.run(commits.save([window], 103)) == []
    assert stage.run(commits.save([window], 103)) == []
    assert store.load(GROUP) == {A0: 3, A1: 7}
    stage.run(commits.release(103))  # this store has no such method
    assert not stage.servers.calls


def test_a_store_that_fails_is_reported_and_asked_again() -> None:
    stage = Stage()
    commits = LocalCommits(BrokenStore(), GROUP)
    window = window_at(3)
    assert [str(error) for error in stage.run(commits.save([window], 103))] == ["the disk is full"]
    assert window.committed is None


class StoreOfUser:
    """Raises what code of a user may raise."""

    def load(self, group: str) -> dict[QueueId, int]:
        raise OSError(5, "load")

    def save(self, group: str, offsets: dict[QueueId, int]) -> None:
        raise OSError(5, "save")

    def release(self, group: str) -> None:
        raise OSError(5, "release")


def test_any_error_of_a_store_is_a_store_error_with_its_cause() -> None:
    stage = Stage()
    commits = LocalCommits(StoreOfUser(), GROUP)
    text = "{0}() of the offset store StoreOfUser failed: OSError: [Errno 5] {0}"
    (failure,) = stage.run(commits.save([window_at(3)], 103))
    assert isinstance(failure, StoreError)
    assert isinstance(failure.__cause__, OSError)
    assert str(failure) == text.format("save")
    with pytest.raises(StoreError, match=re.escape(text.format("load"))):
        stage.run(commits.load())
    with pytest.raises(StoreError, match=re.escape(text.format("release"))):
        stage.run(commits.release(103))


@pytest.mark.parametrize("found", [None, [A0], {"orders": 3}, {A0: "3"}, {A0: -1}])
def test_a_store_that_loads_something_else_than_offsets_is_refused(found: Any) -> None:
    class Store(MemoryOffsets):
        def load(self, group: str) -> dict[QueueId, int]:
            return found  # type: ignore[no-any-return]

    stage = Stage()
    with pytest.raises(StoreError, match=r"the offset store Store returned .*, not a dict of Que"):
        stage.run(LocalCommits(Store(), GROUP).load())


def test_a_store_may_change_what_it_is_given() -> None:
    class Store(MemoryOffsets):
        def save(self, group: str, offsets: Any) -> None:
            super().save(group, offsets)
            offsets.clear()

    stage = Stage()
    commits = LocalCommits(Store(), GROUP)
    assert stage.run(commits.save([window_at(3)], 103)) == []
    assert commits.offsets == {A0: 3}


def test_a_store_has_one_save_at_a_time_and_is_released_after_it() -> None:
    """Or a slow save would end after a later one, and put the old offsets back."""
    stage = Stage()
    store = MemoryOffsets()
    store.release = lambda _: None  # type: ignore[attr-defined]
    commits = LocalCommits(store, GROUP)
    window = window_at(3)
    first = commits.save([window], 103)
    assert isinstance(next(first), UserCall)
    window.next_offset = QueueOffset(8)
    second, release = commits.save([window], 103), commits.release(103)
    waits = [next(second), next(release)]
    assert all(isinstance(wait, Wait) and wait.deadline == 103 for wait in waits)
    with pytest.raises(StopIteration):
        first.send(None)
    assert all(isinstance(wait, Wait) and wait.signal.is_fired for wait in waits)
    save = second.send(True)
    assert isinstance(save, UserCall)
    assert save.args == (GROUP, {A0: 8})
    assert isinstance(release.send(True), Wait)  # for the second one
    with pytest.raises(StopIteration):
        second.send(None)
    assert isinstance(release.send(True), UserCall)
    assert (window.committed, commits.offsets) == (8, {A0: 8})
    assert stage.run(commits.save([window], 103)) == []
    assert store.load(GROUP) == {}  # this test made no call


def test_a_store_that_does_not_end_its_save_gets_no_other_one_and_is_not_released() -> None:
    stage = Stage()
    commits = LocalCommits(MemoryOffsets(), GROUP)
    window = window_at(3)
    stuck = commits.save([window], 103)
    next(stuck)
    text = "save() of the offset store MemoryOffsets has not ended yet"
    assert [str(error) for error in stage.run(commits.save([window], 102))] == [text]
    with pytest.raises(StoreError, match=re.escape(text)):
        stage.run(commits.release(103))
    assert stage.now == 103
    stuck.close()  # its caller gave up
    assert stage.run(commits.save([window], 103)) == []
    assert commits.offsets == {A0: 3}


def test_a_store_is_released() -> None:
    released: list[str] = []

    class Store(MemoryOffsets):
        def release(self, group: str) -> None:
            released.append(group)

    Stage().run(LocalCommits(Store(), GROUP).release(103))
    assert released == [GROUP]


def test_without_a_store_nothing_is_saved() -> None:
    stage = Stage()
    window = window_at(3)
    assert stage.run(NoCommits().save([window], 103)) == []
    assert window.committed == 3
    assert not stage.servers.calls
