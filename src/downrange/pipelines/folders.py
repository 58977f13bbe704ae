"""Folders of pipelines: small files in them, the job that owns them, and locks.

A checkpoint or an output of another job, used by mistake, loses messages silently: Spark skips
batches that it takes for done. So each folder has a file `job.json` that names its job, and any
other job is rejected. Folders may be on this machine or on any file system that Spark reaches.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pyspark.sql import SparkSession

JOB_FILE: Final = "job.json"
_PATTERN_MARKS: Final = re.compile(r"([\[\]{}*?\\])")


class FolderBusy(RocketMQError):
    """Another process uses the folder."""


class Folder(Protocol):
    """A folder on some file system."""

    def exists(self, name: str) -> bool:
        """Whether the folder has an entry of this name."""
        ...

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all; missing folders are created."""
        ...

    def is_file(self) -> bool:
        """Whether the path is a file instead of a folder."""
        ...


def local_path(path: str) -> Path | None:
    """Return the path on this machine; None for another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    # A drive letter or a colon in a name is not a scheme: "/" follows a scheme.
    return None if parts.scheme and path.startswith(f"{parts.scheme}:/") else Path(path)


def spark_path(path: Path) -> str:
    """Return a local path for Spark, which takes paths as patterns: wildcards are escaped."""
    return "file://" + _PATTERN_MARKS.sub(r"\\\1", str(path))


def absolute(path: str) -> str:
    """Return a path that does not depend on the working directory."""
    local = local_path(path)
    return path.rstrip("/") if local is None else str(local.absolute())


def folder_of(path: str, spark: SparkSession) -> Folder:
    """Return the folder at a path."""
    local = local_path(path)
    return LocalFolder(local) if local is not None else HadoopFolder(path, spark)


class LocalFolder:
    """A folder on this machine.

    Args:
        folder: Its path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return (self._folder / name).exists()

    def read(self, name: str) -> str | None:
        """See `Folder`."""
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """See `Folder`."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)

    def is_file(self) -> bool:
        """See `Folder`."""
        return self._folder.is_file()


class HadoopFolder:
    """A folder on a Hadoop file system: HDFS, an object store.

    Hadoop does not rename onto an existing file. So the old file is set aside first, and stays
    until the new one has its place; after a crash between the two, the old one is read.

    Args:
        path: The path with its scheme.
        spark: Gives access to the file systems.
    """

    def __init__(self, path: str, spark: SparkSession) -> None:
        # The only way to these file systems from Python; Spark Connect has none.
        self._jvm: Any = getattr(spark, "_jvm", None)
        if self._jvm is None:
            raise OptionError(f"{path}: with Spark Connect only a path on this machine can be used")
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        context: Any = getattr(spark, "_jsc")  # noqa: B009
        self._files: Any = self._path.getFileSystem(context.hadoopConfiguration())

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return any(bool(self._files.exists(path)) for path in self._places(name))

    def read(self, name: str) -> str | None:
        """See `Folder`."""
        path = next((path for path in self._places(name) if self._files.exists(path)), None)
        if path is None:
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """See `Folder`."""
        target, aside = self._places(name)
        draft = self._of(f"{name}.{secrets.token_hex(4)}.tmp")
        stream = self._files.create(draft, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        if self._files.exists(target):
            self._files.delete(aside, False)  # not needed: there is a newer one
            self._rename(target, aside)
        self._rename(draft, target)
        self._files.delete(aside, False)

    def is_file(self) -> bool:
        """See `Folder`."""
        return bool(self._files.exists(self._path)) and bool(
            self._files.getFileStatus(self._path).isFile()
        )

    def _rename(self, old: Any, new: Any) -> None:
        if not self._files.rename(old, new):
            raise OptionError(f"{new.toString()} cannot be written")

    def _places(self, name: str) -> tuple[Any, Any]:
        """Return where a file is, and where it is set aside."""
        return self._of(name), self._of(f"{name}.old")

    def _of(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically; even after a power failure it is the old or the new one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# ---- owners and locks ----------------------------------------------------------------------------


def claim_checkpoint(path: str, folder: Folder, job: Mapping[str, Any]) -> str:
    """Claim a checkpoint for a job, or check that it belongs to the same job.

    Args:
        path: The path, for errors.
        folder: The checkpoint's folder.
        job: What identifies the job: topics, output. No secrets.

    Returns:
        The job's id, the same in every run.

    Raises:
        OptionError: The checkpoint belongs to another job.
    """
    way_out = "give another checkpoint, or delete the folder to start again"
    text = folder.read(JOB_FILE)
    if text is None:
        if folder.exists("offsets"):
            raise OptionError(
                f"checkpoint {path} is not of a pipeline: it has no {JOB_FILE}; {way_out}"
            )
        found: dict[str, Any] = {"id": secrets.token_hex(8), **job}
        folder.write(JOB_FILE, json.dumps(found, indent=2) + "\n")
        return str(found["id"])
    try:
        known: dict[str, Any] = json.loads(text)
        number = str(known.pop("id"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"checkpoint {path}: {JOB_FILE} is damaged; {way_out}") from None
    expected: dict[str, Any] = json.loads(json.dumps(job))  # in the form that was stored
    for name in sorted({*known, *expected}):
        if known.get(name) != expected.get(name):
            raise OptionError(
                f"checkpoint {path} belongs to another job: its {name} is {known.get(name)!r}, not "
                f"{expected.get(name)!r}; {way_out}"
            )
    return number


def claim_output(path: str, folder: Folder, job_id: str) -> None:
    """Claim an output folder for a job, or check that it belongs to the same job.

    Raises:
        OptionError: The folder belongs to another job.
    """
    owner = folder.read("_downrange/" + JOB_FILE)
    if owner is None:
        if folder.exists("_spark_metadata"):
            raise OptionError(
                f"output {path} belongs to another stream: it has _spark_metadata, but is not of "
                "this pipeline; give another output"
            )
        folder.write("_downrange/" + JOB_FILE, json.dumps({"id": job_id}) + "\n")
    elif json.loads(owner).get("id") != job_id:
        raise OptionError(
            f"output {path} was written with another checkpoint; with this one, Spark would skip "
            "new batches as already written. Give the checkpoint that was used, or another output"
        )


@contextmanager
def lock_folder(folder: Path | None, holder: str) -> Generator[None]:
    """Lock an output folder of this machine against other processes.

    Args:
        folder: The output; None for another file system, where nothing is locked.
        holder: The name of this process in the error of others, such as "the lake".

    Raises:
        FolderBusy: Another process holds the lock.
    """
    if folder is None:
        yield
        return
    import fcntl

    own = folder / "_downrange"
    own.mkdir(parents=True, exist_ok=True)
    with (own / "lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise FolderBusy(
                f"{lock.read().strip() or 'another process'} uses {folder}; stop it first"
            ) from None
        lock.truncate(0)
        lock.write(f"{holder} (process {os.getpid()})\n")
        lock.flush()
        yield
