"""Which Java is found, and the error if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.pipelines import session
from downrange.pipelines.session import JavaMissing, find_java, java_hint, make_session

if TYPE_CHECKING:
    from pathlib import Path


def java(folder: Path, version: str | None) -> Path:
    """Make a program that prints a version like Java, or fails like the stub of macOS."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    command = "exit 1" if version is None else f"echo 'openjdk version \"{version}\" 2025' >&2"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the Javas of this machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(session, "_JAVA_HOMES", (f"{tmp_path}/jvm/*",))
    monkeypatch.setattr(session, "_on_path", lambda: None)


def test_java_home_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path / "home", "21.0.1")
    other = java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(session, "_on_path", lambda: other)
    found = find_java()
    assert found is not None
    assert (found.program, found.version, found.home) == (program, 21, tmp_path / "home")


def test_old_java_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java(tmp_path / "path", "1.8.0_402")
    monkeypatch.setattr(session, "_on_path", lambda: old)
    java(tmp_path / "jvm" / "a", None)
    new = java(tmp_path / "jvm" / "b", "17")
    found = find_java()
    assert found is not None
    assert found.program == new


def test_old_java_alone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java(tmp_path / "path", "11.0.2")
    monkeypatch.setattr(session, "_on_path", lambda: old)
    assert find_java() is None
    assert f"Java 11 ({old}) is too old for Spark; install Java 17 or newer" in java_hint()


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install openjdk-17-jre-headless"),
        ("dnf", "dnf install java-17-openjdk-headless"),
        ("apk", "apk add openjdk17-jre-headless"),
        ("pacman", "pacman -S jre17-openjdk-headless"),
    ],
)
def test_hint_is_that_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, manager: str, command: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if name == manager else None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert java_hint() == f"no Java found; install Java 17 or newer: {command}"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert java_hint().endswith(f": sudo {command}")


@pytest.mark.parametrize(
    ("system", "words"),
    [("darwin", "brew install openjdk@17"), ("win32", "winget"), ("linux", "adoptium.net")],
)
def test_hint_elsewhere(monkeypatch: pytest.MonkeyPatch, system: str, words: str) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert words in java_hint()


def test_session_without_java_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pyspark = pytest.importorskip("pyspark.sql")
    monkeypatch.setattr(pyspark.SparkSession, "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(JavaMissing, match="no Java found; install Java 17"):
        make_session("x")
