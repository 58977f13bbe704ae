"""Locks of queues: one holder, sixty seconds."""

from __future__ import annotations

from downrange.model import QueueId
from downrange.server.broker.tables.queue_locks import LOCK_MS, QueueLocks

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
