"""Snapshots of a group consumer: what it has done, what it does now, and whether it is well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.model import QueueId

if TYPE_CHECKING:
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.client.flows.consuming.group_member import GroupMember

#: Seconds beyond the time of a held pull after which a queue without an answer is not well.
_PULL_GRACE: Final = 30.0


class ConsumerStats(msgspec.Struct, frozen=True):
    """Counters of a consumer, in messages unless stated otherwise.

    Attributes:
        fetched: Pulled from brokers.
        handled: Handled without an error.
        failed: Handled with an error.
        sent_back: Given to the broker for another delivery.
        dead: Given to the broker as dead letters.
        given_up: Dropped after the last attempt, in the model "broadcast".
        dropped_answers: Answers that did not fit into the buffer, or did not follow the one before
            them, and were pulled again.
        commits_failed: Commits that failed; each is repeated.
        rebalances: How often the queues were divided anew.
        renewed: Receipts that were renewed while handlers ran, in the mode "pop".
        waiting: Fetched, and not begun.
        running: Being handled now.
        buffered_bytes: Bytes of the bodies of these two.
        queues: Queues that it has.
    """

    fetched: int
    handled: int
    failed: int
    sent_back: int
    dead: int
    given_up: int
    dropped_answers: int
    commits_failed: int
    rebalances: int
    renewed: int
    waiting: int
    running: int
    buffered_bytes: int
    queues: int


class QueueHealth(msgspec.Struct, frozen=True):
    """One queue of a consumer.

    Attributes:
        queue: The queue.
        position: The first offset that is not handled.
        committed: The offset that was committed last; None if none was.
        waiting: Messages that are fetched, and not begun.
        running: Messages that are being handled.
        oldest_running: For how many seconds the oldest of them has been handled; None without one.
        last_pull: Seconds since the last answer of the broker; None if there was none yet.
        last_handled: Seconds since a handler ended; None if none did yet.
        problem: What is wrong; None if nothing is.
    """

    queue: QueueId
    position: int
    committed: int | None
    waiting: int
    running: int
    oldest_running: float | None
    last_pull: float | None
    last_handled: float | None
    problem: str | None


class ConsumerHealth(msgspec.Struct, frozen=True):
    """Whether a consumer is well.

    Attributes:
        is_healthy: Whether it consumes all that it should. It stays True if members of its group
            subscribe to different things: to start this member again would not change that.
        problems: What is wrong, a sentence each.
        queues: Its queues.
    """

    is_healthy: bool
    problems: tuple[str, ...]
    queues: tuple[QueueHealth, ...]


def consumer_stats(member: GroupMember) -> ConsumerStats:
    """Return a snapshot of the counters."""
    windows = list(member.windows.values())
    running = sum(len(each.messages) for w in windows for each in w.running.values())
    return ConsumerStats(
        **msgspec.structs.asdict(member.counts),
        waiting=sum(len(window.waiting) + len(window.postponed) for window in windows),
        running=running,
        buffered_bytes=member.buffer.bytes,
        queues=len(windows),
    )


def consumer_health(member: GroupMember) -> ConsumerHealth:
    """Return a snapshot of all queues, with what is wrong."""
    now = member.core.clock.now()
    queues = tuple(_queue_health(member, window, now) for window in member.windows.values())
    problems = [f"{each.queue}: {each.problem}" for each in queues if each.problem is not None]
    problems += member.problems()
    if member.last_commit_error is not None:
        problems.append(f"offsets cannot be committed: {member.last_commit_error}")
    return ConsumerHealth(not problems, (*problems, *member.warnings()), queues)


def _queue_health(member: GroupMember, window: DeliveryWindow, now: float) -> QueueHealth:
    started = [delivery.started_at for delivery in window.running.values()]
    oldest = None if not started else now - min(started)
    return QueueHealth(
        queue=window.queue,
        position=window.position,
        committed=window.committed,
        waiting=len(window.waiting) + len(window.postponed),
        running=sum(len(delivery.messages) for delivery in window.running.values()),
        oldest_running=oldest,
        last_pull=None if window.pulled_at is None else now - window.pulled_at,
        last_handled=None if window.handled_at is None else now - window.handled_at,
        problem=_problem(member, window, now, oldest),
    )


def _problem(
    member: GroupMember, window: DeliveryWindow, now: float, oldest: float | None
) -> str | None:
    options = member.options
    if window.failure is not None:
        return f"it cannot be read: {window.failure}"
    if oldest is not None and oldest > options.handle_timeout:
        stuck = min(window.running.values(), key=lambda delivery: delivery.started_at)
        if stuck.current is not None:
            return f"message {stuck.current.message_id} has been handled for {oldest:.0f} s"
    if member.is_shared and options.mode == "orderly" and now >= window.locked_until:
        return "its lock was lost, so nothing is handed out"
    since = window.created_at if window.pulled_at is None else window.pulled_at
    is_idle = not window.count and not window.is_paused and options.mode != "pop"
    if is_idle and now - since > member.suspend + _PULL_GRACE:
        return f"no broker has answered a pull for {now - since:.0f} s"
    return None
