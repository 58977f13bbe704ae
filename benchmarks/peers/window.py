"""A limit of messages in flight, for clients with futures or callbacks."""

from __future__ import annotations

import threading

#: How long all answers may take at the end.
_TIMEOUT = 30.0


class Window:
    """Counts answers; `enter` waits while too many messages are in flight."""

    def __init__(self, size: int) -> None:
        """Take the limit."""
        self._free = threading.Semaphore(size)
        self._size = size
        self._lock = threading.Lock()
        self._done = 0
        self._error: BaseException | None = None

    def enter(self) -> None:
        """Wait for a free place."""
        if not self._free.acquire(timeout=_TIMEOUT):
            raise RuntimeError(f"no answer for {_TIMEOUT:.0f} s")
        if self._error is not None:
            raise self._error

    def leave(self, error: BaseException | None) -> None:
        """Count an answer, from any thread."""
        with self._lock:
            if error is None:
                self._done += 1
            else:
                self._error = error
        self._free.release()

    def close(self) -> int:
        """Wait for all answers, and return their number."""
        for _ in range(self._size):
            self.enter()
        if self._error is not None:
            raise self._error
        return self._done
