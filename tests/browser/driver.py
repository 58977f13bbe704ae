"""A headless Chromium, and the console in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.browser.programs import find_browser
from tests.support.waiting import WAIT_SCALE, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--lang=en",
)
#: Long enough for a busy machine; a test that passes does not wait for them.
_STOP_TIMEOUT: Final = 60.0
_PAGE_TIMEOUT: Final = 120.0
#: Arguments of a console whose cluster is always there: an answer that comes late is no error then.
PATIENT: Final = ("--timeout", "60")
WIDE: Final = (1280, 900)
NARROW: Final = (400, 860)


@contextmanager
def browser(flags: Sequence[str] = ()) -> Generator[webdriver.Chrome]:
    """Yield a browser with an empty profile; its log has all errors of pages."""
    found = find_browser()
    assert found is not None
    program, driver_program = found
    options = Options()
    options.binary_location = program
    for flag in (*_FLAGS, *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="downrange-browser-") as profile:
        options.add_argument(f"--user-data-dir={profile}")
        options.add_experimental_option("prefs", {"intl.accept_languages": "en"})
        driver = webdriver.Chrome(options=options, service=Service(driver_program))
        try:
            driver.set_page_load_timeout(_PAGE_TIMEOUT * WAIT_SCALE)
            driver.set_script_timeout(_PAGE_TIMEOUT * WAIT_SCALE)
            resize(driver, WIDE)
            yield driver
        finally:
            driver.quit()


def resize(driver: webdriver.Chrome, size: tuple[int, int], *, scale: float = 1) -> None:
    """Give the page a size; a window cannot be narrower than 500 px, an emulated one can."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": scale, "mobile": False},
    )
    wait_until(lambda: driver.execute_script("return innerWidth") == size[0])


def prefer(driver: webdriver.Chrome, scheme: str) -> None:
    """Make the system's color scheme "dark" or "light"."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@contextmanager
def console(*arguments: str, environment: dict[str, str] | None = None) -> Generator[str]:
    """Yield the address of a console that runs in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="downrange-console-") as folder:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "downrange", "console", "--port", "0"),
                *("--audit", f"{folder}/audit.jsonl", *arguments),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # ends when the process does
            assert line.startswith("ready console="), line
            yield line.strip().partition("=")[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_TIMEOUT * WAIT_SCALE)
            process.stdout.close()
