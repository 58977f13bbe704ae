"""The log of denied requests: who asked for what, from where; at a limited rate.

One line per account and host in ten seconds, and twenty lines per second in all: a client that
retries without a pause, or an attack, does not fill the disk. The next line says how many were left
out.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.wire.codes import RequestCode, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.server.access.rules import Denial
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.access")

#: Seconds between two lines about the same account and host.
INTERVAL: Final = 10.0
#: Lines per second about all of them.
LINES_MAX: Final = 20
_SOURCES_MAX: Final = 1_000
_TEXT_LENGTH_MAX: Final = 300

_Source: TypeAlias = tuple[str | None, str]


class DenialLog:
    """Logs and counts denied requests.

    Args:
        clock: A monotonic clock in seconds.

    Attributes:
        count: Denied requests since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._logged_at: dict[_Source, float] = {}
        self._left_out: dict[_Source, int] = {}
        self._second = 0
        self._lines = 0

    def add(self, denial: Denial, request: Command, peer: Peer) -> None:
        """Count a denied request, and log it unless too much was logged just now."""
        self.count += 1
        source = (denial.access_key, peer.address.rpartition(":")[0])
        now = self._clock()
        if not self._is_logged(source, now):
            if source in self._left_out or len(self._left_out) < _SOURCES_MAX:
                self._left_out[source] = self._left_out.get(source, 0) + 1
            return
        code = named(RequestCode, request.code)
        name = code.name if isinstance(code, RequestCode) else "unknown"
        left_out = self._left_out.pop(source, 0)
        _log.warning(
            "denied: %s; request %d (%s) of account %s from %s%s",
            _printable(denial.text),
            request.code,
            name,
            "none" if denial.access_key is None else _printable(repr(denial.access_key)),
            peer.address,
            f"; {left_out} more since the last line" if left_out else "",
        )

    def _is_logged(self, source: _Source, now: float) -> bool:
        if now - self._logged_at.get(source, float("-inf")) < INTERVAL:
            return False
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        if self._lines >= LINES_MAX:
            return False
        self._lines += 1
        self._logged_at.pop(source, None)
        self._logged_at[source] = now
        if len(self._logged_at) > _SOURCES_MAX:
            del self._logged_at[next(iter(self._logged_at))]
        return True


def _printable(text: str) -> str:
    """Return a text of a peer on one line: it must not look like a line of its own."""
    cut = text[:_TEXT_LENGTH_MAX]
    return "".join([each if each.isprintable() else "?" for each in cut])
