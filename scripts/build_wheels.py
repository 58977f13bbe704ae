"""Build what a release uploads: the source, a pure wheel and a wheel with the native part.

    python scripts/build_wheels.py [FOLDER]

The folder is `dist` if none is given; what it has of this version is replaced. Both wheels have the
same name and version, so an installer takes the native one where its platform fits, and the pure
one elsewhere. Without a Rust toolchain the native wheel is left out, and one line says so; with
`DOWNRANGE_REQUIRE_NATIVE=1` in the environment that is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PURE = {"DOWNRANGE_PURE": "1"}
NATIVE = {"DOWNRANGE_PURE": "0"}
_TIMEOUT = 600


def main() -> None:
    """Build all files, and print their names."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("downrange-*"):
        old.unlink()
    build_all(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")


def build_all(folder: Path) -> None:
    """Build the source, the pure wheel and, if possible, the native wheel into a folder."""
    build("--sdist", folder, PURE)
    build("--wheel", folder, PURE)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build("--wheel", Path(scratch), NATIVE)
        if not wheel.name.endswith("-none-any.whl"):
            _repair(wheel, folder)
        elif os.environ.get("DOWNRANGE_REQUIRE_NATIVE", "0") not in ("", "0"):
            sys.exit("the wheel with the native part could not be built")


def build(kind: str, folder: Path, environment: dict[str, str], source: Path = ROOT) -> Path:
    """Build one file, and return its path.

    Args:
        kind: `--sdist` or `--wheel`.
        folder: Where it goes.
        environment: Variables for the build.
        source: A checkout or an unpacked sdist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    command = [_tool("uv"), "build", kind, "--out-dir", str(folder), str(source)]
    subprocess.run(command, env=os.environ | environment, check=True, timeout=_TIMEOUT)
    made = set(folder.iterdir()) - before - {folder / ".gitignore"}
    (folder / ".gitignore").unlink(missing_ok=True)
    (path,) = made
    return path


def _repair(wheel: Path, folder: Path) -> None:
    """Check which Linux systems can load the wheel, and name them in its tag."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [_tool("auditwheel"), "repair", "--wheel-dir", str(folder), str(wheel)]
    subprocess.run(command, env=os.environ | {"PATH": tools}, check=True, timeout=_TIMEOUT)


def _tool(name: str) -> str:
    """Return a program of this environment, or of the search path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        sys.exit(f"there is no {name}; run `make setup`")
    return found


if __name__ == "__main__":
    main()
