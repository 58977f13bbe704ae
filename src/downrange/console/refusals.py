"""The log of refused forms: forged ones, those without a login, and those that cannot be read.

Their sender is not known, so they are not in the audit file. One line per address in ten seconds,
and twenty lines per second in all: an attack does not fill the disk. The next line about an address
says how many were left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from downrange.console import limits

if TYPE_CHECKING:
    from collections.abc import Callable

_log: Final = logging.getLogger("downrange.console")
_TEXT_MAX: Final = 300


@dataclass(slots=True)
class _Source:
    logged_at: float
    left_out: int = 0


class RefusalLog:
    """Logs refused forms at a limited rate.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._second = 0
        self._lines = 0

    def add(self, address: str, path: str, origin: str | None, problem: str) -> None:
        """Log a refused form, unless too much was logged just now.

        Args:
            address: Where it came from.
            path: Where it was sent to.
            origin: The header of this name: the site whose page made it.
            problem: Why it was refused.
        """
        source = self._source(address)
        if not self._is_logged(source):
            source.left_out += 1
            return
        _log.warning(
            "refused: POST %s from %s%s: %s%s",
            _printable(path),
            address,
            "" if origin is None else f", made by a page of {_printable(origin)}",
            _printable(problem),
            f"; {source.left_out} more since the last line" if source.left_out else "",
        )
        source.left_out = 0

    def _source(self, address: str) -> _Source:
        source = self._sources.setdefault(address, _Source(float("-inf")))
        self._sources.move_to_end(address)
        while len(self._sources) > limits.REFUSAL_ADDRESSES_MAX:
            self._sources.popitem(last=False)
        return source

    def _is_logged(self, source: _Source) -> bool:
        now = self._clock()
        if now - source.logged_at < limits.REFUSAL_LOG_SECONDS:
            return False
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        if self._lines >= limits.REFUSAL_LINES_MAX:
            return False
        self._lines += 1
        source.logged_at = now
        return True


def _printable(text: str) -> str:
    """Return a text of a request on one line: it must not look like a line of its own."""
    return "".join([each if each.isprintable() else "?" for each in text[:_TEXT_MAX]])
