"""How timed messages go from an Apache broker to ours and back, when a store folder does.

Apache keeps what waits in files of its own, a wheel and its log, which we neither read nor write:
we read the timer's queue instead. So does Apache where these files are missing, from the place that
`config/timercheck` names:

    i64 time up to which all is delivered     i64 position in the wheel's log     i64 queue offset

(the next two, the same offset at the master and a version, do not matter; the file is 4096 bytes).

One rule: that place lies before everything that waits. So nothing is lost either way. Behind it,
Apache delivers again what was delivered.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from downrange.server.broker.scheduled.timed_messages import SLOT_MS, TimerProgressBody

if TYPE_CHECKING:
    from downrange.server.broker.scheduled.timed_messages import TimedMessages

PATH: Final = "config/timercheck"
#: Apache's wheel and its log. They are wrong as soon as we deliver anything: remove them at the
#: start, but not before `PATH` was written anew, as until then only they say what waits.
STALE_PATHS: Final = ("timerwheel", "timerlog")

_FILE_BYTES: Final = 4096
_CHECK: Final = Struct(">qqqq")


class TimerHandover:
    """Apache's view of how far timed messages have come; saved like a table.

    Args:
        timers: Ours. They are loaded before this is.
    """

    def __init__(self, timers: TimedMessages) -> None:
        self._timers = timers

    @property
    def version(self) -> int:
        """How many changes there were since the start."""
        return self._timers.version

    def dump(self) -> bytes:
        """Write timercheck. What it counts as delivered must be durable before it is."""
        progress = self._timers.progress()
        until_ms = progress.delivered_until_ms // SLOT_MS * SLOT_MS
        return _CHECK.pack(until_ms, 0, progress.low, progress.low).ljust(_FILE_BYTES, b"\x00")

    def load(self, data: bytes) -> None:
        """Begin where an Apache broker ended, if one has had the store after us."""
        if len(data) < _CHECK.size:
            return
        until_ms, _, read, _ = _CHECK.unpack_from(data)
        if until_ms > self._timers.progress().delivered_until_ms:
            self._timers.start_from(TimerProgressBody(delivered_until_ms=until_ms, read=read))
