"""Every page in a browser: wide and narrow, light and dark, English and Chinese, by keyboard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import downrange as mq
from tests.browser.driver import NARROW, WIDE, prefer, resize
from tests.support.waiting import WAIT_SCALE, WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from tests.browser.shop import Shop
    from tests.browser.window import Window

#: Path -> a text that the page must have.
PAGES = {
    "/": "Messages per second",
    "/topics": "stock-changes",
    "/topics/orders": "billing",
    "/messages?topic=orders": "by the newest|the newest",
    "/messages?topic=orders&text=o-7": '"order": "o-7"',
    "/groups": "reporting",
    "/groups/billing": "PYTHON",
    "/groups/reporting": "clicks",
    "/dead-letters": "booking",
    "/dead-letters/booking": "payments",
    "/waiting": "remind the customer",
    "/clients": "checkout",
    "/brokers": "broker-b",
    "/brokers/broker-a": "brokerClusterName",
    "/traces": "orders",
    "/audit": "Actions taken here",
}
#: The lightness of colors, by the formula of WCAG, of every visible text and its background.
CONTRAST = """
const rgb = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const color = rgb(getComputedStyle(node).backgroundColor);
    if (color.length === 3 || color[3] > 0.99) return color;
  }
  return [255, 255, 255];
};
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
  if (!own || !node.checkVisibility() || node.disabled || node.closest("canvas")) continue;
  const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push(`${ratio} ${node.tagName} ${node.textContent.slice(0, 30)}`);
}
return found;
"""

#: The texts of visible elements to use that begin left of the window.
OUTSIDE = """
return [...document.querySelectorAll("main a, main button, main input")]
  .filter((node) => node.checkVisibility() && node.getBoundingClientRect().x < 0)
  .map((node) => node.textContent);
"""

#: The texts of elements that take more than one line.
TORN = """
return [...document.querySelectorAll(arguments[0])].filter((node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1;
}).map((node) => node.textContent);
"""


@pytest.mark.parametrize("path", PAGES)
def test_page_is_readable_wide_and_narrow_light_and_dark(window: Window, path: str) -> None:
    window.open(path)
    assert any(text in window.text for text in PAGES[path].split("|"))
    assert window.run(CONTRAST) == []
    prefer(window.driver, "dark")
    assert window.run("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert window.run(CONTRAST) == []
    resize(window.driver, NARROW)
    # Charts are drawn again after the window has its size.
    wait_until(lambda: window.run("return document.documentElement.scrollWidth") <= NARROW[0])
    assert window.run("return innerWidth") == NARROW[0]
    assert window.run(OUTSIDE) == []


@pytest.mark.parametrize("path", PAGES)
def test_page_is_in_chinese(window: Window, path: str) -> None:
    window.open(f"{path}{'&' if '?' in path else '?'}lang=zh")
    assert window.attribute("html", "lang") == "zh-CN"
    assert "控制台" in window.driver.title
    assert window.texts_of("nav a")[:4] == ["总览", "主题", "消息", "消费组"]


def test_words_of_tables_stay_whole_in_chinese(window: Window) -> None:
    resize(window.driver, NARROW)
    window.open("/clients?lang=zh")
    assert window.texts_of("tbody td:nth-child(2)")[0] == "生产者"
    assert window.run(TORN, "tbody td:nth-child(2)") == []
    window.open("/groups/billing?lang=zh")
    assert "push 集群" in window.text_of(".figures")


#: The heights of rows that have a text, and the text that is shown when the mouse is over it.
ROWS = """
return [...document.querySelectorAll("tbody tr")]
  .filter((row) => row.textContent.includes(arguments[0]))
  .map((row) => [row.offsetHeight, row.querySelector(`[title*="${arguments[0]}"]`)?.title ?? ""]);
"""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_texts_do_not_make_rows_high(
    window: Window, shop: Shop, size: tuple[int, int]
) -> None:
    key = f"long-{size[0]}-" + "k" * 200
    shop.producer.send(mq.Message("shipments", "x", keys=[key]))
    resize(window.driver, size)
    window.open("/messages?topic=shipments")
    ((height, title),) = window.run(ROWS, key)
    assert (height < 60, title) == (True, key)
    body = f"body-{size[0]} " + "words " * 60
    window.open("/topics/shipments")
    form = window.unfold("send")
    window.fill(form, body=body)
    window.send(form)
    window.open("/audit")
    ((height, _),) = window.run(ROWS, body.strip())
    assert height < 120
    command = window.one(f'td[title*="body-{size[0]} "]')
    assert window.run(TORN, "td.cut") == []
    window.run("arguments[0].focus()", command)
    assert len(window.run(TORN, "td.cut")) == 1, "the whole command is shown to the keyboard, too"


def test_page_loads_nothing_from_elsewhere(window: Window) -> None:
    window.open("/")
    wait_until(lambda: window.run("return document.querySelector('#rates canvas') !== null"))
    script = "return performance.getEntriesByType('resource').map((each) => each.name)"
    loaded = window.run(script)
    assert any("/static/" in each for each in loaded)
    assert [each for each in loaded if not each.startswith(window.address)] == []


def test_theme_and_language_are_kept(window: Window) -> None:
    window.open("/topics?search=o")
    window.click("#theme-switch")
    assert window.attribute("html", "data-theme") == "dark"
    window.open("/groups")
    assert window.attribute("html", "data-theme") == "dark"
    window.open("/topics?search=o")
    window.mark()
    window.click("[data-language]")
    window.wait_loaded()
    assert "search=o" in window.path
    assert window.heading == "主题"
    window.open("/groups")
    assert window.heading == "消费组"


def test_menu_opens_in_a_narrow_window(window: Window) -> None:
    resize(window.driver, NARROW)
    window.open("/groups")
    assert not window.is_shown("nav")
    switch = window.one("#menu-switch")
    switch.click()
    assert switch.get_attribute("aria-expanded") == "true"
    window.mark()
    window.driver.find_element(By.LINK_TEXT, "Clients").click()
    window.wait_loaded()
    assert window.heading == "Clients"


def test_names_and_heads_are_not_torn_or_cut(window: Window) -> None:
    resize(window.driver, NARROW)
    for path in ("/topics", "/waiting", "/brokers"):
        window.open(path)
        assert window.run(TORN, "tbody td:first-child a, tbody td.whole") == []
    resize(window.driver, WIDE)
    window.open("/brokers/broker-a")
    assert window.run(TORN, "#settings-rows td:first-child") == []
    window.open("/topics/orders")
    cut = "e.scrollWidth > e.clientWidth"
    script = f"return [...document.querySelectorAll('.wide')].filter((e) => {cut})"
    assert window.run(script) == []


def test_keyboard_reaches_the_content_and_shows_the_focus(window: Window) -> None:
    window.open("/topics")
    focused = window.driver.switch_to.active_element
    focused.send_keys(Keys.TAB)
    skip = window.driver.switch_to.active_element
    assert skip.text == "Skip to the content"
    skip.send_keys(Keys.ENTER)
    wait_until(lambda: window.driver.switch_to.active_element.get_attribute("id") == "main")
    window.driver.switch_to.active_element.send_keys(Keys.TAB)
    summary = window.driver.switch_to.active_element
    assert summary.tag_name == "summary"
    outline = window.run("return getComputedStyle(arguments[0]).outlineStyle", summary)
    assert outline == "solid"
    summary.send_keys(Keys.ENTER)
    wait_until(lambda: window.attribute("details#create", "open") is not None)


def test_list_is_searched_and_sorted_by_the_server(window: Window) -> None:
    window.open("/topics")
    window.mark()
    window.one("input[name=search]").send_keys("CLI" + Keys.ENTER)
    window.wait_loaded()
    assert "search=CLI" in window.path
    assert window.texts_of("tbody tr td:first-child") == ["clicks"]
    window.open("/topics")
    window.mark()
    window.click("th a[href*='sort=lag']")
    window.wait_loaded()
    assert window.text_of("tbody tr td:first-child") == "clicks"
    assert window.attribute("th[aria-sort]", "aria-sort") == "descending"


def test_message_is_shown_in_each_form(window: Window) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT * WAIT_SCALE
    window.open("/messages?topic=orders&text=o-7")
    window.mark()
    window.click("td.code a")
    window.wait_loaded()
    # The traces of both sides may still be on their way.
    while not {"send", "process"} <= set(window.texts_of(".steps strong")):
        assert time.monotonic() < deadline
        window.open(window.path)
    assert '"order": "o-7"' in window.text_of("#body-json + label + .tab")
    window.click("label[for=body-hex]")
    assert "7b 22 6f 72" in window.text_of("#body-hex + label + .tab")
    assert "region" in window.text
    assert window.texts_of(".steps strong")[0] == "send"
    assert "mq.Message(" in window.text_of("#python")
    window.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    window.run("document.querySelector('#python').parentElement.querySelector('button').click()")
    copied = wait_until(
        lambda: window.driver.execute_async_script(
            "navigator.clipboard.readText().then(arguments[0])"
        )
    )
    compile(copied, "copied", "exec")


def test_binary_body_is_hexadecimal(window: Window) -> None:
    window.open("/messages?topic=shipments&text=binary")
    window.mark()
    window.click("td.code a")
    window.wait_loaded()
    assert window.all("#body-text") == []
    assert "00 01 02 03" in window.text_of(".tab pre")


def test_hostile_message_stays_text(window: Window) -> None:
    window.open("/messages?topic=mail-out")
    assert "onerror=alert(1)" in window.text
    window.mark()
    window.driver.find_element(By.XPATH, "//tr[contains(., '<b>key')]//a").click()
    window.wait_loaded()
    assert "attacked" not in window.driver.title
    assert "<script>document.title='attacked'</script>" in window.text
    assert window.all("main script, main img") == []


def test_overview_moves_without_a_reload(window: Window, shop: Shop) -> None:
    window.open("/")
    wait_until(lambda: window.all("#rates canvas"))
    window.run("window.notReloaded = true")

    def rate() -> float | None:
        text = window.text_of("[data-figure=sent_rate]").replace(",", "")
        return None if text == "\u2013" else float(text)

    def is_seen() -> bool:
        """Send more, because each figure is shown for half a second only."""
        shop.producer.send_batch(mq.Message("clicks", f"more {each}") for each in range(100))
        return (rate() or 0) > 5

    wait_until(is_seen)
    wait_until(lambda: rate() == 0)
    assert window.text_of("[data-legend=sent]") != ""
    assert window.attribute("#state", "data-up") == "yes"
    assert window.run("return window.notReloaded") is True
    window.click("[data-span=day]")
    assert window.attribute("[data-span=day]", "aria-pressed") == "true"


def test_lag_of_a_group_moves_without_a_reload(window: Window, shop: Shop) -> None:
    window.open("/groups/reporting")
    window.run("window.notReloaded = true")
    before = int(window.text_of(".figure dd").replace(",", ""))
    shop.producer.send_batch(mq.Message("clicks", f"yet more {each}") for each in range(50))
    wait_until(lambda: int(window.text_of(".figure dd").replace(",", "")) >= before + 50)
    assert window.run("return window.notReloaded") is True


def test_waiting_messages_are_listed_and_opened(window: Window) -> None:
    window.open("/waiting")
    delayed = window.text_of("[aria-labelledby=delayed-title]")
    assert "remind the customer" in delayed
    assert "survey" in delayed
    half = window.text_of("[aria-labelledby=newest-title] tbody tr")
    assert "half an order" in half
    assert " no " in half, "it has not ended"
    window.mark()
    window.click("[aria-labelledby=delayed-title] td.code a")
    window.wait_loaded()
    assert "remind the customer" in window.text


def test_tail_follows_a_topic_with_a_filter(window: Window, shop: Shop) -> None:
    window.open("/messages?topic=stock-changes")
    form = window.one("#tail-form")
    assert form.rect["y"] < window.one("#found-title").rect["y"], "not below a long list"
    window.fill(form, kind="text", filter="lamp")
    window.click("#tail-start")
    window.wait_for("scanned 0, matched 0")
    shop.producer.send(mq.Message("stock-changes", "3 lamps <b>came</b>", keys=["s-1"]))
    shop.producer.send(mq.Message("stock-changes", "2 desks left", keys=["s-2"]))
    window.wait_for("scanned 2, matched 1")
    rows = window.all("#tail-rows tr")
    assert len(rows) == 1
    assert "3 lamps <b>came</b>" in rows[0].text
    window.click("#tail-stop")
    assert window.is_shown("#tail-start")
    window.fill(form, kind="sql", filter="a ><")
    window.click("#tail-start")
    window.allow("/events/tail")
    wait_until(lambda: window.is_shown("#tail-start"))
    assert "scanned" not in window.text_of("#tail-state")
