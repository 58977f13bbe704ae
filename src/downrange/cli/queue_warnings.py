"""Warnings of the consumer about queues that cannot be read, for `tail`.

The consumer logs each queue. A broker has many of them, and they fail for the same reason, so the
command prints each reason once. An error that cannot be retried is held back: if it concerns all
queues, the command ends with it, and a warning would repeat it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Self

from downrange.cli.exit_codes import print_error
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER: Final = "downrange.client"
#: Seconds that an error is held back; all queues have answered by then.
_HELD: Final = 2.0
#: Seconds after which the same reason is printed again.
_REPEATED: Final = 30.0


class QueueWarnings(logging.Filter):
    """A filter of the client's log, active inside a `with` statement.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        #: Reason -> when it was printed.
        self._printed: dict[str, float] = {}
        #: Reason -> when it was held back, and the text.
        self._held: dict[str, tuple[float, str]] = {}

    def __enter__(self) -> Self:
        logging.getLogger(_LOGGER).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_LOGGER).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to print a record now."""
        error = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(error, RocketMQError):
            return True
        reason, now = str(error), self._now()
        if now - self._printed.get(reason, -_REPEATED) < _REPEATED:
            return False
        if not error.retryable:
            self._held.setdefault(reason, (now, record.getMessage()))
            return False
        self._printed[reason] = now
        return True

    def print_old(self) -> None:
        """Print the errors that concern only some of the queues, as the others can be read."""
        now = self._now()
        for reason, (since, text) in list(self._held.items()):
            if now - since >= _HELD:
                del self._held[reason]
                self._printed[reason] = now
                print_error(text)
