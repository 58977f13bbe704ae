"""Files, as the store needs them: the only module that opens, syncs, renames or removes one.

`OsFiles` is a folder on a disk. `MemoryFiles` is the same in memory for tests and simulations,
with the bad days of a disk on request: what was not synced may be lost, torn or reordered at a
crash, and space may run out.

Rules both keep: a write is visible to reads at once and durable after `sync`; creating, renaming
and removing are durable when they return; paths are relative to the store's folder, with `/`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Final, Protocol

from downrange.errors import DiskFull, StoreError, StoreLocked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

#: How many file handles an `OsFiles` keeps open; a store may have many thousand files.
HANDLES_MAX: Final = 512
#: A system call takes at most so many buffers (IOV_MAX on Linux and macOS).
_BUFFERS_MAX: Final = 1024
#: What a disk writes whole or not at all.
SECTOR_BYTES: Final = 512


class File(Protocol):
    """One file of fixed size; unwritten bytes read as zeros and take no space."""

    @property
    def path(self) -> str:
        """Where it is, from the store's folder."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes, written or not."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from a position; fewer only at the file's end."""
        ...

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write parts back to back from a position, in as few system calls as possible.

        Raises:
            DiskFull: There is no space left; nothing of it counts as written.
        """
        ...

    def clear(self, at: int) -> None:
        """Make everything from a position on read as zeros again, durably."""
        ...

    def sync(self) -> None:
        """Return when all that was written is durable; any thread may wait for that."""
        ...


class Files(Protocol):
    """The store's folder."""

    def open(self, path: str, *, size: int | None = None) -> File:
        """Open a file; with a size, create it with that size where it is missing."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none where the folder is missing."""
        ...

    def read_all(self, path: str) -> bytes | None:
        """Return a whole file, or None where it is missing."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file so that a crash leaves the old or the new one, never a part.

        The old one stays behind as `path.bak`; a crash may leave that alone.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; a missing one is no error."""
        ...

    def space(self) -> tuple[int, int]:
        """Return the free and the total bytes of the disk."""
        ...


# ---- on a disk -----------------------------------------------------------------------------------


class OsFiles:
    """A folder on a disk, locked against a second process.

    Args:
        folder: Created where it is missing.
        handles_max: How many files are held open at once.

    Raises:
        StoreLocked: Another process has the folder.
        StoreError: The folder cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, handles_max: int = HANDLES_MAX) -> None:
        self.folder = Path(folder)
        self._handles: OrderedDict[str, int] = OrderedDict()
        self._handles_max = handles_max
        self._guard = RLock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"store folder {self.folder} cannot be used: {error}") from error
        try:
            # Java locks the first byte with a POSIX lock; the same kind keeps both out.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._lock)
            raise StoreLocked(str(self.folder)) from error
        os.pwrite(self._lock, b"lock", 0)

    def open(self, path: str, *, size: int | None = None) -> File:
        target = self.folder / path
        if size is not None and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            self._create(target, size)
        return OsFile(self, path, target.stat().st_size)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.folder / folder).iterdir())
        except FileNotFoundError:
            return []

    def read_all(self, path: str) -> bytes | None:
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.tmp")
        with open(fresh, "wb") as file:  # noqa: PTH123  # the builtin is the shortest way to fsync
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            target.replace(target.with_name(f"{target.name}.bak"))
        fresh.replace(target)
        _sync_folder(target.parent)

    def remove(self, path: str) -> None:
        target = self.folder / path
        if target.is_dir():
            for name in self.names(path):
                self.remove(f"{path}/{name}")
            target.rmdir()
        else:
            if (handle := self._handles.pop(path, None)) is not None:
                os.close(handle)
            target.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def space(self) -> tuple[int, int]:
        facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize

    def close(self) -> None:
        """Close all handles and release the folder."""
        while self._handles:
            os.close(self._handles.popitem()[1])
        os.close(self._lock)

    def handle(self, path: str) -> int:
        """Return an open handle of a file; the one that was unused longest is closed for it."""
        with self._guard:
            handle = self._handles.get(path)
            if handle is None:
                if len(self._handles) >= self._handles_max:
                    os.close(self._handles.popitem(last=False)[1])
                handle = os.open(self.folder / path, os.O_RDWR)
                self._handles[path] = handle
            else:
                self._handles.move_to_end(path)
            return handle

    def duplicate_handle(self, path: str) -> int:
        """Return a handle that the caller must close."""
        with self._guard:
            return os.dup(self.handle(path))

    @staticmethod
    def _create(target: Path, size: int) -> None:
        handle = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, size)
            os.fsync(handle)
        finally:
            os.close(handle)
        _sync_folder(target.parent)


class OsFile:
    """A file of an `OsFiles`; it holds no handle of its own."""

    __slots__ = ("_files", "path", "size")

    def __init__(self, files: OsFiles, path: str, size: int) -> None:
        self._files = files
        self.path = path
        self.size = size

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._files.handle(self.path), size, at)

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        handle = self._files.handle(self.path)
        try:
            for first in range(0, len(parts), _BUFFERS_MAX):
                at = _write_whole(handle, at, parts[first : first + _BUFFERS_MAX])
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self.path) from error
            raise

    def clear(self, at: int) -> None:
        handle = self._files.handle(self.path)
        os.ftruncate(handle, at)
        os.ftruncate(handle, self.size)
        os.fsync(handle)

    def sync(self) -> None:
        # A handle of its own: another thread may close the shared one to make room.
        handle = self._files.duplicate_handle(self.path)
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)


def _write_whole(handle: int, at: int, parts: Sequence[bytes]) -> int:
    """Write all parts and return the position behind them; a short write is gone on with."""
    wanted = sum(map(len, parts))
    written = os.pwritev(handle, parts, at)
    if written < wanted:
        rest = memoryview(b"".join(parts))
        while written < wanted:
            written += os.pwrite(handle, rest[written:], at + written)
    return at + wanted


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- in memory -----------------------------------------------------------------------------------


class MemoryFiles:
    """A folder in memory whose disk can have bad days.

    Args:
        capacity: How many bytes may be written before the disk is full; clearing gives none back.
    """

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self._files: dict[str, MemoryFile] = {}

    def open(self, path: str, *, size: int | None = None) -> File:
        file = self._files.get(path)
        if file is None:
            if size is None:
                raise FileNotFoundError(path)
            file = self._files[path] = MemoryFile(self, path, size)
        return file

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/"
        inside = [path.removeprefix(prefix) for path in self._files if path.startswith(prefix)]
        return sorted({name.split("/")[0] for name in inside})

    def read_all(self, path: str) -> bytes | None:
        file = self._files.get(path)
        return None if file is None else file.read(0, file.size)

    def replace(self, path: str, data: bytes) -> None:
        if path in self._files:
            self._files[f"{path}.bak"] = self._files[path]
        file = self._files[path] = MemoryFile(self, path, len(data))
        file.write(0, [data])
        file.sync()

    def remove(self, path: str) -> None:
        for other in [name for name in self._files if name == path or name.startswith(f"{path}/")]:
            del self._files[other]

    def space(self) -> tuple[int, int]:
        return self.capacity, max(self.capacity, 1)

    def crash(self, random: Random) -> None:
        """Lose power: of what was not synced, the disk keeps what chance decides."""
        for file in self._files.values():
            file.crash(random)


class MemoryFile:
    """A file of a `MemoryFiles`: what reads see, and what a crash would leave."""

    __slots__ = ("_content", "_durable", "_files", "_unsynced", "path", "size")

    def __init__(self, files: MemoryFiles, path: str, size: int) -> None:
        self._files = files
        self.path = path
        self.size = size
        self._content = bytearray()  # both end where the last write ended; zeros follow
        self._durable = b""
        self._unsynced: list[tuple[int, bytes]] = []

    def read(self, at: int, size: int) -> bytes:
        size = min(size, self.size - at)
        return bytes(self._content[at : at + size]).ljust(size, b"\x00")

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        data = b"".join(parts)
        if len(data) > self._files.capacity:
            raise DiskFull(self.path)
        self._files.capacity -= len(data)
        _overwrite(self._content, at, data)
        self._unsynced.append((at, data))

    def clear(self, at: int) -> None:
        del self._content[at:]
        self.sync()

    def sync(self) -> None:
        self._durable = bytes(self._content)
        self._unsynced.clear()

    def crash(self, random: Random) -> None:
        """Keep some unsynced writes, in any order, some of them only in part."""
        left = bytearray(self._durable)
        random.shuffle(self._unsynced)
        for at, data in self._unsynced:
            fate = random.random()
            if fate < 0.4:
                continue
            if fate < 0.6:
                data = data[: _torn_size(at, len(data), random)]
            _overwrite(left, at, data)
        self._content = left
        self.sync()


def _torn_size(at: int, size: int, random: Random) -> int:
    """Return how much of a write reaches the disk when it stops between two sectors."""
    sectors: list[int] = [0, *range(SECTOR_BYTES - at % SECTOR_BYTES, size, SECTOR_BYTES)]
    return random.choice(sectors)


def _overwrite(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data
