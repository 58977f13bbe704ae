"""The lists of Spark's file sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from downrange.pipelines.manifest import ManifestError, lake_files, read_manifest, replace_files
from tests.unit.pipelines.file_lists import write_list


def names(folder: Path) -> list[str]:
    return [path.name for path in lake_files(folder)]


def test_newest_condensed_list_counts_and_what_follows(tmp_path: Path) -> None:
    write_list(tmp_path, "2", "gone")
    write_list(tmp_path, "3.compact", "gone", "too")
    write_list(tmp_path, "7.compact", "a", "b")
    write_list(tmp_path, "8", "c")
    write_list(tmp_path, "9")
    write_list(tmp_path, "10", "d")
    assert names(tmp_path) == ["a", "b", "c", "d"]
    found = read_manifest(tmp_path)
    assert found.condensed == tmp_path / "_spark_metadata" / "7.compact"
    assert [one.path.name for one in found.stable] == ["a", "b"]
    assert found.files[0].partition == tmp_path / "topic=a%25b" / "date=2026-01-02"


def test_without_a_condensed_list_all_count(tmp_path: Path) -> None:
    write_list(tmp_path, "0", "a")
    write_list(tmp_path, "1", "b")
    assert names(tmp_path) == ["a", "b"]
    assert read_manifest(tmp_path).condensed is None


def test_missing_list_is_refused(tmp_path: Path) -> None:
    write_list(tmp_path, "3.compact", "a")
    write_list(tmp_path, "5", "b")
    with pytest.raises(ManifestError, match="the list of batch 4 is missing"):
        read_manifest(tmp_path)


def test_folder_without_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="it is not the output of a lake"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "v2\n",
        "v1\nno json",
        'v1\n{"path":"file:///a"}',
        'v1\n{"path":"file:///a","size":1,"action":"delete"}',
        'v1\n{"path":"hdfs://x/a","size":1,"action":"add"}',
    ],
)
def test_invalid_list_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / "0").write_text(text)
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


def test_files_are_replaced_in_one_list(tmp_path: Path) -> None:
    write_list(tmp_path, "3.compact", "a", "b", "c")
    write_list(tmp_path, "4", "d")
    before = read_manifest(tmp_path)
    gone = {one.path for one in before.stable[:2]}
    added = before.stable[0].beside("ab", 20, 5)
    after = replace_files(before, gone, [added])
    assert names(tmp_path) == ["c", "ab", "d"]
    assert read_manifest(tmp_path) == after
    assert added.facts["path"].endswith("/topic=a%2525b/date=2026-01-02/ab")
    assert (added.facts["size"], added.facts["modificationTime"]) == (20, 5)
    # With the old checksum the new list would look damaged.
    assert not (tmp_path / "_spark_metadata" / ".3.compact.crc").exists()
    assert (tmp_path / "_spark_metadata" / ".4.crc").exists()


def test_list_is_whole_when_the_replacement_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(tmp_path, "3.compact", "a", "b")
    before = read_manifest(tmp_path)

    def die(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        replace_files(before, {before.stable[0].path}, [])
    assert names(tmp_path) == ["a", "b"]
