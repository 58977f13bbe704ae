"""Merge the small files of a lake into large ones, while its readers always see the same rows.

For each folder of a finished day:

1. The rows of its small files are written into a large file in a staging folder, which readers
   skip.
2. The rows of the large file are counted against the small ones, and it is moved into the folder.
   No list names it yet, so it does not exist for readers.
3. The small files are recorded as retired, with the time.
4. One rename replaces the list of files: the small ones are out, the large one is in.
5. Retired files are deleted later, after a grace period for readers that use the old list.

If the process is killed before step 4, the old list is valid and the large file is left over. After
step 4, the new list is valid and the small files are left over. In both cases the next run deletes
the files that no list names. The lake must not run at the same time, as Spark keeps lists in
memory; a lock ensures that.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.folders import (
    local_path,
    lock_folder,
    spark_path,
    sync_folder,
    write_durably,
)
from downrange.pipelines.manifest import ManifestError, read_manifest, replace_files
from downrange.pipelines.options import SparkOptions
from downrange.pipelines.stream_run import (
    PipelineFailed,
    StopRequest,
    own_session,
    stop_on_signals,
    translate_errors,
)
from downrange.pipelines.summary import Progress, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from downrange.pipelines.manifest import ListedFile, Manifest
    from downrange.pipelines.stream_run import Show

_MIB: Final = 1024 * 1024
_RETIRED: Final = "_downrange/retired.json"
_STAGING: Final = "_downrange/staging"
_SETTINGS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_THREADS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Which files are merged.

    Attributes:
        output: The lake's folder, on this machine.
        target_mib: The approximate size of merged files; files of half of it or more stay.
        before: Only days before this one, in UTC; today if None.
        grace: Seconds before replaced files are deleted, for readers that still use them.
        compression: The compression of the merged files.
        spark: Where Spark runs.
    """

    output: str = field(metadata=flag("Folder of the lake.", metavar="DIR"))
    target_mib: int = field(default=256, metadata=flag("Size of merged files.", metavar="MIB"))
    before: date | None = field(
        default=None, metadata=flag("Only days before; today if not given.", metavar="DATE")
    )
    grace: float = field(
        default=3600.0,
        metadata=flag("How long replaced files stay for their readers.", metavar="SECONDS"),
    )
    compression: str = field(default="zstd", metadata=flag("Compression of merged files."))
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        if self.target_mib < 1:
            raise OptionError(f"target_mib = {self.target_mib} is less than 1")
        if self.grace < 0:
            raise OptionError(f"grace = {self.grace:g} is negative")


def run_compact(
    options: CompactOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Merge the small files of finished days into large ones.

    Args:
        options: Which files, and how.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop after the current folder; signals set it, too.

    Returns:
        The summary; `rows` is the number of rewritten rows, and the facts are `folders`,
        `files_before`, `files_after` and `deleted`.

    Raises:
        OptionError: The lake is not on this machine.
        FolderBusy: The lake runs.
        ManifestError: Its list of files cannot be read; nothing was changed.
        PipelineFailed: The rows written differ from the rows read; nothing was changed.
    """
    folder = local_path(options.output)
    if folder is None:
        raise OptionError(
            f"output {options.output} is not on this machine; compaction needs a file system where "
            "a rename replaces a file atomically"
        )
    folder = folder.absolute()
    read_manifest(folder)  # an error here comes before the start of Spark and before the lock
    stop = stop or StopRequest()
    started = time.monotonic()
    with (
        own_session("compact", spark, options.spark, _SETTINGS) as session,
        lock_folder(folder, "a compaction"),
        stop_on_signals(stop),
        translate_errors(),
    ):
        work = Compaction(folder, options, session)
        rows, folders = work.run(stop, show)
        deleted = delete_unlisted(folder, options.grace)
    return Summary(
        pipeline="compact",
        ended="stopped" if stop.is_wanted else "finished",
        rows=rows,
        seconds=time.monotonic() - started,
        facts={
            "output": str(folder),
            "folders": folders,
            "files_before": work.files_before,
            "files_after": len(read_manifest(folder).files),
            "deleted": deleted,
        },
    )


class Compaction:
    """One run over a lake that no other process writes.

    Args:
        folder: The lake.
        options: Which files, and how.
        spark: The session.
    """

    def __init__(self, folder: Path, options: CompactOptions, spark: SparkSession) -> None:
        self._folder = folder
        self._options = options
        self._spark = spark
        self._manifest = read_manifest(folder)
        self.files_before = len(self._manifest.files)

    def run(self, stop: StopRequest, show: Show | None) -> tuple[int, int]:
        """Process the folders; return the number of rewritten rows, and of folders."""
        staging = self._folder / _STAGING
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed run
        plan = plan_bins(
            self._manifest,
            self._options.before or datetime.now(UTC).date(),
            self._options.target_mib * _MIB,
        )
        rows = done = 0
        threads = min(self._spark.sparkContext.defaultParallelism, _THREADS_MAX)
        with ThreadPoolExecutor(threads) as pool:
            for partition, bins in plan.items():
                if stop.is_wanted:
                    break
                written = list(pool.map(lambda files: self._rewrite(files, staging), bins))
                self._swap([one for files in bins for one in files], [one[0] for one in written])
                rows += sum(one[1] for one in written)
                done += 1
                if show is not None:
                    where = str(partition.relative_to(self._folder))
                    show(Progress(rows=rows, batches=done, doing=f"{where}, {done}/{len(plan)}"))
        shutil.rmtree(staging, ignore_errors=True)
        return rows, done

    def _rewrite(self, files: Sequence[ListedFile], staging: Path) -> tuple[ListedFile, int]:
        """Merge files into one that no list names yet; return it and its number of rows.

        Raises:
            PipelineFailed: Its number of rows differs from theirs.
        """
        token = secrets.token_hex(8)
        aside = staging / token
        rows = self._spark.read.parquet(*[spark_path(file.path) for file in files]).coalesce(1)
        order = [name for name in ("broker_name", "queue_id", "offset") if name in rows.columns]
        if order:
            rows = rows.sortWithinPartitions(*order)
        rows.write.option("compression", self._options.compression).parquet(f"file://{aside}")
        written = list(aside.glob("*.parquet"))
        expected = sum(_row_count(file.path) for file in files)
        found = sum(map(_row_count, written))
        if len(written) != 1 or found != expected:
            raise PipelineFailed(
                f"{files[0].partition}: {expected} rows were read, but {found} were written in "
                f"{len(written)} files; nothing was changed"
            )
        target = files[0].partition / f"compacted-{token}.{self._options.compression}.parquet"
        with written[0].open("rb") as made:
            os.fsync(made.fileno())
        written[0].rename(target)
        sync_folder(target.parent)
        status = target.stat()
        return files[0].beside(target.name, status.st_size, int(status.st_mtime * 1000)), found

    def _swap(self, gone: Sequence[ListedFile], added: Sequence[ListedFile]) -> None:
        retired = read_retired(self._folder)
        retired |= {str(one.path.relative_to(self._folder)): time.time() for one in gone}
        write_durably(self._folder / _RETIRED, json.dumps(retired, indent=0))
        self._manifest = replace_files(self._manifest, {one.path for one in gone}, added)


def plan_bins(
    manifest: Manifest, before: date, target_bytes: int
) -> dict[Path, list[list[ListedFile]]]:
    """Return which files are merged, by folder. Pure.

    Only files of the condensed list can be replaced in one step; those of the last few batches are
    merged in a later run.
    """
    small: defaultdict[Path, list[ListedFile]] = defaultdict(list)
    for one in manifest.stable:
        day = day_of(one.partition)
        if one.size < target_bytes / 2 and day is not None and day < before:
            small[one.partition].append(one)
    plan: dict[Path, list[list[ListedFile]]] = {}
    for partition, files in sorted(small.items()):
        bins: list[list[ListedFile]] = [[]]
        for one in files:
            if bins[-1] and sum(each.size for each in bins[-1]) + one.size > target_bytes:
                bins.append([])
            bins[-1].append(one)
        if worth := [files for files in bins if len(files) > 1]:
            plan[partition] = worth
    return plan


def day_of(partition: Path) -> date | None:
    """Return the day of a folder `date=…`; None for others."""
    name, _, value = partition.name.partition("=")
    try:
        return date.fromisoformat(value) if name == "date" else None
    except ValueError:
        return None


def _row_count(path: Path) -> int:
    import pyarrow.parquet as pq

    count: int = pq.read_metadata(path).num_rows
    return count


# ---- files that no list names --------------------------------------------------------------------


def read_retired(folder: Path) -> dict[str, float]:
    """Return the replaced files, with the time of the replacement."""
    try:
        found: Any = json.loads((folder / _RETIRED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ManifestError(f"{folder / _RETIRED} is damaged; delete it") from error
    return {str(name): float(at) for name, at in dict(found).items()}


def delete_unlisted(folder: Path, grace: float) -> int:
    """Delete files that no list has named for `grace` seconds; return how many.

    These are replaced files, and files of interrupted batches and runs.
    """
    listed = {one.path for one in read_manifest(folder).files}
    retired = read_retired(folder)
    now, deleted = time.time(), 0
    for path in _data_files(folder):
        name = str(path.relative_to(folder))
        if path not in listed and now - _unused_since(path, name, retired) >= grace:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            retired.pop(name, None)
            deleted += 1
    left = {name: at for name, at in retired.items() if (folder / name).exists()}
    if left or (folder / _RETIRED).exists():
        write_durably(folder / _RETIRED, json.dumps(left, indent=0))
    return deleted


def _data_files(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.rglob("*.parquet")):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(("_", ".")) for part in parts):
            yield path


def _unused_since(path: Path, name: str, retired: Mapping[str, float]) -> float:
    return retired.get(name, path.stat().st_mtime)
