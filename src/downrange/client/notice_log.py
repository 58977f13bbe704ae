"""Writes the notices of a client's flows to the log.

Failed attempts are warnings, and limited per broker: while a broker is down, every message may fail
there. Attempts beyond the limit are logged at DEBUG and counted in the next warning. The same limit
holds for exceptions of the user's code, which are errors, per function, and of handlers, per group.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from downrange.client.consumer_log import log_consumer, log_handler_failure
from downrange.client.flows.notices import (
    AttemptFailed,
    AttemptRepeated,
    HandlerFailed,
    HeartbeatEnded,
    RouteChanged,
    UserCodeFailed,
    WorkFailed,
)
from downrange.client.flows.routing.health import HealthSnapshot
from downrange.errors import message_name

if TYPE_CHECKING:
    from downrange.client.flows.effects import Clock
    from downrange.client.flows.notices import Notice
    from downrange.client.flows.routing.routes import Route

_log = logging.getLogger("downrange.client")
#: Warnings per broker: so many at once, and then one per second.
_BURST: Final = 10
_PER_SECOND: Final = 1.0
#: Most brokers whose warnings are counted; then the counts start again.
_BROKERS_MAX: Final = 1000


class NoticeLog:
    """The observer of a client; `observe` may be called by several threads.

    Args:
        clock: The time, for the limit of warnings.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Broker or function -> lines that are left, when that was counted, and how many were
        #: omitted since the last one.
        self._budgets: dict[str, tuple[float, float, int]] = {}

    def observe(self, notice: Notice) -> None:
        """Log one notice."""
        if isinstance(notice, AttemptFailed):
            self._log_failure(notice)
        elif isinstance(notice, AttemptRepeated):
            _log.debug(
                "attempt %d to send %s goes to broker %s at %s in %.3f s",
                notice.number,
                message_name(notice.message_id),
                notice.broker,
                notice.address,
                notice.pause,
            )
        elif isinstance(notice, RouteChanged):
            _log_route(notice.old, notice.new)
        elif isinstance(notice, HeartbeatEnded):
            _log_heartbeat(notice)
        elif isinstance(notice, UserCodeFailed):
            self._log_user_error(notice)
        elif isinstance(notice, WorkFailed):
            _log.warning("%s failed: %s", notice.what, notice.error)
        elif isinstance(notice, HandlerFailed):
            log_handler_failure(notice, self._take(notice.group))
        elif isinstance(notice, HealthSnapshot):
            _log_health(notice)
        else:
            log_consumer(notice)

    def _log_failure(self, notice: AttemptFailed) -> None:
        attempt = notice.attempt
        omitted = self._take(attempt.broker)
        _log.log(
            logging.DEBUG if omitted is None else logging.WARNING,
            "attempt %d to send %s to %r failed: broker %s at %s queue %d, after %.3f s: %s: %s%s",
            notice.number,
            message_name(notice.message_id),
            notice.topic,
            attempt.broker,
            attempt.address,
            attempt.queue_number,
            attempt.elapsed,
            type(attempt.error).__name__,
            attempt.error.brief,
            f" ({omitted} more failed there since the last warning)" if omitted else "",
        )

    def _log_user_error(self, notice: UserCodeFailed) -> None:
        omitted = self._take(notice.where)
        _log.log(
            logging.DEBUG if omitted is None else logging.ERROR,
            "%s failed: %r%s",
            notice.where,
            notice.error,
            f" ({omitted} more since the last error)" if omitted else "",
            exc_info=notice.error,
        )

    def _take(self, broker: str) -> int | None:
        """Return how many lines were omitted before this one; None to omit this one.

        Args:
            broker: The broker, or the function of the user, that the line is about.
        """
        with self._lock:
            now = self._clock.now()
            if broker not in self._budgets and len(self._budgets) >= _BROKERS_MAX:
                self._budgets.clear()
            left, counted_at, omitted = self._budgets.get(broker, (_BURST, now, 0))
            left = min(_BURST, left + (now - counted_at) * _PER_SECOND)
            if left < 1:
                self._budgets[broker] = left, now, omitted + 1
                return None
            self._budgets[broker] = left - 1, now, 0
            return omitted


def _log_health(state: HealthSnapshot) -> None:
    if state.is_available and state.is_reachable:
        _log.info("broker %s is used again", state.broker)
    else:
        _log.warning(
            "broker %s is avoided for %.1f s: slow, or it failed", state.broker, state.avoided_for
        )


def _log_heartbeat(notice: HeartbeatEnded) -> None:
    if notice.error is None:
        _log.debug("heartbeat to %s answered after %.3f s", notice.address, notice.elapsed)
    else:
        _log.debug(
            "heartbeat to %s failed after %.3f s: %s",
            notice.address,
            notice.elapsed,
            notice.error.brief,
        )


def _log_route(old: Route | None, new: Route) -> None:
    _log.debug(
        "route of %s %s: %d queues to write to on %s%s",
        new.topic,
        "found" if old is None else "changed",
        len(new.writable),
        ", ".join(sorted(new.masters)) or "no broker",
        " (borrowed from the default topic)" if new.is_borrowed else "",
    )
