"""A window of the browser, with the words of a visitor: open, click, fill in, wait for a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from selenium import webdriver
    from selenium.webdriver.remote.webelement import WebElement


class Window:
    """A window on a console.

    Args:
        driver: The browser.
        address: Where the console is.
    """

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address
        self._allowed: tuple[str, ...] = ()

    def open(self, path: str) -> None:
        """Load a page."""
        self.driver.get(self.address + path)

    @property
    def path(self) -> str:
        """The path and query of the page."""
        return self.driver.current_url.removeprefix(self.address)

    @property
    def text(self) -> str:
        """All visible text."""
        return self.text_of("body")

    @property
    def heading(self) -> str:
        """The heading of the page."""
        return self.text_of("h1")

    def text_of(self, selector: str) -> str:
        """Return the visible text of the first element of a selector; it must be there.

        Parts of pages are replaced while they are shown. So an element is found and read in one
        step, here and in the next three methods.
        """
        return str(self._read(selector, "element.innerText")).replace("\t", " ").strip()

    def texts_of(self, selector: str) -> list[str]:
        """Return the visible texts of all elements of a selector."""
        elements = "[...document.querySelectorAll(arguments[0])]"
        texts: list[str] = self.run(f"return {elements}.map((each) => each.innerText)", selector)
        return [each.strip() for each in texts]

    def attribute(self, selector: str, name: str) -> str | None:
        """Return an attribute of the first element of a selector; None without it."""
        value: str | None = self._read(selector, f"element.getAttribute('{name}')")
        return value

    def is_shown(self, selector: str) -> bool:
        """Whether the first element of a selector is visible; it must be there."""
        return bool(self._read(selector, "element.checkVisibility()"))

    def _read(self, selector: str, expression: str) -> Any:
        script = "const element = document.querySelector(arguments[0]);"
        value, is_there = self.run(
            f"{script} return element ? [{expression}, true] : [null, false];", selector
        )
        assert is_there, f"{self.path} has no {selector}"
        return value

    def click(self, selector: str) -> None:
        """Click on the first element of a selector, also when it is just being replaced."""
        wait_until(lambda: self._clicked(selector))

    def _clicked(self, selector: str) -> bool:
        try:
            self.one(selector).click()
        except StaleElementReferenceException:
            return False
        return True

    def one(self, selector: str) -> WebElement:
        """Return the first element of a selector; it must be there, and not in a live part."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def unfold(self, id: str) -> WebElement:
        """Open a folded form; return it."""
        details = self.one(f"details#{id}")
        details.find_element(By.TAG_NAME, "summary").click()
        return details.find_element(By.TAG_NAME, "form")

    def fill(self, form: WebElement, **fields: str) -> None:
        """Fill in fields of a form."""
        for name, value in fields.items():
            field = form.find_element(By.NAME, name)
            if field.tag_name == "select":
                Select(field).select_by_value(value)
            elif field.get_attribute("type") == "checkbox":
                field.click()
            else:
                field.clear()
                field.send_keys(value)

    def send(self, form: WebElement) -> None:
        """Send a form, and wait for the page that follows."""
        self.mark()
        form.find_element(By.CSS_SELECTOR, "button").click()
        self.wait_loaded()

    def mark(self) -> None:
        """Mark the page, before something that leads to another one."""
        self.run("window.isOld = true")

    def wait_loaded(self) -> None:
        """Wait until the marked page is gone and the next one is complete."""

        def is_loaded() -> bool:
            script = "return window.isOld === undefined && document.readyState === 'complete'"
            try:
                return bool(self.run(script))
            except WebDriverException:
                return False  # between two pages

        wait_until(is_loaded)

    def wait_for(self, text: str) -> None:
        """Wait until a text is visible."""

        def is_there() -> bool:
            try:
                return text in self.text
            except WebDriverException:
                return False

        wait_until(is_there)

    def wait_for_element(self, selector: str) -> None:
        """Wait until a page that has an element of a selector is complete."""
        script = (
            "return document.readyState === 'complete'"
            " && document.querySelector(arguments[0]) !== null"
        )

        def is_there() -> bool:
            try:
                return bool(self.run(script, selector))
            except WebDriverException:
                return False  # between two pages

        wait_until(is_there)

    # ---- the log -----------------------------------------------------------------------------

    def clear_log(self) -> None:
        """Forget what the browser has logged."""
        self._log()

    def allow(self, *texts: str) -> None:
        """Accept errors with one of these texts, such as a refused request that a test makes."""
        self._allowed += texts

    def problems(self) -> list[str]:
        """Return errors and warnings of the browser's log."""
        return [
            entry["message"]
            for entry in self._log()
            if not any(text in entry["message"] for text in self._allowed)
        ]

    def _log(self) -> list[dict[str, str]]:
        driver: Any = self.driver  # this method has no types
        log: list[dict[str, str]] = driver.get_log("browser")
        return log
