"""A disk with faults that the seed determines: lost power, no space, wrong free space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.store.files import MemoryFiles, PowerLost, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: More than a run ever writes.
CAPACITY = 1 << 40


class Disk(MemoryFiles):
    """Files in memory that report a power loss.

    Args:
        on_power_lost: Called for every access after power was lost.

    Attributes:
        reports_full: Whether `space` reports that the disk is full.
        bytes_missing: How many bytes of the capacity are taken away.
    """

    def __init__(self, on_power_lost: Callable[[], None]) -> None:
        super().__init__(capacity=CAPACITY)
        self._on_power_lost = on_power_lost
        self.reports_full = True
        self.bytes_missing = 0

    def fill(self, bytes_left: int, *, reports_full: bool) -> None:
        """Leave little space."""
        self.reports_full = reports_full
        self.bytes_missing += self.capacity - bytes_left
        self.capacity = bytes_left

    def free_space(self) -> None:
        """Restore the whole capacity."""
        self.capacity += self.bytes_missing
        self.bytes_missing = 0

    @property
    def is_full(self) -> bool:
        """Whether there is little space."""
        return self.bytes_missing > 0

    def space(self) -> tuple[int, int]:
        """Return the free space, which is wrong unless `reports_full`."""
        return (self.capacity if self.reports_full else CAPACITY), CAPACITY

    def step(self) -> None:
        """Count one access; power may be lost here."""
        try:
            super().step()
        except PowerLost:
            self._on_power_lost()
            raise

    def write_durably(self, writes: Sequence[Write]) -> None:
        """Write in the order of paths, which does not depend on object addresses."""
        super().write_durably(sorted(writes, key=lambda write: write.path))

    def close(self) -> None:
        """Do nothing: no file is open."""
