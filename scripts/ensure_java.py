"""Check that Java is installed for Spark; install it, or print how to install it.

python scripts/ensure_java.py

On Debian and related systems, a missing Java is installed if the user is root. Everywhere else the
command to install it is printed. The exit code is always 0, because only the parts with Spark need
Java.
"""

from __future__ import annotations

import sys
from pathlib import Path

from downrange.pipelines.session import find_java, java_hint

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.debian import can_install, run

#: Packages to try; the first one that the distribution has is installed.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")


def main() -> None:
    """Search for Java; install it if it is missing and the user may do so."""
    if find_java() is not None:
        return
    if not can_install():
        print(java_hint())
        print("Only the parts with Spark need Java; everything else works without it.")
        return
    print("Java was not found; installing it for Spark.", flush=True)
    if not (_install() and find_java()):
        print(f"The installation failed. {java_hint()}")


def _install() -> bool:
    run("apt-get", "update")
    return any(run("apt-get", "install", "-y", package) for package in PACKAGES)


if __name__ == "__main__":
    main()
