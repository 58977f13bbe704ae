"""Snapshots of a group consumer."""

from __future__ import annotations

from typing import Any

from downrange.client.consumer_stats import QueueHealth, consumer_health, consumer_stats
from downrange.errors import ConnectFailed
from tests.unit.client.flows.consuming.group_stage import A0, A1, Stage


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    return stage


def problem_of(stage: Stage) -> str | None:
    health = consumer_health(stage.member)
    (queue,) = [each for each in health.queues if each.queue == A0]
    assert health.is_healthy is not bool(health.problems)
    return queue.problem


def test_counters() -> None:
    stage = entered()
    stage.fill(A0, 3)
    stage.fill(A1, 1, body=b"12345")
    stage.window().take(1, stage.now)
    stats = consumer_stats(stage.member)
    assert (stats.waiting, stats.running, stats.buffered_bytes, stats.queues) == (3, 1, 8, 3)
    assert stats.rebalances == 1


def test_a_queue_that_is_well() -> None:
    stage = entered()
    stage.fill(A0, 2)
    stage.window().take(1, stage.now)
    stage.window().pulled_at = stage.now
    stage.window().handled_at = stage.now
    stage.servers.clock.seconds += 5
    health = consumer_health(stage.member)
    assert health.is_healthy
    assert health.queues[0] == QueueHealth(
        queue=A0,
        position=0,
        committed=0,
        waiting=1,
        running=1,
        oldest_running=5.0,
        last_pull=5.0,
        last_handled=5.0,
        problem=None,
    )


def test_a_queue_that_cannot_be_read() -> None:
    stage = entered()
    stage.window().failure = ConnectFailed("a:1", "away")
    assert "it cannot be read: " in str(problem_of(stage))


def test_a_stuck_handler() -> None:
    stage = entered(handle_timeout=10)
    (message,) = stage.fill(A0, 1)
    stage.window().take(1, stage.now)
    stage.servers.clock.seconds += 20
    assert problem_of(stage) == f"message {message.message_id} has been handled for 20 s"


def test_a_lost_lock() -> None:
    stage = entered(mode="orderly")
    assert problem_of(stage) is None
    stage.window().locked_until = 0.0
    assert problem_of(stage) == "its lock was lost, so nothing is handed out"


def test_pulls_without_an_answer() -> None:
    stage = entered(suspend=15)
    stage.servers.clock.seconds += 50
    assert problem_of(stage) == "no broker has answered a pull for 50 s"
    stage.window().pulled_at = stage.now
    assert problem_of(stage) is None


def test_other_subscriptions_in_the_group_are_a_problem_of_a_healthy_member() -> None:
    stage = entered()
    stage.subscribed = {"orders": "new"}
    stage.run(stage.member.take_queues())
    health = consumer_health(stage.member)
    (problem,) = health.problems
    assert "The broker has, from another member: orders 'new'." in problem
    assert health.is_healthy
    stage.subscribed = None
    stage.run(stage.member.take_queues())
    assert not consumer_health(stage.member).problems


def test_a_queue_that_another_member_holds_and_commits_that_fail() -> None:
    stage = entered()
    stage.member.refused_since[A1] = stage.now - 2
    stage.member.last_commit_error = ConnectFailed("a:1", "away")
    problems = consumer_health(stage.member).problems
    assert "another member holds its lock for 2.0 s" in problems[0]
    assert "offsets cannot be committed: " in problems[1]
