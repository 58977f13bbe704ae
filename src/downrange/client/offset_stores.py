"""Where a broadcast consumer keeps its offsets: in a folder, in memory, or in a store of the user.

Every member of a broadcast group reads all queues, so brokers keep no offsets for it. Methods of a
store block, and may be called from any thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from downrange.checks import check_count, check_name, check_type, wrong_type
from downrange.errors import CorruptOffsets, DiskFull, MalformedBody, OffsetsInUse, StoreError
from downrange.model import QueueId
from downrange.wire.bodies import ResetOffsetBody, decode_body

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from downrange.options.consumers import OffsetStore

#: Version of the form of a file.
_FORM: Final = 1


def release(store: OffsetStore, group: str) -> None:
    """Inform a store that a consumer is closed, if the store has a method for it."""
    method = getattr(store, "release", None)
    if method is not None:
        method(group)


class MemoryOffsets:
    """Offsets in memory: a consumer that is closed and opened in one process reads on.

    A new process begins where `start` says. A pickled copy has the same offsets, and is then on its
    own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._tables: dict[str, dict[QueueId, int]] = {}

    def __repr__(self) -> str:
        """Show the groups and how many queues each has."""
        with self._lock:
            counts = {group: len(table) for group, table in self._tables.items()}
        return f"<MemoryOffsets {counts}>"

    def __getstate__(self) -> dict[str, dict[QueueId, int]]:
        """Return the offsets without the lock."""
        with self._lock:
            return {group: dict(table) for group, table in self._tables.items()}

    def __setstate__(self, tables: dict[str, dict[QueueId, int]]) -> None:
        """Take the offsets of the original."""
        self._lock = Lock()
        self._tables = tables

    def load(self, group: str) -> dict[QueueId, int]:
        """See `OffsetStore`."""
        check_name("group", group)
        with self._lock:
            return dict(self._tables.get(group, {}))

    def save(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """See `OffsetStore`."""
        check_name("group", group)
        checked = _checked(offsets)
        with self._lock:
            self._tables.setdefault(group, {}).update(checked)


class FolderOffsets:
    """Offsets in files that can be read: one per group, replaced as a whole.

    After a crash or a loss of power, a file has the offsets of the last save or of the one before.
    A group is locked from its first `load` or `save` until `release` or `close`, so that two
    processes do not overwrite each other's offsets.

    Args:
        folder: Created if it is missing. In a container, choose one that outlives it.
        instance: Distinguishes members of the same group that use one folder.

    Raises:
        OptionError: An argument is wrong.
    """

    def __init__(self, folder: str | os.PathLike[str], *, instance: str | None = None) -> None:
        check_type("folder", folder, (str, os.PathLike), "a path")
        if instance is not None:
            check_name("instance", instance)
        self.folder = Path(folder)
        self.instance = instance
        self._lock = Lock()
        self._open: dict[str, _GroupFile] = {}

    def __repr__(self) -> str:
        """Show the arguments."""
        extra = "" if self.instance is None else f", instance={self.instance!r}"
        return f"FolderOffsets({str(self.folder)!r}{extra})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, without locks."""
        return _rebuild, (str(self.folder), self.instance)

    def __enter__(self) -> FolderOffsets:
        """Return this object; `with` releases all groups at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release all groups."""
        self.close()

    def load(self, group: str) -> dict[QueueId, int]:
        """See `OffsetStore`.

        Raises:
            OffsetsInUse: Another process, or another object of this one, uses them.
            CorruptOffsets: The file is damaged.
            StoreError: The folder or the file cannot be used.
        """
        with self._lock:
            return dict(self._file_of(group).offsets)

    def save(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """See `OffsetStore`; returns when they are on disk.

        Raises:
            DiskFull: There is no space left; the offsets of the last save are kept.
            OffsetsInUse: Another process, or another object of this one, uses them.
            CorruptOffsets: The file is damaged.
            StoreError: The folder or the file cannot be used.
        """
        checked = _checked(offsets)
        with self._lock:
            self._file_of(group).update(checked)

    def release(self, group: str) -> None:
        """Let other processes use the offsets of a group; does nothing if it is not locked."""
        check_name("group", group)
        with self._lock:
            if (file := self._open.pop(group, None)) is not None:
                file.unlock()

    def close(self) -> None:
        """Release all groups. A later `load` or `save` locks its group again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].unlock()

    def _file_of(self, group: str) -> _GroupFile:
        check_name("group", group)
        file = self._open.get(group)
        if file is None:
            file = self._open[group] = _GroupFile(self.folder, group, self.instance)
        return file


def _rebuild(folder: str, instance: str | None) -> FolderOffsets:
    return FolderOffsets(folder, instance=instance)


class _GroupFile:
    """The locked file of one group, and what is in it."""

    def __init__(self, folder: Path, group: str, instance: str | None) -> None:
        # The names are quoted, so a group cannot name a file elsewhere, and "@" stands in none.
        extra = "" if instance is None else f"@{quote(instance, safe='')}"
        self._path = folder / f"{quote(group, safe='')}{extra}.json"
        self._group = group
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _FileLock(self._path.with_suffix(".lock"), group)
        except OSError as error:
            raise _store_error(error, self._path) from error
        try:
            self.offsets = self._read()
        except BaseException:
            self._lock.release()
            raise

    def unlock(self) -> None:
        self._lock.release()

    def update(self, offsets: dict[QueueId, int]) -> None:
        merged = {**self.offsets, **offsets}
        if merged != self.offsets:
            self._write(merged)
            self.offsets = merged

    def _read(self) -> dict[QueueId, int]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _store_error(error, self._path) from error
        try:
            return msgspec.json.decode(data, type=_Offsets).by_queue()
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptOffsets(str(self._path), str(error)) from error

    def _write(self, offsets: dict[QueueId, int]) -> None:
        text = msgspec.json.format(msgspec.json.encode(_Offsets.of(self._group, offsets)), indent=2)
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with draft.open("wb") as file:
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            _sync_folder(self._path.parent)
        except BaseException as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _store_error(error, self._path) from error
            raise


#: By topic, broker and number of the queue.
_Topics: TypeAlias = dict[str, dict[str, dict[int, Annotated[int, msgspec.Meta(ge=0)]]]]


class _Offsets(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a file."""

    group: str
    offsets: _Topics
    form: int

    @staticmethod
    def of(group: str, offsets: dict[QueueId, int]) -> _Offsets:
        topics: _Topics = {}
        for queue in sorted(offsets):
            brokers = topics.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker, {})[queue.number] = offsets[queue]
        return _Offsets(group=group, offsets=topics, form=_FORM)

    def by_queue(self) -> dict[QueueId, int]:
        if self.form != _FORM:
            raise ValueError(f"its form is {self.form}, and this release reads form {_FORM}")
        return {
            QueueId(topic, broker, number): offset
            for topic, brokers in self.offsets.items()
            for broker, numbers in brokers.items()
            for number, offset in numbers.items()
        }


class _FileLock:
    """A lock on a file, which names the process that has it; it ends with the process."""

    def __init__(self, path: Path, group: str) -> None:
        self._process = os.getpid()
        # The file is never removed: a process that waits for the old one would lock nothing.
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read(20).decode("ascii", "replace").strip()
            self._file.close()
            raise OffsetsInUse(str(path), group, owner) from None
        self._file.truncate(0)
        self._file.write(b"%d\n" % self._process)
        self._file.flush()

    def release(self) -> None:
        # A child of a fork shares the lock, and must not take it from its parent.
        if os.getpid() == self._process:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _store_error(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(str(path))
    place = error.filename or path
    return StoreError(f"offsets cannot be kept in {place}: {error.strerror or error}")


def _checked(offsets: Mapping[Any, Any]) -> dict[QueueId, int]:
    if not hasattr(offsets, "items"):
        raise wrong_type("offsets", offsets, "a dict of QueueId and int")
    for queue, offset in offsets.items():
        if not isinstance(queue, QueueId):
            raise wrong_type("each key of offsets", queue, "a QueueId")
        check_count(0, f"the offset of {queue}", offset)
    return dict(offsets)


def read_java_offsets(path: str | os.PathLike[str]) -> dict[QueueId, int]:
    """Read the file of a Java broadcast consumer, for `save` of a store.

    Java keeps it as `.rocketmq_offsets/<client id>/<group>/offsets.json` in the home folder. If the
    file is missing or damaged, its copy `offsets.json.bak` is read, as by Java.

    Raises:
        CorruptOffsets: Both are damaged.
        StoreError: There is no such file, or it cannot be read.

    Example:
        ```python
        offsets = mq.FolderOffsets("/var/lib/shop/offsets")
        offsets.save("prices", mq.read_java_offsets("offsets.json"))
        ```
    """
    check_type("path", path, (str, os.PathLike), "a path")
    first = Path(path)
    try:
        return _read_java_file(first)
    except StoreError as error:
        copy = first.with_name(f"{first.name}.bak")
        if not copy.exists():
            raise
        try:
            return _read_java_file(copy)
        except StoreError:
            raise error from None


def _read_java_file(path: Path) -> dict[QueueId, int]:
    try:
        return decode_body(ResetOffsetBody, path.read_bytes()).offset_table
    except OSError as error:
        raise _store_error(error, path) from error
    except MalformedBody as error:
        raise CorruptOffsets(str(path), str(error)) from error
