"""Which half messages are ended, one byte each from the first that may still be open.

A half message is known by its number in the half queue. An op record, in a queue of its own, names
the halves that are ended. Both queues only grow, so all there is to keep is where each must be read
from at the next start (`first`, `first_op`) and what is known of the halves behind that point.

One rule: `first` never passes a half that is open or being ended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_OPEN: Final = 0
_ENDED: Final = 1
_HELD: Final = 2
_ENDED_BYTE: Final = b"\x01"


class EndedHalves:
    """What is known of the halves from a number on.

    Args:
        first: All halves before it are ended.
        first_op: All op records before it name only those.
    """

    __slots__ = ("_highest", "_marks", "first", "first_op")

    def __init__(self, first: int = 0, first_op: int = 0) -> None:
        self.first = first
        self.first_op = first_op
        self._marks = bytearray()  # of the halves from `first` on; those behind its end are open
        self._highest: deque[int] = deque()  # the highest half that each op record names

    def is_open(self, offset: int) -> bool:
        """Whether nobody ended a half, nor is about to."""
        index = offset - self.first
        return index >= len(self._marks) or (index >= 0 and self._marks[index] == _OPEN)

    def next_open(self, offset: int) -> int:
        """Return the first open half at a number or behind it; it need not be there yet."""
        offset = max(offset, self.first)
        found = self._marks.find(_OPEN, offset - self.first)
        return self.first + found if found >= 0 else max(offset, self.first + len(self._marks))

    def hold(self, offset: int) -> None:
        """Note that a half is about to be ended: what ends it is not stored yet."""
        self._mark(offset, _HELD)

    def release(self, offset: int) -> None:
        """Note that a half stays open: what would have ended it was not stored."""
        self._mark(offset, _OPEN)

    def skip(self, offset: int) -> None:
        """Count a half as ended without an op record, because it cannot be read."""
        self._mark(offset, _ENDED)

    def end(self, offsets: Collection[int]) -> None:
        """Note the next op record of its queue, and the halves that it names."""
        for offset in offsets:
            if offset >= self.first:
                self._mark(offset, _ENDED)
        self._highest.append(max(offsets, default=-1))

    def drop_before(self, offset: int) -> None:
        """Forget halves that are gone from the store."""
        if offset > self.first:
            del self._marks[: offset - self.first]
            self.first = offset

    def advance(self) -> None:
        """Let `first` and `first_op` pass what is ended."""
        ended = len(self._marks) - len(self._marks.lstrip(_ENDED_BYTE))
        self.drop_before(self.first + ended)
        while self._highest and self._highest[0] < self.first:
            self._highest.popleft()
            self.first_op += 1

    def _mark(self, offset: int, mark: int) -> None:
        index = offset - self.first
        if index >= len(self._marks):
            self._marks.extend(bytes(index + 1 - len(self._marks)))
        self._marks[index] = mark
