"""Check that promtool is there for the tests of the alert rules; get it, or print how to.

python scripts/ensure_promtool.py

On Debian and related systems, a missing one is taken from its package if the user is root. The
package itself is not installed: it would also start a Prometheus. The exit code is always 0,
because only these tests need it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.debian import can_install, run
from tests.support.promtool import PACKAGE, find_promtool, own_promtool, promtool_hint


def main() -> None:
    """Search for promtool; get it if it is missing and the user may do so."""
    if find_promtool() is not None:
        return
    if not can_install():
        print(promtool_hint())
        print("Only the tests of the alert rules need it.")
        return
    print(f"promtool was not found; taking it from the package {PACKAGE}.", flush=True)
    run("apt-get", "update")
    if not (_extract() and _works()):
        print(f"That failed. {promtool_hint()}")


def _extract() -> bool:
    """Download the package to a folder that is removed, and copy the program out of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # apt-get downloads to the current folder, as a user of its own if that may write there.
        folder.chmod(0o777)
        if not run("apt-get", "download", PACKAGE, folder=folder):
            return False
        packages = list(folder.glob("*.deb"))
        tree = folder / "tree"
        if not packages or not run("dpkg-deb", "--extract", str(packages[0]), str(tree)):
            return False
        program = tree / "usr" / "bin" / "promtool"
        if not program.is_file():
            return False
        own_promtool().write_bytes(program.read_bytes())
        own_promtool().chmod(0o755)
    return True


def _works() -> bool:
    found = find_promtool()
    if found is None:
        return False
    return subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
