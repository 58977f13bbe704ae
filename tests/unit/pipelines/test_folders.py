"""Folders of pipelines: their owners, and locks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from downrange.errors import OptionError
from downrange.pipelines.folders import (
    FolderBusy,
    HadoopFolder,
    LocalFolder,
    absolute,
    claim_checkpoint,
    claim_output,
    local_path,
    lock_folder,
    spark_path,
    write_durably,
)

JOB = {"pipeline": "lake", "topics": ["a", "b"], "output": "/lake"}


def test_local_paths_are_distinguished_from_others() -> None:
    assert local_path("lake") == Path("lake")
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("a:b") == Path("a:b")
    assert local_path("hdfs://host/lake") is None
    assert local_path("s3a://bucket/lake") is None
    assert absolute("s3a://bucket/lake/") == "s3a://bucket/lake"
    assert absolute("lake") == str(Path("lake").absolute())


def test_path_is_escaped_where_spark_sees_a_pattern() -> None:
    assert spark_path(Path("/a[1]/{b}*?")) == r"file:///a\[1\]/\{b\}\*\?"


class Crash(Exception):
    """The process ends here."""


class FakeHadoop:
    """The files of a Hadoop file system in memory; crashes before a given change.

    Attributes:
        files: Content by path.
        steps: The number of changes until the crash.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.steps = 1000

    def folder(self) -> HadoopFolder:
        """Return the folder as a new process sees it."""
        self.steps = 1000

        def path(parent: Any, name: str | None = None) -> Any:
            text = parent if name is None else f"{parent.toString()}/{name}"
            return SimpleNamespace(toString=lambda: text, getFileSystem=lambda _: self)

        fs = SimpleNamespace(Path=path)
        jvm = SimpleNamespace(
            org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=fs)))
        )
        context = SimpleNamespace(hadoopConfiguration=lambda: None)
        return HadoopFolder("hdfs://h/c", cast("Any", SimpleNamespace(_jvm=jvm, _jsc=context)))

    def _change(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Crash

    def exists(self, path: Any) -> bool:
        return path.toString() in self.files

    def open(self, path: Any) -> Any:
        content = self.files[path.toString()]
        return SimpleNamespace(readAllBytes=lambda: content, close=lambda: None)

    def create(self, path: Any, _is_overwritten: bool) -> io.BytesIO:
        self._change()
        files = self.files

        class Stream(io.BytesIO):
            def close(self) -> None:
                files[path.toString()] = self.getvalue()

        return Stream()

    def delete(self, path: Any, _is_recursive: bool) -> bool:
        self._change()
        return self.files.pop(path.toString(), None) is not None

    def rename(self, old: Any, new: Any) -> bool:
        self._change()
        if new.toString() in self.files or old.toString() not in self.files:
            return False
        self.files[new.toString()] = self.files.pop(old.toString())
        return True


def test_file_of_hadoop_is_the_old_or_the_new_one_after_a_crash_at_any_step() -> None:
    hadoop = FakeHadoop()
    assert not hadoop.folder().exists("job.json")
    assert hadoop.folder().read("job.json") is None
    hadoop.folder().write("job.json", "0")
    seen: list[str | None] = []
    for steps in range(20):
        new = str(steps + 1)
        folder = hadoop.folder()
        old = folder.read("job.json")
        hadoop.steps = steps
        try:
            folder.write("job.json", new)
        except Crash:
            assert hadoop.folder().read("job.json") in (old, new)
            assert hadoop.folder().exists("job.json")
        else:
            assert hadoop.folder().read("job.json") == new
        seen.append(hadoop.folder().read("job.json"))
    assert seen[0] == "0"
    assert seen[-1] == "20"
    hadoop.folder().write("job.json", "last")
    assert [name for name in hadoop.files if not name.endswith(".tmp")] == ["hdfs://h/c/job.json"]


def test_file_of_hadoop_that_cannot_be_renamed_is_an_error() -> None:
    hadoop = FakeHadoop()
    folder = hadoop.folder()
    hadoop.rename = lambda old, new: False  # type: ignore[method-assign]
    with pytest.raises(OptionError, match=r"hdfs://h/c/job\.json cannot be written"):
        folder.write("job.json", "1")


def test_job_continues_with_its_own_checkpoint(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "check")
    first = claim_checkpoint("check", folder, JOB)
    (tmp_path / "check" / "offsets").mkdir()
    assert claim_checkpoint("check", folder, JOB) == first
    assert json.loads((tmp_path / "check" / "job.json").read_text())["topics"] == ["a", "b"]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({**JOB, "topics": ["c"]}, r"its topics is \['a', 'b'\], not \['c'\]"),
        ({**JOB, "pipeline": "mirror"}, "its pipeline is 'lake', not 'mirror'"),
        ({**JOB, "label": "x"}, "its label is None, not 'x'"),
    ],
)
def test_checkpoint_of_another_job_is_refused(
    tmp_path: Path, other: dict[str, object], problem: str
) -> None:
    folder = LocalFolder(tmp_path)
    claim_checkpoint("check", folder, JOB)
    with pytest.raises(OptionError, match=problem):
        claim_checkpoint("check", folder, other)


def test_checkpoint_that_no_pipeline_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    with pytest.raises(OptionError, match=r"is not of a pipeline: it has no job\.json"):
        claim_checkpoint("check", LocalFolder(tmp_path), JOB)


@pytest.mark.parametrize("text", ["", "{}", "[]", "{"])
def test_damaged_claim_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(OptionError, match="is damaged"):
        claim_checkpoint("check", LocalFolder(tmp_path), JOB)


def test_output_and_checkpoint_belong_together(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    claim_output("out", folder, "one")
    claim_output("out", folder, "one")
    with pytest.raises(OptionError, match="was written with another checkpoint"):
        claim_output("out", folder, "two")


def test_output_of_another_stream_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(OptionError, match="belongs to another stream"):
        claim_output("out", LocalFolder(tmp_path), "one")


def test_only_one_process_uses_a_folder(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, "the lake"),
        pytest.raises(FolderBusy, match=r"the lake \(process \d+\) uses .*; stop it first"),
        lock_folder(tmp_path, "another"),
    ):
        pass
    with lock_folder(tmp_path, "another"), lock_folder(None, "no process"):
        pass


def test_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_durably(path, "old")

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
