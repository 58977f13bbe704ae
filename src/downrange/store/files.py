"""Files of the store: the only module that opens, syncs, renames or removes a file.

`OsFiles` is a folder on a disk. `MemoryFiles` is a folder in memory, for tests and simulations. It
has injectable disk faults: lost, torn and reordered writes at a crash, a power loss before any
step, and a full disk.

Rules of both: a write is visible to reads at once and durable after `sync`. Creating, renaming and
removing are durable when they return. Paths are relative to the store's folder, with `/`.

Only the owner thread of the store reads and writes a `File`. Other threads may call `sync` of a
`File`, and all methods of a `Files` but `open`. These open handles of their own, so that a thread
never uses a handle that another one closes.
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

#: How many file handles an `OsFiles` keeps open, if the process may open twice as many. A store may
#: have many thousand files.
HANDLES_MAX: Final = 4096
#: For more files than this, one call that syncs the whole file system is faster than one per file.
_FILES_SYNCED_ALONE_MAX: Final = 32
#: The most buffers of one system call (IOV_MAX on Linux and macOS).
_BUFFERS_MAX: Final = 1024
#: A disk writes a sector as a whole or not at all.
SECTOR_BYTES: Final = 512


Buffer: TypeAlias = bytes | bytearray | memoryview


class PowerLost(Exception):
    """The power loss that `MemoryFiles.steps_left` asked for; call `crash` next."""


class Write(NamedTuple):
    """Bytes to write to a file, which is created if it is missing; no bytes only sync it."""

    path: str
    file_bytes: int
    at: int
    data: bytes | bytearray


class File(Protocol):
    """One file of fixed size; unwritten bytes read as zeros and take no space."""

    @property
    def path(self) -> str:
        """The path, relative to the store's folder."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes, unwritten ones included."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from a position; fewer only at the file's end."""
        ...

    def write(self, at: int, parts: Sequence[Buffer]) -> None:
        """Write parts back to back from a position, in as few system calls as possible.

        Raises:
            DiskFull: There is no space left; the parts count as not written.
        """
        ...

    def clear(self, at: int) -> None:
        """Make everything from a position on read as zeros again, durably."""
        ...

    def sync(self) -> None:
        """Make all writes durable; any thread may call it."""
        ...


class Files(Protocol):
    """The store's folder."""

    def open(self, path: str, *, size: int | None = None) -> File:
        """Open a file; if a size is given, create a missing file with that size."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if the folder is missing."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether a folder exists; it stays when all files in it are removed."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder in the store's folder, if it is missing."""
        ...

    def read_all(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it is missing."""
        ...

    def write_durably(self, writes: Sequence[Write]) -> None:
        """Write to many files and return when all writes are durable.

        Raises:
            DiskFull: There is no space left; any of the writes may have been done.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Replace a whole file: a crash leaves the old one or the new one, never a part.

        The old one is kept as `path.bak`. After a crash, that may be the only one.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all its content. Does nothing if it is missing."""
        ...

    def space(self) -> tuple[int, int]:
        """Return the free bytes of the disk, and the free and used bytes together.

        As in `df` and in Java, bytes that are reserved for the system count as neither.
        """
        ...


class SyncGuard:
    """Lets no flush of a store succeed after one has failed with EIO.

    The kernel drops the pages that it could not write, and reports that once. The next sync of the
    file succeeds without them, so what they held would count as durable.

    Attributes:
        lock: Held while files of the log are synced: two flushes may sync the same file at a time,
            and only one of them is told of a failure.
    """

    __slots__ = ("_failure", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self._failure: OSError | None = None

    def check(self) -> None:
        """Check that no flush has failed so.

        Raises:
            OSError: One has, with EIO.
        """
        if self._failure is not None:
            problem = self._failure.strerror or str(self._failure)
            raise OSError(errno.EIO, f"{problem}; written data may be lost")

    def note(self, error: OSError) -> None:
        """Note why a flush has failed."""
        if error.errno == errno.EIO and self._failure is None:
            self._failure = error


# ---- on a disk -----------------------------------------------------------------------------------


#: Folders that are open in this process: the system's lock only keeps out other processes.
_open_folders: Final[set[str]] = set()


class OsFiles:
    """A folder on a disk, locked so that only one store writes to it.

    Args:
        folder: Created if it is missing.
        handles_max: How many files are kept open at once; if not given, up to `HANDLES_MAX`, as
            the limits of the process allow.

    Raises:
        StoreLocked: The folder is in use.
        StoreError: The folder cannot be created or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], *, handles_max: int | None = None) -> None:
        self.folder = Path(folder)
        self._prefix = f"{os.fspath(folder)}/"
        #: In the order of opening. The oldest is closed first, and opened again when it is used.
        self._handles: dict[str, int] = {}
        #: Returns the open handle of a path, or None: then `handle` opens one.
        self.find_handle: Callable[[str], int | None] = self._handles.get
        self._handles_max = allow_handles(HANDLES_MAX) if handles_max is None else handles_max
        self._guard = Lock()  # held while a handle is added or removed
        self._real_path = os.path.realpath(folder)
        if self._real_path in _open_folders:
            raise StoreLocked(str(self.folder))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"store folder {self.folder} cannot be used: {error}") from error
        try:
            # Java locks the first byte with a POSIX lock. The same lock keeps both out.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._lock)
            raise StoreLocked(str(self.folder)) from error
        os.pwrite(self._lock, b"lock", 0)
        _open_folders.add(self._real_path)

    def open(self, path: str, *, size: int | None = None) -> File:
        target = self._prefix + path
        try:
            found = os.stat(target).st_size  # noqa: PTH116  # often called
        except FileNotFoundError:
            if size is None:
                raise
            found = 0
        if found or size is None:  # another thread is just creating an empty one
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
        changed: dict[str, Callable[[int], None]] = {}  # path -> how to sync it
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
        _open_folders.discard(self._real_path)

    def handle(self, path: str) -> int:
        """Return an open handle of a file, valid until the owner thread asks for another one."""
        handle = self._handles.get(path)
        if handle is None:
            handle = os.open(self._prefix + path, os.O_RDWR)
            with self._guard:
                if len(self._handles) >= self._handles_max:
                    os.close(self._handles.pop(next(iter(self._handles))))
                self._handles[path] = handle
        return handle

    def full_path(self, path: str) -> str:
        """Return a path for system calls."""
        return self._prefix + path

    def _create(self, target: str, size: int) -> tuple[int, list[str]]:
        """Create a file; return a handle and the folders to sync to make it durable."""
        folder = os.path.dirname(target)  # noqa: PTH120  # often called
        changed = [folder]
        while not os.path.isdir(changed[-1]):  # noqa: PTH112
            changed.append(os.path.dirname(changed[-1]))  # noqa: PTH120
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        # Two threads may do this at once. Both set the same size, so no work is undone.
        handle = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, size)
        except OSError:
            os.close(handle)
            raise
        return handle, changed


class OsFile:
    """A file of an `OsFiles`, which holds the handle."""

    __slots__ = ("_files", "_find_handle", "path", "size")

    def __init__(self, files: OsFiles, path: str, size: int) -> None:
        self._files = files
        self._find_handle = files.find_handle
        self.path = path
        self.size = size

    def read(self, at: int, size: int) -> bytes:
        handle = self._find_handle(self.path)
        if handle is None:
            handle = self._files.handle(self.path)
        return os.pread(handle, size, at)

    def write(self, at: int, parts: Sequence[Buffer]) -> None:
        path = self.path
        handle = self._find_handle(path)
        if handle is None:
            handle = self._files.handle(path)
        if len(parts) > 1:
            _write_whole(handle, path, at, parts)
            return
        try:
            written = os.pwrite(handle, parts[0], at)
        except OSError as error:
            _check_full(error, path)
            raise
        if written < len(parts[0]):
            _write_whole(handle, path, at, parts)

    def clear(self, at: int) -> None:
        handle = self._files.handle(self.path)
        os.ftruncate(handle, at)
        os.ftruncate(handle, self.size)
        os.fsync(handle)

    def sync(self) -> None:
        _sync(self._files.full_path(self.path), os.fdatasync)


def allow_handles(wanted: int) -> int:
    """Raise the process's limit of open files if possible; return how many a store may open.

    That is at most half of the limit: connections need handles, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2 * wanted:
        unlimited = hard == resource.RLIM_INFINITY
        soft = max(soft, 2 * wanted if unlimited else min(2 * wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft // 2)


def _write_whole(handle: int, path: str, at: int, parts: Sequence[Buffer]) -> None:
    """Write all parts, and go on after a short write."""
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
        _check_full(error, path)
        raise


def _check_full(error: OSError, path: str) -> None:
    """Raise `DiskFull` if a write failed for that reason."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(path) from error


def _sync(path: str | Path, sync: Callable[[int], None]) -> None:
    """Make a file or folder durable through a new handle; a folder needs `fsync`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def _sync_file_system(handle: int) -> None:
    """Make all writes to the file system of an open file durable."""
    import ctypes  # only stores with many queues need it

    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        os.sync()
    elif system.syncfs(handle) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---- in memory -----------------------------------------------------------------------------------


class MemoryFiles:
    """A folder in memory with injectable disk faults.

    Args:
        capacity: How many bytes can be written until the disk is full; clearing frees none.

    Attributes:
        steps_left: Power is lost after this many writes, syncs and removals; None: never.
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
        """Count a write, sync or removal before it is done.

        Raises:
            PowerLost: No steps are left; it must not be done.
        """
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise PowerLost
            self.steps_left -= 1

    def crash(self, random: Random) -> None:
        """Lose power: each unsynced write is kept, torn or lost at random."""
        self.steps_left = None
        for file in self._files.values():
            file.crash(random)


class MemoryFile:
    """A file of a `MemoryFiles`: the content for reads, and the content after a crash."""

    __slots__ = ("_content", "_durable", "_files", "_unsynced", "path", "size")

    def __init__(self, files: MemoryFiles, path: str, size: int) -> None:
        self._files = files
        self.path = path
        self.size = size
        self._content = bytearray()  # both end with the last written byte; zeros follow
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
        """Keep some of the unsynced writes, in any order, and some only in part."""
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
    """Return how many bytes of a write reach the disk if it stops between two sectors."""
    sectors: list[int] = [0, *range(SECTOR_BYTES - at % SECTOR_BYTES, size, SECTOR_BYTES)]
    return random.choice(sectors)


def _overwrite(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data
