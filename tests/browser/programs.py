"""The programs of the browser: where they are, and how to get them."""

from __future__ import annotations

import shutil
from typing import Final

#: The browser and its driver, by the names of their programs; the first ones that are found.
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
DRIVERS: Final = ("chromedriver",)


def find_browser() -> tuple[str, str] | None:
    """Return the programs of the browser and its driver; None if one is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    return None if browser is None or driver is None else (browser, driver)


def browser_hint() -> str:
    """Return how to install them."""
    return (
        "Chromium and chromedriver were not found. On Debian: apt-get install chromium "
        "chromium-driver"
    )
