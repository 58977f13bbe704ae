"""A browser, a filled cluster and its console, shared by all tests of this folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.browser.driver import PATIENT, WIDE, browser, console, prefer, resize
from tests.browser.programs import browser_hint, find_browser
from tests.browser.shop import Shop
from tests.browser.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium import webdriver


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    if find_browser() is None:
        if os.environ.get("DOWNRANGE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"a browser is required here: {browser_hint()}", pytrace=False)
        pytest.skip(browser_hint())
    with browser() as driver:
        yield driver


@pytest.fixture(scope="session")
def shop() -> Iterator[Shop]:
    with Shop() as shop:
        yield shop


@pytest.fixture(scope="session")
def address(shop: Shop) -> Iterator[str]:
    with console(shop.name_server, "--refresh", "0.5", *PATIENT) as address:
        yield address


@pytest.fixture
def window(driver: webdriver.Chrome, address: str) -> Iterator[Window]:
    """A window without cookies; at the end, its log must have no error."""
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    resize(driver, WIDE)
    prefer(driver, "light")
    window = Window(driver, address)
    window.clear_log()
    yield window
    problems = window.problems()
    driver.get("about:blank")
    assert problems == []
