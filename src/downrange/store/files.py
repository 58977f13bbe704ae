"""Files, as the store needs them: the only module that opens, syncs, renames or removes one.

`OsFiles` is a folder on a disk. `MemoryFiles` is the same in memory for tests and simulations,
with the bad days of a disk on request: what was not synced may be lost, torn or reordered at a
crash, power may go in the middle of anything, and space may run out.

Rules both keep: a write is visible to reads at once and durable after `sync`; creating, renaming
and removing are durable when they return; paths are relative to the store's folder, with `/`.

A `File` is read and written by one thread, the store's owner. Other threads may call its `sync`,
and of a `Files` all but `open`: these work with handles of their own, so that no thread ever uses a
handle that another one closes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from downrange.errors import DiskFull, StoreError, StoreLocked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

#: How many file handles an `OsFiles` keeps open, if the process may have as many twice over; a
#: store may have many thousand files.
HANDLES_MAX: Final = 4096
#: With so many files to sync, one call for the whole file system is quicker than one for each.
_FILES_SYNCED_ALONE_MAX: Final = 32
#: A system call takes at most so many buffers (IOV_MAX on Linux and macOS).
_BUFFERS_MAX: Final = 1024
#: What a disk writes whole or not at all.
SECTOR_BYTES: Final = 512


Buffer: TypeAlias = bytes | bytearray | memoryview


class PowerLost(Exception):
    """A `MemoryFiles` was told to stop here; call its `crash` next."""


class Write(NamedTuple):
    """Bytes to go into a file that is created where it is missing; none only sync it."""

    path: str
    file_bytes: int
    at: int
    data: bytes | bytearray


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

    def write(self, at: int, parts: Sequence[Buffer]) -> None:
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

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder; it stays when all that was in it is removed."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder in the store's folder, if it is missing."""
        ...

    def read_all(self, path: str) -> bytes | None:
        """Return a whole file, or None where it is missing."""
        ...

    def write_durably(self, writes: Sequence[Write]) -> None:
        """Write to many files and return when all of it is durable.

        Raises:
            DiskFull: There is no space left; any part of it may have been written.
        """
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
        """Return the bytes of the disk that may still be taken, and those with all that are taken.

        As `df` and Java count them: what the system keeps for itself is neither.
        """
        ...


# ---- on a disk -----------------------------------------------------------------------------------


#: Folders that this process has: the system's lock keeps out other processes alone.
_taken: Final[set[str]] = set()


class OsFiles:
    """A folder on a disk, locked against a second one who would write there.

    Args:
        folder: Created where it is missing.
        handles_max: How many files are held open at once; None for what the system allows, within
            reason.

    Raises:
        StoreLocked: Another process has the folder.
        StoreError: The folder cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, handles_max: int | None = None) -> None:
        self.folder = Path(folder)
        self._prefix = f"{os.fspath(folder)}/"
        #: In the order of opening: the first one goes first, and is opened again if it is in use.
        self._handles: dict[str, int] = {}
        self._handles_max = allow_handles(HANDLES_MAX) if handles_max is None else handles_max
        self._guard = Lock()  # held while a handle comes or goes
        self._place = os.path.realpath(folder)
        if self._place in _taken:
            raise StoreLocked(str(self.folder))
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
        _taken.add(self._place)

    def open(self, path: str, *, size: int | None = None) -> File:
        target = self._prefix + path
        try:
            found = os.stat(target).st_size  # noqa: PTH116  # often called
        except FileNotFoundError:
            if size is None:
                raise
            found = 0
        if found or size is None:  # an empty one is just being created by another thread
            return OsFile(self, path, found)
        handle, changed = self._create(target, size)
        os.close(handle)
        for each in [target, *changed]:
            _sync(each, os.fsync)
        return OsFile(self, path, size)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._prefix + folder))  # noqa: PTH208  # often called
        except FileNotFoundError:
            return []

    def is_folder(self, path: str) -> bool:
        return (self.folder / path).is_dir()

    def make_folder(self, path: str) -> None:
        (self.folder / path).mkdir(exist_ok=True)
        _sync(self.folder, os.fsync)

    def read_all(self, path: str) -> bytes | None:
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def write_durably(self, writes: Sequence[Write]) -> None:
        changed: dict[str, Callable[[int], None]] = {}  # how to sync what
        for path, file_bytes, at, data in writes:
            target = self._prefix + path
            changed[target] = os.fdatasync
            try:
                handle = os.open(target, os.O_RDWR)
            except FileNotFoundError:
                handle, folders = self._create(target, file_bytes)
                changed.update(dict.fromkeys(folders, os.fsync))
            try:
                _write_whole(handle, path, at, [data])
            finally:
                os.close(handle)
        if len(changed) > _FILES_SYNCED_ALONE_MAX:
            _sync_file_system(self._lock)
        else:
            for target, sync in changed.items():
                _sync(target, sync)

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
        _sync(target.parent, os.fsync)

    def remove(self, path: str) -> None:
        try:
            self._remove(path)
        except FileNotFoundError:
            return
        _sync((self.folder / path).parent, os.fsync)

    def _remove(self, path: str) -> None:
        target = self.folder / path
        if target.is_dir():
            for name in self.names(path):
                self._remove(f"{path}/{name}")
            target.rmdir()
            return
        with self._guard:
            handle = self._handles.pop(path, None)
        if handle is not None:
            os.close(handle)
        target.unlink()

    def space(self) -> tuple[int, int]:
        facts = os.statvfs(self.folder)
        taken = facts.f_blocks - facts.f_bfree
        return facts.f_bavail * facts.f_frsize, (taken + facts.f_bavail) * facts.f_frsize

    def close(self) -> None:
        """Close all handles and release the folder."""
        while self._handles:
            os.close(self._handles.popitem()[1])
        os.close(self._lock)
        _taken.discard(self._place)

    def handle(self, path: str) -> int:
        """Return an open handle of a file, good until the owner's thread asks for another one."""
        handle = self._handles.get(path)
        if handle is None:
            handle = os.open(self._prefix + path, os.O_RDWR)
            with self._guard:
                if len(self._handles) >= self._handles_max:
                    os.close(self._handles.pop(next(iter(self._handles))))
                self._handles[path] = handle
        return handle

    def full_path(self, path: str) -> str:
        """Return a path that the system understands."""
        return self._prefix + path

    def _create(self, target: str, size: int) -> tuple[int, list[str]]:
        """Create a file; return a handle and the folders that must be synced for it to stay."""
        folder = os.path.dirname(target)  # noqa: PTH120  # often called
        changed = [folder]
        while not os.path.isdir(changed[-1]):  # noqa: PTH112
            changed.append(os.path.dirname(changed[-1]))  # noqa: PTH120
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        # Two threads may do this at once; the size is the same, so neither undoes the other.
        handle = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, size)
        except OSError:
            os.close(handle)
            raise
        return handle, changed


class OsFile:
    """A file of an `OsFiles`; it holds no handle of its own."""

    __slots__ = ("_files", "path", "size")

    def __init__(self, files: OsFiles, path: str, size: int) -> None:
        self._files = files
        self.path = path
        self.size = size

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._files.handle(self.path), size, at)

    def write(self, at: int, parts: Sequence[Buffer]) -> None:
        _write_whole(self._files.handle(self.path), self.path, at, parts)

    def clear(self, at: int) -> None:
        handle = self._files.handle(self.path)
        os.ftruncate(handle, at)
        os.ftruncate(handle, self.size)
        os.fsync(handle)

    def sync(self) -> None:
        _sync(self._files.full_path(self.path), os.fdatasync)


def allow_handles(wanted: int) -> int:
    """Raise the process's limit of open files where it may be; return how many a store may take.

    That is half of the limit at most: connections need handles, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2 * wanted:
        unlimited = hard == resource.RLIM_INFINITY
        soft = max(soft, 2 * wanted if unlimited else min(2 * wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft // 2)


def _write_whole(handle: int, path: str, at: int, parts: Sequence[Buffer]) -> None:
    """Write all parts; a short write is gone on with."""
    try:
        for first in range(0, len(parts), _BUFFERS_MAX):
            together = parts if len(parts) <= _BUFFERS_MAX else parts[first : first + _BUFFERS_MAX]
            wanted = sum(map(len, together))
            written = os.pwritev(handle, together, at)
            if written < wanted:
                rest = memoryview(b"".join(together))
                while written < wanted:
                    written += os.pwrite(handle, rest[written:], at + written)
            at += wanted
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path) from error
        raise


def _sync(path: str | Path, sync: Callable[[int], None]) -> None:
    """Make a file or folder durable, through a handle of its own; a folder needs `fsync`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def _sync_file_system(handle: int) -> None:
    """Make everything durable that lies on the same file system as an open file."""
    import ctypes  # only stores with many queues need it

    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        os.sync()
    elif system.syncfs(handle) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---- in memory -----------------------------------------------------------------------------------


class MemoryFiles:
    """A folder in memory whose disk can have bad days.

    Args:
        capacity: How many bytes may be written before the disk is full; clearing gives none back.

    Attributes:
        steps_left: After so many writes, syncs and removals, power is lost; None for never.
    """

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.steps_left: int | None = None
        self._files: dict[str, MemoryFile] = {}
        self._folders: set[str] = set()

    def open(self, path: str, *, size: int | None = None) -> File:
        file = self._files.get(path)
        if file is None:
            if size is None:
                raise FileNotFoundError(path)
            file = self._files[path] = MemoryFile(self, path, size)
            parts = path.split("/")
            self._folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        return file

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/"
        inside = [path.removeprefix(prefix) for path in self._files if path.startswith(prefix)]
        return sorted({name.split("/")[0] for name in inside})

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def make_folder(self, path: str) -> None:
        self._folders.add(path)

    def read_all(self, path: str) -> bytes | None:
        file = self._files.get(path)
        return None if file is None else file.read(0, file.size)

    def write_durably(self, writes: Sequence[Write]) -> None:
        files = [self.open(write.path, size=write.file_bytes) for write in writes]
        for file, write in zip(files, writes, strict=True):
            file.write(write.at, [write.data])
        for file in files:
            file.sync()

    def replace(self, path: str, data: bytes) -> None:
        fresh = MemoryFile(self, path, len(data))
        fresh.write(0, [data])
        fresh.sync()
        if path in self._files:
            self._files[f"{path}.bak"] = self._files.pop(path)
        self.step()  # between the two renamings
        self._files[path] = fresh

    def remove(self, path: str) -> None:
        for other in [name for name in self._files if name == path or name.startswith(f"{path}/")]:
            self.step()
            del self._files[other]
        self._folders = {
            name for name in self._folders if name != path and not name.startswith(f"{path}/")
        }

    def space(self) -> tuple[int, int]:
        return self.capacity, max(self.capacity, 1)

    def step(self) -> None:
        """Count what is about to be done.

        Raises:
            PowerLost: It is not done, as there is no power.
        """
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise PowerLost
            self.steps_left -= 1

    def crash(self, random: Random) -> None:
        """Lose power: of what was not synced, the disk keeps what chance decides."""
        self.steps_left = None
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

    def write(self, at: int, parts: Sequence[Buffer]) -> None:
        self._files.step()
        data = b"".join(parts)
        if len(data) > self._files.capacity:
            raise DiskFull(self.path)
        self._files.capacity -= len(data)
        _overwrite(self._content, at, data)
        self._unsynced.append((at, data))

    def clear(self, at: int) -> None:
        self._files.step()
        del self._content[at:]
        self.sync()

    def sync(self) -> None:
        self._files.step()
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
