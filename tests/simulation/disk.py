"""A disk with bad days, which are the same for the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.store.files import MemoryFiles, PowerLost, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: More than a story ever writes.
CAPACITY = 1 << 40


class Disk(MemoryFiles):
    """Files in memory that tell when power is lost.

    Args:
        on_power_lost: Hears that it was, every time somebody tries to go on.

    Attributes:
        is_honest: Whether `space` tells that the disk is full.
        bytes_missing: What is taken away while it is full.
    """

    def __init__(self, on_power_lost: Callable[[], None]) -> None:
        super().__init__(capacity=CAPACITY)
        self._on_power_lost = on_power_lost
        self.is_honest = True
        self.bytes_missing = 0

    def fill(self, bytes_left: int, *, is_honest: bool) -> None:
        """Leave little space."""
        self.is_honest = is_honest
        self.bytes_missing += self.capacity - bytes_left
        self.capacity = bytes_left

    def make_room(self) -> None:
        """Give all space back."""
        self.capacity += self.bytes_missing
        self.bytes_missing = 0

    @property
    def is_full(self) -> bool:
        """Whether there is little space."""
        return self.bytes_missing > 0

    def space(self) -> tuple[int, int]:
        """Say what is free, or lie."""
        return (self.capacity if self.is_honest else CAPACITY), CAPACITY

    def step(self) -> None:
        """Count what is about to be done."""
        try:
            super().step()
        except PowerLost:
            self._on_power_lost()
            raise

    def write_durably(self, writes: Sequence[Write]) -> None:
        """Write in an order that does not depend on where objects lie in memory."""
        super().write_durably(sorted(writes, key=lambda write: write.path))

    def close(self) -> None:
        """Nothing is held open."""
