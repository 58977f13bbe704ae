"""Build the native part of Downrange, and check it.

    python scripts/build_native.py           build src/downrange/_native.abi3.so
    python scripts/build_native.py check     format, clippy and tests of the Rust code

Without cargo both print one line and do nothing: the package works without the native part. With
`DOWNRANGE_REQUIRE_NATIVE=1` in the environment that is a failure. Only the standard library is
used, as the build of a wheel runs this file too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "native"
BUILT = CRATE / "target" / "release" / "lib_native.so"
INSTALLED = ROOT / "src" / "downrange" / "_native.abi3.so"
#: The stable interface of Python is the same for all, so the build needs none.
_BUILD_ENVIRONMENT = {"PYO3_NO_PYTHON": "1", "CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "30"}


class NotBuilt(Exception):
    """The native part cannot be built here; the text says why."""


def build(*, is_quiet: bool = False) -> Path:
    """Build the module and put it into the package.

    Args:
        is_quiet: Print nothing; the error has the last line of what cargo said.

    Returns:
        The path of the module.

    Raises:
        NotBuilt: There is no cargo, or it failed.
    """
    _run([_cargo(), "build", "--release", "--locked"], _BUILD_ENVIRONMENT, is_quiet=is_quiet)
    if not INSTALLED.exists() or INSTALLED.read_bytes() != BUILT.read_bytes():
        # Not in place: a running process may have the old file mapped.
        fresh = INSTALLED.with_name(f"{INSTALLED.name}.new")
        shutil.copyfile(BUILT, fresh)
        fresh.replace(INSTALLED)
    return INSTALLED


def check() -> None:
    """Check format and lint rules, and run the tests of the Rust code.

    Raises:
        NotBuilt: There is no cargo, or it failed.
    """
    cargo = _cargo()
    _run([cargo, "fmt", "--check"], {})
    clippy = [cargo, "clippy", "--release", "--locked", "--quiet", "--", "-D", "warnings"]
    _run(clippy, _BUILD_ENVIRONMENT)
    # Tests are programs of their own, so they need Python's library, which the module must not.
    libraries = str(sysconfig.get_config_var("LIBDIR"))
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    test = [cargo, "test", "--lib", "--locked", "--quiet", "--no-default-features"]
    _run(test, {"LD_LIBRARY_PATH": path, "PYO3_PYTHON": sys.executable})


def missing_line(error: NotBuilt) -> str:
    """Return one line for people: why there is no native part, what it costs, what to do."""
    return (
        f"the native part of Downrange is not built: {error}. Pure Python does the same, at a "
        "fraction of the speed under load. Install Rust, then `make native` or install again."
    )


def _cargo() -> str:
    if sys.platform != "linux":
        raise NotBuilt("it has been tried on Linux only")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NotBuilt("there is no cargo")
    return cargo


def _run(command: list[str], environment: dict[str, str], *, is_quiet: bool = False) -> None:
    result = subprocess.run(
        command,
        cwd=CRATE,
        env=os.environ | environment,
        stdout=subprocess.PIPE if is_quiet else None,
        stderr=subprocess.STDOUT if is_quiet else None,
        text=True,
        errors="replace",
    )
    if result.returncode != 0:
        said = (result.stdout or "").strip().splitlines()
        reason = f": {said[-1].strip()}" if said else ""
        raise NotBuilt(f"`cargo {' '.join(command[1:])}` failed{reason}")


def main() -> None:
    """Build or check."""
    is_check = sys.argv[1:] == ["check"]
    try:
        if is_check:
            check()
        else:
            build()
    except NotBuilt as error:
        is_required = os.environ.get("DOWNRANGE_REQUIRE_NATIVE", "0") not in ("", "0")
        # A toolchain that is there must find nothing wrong.
        if is_required or (is_check and shutil.which("cargo") and sys.platform == "linux"):
            sys.exit(f"native part: {error}")
        print(missing_line(error))


if __name__ == "__main__":
    main()
