"""Run the unit tests and the contract tests on the embedded server with each supported Python.

    python scripts/test_pythons.py [VERSION ...]

Each Python gets an environment in `build/pythons`, with the packages of uv.lock. The unit tests run
with and without the native part. uv takes an interpreter of the search path, or downloads one. A
version that cannot be had is left out, with the reason. The free-threaded build is an attempt: some
packages have no wheel for it, so it has only the unit tests that need no extra, and its result does
not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
#: Free-threaded.
ATTEMPTS = ("3.14t",)
UV = Path(sys.executable).with_name("uv")
#: Name -> arguments of pytest, variables.
RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "unit": (["tests/unit"], {}),
    "unit, pure": (["tests/unit"], {"DOWNRANGE_PURE": "1"}),
    "contract": (["tests/contract", "-m", "not apache"], {}),
}
#: The same for attempts: the parts that need no extra.
PARTS = ("wire", "store", "filters", "server", "client", "native")
ATTEMPT_RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "unit": ([f"tests/unit/{part}" for part in PARTS], {})
}
TIMEOUT = 1800.0
_LAST_LINE = re.compile(r"^=*\s*(\d+ (?:passed|failed|error).*?)\s*=*$", re.MULTILINE)


class NotPossible(Exception):
    """A version cannot be tried; the text says why."""


@dataclass
class Tried:
    """What came of one version."""

    version: str
    python: str = ""
    path: str = ""
    results: dict[str, str] = field(default_factory=dict[str, str])
    reason: str = ""
    is_failed: bool = False


def main() -> None:
    """Try all versions, or those that are given, and print a table."""
    tried = [_try(version) for version in sys.argv[1:] or VERSIONS]
    print()
    for each in tried:
        print(f"{each.version:6} {each.python or 'left out'}: {each.reason or each.path}")
        for name, result in each.results.items():
            print(f"       {name:12} {result}")
    sys.exit(any(each.is_failed for each in tried if each.version not in ATTEMPTS))


def _try(version: str) -> Tried:
    tried = Tried(version)
    print(f"\n==== Python {version}", flush=True)
    try:
        python = _environment(version)
        tried.python = _said(python, "import sys; print(sys.version.split(' (')[0])")
        tried.path = _said(python, "from downrange.native import path_in_use as p; print(p())")
    except NotPossible as error:
        tried.reason = str(error)
        return tried
    runs = ATTEMPT_RUNS if version in ATTEMPTS else RUNS
    for name, (arguments, environment) in runs.items():
        begun = time.monotonic()
        log = FOLDER / f"{version}-{name.replace(', ', '-')}.txt"
        with log.open("wb") as output:
            code = subprocess.run(
                [str(python), "-m", "pytest", *arguments],
                cwd=ROOT,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
            ).returncode
        found = _LAST_LINE.findall(log.read_text(errors="replace"))
        result = found[-1] if found else f"no result; see {log}"
        tried.results[name] = f"{result} ({time.monotonic() - begun:.0f} s)"
        tried.is_failed |= code != 0
        print(f"{name}: {tried.results[name]}", flush=True)
    return tried


def _environment(version: str) -> Path:
    """Create or update the environment of a version, and return its Python."""
    interpreter = _interpreter(version)
    place = FOLDER / version
    place.mkdir(parents=True, exist_ok=True)
    is_attempt = version in ATTEMPTS
    extras = ["--no-dev", "--extra", "server", "--extra", "dev"] if is_attempt else ["--all-extras"]
    _uv("sync", "--frozen", "--quiet", "--python", interpreter, *extras, at=place)
    return place / "bin" / "python"


def _interpreter(version: str) -> str:
    """Return an interpreter; downloads one if there is none.

    Raises:
        NotPossible: There is none, and none can be downloaded.
    """
    find = ("python", "find", "--no-project", "--system", version)
    try:
        return _uv(*find)
    except NotPossible:
        _uv("python", "install", version)
        return _uv(*find)


def _uv(*arguments: str, at: Path | None = None) -> str:
    environment = (
        dict(os.environ) if at is None else os.environ | {"UV_PROJECT_ENVIRONMENT": str(at)}
    )
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        [str(UV), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NotPossible("; ".join(lines[-2:]) or f"uv ended with {done.returncode}")
    return done.stdout.strip()


def _said(python: Path, program: str) -> str:
    done = subprocess.run([str(python), "-c", program], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPossible(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


if __name__ == "__main__":
    main()
