"""Compiles the Java driver once per release and version of its source."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.apache.artifacts import ApacheUnavailable, exclusive

if TYPE_CHECKING:
    from tests.apache.artifacts import Artifacts

_SOURCES = Path(__file__).parent / "java"


def compile_driver(artifacts: Artifacts) -> Path:
    """Return the folder of the compiled driver, compiling it when its source has changed.

    Raises:
        ApacheUnavailable: There is no compiler, or the compilation failed.
    """
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = artifacts.home / f"driver-{digest}"
    if classes.is_dir():
        return classes
    with exclusive(artifacts.home / "driver.lock", time.monotonic() + 120.0):
        if classes.is_dir():
            return classes
        with tempfile.TemporaryDirectory(dir=artifacts.home, prefix="compile-") as scratch:
            command = [str(artifacts.javac), "--release", "11", "-nowarn", "-encoding", "UTF-8"]
            command += ["-d", f"{scratch}/classes", "-cp", artifacts.classpath]
            run = subprocess.run(
                [*command, *map(str, sources)], capture_output=True, text=True, check=False
            )
            if run.returncode != 0:
                raise ApacheUnavailable(f"javac refused the driver:\n{run.stderr[-4000:]}")
            Path(scratch, "classes").rename(classes)
    return classes
