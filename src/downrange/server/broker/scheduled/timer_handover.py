"""The handover of timed messages when a store folder moves from an Apache broker to ours, or back.

Apache keeps the messages that wait in files of its own, a wheel and its log. We neither read nor
write these: we read the timer's queue instead. So does Apache if the files are missing, from the
queue offset in `config/timercheck` on:

    i64 time up to which all is delivered     i64 position in the wheel's log     i64 queue offset

(The next two fields, the same offset at the master and a version, do not matter. The file has 4096
bytes.)

One rule: this offset lies before every message that waits. So no message is lost either way; those
after it that were delivered already are delivered again by Apache.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from downrange.server.broker.scheduled.timed_messages import SLOT_MS, TimerProgressBody

if TYPE_CHECKING:
    from downrange.server.broker.scheduled.timed_messages import TimedMessages

PATH: Final = "config/timercheck"
#: Apache's wheel and its log. They are out of date as soon as we deliver a message, so they are
#: removed at the start, but after `PATH` is rewritten: until then only they list what waits.
STALE_PATHS: Final = ("timerwheel", "timerlog")

_FILE_BYTES: Final = 4096
_CHECK: Final = Struct(">qqqq")


class TimerHandover:
    """The progress of timed messages in Apache's format; saved like a table.

    Args:
        timers: Our own progress, loaded before this.
    """

    def __init__(self, timers: TimedMessages) -> None:
        self._timers = timers

    @property
    def version(self) -> int:
        """The number of changes since the start."""
        return self._timers.version

    def dump(self) -> bytes:
        """Encode timercheck. Messages that it counts as delivered must be durable first."""
        progress = self._timers.progress()
        until_ms = progress.delivered_until_ms // SLOT_MS * SLOT_MS
        return _CHECK.pack(until_ms, 0, progress.low, progress.low).ljust(_FILE_BYTES, b"\x00")

    def load(self, data: bytes) -> None:
        """Continue where an Apache broker stopped, if one used the store after us."""
        if len(data) < _CHECK.size:
            return
        until_ms, _, read, _ = _CHECK.unpack_from(data)
        if until_ms > self._timers.progress().delivered_until_ms:
            progress = TimerProgressBody(
                delivered_until_ms=until_ms,
                read=read,
                apache_until_ms=until_ms,
                apache_read=read,
            )
            self._timers.start_from(progress)
