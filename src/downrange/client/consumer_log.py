"""Log lines for the notices of group consumers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from downrange.client.flows.notices import (
    AssignmentChanged,
    CommitFailed,
    HandlerFailed,
    HandlerStuck,
    HandoverEnded,
    LockLost,
    QueueFailed,
    QueueRecovered,
)
from downrange.errors import DeadLetter, Retry, RetrySome

if TYPE_CHECKING:
    from downrange.client.flows.notices import ConsumerNotice
    from downrange.model import QueueId

_log = logging.getLogger("downrange.client")


def log_consumer(notice: ConsumerNotice) -> None:
    """Log one notice of a group consumer; exceptions of handlers: `log_handler_failure`."""
    group = notice.group
    if isinstance(notice, AssignmentChanged):
        _log_assignment(notice)
    elif isinstance(notice, QueueFailed):
        error = f": {notice.error}" if notice.error is not None else ""
        _log.warning("group %s: %s %s%s", group, _name(notice.queue), notice.what, error)
    elif isinstance(notice, QueueRecovered):
        _log.info("group %s: %s can be read again", group, _name(notice.queue))
    elif isinstance(notice, LockLost):
        _log.warning(
            "group %s: the lock of %s was lost to another member", group, _name(notice.queue)
        )
    elif isinstance(notice, HandoverEnded):
        _log.warning(
            "group %s: %s is taken after %.1f s, although its former owner holds the lock; if it "
            "still runs, some messages are handled twice",
            *(group, _name(notice.queue), notice.waited),
        )
    elif isinstance(notice, CommitFailed):
        _log.warning("group %s: offsets cannot be committed: %s", group, notice.error)
    elif isinstance(notice, HandlerStuck):
        message = notice.message
        _log.warning(
            "group %s: the handler of message %s (%s, offset %d) has been running for %.0f s",
            *(group, message.message_id, _name(message.queue), message.offset, notice.age),
        )
    elif isinstance(notice, HandlerFailed):
        log_handler_failure(notice, 0)
    else:
        _log.warning(
            "group %s: members subscribe to different things, so messages are missed. This member: "
            "%s. The broker has, from another member: %s. Give all members the same subscriptions, "
            "or groups of their own",
            *(group, _listed(notice.ours), _listed(notice.theirs)),
        )


def log_handler_failure(notice: HandlerFailed, omitted: int | None) -> None:
    """Log the exception of a handler, with what becomes of the message.

    Args:
        notice: The exception.
        omitted: Lines that were omitted before this one; None to log it at DEBUG only.
    """
    message = notice.message
    is_asked = isinstance(notice.error, Retry | DeadLetter | RetrySome)
    level = logging.INFO if is_asked else logging.ERROR
    _log.log(
        logging.DEBUG if omitted is None else level,
        "group %s: the handler of message %s (%s, offset %d) failed: %r; %s%s",
        notice.group,
        message.message_id,
        _name(message.queue),
        message.offset,
        notice.error,
        notice.plan,
        f" ({omitted} more failed since the last error)" if omitted else "",
        exc_info=None if is_asked else notice.error,
    )


def _log_assignment(notice: AssignmentChanged) -> None:
    for queue, (offset, reason) in notice.taken.items():
        _log.info(
            "group %s: %s is consumed from offset %d on (%s)",
            *(notice.group, _name(queue), offset, reason),
        )
    for queue in notice.lost:
        _log.info("group %s: %s goes to another member", notice.group, _name(queue))


def _name(queue: QueueId) -> str:
    return f"queue {queue.number} of {queue.topic} on {queue.broker}"


def _listed(subscriptions: dict[str, str]) -> str:
    return ", ".join(f"{topic} {text!r}" for topic, text in sorted(subscriptions.items())) or "none"
