"""Files on disks that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.store.files import MemoryFile, MemoryFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.store.files import Write


class FailingFile(MemoryFile):
    """A file that cannot be synced."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryFiles(), "failing", 0)
        self._error = error

    def sync(self) -> None:
        raise self._error


class FailingFiles(MemoryFiles):
    """A folder in which nothing can be made durable."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write_durably(self, writes: Sequence[Write]) -> None:
        raise self._error
