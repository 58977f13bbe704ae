"""Busy polling: wait for the next request or reply without sleeping.

Waking a sleeping process takes 50 to 100 µs, longer than storing a message, and its caches are cold
afterwards. A client that sends one message after the other pays this each time, and so does its
server. So while messages follow each other closely, the event loop or thread polls for the next one
instead of sleeping, as the kernel's `busy_poll` does for sockets.

The price is the CPU time in between, and other threads of the process get the interpreter later.
So busy polling is for a process with a core to itself, and it stops as soon as messages stop. Each
round offers the core to other processes first. If one of them takes it, polling stops for a while:
the other process may be the peer whose message is awaited.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: Lets other processes run on this core. Not every system has a call for just that.
_yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
#: If yielding the core takes longer than this, in seconds, another process used it.
_CORE_TAKEN_OVER: Final = 0.0003
#: How long polling stops then, in seconds.
_BACK_OFF: Final = 0.1
#: The CPU time that a container may use per period, both in µs; or "max" and the period.
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


class BusyPoll:
    """Keeps an event loop from sleeping while reads follow each other closely.

    Args:
        loop: The event loop.
        distance: Polling starts when two reads are less than this many seconds apart, and stops
            when none came for as long.

    Attributes:
        is_active: Whether the loop polls now instead of sleeping.
    """

    __slots__ = ("_distance", "_last_read_at", "_loop", "_paused_until", "is_active")

    def __init__(self, loop: asyncio.AbstractEventLoop, distance: float) -> None:
        self._loop = loop
        self._distance = distance
        self._last_read_at = self._paused_until = float("-inf")
        self.is_active = False

    def on_read(self) -> None:
        """Note that bytes came from a peer, and start polling if the last ones came just before."""
        now = time.perf_counter()  # a loop's own clock may only have a resolution of ms
        is_close = now - self._last_read_at < self._distance
        self._last_read_at = now
        if is_close and not self.is_active and now > self._paused_until:
            self.is_active = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Schedule itself for the loop's next turn, so that the loop does not sleep before it."""
        before = time.perf_counter()
        _yield_core()
        now = time.perf_counter()
        if now - before > _CORE_TAKEN_OVER:
            self._paused_until = now + _BACK_OFF
        self.is_active = now - self._last_read_at < self._distance and now > self._paused_until
        if self.is_active:
            self._loop.call_soon(self._poll)


class BusyWait:
    """Keeps a thread from sleeping while it waits for a reply.

    Args:
        distance: For how many seconds the thread polls for a reply. If one takes longer, the next
            ones probably do, too, and the thread does not poll for them for a while.
    """

    __slots__ = ("_distance", "_paused_until")

    def __init__(self, distance: float) -> None:
        self._distance = distance
        self._paused_until = float("-inf")

    def poll(self, is_ready: Callable[[], object], within: float) -> bool:
        """Return whether a reply came while polling; if not, the caller should sleep.

        Args:
            is_ready: Returns something true if there is a reply, without waiting.
            within: Seconds until the caller's deadline.
        """
        limit = min(self._distance, within)
        begun = now = time.perf_counter()
        if now < self._paused_until:
            return False
        while not is_ready():
            before = time.perf_counter()
            _yield_core()
            now = time.perf_counter()
            if now - before > _CORE_TAKEN_OVER or now - begun > limit:
                self._paused_until = now + _BACK_OFF
                return False
        return True


def has_core_to_spare(quota_file: Path = _QUOTA) -> bool:
    """Whether this process may keep one core busy and leave another to its clients."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # missing on some systems
        cores = os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # not in a container, or in one without cgroup v2
    return cores >= 2
