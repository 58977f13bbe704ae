"""Staying awake while requests, or their replies, follow each other closely.

A process that went to sleep takes 50 to 100 µs to be woken, longer than a message takes to be
stored, and comes back to cold caches. A client that sends one message after the other pays for
that each time, and so does its server. So as long as something comes at short distances, one looks
for the next again and again instead of sleeping: this is the kernel's `busy_poll`, in the process.

It costs the CPU time in between, and it takes the interpreter from other threads. So it is for a
process that has a core to itself, and ends as soon as nothing comes. Whoever else wants the core
is let go first, and then one sleeps like others for a while: the one who is kept from running may
be the very peer that is waited for.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: Lets others run who want the core. Not every system has a call for just that.
_offer_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
#: Another process had the core when letting it go takes so long.
_TAKEN: Final = 0.0003
#: For so long nobody is kept awake then.
_RESPITE: Final = 0.1
#: How much CPU time a container may take, in a period, both in µs; or "max" and the period.
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


class Vigil:
    """Keeps an event loop awake.

    Args:
        loop: The event loop.
        distance: Requests that come within so many seconds are followed closely; so long the next
            one is waited for without sleeping.

    Attributes:
        is_kept: Whether the loop does not sleep now.
    """

    __slots__ = ("_distance", "_loop", "_seen_at", "_sleeps_until", "is_kept")

    def __init__(self, loop: asyncio.AbstractEventLoop, distance: float) -> None:
        self._loop = loop
        self._distance = distance
        self._seen_at = self._sleeps_until = float("-inf")
        self.is_kept = False

    def notice(self) -> None:
        """Take notice that a peer said something."""
        now = time.perf_counter()  # a loop's own time may have no more than ms
        is_close = now - self._seen_at < self._distance
        self._seen_at = now
        if is_close and not self.is_kept and now > self._sleeps_until:
            self.is_kept = True
            self._loop.call_soon(self._watch)

    def _watch(self) -> None:
        """Come back in the next turn of the loop, which then does not sleep before it."""
        before = time.perf_counter()
        _offer_core()
        now = time.perf_counter()
        if now - before > _TAKEN:
            self._sleeps_until = now + _RESPITE
        self.is_kept = now - self._seen_at < self._distance and now > self._sleeps_until
        if self.is_kept:
            self._loop.call_soon(self._watch)


class Lookout:
    """Keeps a thread awake that waits for one reply after the other.

    Args:
        distance: A reply is waited for so many seconds without sleeping. If it takes longer, those
            after it are likely to do so, too, and the thread sleeps at once for a while.
    """

    __slots__ = ("_distance", "_sleeps_until")

    def __init__(self, distance: float) -> None:
        self._distance = distance
        self._sleeps_until = float("-inf")

    def sees(self, look: Callable[[], object], within: float) -> bool:
        """Return whether `look` found something before it was time to sleep.

        Args:
            look: Looks for a reply, without waiting.
            within: For so many seconds the reply is of use.
        """
        limit = min(self._distance, within)
        begun = now = time.perf_counter()
        if now < self._sleeps_until:
            return False
        while not look():
            before = time.perf_counter()
            _offer_core()
            now = time.perf_counter()
            if now - before > _TAKEN or now - begun > limit:
                self._sleeps_until = now + _RESPITE
                return False
        return True


def has_core_to_spare(quota_file: Path = _QUOTA) -> bool:
    """Whether this process may keep one core busy and leave another to its clients."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # not every system tells
        cores = os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no container, or one of another kind
    return cores >= 2
