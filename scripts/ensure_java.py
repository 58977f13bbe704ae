"""See that Spark will find a Java; install one where that takes no question, or say how.

python scripts/ensure_java.py

On Debian and its kin, as root, a missing Java is installed. Everywhere else the command to type is
printed. It always ends well: all but the parts with Spark works without Java.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from downrange.pipelines.session import find_java, java_hint

#: The first that the distribution has.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
#: How long a mirror may take.
TIMEOUT = 600.0


def main() -> None:
    """Look for Java, and do something about it when there is none."""
    if find_java() is not None:
        return
    if not _can_install():
        _say(java_hint())
        _say("Without it, everything but the parts with Spark works.")
        return
    _say("No Java found; Spark needs one, so it is installed now.")
    if not (_install() and find_java()):
        _say(f"That did not work. {java_hint()}")


def _can_install() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install() -> bool:
    _run("apt-get", "update")
    return any(_run("apt-get", "install", "-y", package) for package in PACKAGES)


def _run(*command: str) -> bool:
    _say("  " + " ".join(command))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"    {error}")
        return False
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        _say(f"    {said[-1] if said else f'exit code {done.returncode}'}")
    return done.returncode == 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
