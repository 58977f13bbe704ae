"""Login, read-only consoles, and a cluster that goes away and comes back."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2

from downrange.console.limits import STREAMS_OF_ONE_MAX
from tests.apache.ports import draw_name_server_port
from tests.browser.driver import PATIENT, console
from tests.browser.window import Window
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from selenium import webdriver

    from tests.browser.shop import Shop

_ACCESS = """
[accounts.admin-account]
secret_key = "admin-secret"
admin = true

[accounts.shop-account]
secret_key = "shop-secret"
topics = { orders = "SUB" }
"""


@contextmanager
def _serve(folder: Path, ports: list[int]) -> Generator[subprocess.Popen[str]]:
    """Run a cluster in a process of its own, which can be killed."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "downrange", "serve", "--store", str(folder / "store")),
            *("--nameserver-port", str(ports[0]), "--broker-port", str(ports[1])),
            *("--log-level", "error"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready")
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def test_password_is_asked_for(driver: webdriver.Chrome, window: Window, shop: Shop) -> None:
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with console(shop.name_server, *PATIENT, environment=variable) as address:
        visitor = Window(driver, address)
        visitor.open("/topics/orders")
        assert visitor.path.startswith("/login?next=")
        form = visitor.one("form")
        visitor.fill(form, secret="open barley")
        window.allow("/login")
        visitor.send(form)
        assert "wrong" in visitor.text
        form = visitor.one("form")
        visitor.fill(form, secret="open sesame")
        visitor.send(form)
        assert visitor.path == "/topics/orders"
        assert "operator" in visitor.text
        visitor.send(visitor.one("form[action='/logout']"))
        assert visitor.path == "/login"
        visitor.open("/topics")
        assert visitor.path.startswith("/login")
        driver.get("about:blank")


def _log_in(visitor: Window, secret: str) -> None:
    visitor.open("/login")
    form = visitor.one("form")
    visitor.fill(form, secret=secret)
    visitor.send(form)


def test_page_of_another_site_does_not_end_the_session(
    driver: webdriver.Chrome, window: Window, shop: Shop
) -> None:
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with console(shop.name_server, *PATIENT, environment=variable) as address:
        visitor = Window(driver, address)
        _log_in(visitor, "open sesame")
        link = f"<a href='{address}/topics?search=o'>"
        form = f"<form method=post action='{address}/logout'>"
        for tag, click in ((f"{link}go</a>", "a"), (f"{form}<button>go</button></form>", "button")):
            driver.get(f"data:text/html,<!doctype html>{tag}")
            visitor.click(click)
            wait_until(lambda: driver.current_url.startswith(address))
            visitor.wait_for("operator")
            visitor.open("/topics")
            assert visitor.path == "/topics"
        driver.get("about:blank")


def test_open_page_leads_to_the_login_when_its_session_ends(
    driver: webdriver.Chrome, window: Window, shop: Shop
) -> None:
    port = ("--port", str(draw_name_server_port()))
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with console(shop.name_server, *port, *PATIENT, environment=variable) as address:
        visitor = Window(driver, address)
        _log_in(visitor, "open sesame")
        visitor.open("/topics?search=o")  # a list that is loaded again
        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        visitor.wait_for_element("input[name=secret]")
        assert visitor.path == "/login?next=%2Ftopics%3Fsearch%3Do"
        _log_in(visitor, "open sesame")
        visitor.open("/messages?topic=orders")
        visitor.click("#tail-start")
        visitor.wait_for("scanned 0")
    window.allow("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "/events")
    wait_until(lambda: "start it again" in visitor.text_of("#tail-state"))
    # The two streams of the page end one after the other.
    wait_until(lambda: "not reachable" in visitor.text_of("#state"))
    # Sessions end with the process. The page has nothing to load again but its stream.
    with console(shop.name_server, *port, *PATIENT, environment=variable):
        visitor.wait_for_element("input[name=secret]")
        assert visitor.path == "/login?next=%2Fmessages%3Ftopic%3Dorders"
        driver.get("about:blank")


def test_page_stays_when_its_session_ends_while_a_form_is_filled_in(
    driver: webdriver.Chrome, window: Window, shop: Shop
) -> None:
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with console(shop.name_server, *PATIENT, environment=variable) as address:
        visitor = Window(driver, address)
        _log_in(visitor, "open sesame")
        visitor.open("/topics/orders")
        visitor.fill(visitor.unfold("send"), body="half a message")
        visitor.run("document.activeElement.blur()")
        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        visitor.wait_for("the session has ended")
        assert visitor.one("textarea[name=body]").get_property("value") == "half a message"
        driver.get("about:blank")


def test_window_that_is_one_too_many_says_so(
    driver: webdriver.Chrome, window: Window, shop: Shop
) -> None:
    with console(shop.name_server, *PATIENT) as address, httpx2.Client(timeout=60) as http:
        streams = [
            http.send(http.build_request("GET", f"{address}/events"), stream=True)
            for _ in range(STREAMS_OF_ONE_MAX)
        ]
        assert [each.status_code for each in streams] == [200] * STREAMS_OF_ONE_MAX
        window.allow("429 (Too Many Requests)")
        visitor = Window(driver, address)
        visitor.open("/audit")
        wait_until(lambda: "too many windows are open" in visitor.text_of("#state"))
        for each in streams:
            each.close()
        wait_until(lambda: visitor.attribute("#state", "data-up") == "yes")
        assert "connected" in visitor.text_of("#state")
        driver.get("about:blank")


def test_account_without_rights_sees_no_form(
    driver: webdriver.Chrome, window: Window, shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(_ACCESS)
    with console(shop.name_server, *PATIENT, "--acl", str(file)) as address:
        visitor = Window(driver, address)
        visitor.open("/login")
        form = visitor.one("form")
        visitor.fill(form, name="shop-account", secret="shop-secret")
        visitor.send(form)
        visitor.open("/topics/orders")
        assert visitor.all("form[action^='/actions/']") == []
        assert "lacks the right" in visitor.text
        window.allow("403 (Forbidden)")
        visitor.open("/messages?topic=payments")
        assert "no SUB permission" in visitor.text
        driver.get("about:blank")


def test_console_off_loopback_is_read_only(
    driver: webdriver.Chrome, window: Window, shop: Shop
) -> None:
    with console("--host", "0.0.0.0", "--no-login", *PATIENT, shop.name_server) as address:
        visitor = Window(driver, address.replace("0.0.0.0", "127.0.0.1"))
        visitor.open("/topics/orders")
        assert visitor.all("form[action^='/actions/']") == []
        assert "read-only" in visitor.text
        driver.get("about:blank")


def test_cluster_goes_away_and_comes_back(
    driver: webdriver.Chrome, window: Window, tmp_path: Path
) -> None:
    # No outgoing connection gets these ports while the cluster is down.
    ports = [draw_name_server_port(), draw_name_server_port()]
    with (
        _serve(tmp_path, ports) as process,
        console(f"127.0.0.1:{ports[0]}", "--refresh", "0.5") as address,
    ):
        visitor = Window(driver, address)
        visitor.open("/")
        wait_until(lambda: visitor.attribute("#state", "data-up") == "yes")
        process.kill()
        process.wait()
        wait_until(lambda: visitor.is_shown("#gone"))
        assert "does not answer" in visitor.text_of("#state")
        window.allow("503 (Service Unavailable)", "504 (Gateway Timeout)")
        visitor.open("/topics")
        assert visitor.is_shown("#problem")
        assert visitor.driver.find_elements("css selector", "[data-reload-when-up]")
        with _serve(tmp_path, ports):
            # The page loads itself again when the cluster is back.
            visitor.wait_for_element("input[name=search]")
            # A poll that is late on a busy machine shows the cluster as gone for a moment.
            wait_until(
                lambda: (
                    visitor.attribute("#state", "data-up") == "yes"
                    and not visitor.is_shown("#gone")
                )
            )
        driver.get("about:blank")


def test_console_starts_before_the_cluster(
    driver: webdriver.Chrome, window: Window, tmp_path: Path
) -> None:
    # No outgoing connection gets these ports while the cluster is down.
    ports = [draw_name_server_port(), draw_name_server_port()]
    with console(f"127.0.0.1:{ports[0]}", "--refresh", "0.5") as address:
        visitor = Window(driver, address)
        visitor.open("/")
        wait_until(lambda: visitor.is_shown("#gone"))
        with _serve(tmp_path, ports):
            wait_until(lambda: visitor.attribute("#state", "data-up") == "yes")
            visitor.wait_for("broker-a")
        driver.get("about:blank")
