"""Waiting with a deadline, and the errors that say what was there instead."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

from downrange.errors import ClientStateError
from downrange.testing.report import describe_messages

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from downrange.errors import RocketMQError
    from downrange.model import ReceivedMessage
    from downrange.testing.group_progress import GroupProgress
    from downrange.testing.topic_reader import TopicReader

ResultT = TypeVar("ResultT")
#: Seconds between two looks: short at first, because most waits are short.
_PAUSE_MIN: Final = 0.005
_PAUSE_MAX: Final = 0.05
#: Messages and queues that an error lists.
_LISTED_MAX: Final = 20


class WaitFailed(AssertionError):
    """Something that a test waits for did not happen in time; the text says what was there."""


def repeat(
    look: Callable[[float], ResultT | None], timeout: float, stop: threading.Event
) -> ResultT | None:
    """Look until there is a result; return None when the time is over, or `stop` is set.

    Args:
        look: Called with the seconds left; returns None when there is no result yet.
        timeout: Seconds; it looks at least once.
        stop: Ends the wait early.
    """
    deadline = time.monotonic() + timeout
    pause = _PAUSE_MIN
    while True:
        left = deadline - time.monotonic()
        result = look(left)
        if result is not None or left <= 0 or stop.is_set():
            return result
        stop.wait(min(pause, max(left, 0)))
        pause = min(pause * 1.5, _PAUSE_MAX)


def refuse_in_event_loop(call: str) -> None:
    """Refuse to wait where the code under test could not go on.

    Raises:
        ClientStateError: This thread runs an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ClientStateError(
        f"rocketmq.{call} would block the event loop, and with it the code under test: use "
        f"`await rocketmq.aio.{call}(...)`"
    )


def too_few_messages(
    reader: TopicReader,
    found: Sequence[ReceivedMessage],
    *,
    count: int,
    timeout: float,
    is_filtered: bool,
    others: Sequence[str],
    error: RocketMQError | None,
) -> WaitFailed:
    """Return the error for messages that did not arrive.

    Args:
        reader: What was read.
        found: The messages that match.
        count: How many were expected.
        timeout: How long the wait took.
        is_filtered: Whether not all messages match.
        others: Descriptions of other topics, for a topic that does not exist.
        error: The last failure to read.
    """
    kind = "matching message" if is_filtered else "message"
    text = f"waited {timeout:g} s for {_counted(count, kind)} in {reader.topic!r}, found "
    text += str(len(found)) if found else "none"
    if is_filtered:
        text += f" among {_counted(len(reader.messages), 'message')}"
    if not reader.exists and error is None:
        text += "; the topic does not exist"
        text += f", but there are messages in {', '.join(others)}" if others else ""
    for broker, failure in reader.failures.items():
        text += f"\n  {broker} cannot be read: {failure}"
    if error is not None:
        text += f"\n  the topic cannot be read: {error}"
    lines = describe_messages(reader.in_order(), _LISTED_MAX)
    return WaitFailed(":\n  ".join([text, "\n  ".join(lines)]) if lines else text)


def not_consumed(
    group: str, progress: GroupProgress | None, timeout: float, error: RocketMQError | None
) -> WaitFailed:
    """Return the error for a group that has messages left."""
    text = f"waited {timeout:g} s until group {group!r} has consumed everything"
    if progress is None:
        return WaitFailed(f"{text}, but its progress cannot be read: {error}")
    left = {queue: count for queue, count in progress.behind.items() if count}
    if progress.is_broadcast:
        text += "; its members read in broadcast mode and keep their offsets themselves, so that "
        text += "no broker knows them"
    elif not progress.behind:
        text += ", but no member has subscribed, and no offset is committed"
    else:
        text += f", but it has {_counted(sum(left.values()), 'message')} left"
    if progress.retries:
        text += f"\n  {_counted(progress.retries, 'message')} waiting for a retry"
    places = [
        f"\n  {queue.topic} {queue.broker} queue {queue.number}: {count}"
        for queue, count in sorted(left.items())
    ]
    text += "".join(places[:_LISTED_MAX])
    members = ", ".join(sorted(progress.members)) or "none"
    return WaitFailed(f"{text}\n  connected members: {members}")


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind}{'' if count == 1 else 's'}"
