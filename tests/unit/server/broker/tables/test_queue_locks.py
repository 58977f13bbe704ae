"""Locks of queues: one holder, sixty seconds."""

from __future__ import annotations

import pytest

from downrange.model import QueueId
from downrange.server.broker.tables import queue_locks
from downrange.server.broker.tables.queue_locks import LOCK_MS, NAME_CHARACTERS_MAX, QueueLocks

QUEUES = [QueueId("T", "b", number) for number in range(2)]


def test_a_queue_is_locked_for_one_client_until_it_is_unlocked() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "one", QUEUES, 0) == QUEUES
    assert locks.lock("g", "two", QUEUES, 0) == []
    assert locks.lock("other", "two", QUEUES, 0) == QUEUES
    locks.unlock("g", "two", QUEUES)
    assert locks.lock("g", "two", QUEUES, 0) == []
    locks.unlock("g", "one", QUEUES[:1])
    assert locks.lock("g", "two", QUEUES, 0) == QUEUES[:1]
    locks.unlock("unknown", "one", QUEUES)


def test_a_lock_runs_out_unless_it_is_renewed() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", QUEUES, 0)
    locks.lock("g", "one", QUEUES[:1], LOCK_MS)
    assert locks.lock("g", "two", QUEUES, LOCK_MS) == []
    assert locks.lock("g", "two", QUEUES, LOCK_MS + 1) == QUEUES[1:]


def test_a_group_has_locks_while_one_of_them_lasts() -> None:
    locks = QueueLocks()
    assert not locks.has_locks("g", 0)
    locks.lock("g", "one", QUEUES, 0)
    assert locks.has_locks("g", LOCK_MS)
    assert not locks.has_locks("g", LOCK_MS + 1)


def test_what_has_run_out_is_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", QUEUES, 0)
    locks.lock("h", "one", QUEUES, 0)
    locks.lock("h", "one", QUEUES[:1], 10)
    locks.expire(LOCK_MS + 5)
    assert not locks.has_locks("g", 0)
    assert locks.lock("h", "two", QUEUES, 20) == QUEUES[1:]


def test_beyond_the_limit_of_all_locks_nothing_new_is_locked() -> None:
    locks = QueueLocks(locks_max=3)
    assert locks.lock("g", "one", QUEUES, 0) == QUEUES
    assert locks.lock("h", "two", QUEUES, 0) == QUEUES[:1]
    assert locks.lock("i", "three", QUEUES, 0) == []
    assert locks.lock("g", "one", QUEUES, LOCK_MS) == QUEUES  # renewed
    assert locks.lock("h", "four", QUEUES, LOCK_MS + 1) == QUEUES[:1]  # the old one has expired
    assert len(locks) == 3


def test_the_number_of_locks_falls_with_each_that_ends() -> None:
    locks = QueueLocks()
    for group in ("g", "g@handover", "h"):
        locks.lock(group, "one", QUEUES, 0)
    locks.lock("g", "one", QUEUES, 1)
    assert len(locks) == 6
    locks.unlock("h", "one", QUEUES[:1])
    locks.unlock("h", "one", QUEUES[:1])
    assert len(locks) == 5
    locks.unlock_all("g", "one")
    assert len(locks) == 1
    locks.expire(LOCK_MS + 1)
    assert len(locks) == 0


def test_one_request_locks_as_many_queues_as_a_topic_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_locks, "QUEUES_MAX", 1)
    assert QueueLocks().lock("g", "one", QUEUES, 0) == QUEUES[:1]


@pytest.mark.parametrize(("group", "client"), [(1, 0), (0, 1)])
def test_a_lock_with_a_longer_name_than_is_allowed_is_not_kept(group: int, client: int) -> None:
    locks, names = QueueLocks(), ("n" * NAME_CHARACTERS_MAX, "n" * (NAME_CHARACTERS_MAX + 1))
    assert locks.lock(names[group], names[client], QUEUES, 0) == []
    assert locks.lock(names[0], names[0], QUEUES, 0) == QUEUES
