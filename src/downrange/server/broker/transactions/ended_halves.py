"""Which half messages are ended: one byte each, from the first half that may still be open.

A half message is identified by its offset in the half queue. An op record, in a queue of its own,
lists halves that are ended. Both queues only grow. So a restart needs only the offsets from which
to read them (`first`, `first_op`) and finds out about later halves by reading.

One rule: `first` never passes a half that is open or being ended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_OPEN: Final = 0
_ENDED: Final = 1
_ENDING: Final = 2
_ENDED_BYTE: Final = b"\x01"


class EndedHalves:
    """The states of all halves from an offset on.

    Args:
        first: All halves before this offset are ended.
        first_op: All op records before this offset list only such halves.
    """

    __slots__ = ("_highest", "_states", "first", "first_op")

    def __init__(self, first: int = 0, first_op: int = 0) -> None:
        self.first = first
        self.first_op = first_op
        self._states = bytearray()  # of the halves from `first` on; later halves are open
        self._highest: deque[int] = deque()  # the highest half in each op record

    def is_open(self, offset: int) -> bool:
        """Whether a half is neither ended nor being ended."""
        index = offset - self.first
        return index >= len(self._states) or (index >= 0 and self._states[index] == _OPEN)

    def next_open(self, offset: int) -> int:
        """Return the offset of the first open half from an offset on; it may not exist yet."""
        offset = max(offset, self.first)
        found = self._states.find(_OPEN, offset - self.first)
        return self.first + found if found >= 0 else max(offset, self.first + len(self._states))

    def begin_end(self, offset: int) -> None:
        """Mark a half as being ended: its op record is not stored yet."""
        self._set(offset, _ENDING)

    def cancel_end(self, offset: int) -> None:
        """Mark a half as open again: its op record could not be stored."""
        self._set(offset, _OPEN)

    def skip(self, offset: int) -> None:
        """Mark a half that cannot be read as ended, without an op record."""
        self._set(offset, _ENDED)

    def end(self, offsets: Collection[int]) -> None:
        """Add the next op record of its queue, with the halves that it lists."""
        for offset in offsets:
            if offset >= self.first:
                self._set(offset, _ENDED)
        self._highest.append(max(offsets, default=-1))

    def drop_before(self, offset: int) -> None:
        """Forget halves that the store no longer has."""
        if offset > self.first:
            del self._states[: offset - self.first]
            self.first = offset

    def advance(self) -> None:
        """Move `first` and `first_op` past all halves that are ended."""
        ended = len(self._states) - len(self._states.lstrip(_ENDED_BYTE))
        self.drop_before(self.first + ended)
        while self._highest and self._highest[0] < self.first:
            self._highest.popleft()
            self.first_op += 1

    def _set(self, offset: int, state: int) -> None:
        index = offset - self.first
        if index >= len(self._states):
            self._states.extend(bytes(index + 1 - len(self._states)))
        self._states[index] = state
