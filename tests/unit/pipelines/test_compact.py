"""Which files of a lake are merged, and which are deleted."""

from __future__ import annotations

import json
import os
import time
from datetime import date
from pathlib import Path

import pytest

from downrange.pipelines.compact import day_of, delete_unlisted, plan_bins, read_retired
from downrange.pipelines.manifest import ListedFile, Manifest, ManifestError
from tests.unit.pipelines.file_lists import write_list

TODAY = date(2026, 1, 3)


def listed(day: str, name: str, size: int) -> ListedFile:
    return ListedFile(Path(f"/lake/topic=a/date={day}/{name}"), size, {})


def plan(*files: ListedFile, recent: tuple[ListedFile, ...] = ()) -> list[list[list[str]]]:
    manifest = Manifest(Path("3.compact"), files, recent)
    bins = plan_bins(manifest, TODAY, 100)
    return [[[one.path.name for one in files] for files in each] for each in bins.values()]


def test_small_files_of_a_day_become_one() -> None:
    files = [listed("2026-01-02", name, 10) for name in "abc"]
    assert plan(*files) == [[["a", "b", "c"]]]


def test_days_are_kept_apart_and_today_is_left_alone() -> None:
    assert plan(
        listed("2026-01-01", "a", 10),
        listed("2026-01-02", "b", 10),
        listed("2026-01-01", "c", 10),
        listed("2026-01-03", "d", 10),
        listed("2026-01-03", "e", 10),
    ) == [[["a", "c"]]]


def test_large_files_stay_and_bins_do_not_overflow() -> None:
    sizes = {"a": 40, "b": 40, "c": 40, "d": 40, "e": 50, "f": 49}
    files = [listed("2026-01-02", name, size) for name, size in sizes.items()]
    assert plan(*files) == [[["a", "b"], ["c", "d"]]]


def test_files_of_the_last_batches_wait() -> None:
    files = [listed("2026-01-02", name, 10) for name in "ab"]
    assert plan(files[0], recent=(files[1],)) == []


def test_folder_that_is_not_a_day_is_left_alone() -> None:
    assert day_of(Path("/lake/topic=a/date=2026-01-02")) == date(2026, 1, 2)
    assert day_of(Path("/lake/topic=a/date=__HIVE_DEFAULT_PARTITION__")) is None
    assert day_of(Path("/lake/topic=a")) is None


# ---- files that no list names --------------------------------------------------------------------


def lake(folder: Path) -> Path:
    """Make a lake whose lists name a.parquet and b.parquet; return the folder of its files."""
    write_list(folder, "3.compact", "a.parquet", "b.parquet")
    day = folder / "topic=a%25b" / "date=2026-01-02"
    day.mkdir(parents=True)
    for name in ("a", "b", "leftover", "replaced"):
        (day / f"{name}.parquet").touch()
        (day / f".{name}.parquet.crc").touch()
    (folder / "_downrange").mkdir()
    (folder / "_downrange" / "mine.parquet").touch()
    return day


def test_files_that_no_list_names_are_deleted_after_their_time(tmp_path: Path) -> None:
    day = lake(tmp_path)
    old = time.time() - 1000
    for path in day.glob("*.parquet"):
        os.utime(path, (old, old))
    retired = {str((day / "replaced.parquet").relative_to(tmp_path)): time.time()}
    (tmp_path / "_downrange" / "retired.json").write_text(json.dumps(retired))
    assert delete_unlisted(tmp_path, grace=500) == 1
    # A reader may still use the file that was just replaced.
    assert sorted(path.name for path in day.glob("*.parquet")) == [
        "a.parquet",
        "b.parquet",
        "replaced.parquet",
    ]
    assert delete_unlisted(tmp_path, grace=0) == 1
    assert sorted(path.name for path in day.iterdir()) == [
        ".a.parquet.crc",
        ".b.parquet.crc",
        "a.parquet",
        "b.parquet",
    ]
    assert read_retired(tmp_path) == {}
    assert (tmp_path / "_downrange" / "mine.parquet").exists()


def test_file_that_is_recorded_as_replaced_but_listed_stays(tmp_path: Path) -> None:
    day = lake(tmp_path)
    # A run was killed after it recorded the file, before the new list.
    retired = {str((day / "a.parquet").relative_to(tmp_path)): 0.0}
    (tmp_path / "_downrange" / "retired.json").write_text(json.dumps(retired))
    delete_unlisted(tmp_path, grace=0)
    assert (day / "a.parquet").exists()


def test_damaged_record_is_rejected(tmp_path: Path) -> None:
    lake(tmp_path)
    (tmp_path / "_downrange" / "retired.json").write_text("{")
    with pytest.raises(ManifestError, match="is damaged"):
        delete_unlisted(tmp_path, grace=0)
