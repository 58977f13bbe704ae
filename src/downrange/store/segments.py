"""A chain of files of equal size that together form one long sequence of bytes.

Each file is named by the position of its first byte, 20 digits. Positions never change: when the
oldest file is removed, the chain begins at a later position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import CorruptStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.store.files import Buffer, File, Files

_NAME_DIGITS = 20


class SegmentChain:
    """The segment files of one folder; each is opened on first use.

    Args:
        files: The store's folder.
        folder: The folder's path in it.
        segment_bytes: The size of each file. It must be the size that the store was written with.
        is_fresh: Whether the chain begins empty and ignores existing files.

    Raises:
        CorruptStore: A segment is missing, a file is not a segment, or has another size.
    """

    __slots__ = ("_files", "_folder", "_open", "find_open", "segment_bytes", "starts")

    def __init__(
        self, files: Files, folder: str, segment_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self._files = files
        self._folder = folder
        self.segment_bytes = segment_bytes
        names = [] if is_fresh else files.names(folder)
        #: First positions of the files, in order.
        self.starts = [_start_of(folder, name) for name in names]
        self._open: dict[int, File] = {}
        #: Returns the file that begins at a position, or None if it was not used yet: see `file`.
        self.find_open: Callable[[int], File | None] = self._open.get
        for before, after in zip(self.starts, self.starts[1:], strict=False):
            if after - before != segment_bytes:
                where = f"{folder}/{after:0{_NAME_DIGITS}}"
                raise CorruptStore(where, 0, f"does not follow {before} by {segment_bytes} bytes")

    @property
    def first(self) -> int:
        """The position of the first byte; 0 for an empty chain."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """The position behind the last byte of the last file."""
        return self.starts[-1] + self.segment_bytes if self.starts else 0

    def start_of(self, position: int) -> int:
        """Return the first position of the file that holds a position."""
        return position - position % self.segment_bytes

    def path(self, start: int) -> str:
        """Return the path of the file that begins at a position."""
        return f"{self._folder}/{start:020}"

    def extend(self, start: int) -> None:
        """Add a file to the end of the chain, unless it is part of it already."""
        if not self.starts or start > self.starts[-1]:
            self.starts.append(start)

    def file(self, start: int) -> File:
        """Return the file that begins at a position; create it if it is missing.

        Raises:
            CorruptStore: The file has another size.
        """
        file = self._open.get(start)
        if file is None:
            path = self.path(start)
            file = self._files.open(path, size=self.segment_bytes)
            if file.size != self.segment_bytes:
                problem = (
                    f"has {file.size} bytes, but the store is opened with {self.segment_bytes}"
                )
                raise CorruptStore(path, 0, problem)
            self.extend(start)
            self._open[start] = file
        return file

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes of one file; fewer at its end, none outside the chain."""
        start = position - position % self.segment_bytes
        if start < self.first or position >= self.end:
            return b""
        return self.file(start).read(position - start, size)

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write within one file; a write at the chain's end creates the next file."""
        start = position - position % self.segment_bytes
        file = self.find_open(start) or self.file(start)
        file.write(position - start, parts)

    def cut(self, position: int) -> None:
        """End the chain at a position: remove later files, and clear later bytes of its file."""
        while self.starts and self.starts[-1] >= position:
            self._files.remove(self._forget(self.starts.pop()))
        if position < self.end:
            start = self.start_of(position)
            self.file(start).clear(position - start)

    def drop_first(self) -> str:
        """Take the first file out of the chain; return its path, for the caller to remove it."""
        return self._forget(self.starts.pop(0))

    def files_between(self, begin: int, end: int) -> list[File]:
        """Return the files of the chain that hold the bytes between two positions."""
        begin = self.start_of(max(begin, self.first))
        return [self.file(at) for at in range(begin, end, self.segment_bytes)]

    def _forget(self, start: int) -> str:
        self._open.pop(start, None)
        return self.path(start)


def _start_of(folder: str, name: str) -> int:
    if len(name) != _NAME_DIGITS or not name.isdecimal():
        raise CorruptStore(f"{folder}/{name}", 0, "is not named like a segment")
    return int(name)
