"""Check that Java is installed for Spark; install it, or print how to install it.

python scripts/ensure_java.py

On Debian and related systems, a missing Java is installed if the user is root. Everywhere else the
command to install it is printed. The exit code is always 0, because only the parts with Spark need
Java.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from downrange.pipelines.session import find_java, java_hint

#: Packages to try; the first one that the distribution has is installed.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
#: Timeout of a package command, in seconds.
TIMEOUT = 600.0


def main() -> None:
    """Search for Java; install it if it is missing and the user may do so."""
    if find_java() is not None:
        return
    if not _can_install():
        _print(java_hint())
        _print("Only the parts with Spark need Java; everything else works without it.")
        return
    _print("Java was not found; installing it for Spark.")
    if not (_install() and find_java()):
        _print(f"The installation failed. {java_hint()}")


def _can_install() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install() -> bool:
    _run("apt-get", "update")
    return any(_run("apt-get", "install", "-y", package) for package in PACKAGES)


def _run(*command: str) -> bool:
    _print("  " + " ".join(command))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _print(f"    {error}")
        return False
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        _print(f"    {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.returncode == 0


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
