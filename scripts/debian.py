"""Install Debian packages, for scripts that need a program which may be missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Timeout of a package command, in seconds.
TIMEOUT = 600.0


def can_install() -> bool:
    """Return whether this is Debian, or related to it, and the user is root."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def run(*command: str, folder: Path | None = None) -> bool:
    """Run a package command; print it, and the last line of its errors if it fails.

    Args:
        command: The command.
        folder: Where it runs; here unless given.
    """
    print("  " + " ".join(command), flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"    {error}", flush=True)
        return False
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        print(f"    {lines[-1] if lines else f'exit code {done.returncode}'}", flush=True)
    return done.returncode == 0
