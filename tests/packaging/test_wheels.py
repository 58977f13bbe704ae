"""Wheels and source are built, installed into fresh environments, and used.

The packages that Downrange needs are installed in the versions of uv.lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.build_native import NotBuilt, missing_line
from scripts.build_wheels import NATIVE, ROOT, build, build_all

BIN = Path(sys.executable).parent
TIMEOUT = 600
#: A send and a pull over sockets. Prints which path runs, and what arrived.
PROGRAM = """
import downrange as mq
from downrange.native import VERSION, path_in_use
from downrange.wire import hashes

print(path_in_use())
print(type(hashes.java_hash).__name__)
patient = mq.ProducerOptions(timeout=60)
with (
    mq.Cluster() as cluster,
    mq.Producer(cluster.name_server, group="wheel", options=patient) as producer,
):
    producer.send(mq.Message("orders", b"sent", tags="new", keys=["o-1"]))
    producer.send_batch([mq.Message("orders", b"in a batch")])
    bodies = []
    with mq.PullConsumer(cluster.name_server, group="wheel") as consumer:
        consumer.assign("orders", start="earliest")
        while len(bodies) < 2:
            bodies += [message.body.decode() for message in consumer.poll(timeout=10)]
print(sorted(bodies))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build_all(folder)
    return folder


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lock") / "constraints.txt"
    _uv("export", "--frozen", "--no-hashes", "--no-emit-project", "--quiet", "-o", str(path))
    return path


@pytest.fixture
def without_cargo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave only Python and uv on the search path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").symlink_to(BIN / "uv")
    monkeypatch.setenv("PATH", str(folder))
    assert shutil.which("cargo") is None


def _uv(*arguments: str) -> str:
    done = subprocess.run(
        [str(BIN / "uv"), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _install(what: Path, folder: Path, constraints: Path) -> Path:
    """Create an environment with a wheel or a source in it; return its Python."""
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = folder / "bin" / "python"
    options = ["--python", str(python), "--constraints", str(constraints)]
    _uv("pip", "install", "--quiet", *options, str(what))
    return python


def _lines(python: Path, folder: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [str(python), "-W", "error", "-c", PROGRAM],
        cwd=folder,
        env=os.environ | {"DOWNRANGE_PURE": "0"} | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SENT = "['in a batch', 'sent']"


def test_pure_wheel_works(built: Path, constraints: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*-py3-none-any.whl")
    assert not _modules(wheel)
    path, kind, sent = _lines(_install(wheel, tmp_path / "env", constraints), tmp_path)
    assert path.startswith("pure Python: the native part cannot be imported")
    assert (kind, sent) == ("function", SENT)


def test_native_wheel_works_and_can_be_forced_to_be_pure(
    built: Path, constraints: Path, tmp_path: Path
) -> None:
    found = list(built.glob("*-cp311-abi3-manylinux_*.whl"))
    if not found:
        pytest.skip("no native wheel: there is no cargo")
    (wheel,) = found
    assert _modules(wheel) == ["downrange/_native.abi3.so"]
    python = _install(wheel, tmp_path / "env", constraints)
    assert _lines(python, tmp_path) == ["native", "builtin_function_or_method", SENT]
    forced = _lines(python, tmp_path, DOWNRANGE_PURE="1")
    assert forced == ["pure Python: DOWNRANGE_PURE is set", "function", SENT]


def test_wheel_from_a_zip_file_is_pure(built: Path, tmp_path: Path) -> None:
    """Spark may ship packages as zip files, from which no binary can be loaded."""
    found = list(built.glob("*-cp311-abi3-manylinux_*.whl"))
    if not found:
        pytest.skip("no native wheel: there is no cargo")
    program = f"import sys; sys.path.insert(0, {str(found[0])!r})\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    path, kind, sent = done.stdout.splitlines()
    assert path.startswith("pure Python: the native part cannot be imported")
    assert (kind, sent) == ("function", SENT)


def test_source_has_all_that_a_build_needs(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    crate = {f"native/{name}" for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs")}
    assert crate | {"hatch_build.py", "scripts/build_native.py"} <= names
    assert not [name for name in names if name.endswith(".so") or "target/" in name]


@pytest.mark.usefixtures("without_cargo")
def test_source_without_cargo_becomes_a_pure_wheel(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("downrange-*")
    done = subprocess.run(
        [str(BIN / "uv"), "build", "--wheel", "--out-dir", str(tmp_path / "out"), str(unpacked)],
        env=os.environ | NATIVE,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "native part" in line]
    assert len(said) == 1, done.stderr
    assert "there is no cargo" in said[0]
    (wheel,) = (tmp_path / "out").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_failing_cargo_does_not_fail_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cargo = tmp_path / "bin" / "cargo"
    cargo.parent.mkdir()
    cargo.write_text("#!/bin/sh\necho 'error: no network' >&2\nexit 101\n")
    cargo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cargo.parent}{os.pathsep}{os.environ['PATH']}")
    wheel = build("--wheel", tmp_path / "out", NATIVE)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not _modules(wheel)


def test_line_about_a_missing_native_part_says_why_and_what_to_do() -> None:
    line = missing_line(NotBuilt("there is no cargo"))
    assert "\n" not in line
    assert "there is no cargo" in line
    assert "Install Rust" in line


def _modules(wheel: Path) -> list[str]:
    """Return the compiled modules of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith(".so")]
