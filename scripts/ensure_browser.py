"""Check that Chromium is installed for the tests of the console; install it, or print how to.

python scripts/ensure_browser.py

On Debian and related systems, a missing browser is installed if the user is root. Everywhere else
the command to install it is printed. The exit code is always 0, because only these tests need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.debian import can_install, run
from tests.browser.programs import browser_hint, find_browser


def main() -> None:
    """Search for the browser; install it if it is missing and the user may do so."""
    if find_browser() is not None:
        return
    if not can_install():
        print(browser_hint())
        print("Only the tests of the console in a browser need them.")
        return
    print("Chromium was not found; installing it for the tests of the console.", flush=True)
    run("apt-get", "update")
    if not (run("apt-get", "install", "-y", "chromium", "chromium-driver") and find_browser()):
        print(f"The installation failed. {browser_hint()}")


if __name__ == "__main__":
    main()
