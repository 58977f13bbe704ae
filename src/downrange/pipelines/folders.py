"""Folders of pipelines: small files in them, whose they are, and who works in them now.

A checkpoint or an output of another job, used by mistake, loses messages without a word: Spark
skips what it believes done. So each has a file `job.json` that says whose it is, and a job that is
another one is refused. Folders may be on this machine or on any file system that Spark reaches.
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
    """Another process works in the folder."""


class Folder(Protocol):
    """A folder."""

    def exists(self, name: str) -> bool:
        """Whether it holds a file or folder of this name."""
        ...

    def read(self, name: str) -> str | None:
        """Return the text of a file; None where there is none."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file whole, or not at all; folders on the way are made."""
        ...

    def is_file(self) -> bool:
        """Whether it is no folder, but a file."""
        ...


def local_path(path: str) -> Path | None:
    """Return the path on this machine; None if it is on another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    # A drive letter or a colon in a name is no scheme; those of file systems are followed by "/".
    return None if parts.scheme and path.startswith(f"{parts.scheme}:/") else Path(path)


def spark_path(path: Path) -> str:
    """Return a path of this machine as Spark reads it: no address, but a pattern of names."""
    return "file://" + _PATTERN_MARKS.sub(r"\\\1", str(path))


def absolute(path: str) -> str:
    """Return a path that does not depend on the working directory."""
    local = local_path(path)
    return path.rstrip("/") if local is None else str(local.absolute())


def folder_of(path: str, spark: SparkSession) -> Folder:
    """Return a folder by its path."""
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
    """A folder on a file system of Hadoop: HDFS, an object store.

    Args:
        path: With its scheme.
        spark: Knows the file systems.
    """

    def __init__(self, path: str, spark: SparkSession) -> None:
        # The only way to these file systems from Python; a session of Connect has none.
        self._jvm: Any = getattr(spark, "_jvm", None)
        if self._jvm is None:
            raise OptionError(f"{path}: only a path on this machine can be used through Connect")
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        context: Any = getattr(spark, "_jsc")  # noqa: B009
        self._files: Any = self._path.getFileSystem(context.hadoopConfiguration())

    def exists(self, name: str) -> bool:
        """See `Folder`."""
        return bool(self._files.exists(self._of(name)))

    def read(self, name: str) -> str | None:
        """See `Folder`."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._of(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """See `Folder`."""
        target = self._of(name)
        draft = self._of(f"{name}.{secrets.token_hex(4)}.tmp")
        stream = self._files.create(draft, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self._files.delete(target, False)  # a rename onto a file is refused
        if not self._files.rename(draft, target):
            raise OptionError(f"{target.toString()} cannot be written")

    def is_file(self) -> bool:
        """See `Folder`."""
        return bool(self._files.exists(self._path)) and bool(
            self._files.getFileStatus(self._path).isFile()
        )

    def _of(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def write_durably(path: Path, text: str) -> None:
    """Put a file in place of another, so that even after a power cut it is the old or the new."""
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
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# ---- whose it is ---------------------------------------------------------------------------------


def claim_checkpoint(path: str, folder: Folder, job: Mapping[str, Any]) -> str:
    """Take a checkpoint for a job, or go on with that of the same job.

    Args:
        path: For the error.
        folder: The checkpoint's folder.
        job: What makes the job what it is: topics, output. No secrets.

    Returns:
        The job's id, the same in every run.

    Raises:
        OptionError: It belongs to another job.
    """
    way_out = "give another checkpoint, or delete that folder to begin anew"
    text = folder.read(JOB_FILE)
    if text is None:
        if folder.exists("offsets"):
            raise OptionError(
                f"checkpoint {path} was not made by a pipeline: it lacks {JOB_FILE}; {way_out}"
            )
        found: dict[str, Any] = {"id": secrets.token_hex(8), **job}
        folder.write(JOB_FILE, json.dumps(found, indent=2) + "\n")
        return str(found["id"])
    try:
        known: dict[str, Any] = json.loads(text)
        number = str(known.pop("id"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"checkpoint {path}: {JOB_FILE} is damaged; {way_out}") from None
    wanted: dict[str, Any] = json.loads(json.dumps(job))  # as it looks when read back
    for name in sorted({*known, *wanted}):
        if known.get(name) != wanted.get(name):
            raise OptionError(
                f"checkpoint {path} belongs to another job: its {name} is {known.get(name)!r}, not "
                f"{wanted.get(name)!r}; {way_out}"
            )
    return number


def claim_output(path: str, folder: Folder, job_id: str) -> None:
    """Take an output folder for a job, or go on with its own.

    Raises:
        OptionError: It belongs to another job.
    """
    owner = folder.read("_downrange/" + JOB_FILE)
    if owner is None:
        if folder.exists("_spark_metadata"):
            raise OptionError(
                f"output {path} is another stream's: it holds _spark_metadata, but was not made by "
                "this pipeline; give another output"
            )
        folder.write("_downrange/" + JOB_FILE, json.dumps({"id": job_id}) + "\n")
    elif json.loads(owner).get("id") != job_id:
        raise OptionError(
            f"output {path} was written with another checkpoint; with this one, Spark would take "
            "new batches for old ones and skip them. Give the checkpoint that was used, or another "
            "output"
        )


@contextmanager
def lock_folder(folder: Path | None, holder: str) -> Generator[None]:
    """Be the only process that works in an output folder of this machine.

    Args:
        folder: The output; None if it is elsewhere, where nothing is locked.
        holder: What the other one is told: "lake".

    Raises:
        FolderBusy: Another process does.
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
                f"{lock.read().strip() or 'another process'} works in {folder}; stop it first"
            ) from None
        lock.truncate(0)
        lock.write(f"{holder} (process {os.getpid()})\n")
        lock.flush()
        yield
