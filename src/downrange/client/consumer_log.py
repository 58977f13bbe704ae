"""Log lines for the notices of group consumers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from downrange.client.flows.notices import (
    AssignmentChanged,
    ClientIdTaken,
    CommitFailed,
    HandlerFailed,
    HandlerStuck,
    HandoverEnded,
    LockLost,
    QueueFailed,
    QueueRecovered,
    SharesFound,
    SharesMissing,
    TopicUnread,
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
    elif isinstance(notice, TopicUnread):
        _log.warning(
            "group %s: topic %s %s, so nothing of it is consumed; it is looked for again. %s",
            *(group, notice.topic, notice.problem, notice.next_step),
        )
    elif isinstance(notice, SharesMissing):
        _log.log(
            logging.WARNING if notice.error is None else logging.ERROR,
            "group %s: the queues of topic %s cannot be divided among the members, so this one "
            "gets no new ones; it tries again. %s",
            *(group, notice.topic, notice.reason),
            exc_info=notice.error,
        )
    elif isinstance(notice, SharesFound):
        _log.info("group %s: the queues can be divided among the members again", group)
    elif isinstance(notice, ClientIdTaken):
        _log.warning(
            "group %s: several clients have the id %s, on connections from %s; some queues are "
            "read twice or never. Give each client an `instance` of its own, or none",
            *(group, notice.client_id, " and ".join(notice.addresses)),
        )
    else:
        _log.warning("group %s: %s", group, notice.text)


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
    if queue.number < 0:  # a member in pop mode shares all queues of a broker
        return f"topic {queue.topic} on {queue.broker}"
    return f"queue {queue.number} of {queue.topic} on {queue.broker}"
