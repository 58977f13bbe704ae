"""Attacks on the console: forged forms, other hosts, huge requests, guessed passwords, and more."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from downrange.console import limits
from downrange.console.action_forms import ACTIONS
from downrange.console.app import _routes
from downrange.console.events import Streams, stream
from downrange.console.failures import Forbidden
from downrange.console.refusals import RefusalLog
from downrange.console.routes.entry import safe_target
from downrange.console.security import host_name
from downrange.console.sessions import LoginLimit, Sessions, cookie_name, is_id, new_id
from downrange.console.settings import ConsoleOptions, is_loopback
from downrange.errors import OptionError
from downrange.options.cluster import ConnectionOptions
from tests.support.clock import FakeClock
from tests.unit.console.fake_view import ATTACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from downrange.console.cluster.pages.waiting import WaitingPage
    from tests.unit.console.conftest import Visitor

ROOT = Path(__file__).parents[3]
PASSWORD = "correct horse"
#: The cookie of the session; the test client asks for this port.
COOKIE = cookie_name(9877)
ACCESS = """
[accounts.admin-account]
secret_key = "admin-secret"
admin = true

[accounts.shop-account]
secret_key = "shop-secret"
topics = { orders = "PUB|SUB", bills = "PUB" }
groups = { billing = "SUB" }
"""


@pytest.fixture
def guarded(make_visitor: Callable[..., Visitor]) -> Visitor:
    return make_visitor(password=PASSWORD)


@pytest.fixture
def with_accounts(make_visitor: Callable[..., Visitor], tmp_path: Path) -> Visitor:
    path = tmp_path / "access.toml"
    path.write_text(ACCESS)
    return make_visitor(access_file=path)


def log_in(visitor: Visitor, secret: str, name: str = "", **more: str) -> Any:
    return visitor.post("/login", {"name": name, "secret": secret, **more})


# ---- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["/", "/nothing", "/session", "/static/x/console.css", "/x\n"])
def test_every_answer_has_the_headers(visitor: Visitor, address: str) -> None:
    headers = visitor.get(quote(address)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


def test_answer_to_an_unexpected_error_has_the_headers_and_no_details(visitor: Visitor) -> None:
    visitor.view.failure = ZeroDivisionError("secret detail")  # type: ignore[assignment]
    visitor.http._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    response = visitor.get("/topics")
    assert response.status_code == 500
    assert "secret detail" not in response.text
    assert "content-security-policy" in response.headers


def test_pages_are_not_kept_and_static_files_are(visitor: Visitor) -> None:
    assert visitor.get("/").headers["cache-control"] == "no-store"
    address = visitor.console.static.address("console.css")
    response = visitor.get(address)
    assert "immutable" in response.headers["cache-control"]
    tag = response.headers["etag"]
    assert visitor.get(address, headers={"if-none-match": tag}).status_code == 304
    old = visitor.get("/static/0000/console.css")
    assert old.headers["cache-control"] == "no-cache"


# ---- other hosts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9877", 200),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("[::1]:9877", 200),
        ("[fe80::1]", 200),
        ("[fe80::1%evil.com]", 400),
        ("[::1%25evil.com]:9877", 400),
        ("10.1.2.3", 200),
        ("console.example", 200),
        ("attacker.example", 400),
        ("127.0.0.1.attacker.example", 400),
        ("127.0.0.1@attacker.example", 400),
        ("localhost:80@attacker.example", 400),
        ("[attacker.example]", 400),
        ("[::1", 400),
        ("", 400),
        (":80", 400),
    ],
)
def test_host_header_of_another_site_is_refused(
    make_visitor: Callable[..., Visitor], host: str, status: int
) -> None:
    visitor = make_visitor(allowed_hosts=("Console.Example",))
    assert visitor.get("/", headers={"host": host}).status_code == status


def test_host_names_are_read_strictly() -> None:
    assert host_name("A.example.:80") == "a.example"
    assert host_name("a:80:90") is None
    assert host_name("a:٣") is None


def test_two_host_headers_are_refused(visitor: Visitor) -> None:
    headers = [("host", "127.0.0.1"), ("host", "attacker.example")]
    assert visitor.get("/", headers=headers).status_code == 400


def test_other_methods_are_refused(visitor: Visitor) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert visitor.http.request(method, "/topics").status_code == 405


# ---- forged forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "0" * 64, "other"])
def test_form_without_the_token_of_the_session_is_refused(
    visitor: Visitor, token: str | None
) -> None:
    visitor.token()
    fields = {"topic": "t"}
    if token == "other":
        fields["token"] = visitor.console.sessions.token(new_id())
    elif token is not None:
        fields["token"] = token
    response = visitor.http.post("/actions/create-topic", data=fields)
    assert response.status_code == 403
    assert visitor.view.done == []


def test_token_without_its_cookie_is_refused(visitor: Visitor) -> None:
    token = visitor.token()
    visitor.http.cookies.clear()
    response = visitor.http.post("/actions/create-topic", data={"topic": "t", "token": token})
    assert response.status_code == 403
    assert visitor.view.done == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_form_of_another_site_is_refused_even_with_a_token(
    visitor: Visitor, headers: dict[str, str]
) -> None:
    response = visitor.post("/actions/create-topic", {"topic": "t"}, headers=headers)
    assert response.status_code == 403
    assert visitor.view.done == []
    same = {"origin": "http://127.0.0.1:9877", "sec-fetch-site": "same-origin"}
    assert visitor.post("/actions/create-topic", {"topic": "t"}, headers=same).status_code == 303


def test_every_post_needs_a_token(visitor: Visitor) -> None:
    for address in ("/actions/create-topic", "/login", "/logout"):
        assert visitor.http.post(address, data={"topic": "t"}).status_code == 403


def test_refused_forms_are_logged(
    visitor: Visitor, make_visitor: Callable[..., Visitor], caplog: pytest.LogCaptureFixture
) -> None:
    def post(address: str, headers: dict[str, str] | None = None, content: bytes = b"") -> str:
        caplog.clear()
        visitor.clock.seconds += limits.REFUSAL_LOG_SECONDS
        visitor.http.post(address, headers=headers, content=content)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        return record.getMessage()

    form = {"content-type": "application/x-www-form-urlencoded"}
    start = "refused: POST /actions/create-topic from testclient"
    other = {"origin": "http://attacker.example"}
    forged = post("/actions/create-topic", other)
    assert forged == (
        f"{start}, made by a page of http://attacker.example: "
        "the request was made by a page of another site"
    )
    assert "no valid token" in post("/actions/create-topic", form, b"topic=t")
    assert "not UTF-8" in post("/actions/create-topic", form, b"topic=%ff")
    assert "content type" in post("/login")
    visitor = make_visitor(password=PASSWORD)
    assert post("/actions/create-topic", form) == f"{start}: it needs a login"
    assert list(visitor.console.audit.newest()) == [], "their sender is not known"


def test_refused_forms_are_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    log = RefusalLog(clock)
    for _ in range(100):
        log.add("10.0.0.1", "/actions/x", None, "it is forged")
    assert len(caplog.records) == 1
    clock.seconds += limits.REFUSAL_LOG_SECONDS
    log.add("10.0.0.1", "/a\nERROR", "x\n", "it is forged")
    line = caplog.messages[1]
    assert line.endswith("; 99 more since the last line")
    assert "\n" not in line
    clock.seconds += limits.REFUSAL_LOG_SECONDS
    for number in range(limits.REFUSAL_ADDRESSES_MAX + 5):
        log.add(f"10.0.1.{number}", "/actions/x", None, "it is forged")
    assert len(caplog.records) == 2 + limits.REFUSAL_LINES_MAX
    assert len(log._sources) == limits.REFUSAL_ADDRESSES_MAX


def test_json_and_multipart_bodies_are_refused(visitor: Visitor) -> None:
    token = {"x-downrange-token": visitor.token()}
    as_json = visitor.http.post("/actions/create-topic", json={"topic": "t"}, headers=token)
    assert as_json.status_code == 400
    files = {"topic": ("t", b"t")}
    assert visitor.http.post("/actions/create-topic", files=files, headers=token).status_code == 400
    assert visitor.view.done == []


def test_cookies_come_with_links_of_other_sites_and_are_not_for_scripts(
    visitor: Visitor, make_visitor: Callable[..., Visitor]
) -> None:
    """Strict cookies do not come with such a link, so that it would lead to the login."""
    response = visitor.get("/?lang=zh")
    for cookie in response.headers.get_list("set-cookie"):
        assert "httponly" in cookie.lower()
        assert "samesite=lax" in cookie.lower()
        assert "secure" not in cookie.lower()
    assert len(response.headers.get_list("set-cookie")) == 2
    visitor.http.cookies.clear()
    assert "secure" in visitor.get("https://127.0.0.1/").headers["set-cookie"].lower()


def test_form_of_another_site_does_not_replace_the_session(guarded: Visitor) -> None:
    """Browsers leave the cookie out of it, so the answer must not set a new one."""
    log_in(guarded, PASSWORD)
    kept = guarded.http.cookies[COOKIE]
    guarded.http.cookies.clear()
    headers = {"origin": "http://attacker.example", "sec-fetch-site": "cross-site"}
    for address in ("/logout", "/login", "/actions/create-topic", "/nothing"):
        response = guarded.http.post(
            address, data={"topic": "t"}, headers=headers, follow_redirects=False
        )
        assert response.status_code in (303, 403)
        assert "set-cookie" not in response.headers
    guarded.http.cookies.set(COOKIE, kept)
    assert guarded.get("/topics").status_code == 200


def test_no_get_changes_anything(guarded: Visitor) -> None:
    """Links of other sites come with the session: this is safe only if they change nothing."""
    log_in(guarded, PASSWORD)
    session = guarded.http.cookies[COOKIE]
    values = {"topic": "t", "group": "g", "id": "1", "typed": "t", "body": "x", "to": "earliest"}
    query = urlencode({**values, "token": guarded.token(), "name": "n", "secret": "s"})
    names = {"name": "delete-topic", "version": "0", "topic": "t", "group": "g", "broker": "b"}
    for route in _routes(guarded.console):
        address = re.sub(r"\{(\w+)(:path)?\}", lambda found: names[found[1]], route.path)
        response = guarded.get(f"{address}?{query}")
        has_get = "GET" in (route.methods or ())
        assert has_get or response.status_code in (404, 405), address
    for name in ACTIONS:
        assert guarded.get(f"/actions/{name}?{query}").status_code == 404
        assert guarded.http.head(f"/actions/{name}?{query}").status_code == 404
    assert guarded.view.done == []
    assert list(guarded.console.audit.newest()) == []
    assert guarded.http.cookies[COOKIE] == session
    assert guarded.get("/topics").status_code == 200, "still logged in"


def test_wrong_session_cookies_are_replaced(visitor: Visitor) -> None:
    for value in ("x", "../../etc/passwd", "A" * 64, "0" * 63):
        assert not is_id(value)
        visitor.http.cookies.clear()
        visitor.http.cookies.set(COOKIE, value)
        assert COOKIE in visitor.get("/").headers["set-cookie"]


# ---- huge requests -------------------------------------------------------------------------------


def test_huge_form_is_refused_before_it_is_read(visitor: Visitor) -> None:
    response = visitor.post("/actions/send-message", {"body": "x" * (limits.FORM_BYTES_MAX + 1)})
    assert response.status_code == 413

    def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 100_000

    headers = {"content-type": "application/x-www-form-urlencoded"}
    streamed = visitor.http.post("/actions/send-message", content=pieces(), headers=headers)
    assert streamed.status_code == 413, "also without a length"
    lying = visitor.http.post("/login", content=b"x", headers={"content-length": "-5"})
    assert lying.status_code == 413


def test_huge_numbers_are_refused(visitor: Visitor) -> None:
    """int() refuses more than 4300 digits with an error of its own."""
    for number in ("9" * 5000, "0" * 11 + "1" + "0" * 5000, "0" * 5000 + "1"):
        for address in ("/topics?size=", "/topics?page=", "/messages?topic=t&rows="):
            assert visitor.get(f"{address}{number}").status_code == 400
        lying = visitor.http.post("/login", content=b"x", headers={"content-length": number})
        assert lying.status_code == 413
    assert visitor.get("/topics?size=000000000050").status_code == 200


def test_form_with_too_many_or_too_long_fields_is_refused(visitor: Visitor) -> None:
    many = {"id": ["1"] * (limits.FORM_FIELDS_MAX + 1), "group": "g"}
    response = visitor.post("/actions/resend-dead-letters", many)
    assert response.status_code == 400
    assert "fields" in response.text
    response = visitor.post("/actions/create-topic", {"topic": "t" * 5000})
    assert response.status_code == 400
    body = visitor.post("/actions/send-message", {"topic": "t", "body": "b" * 1_000_000})
    assert body.status_code == 303, "a body may be long"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert visitor.http.post("/login", content=b"a=%ff", headers=headers).status_code == 400
    assert visitor.http.post("/login", content=b"a=\xff", headers=headers).status_code == 400


def test_streams_are_limited(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    with streams.opened("a"):
        streams.check("a")
    assert streams._open == {}
    monkeypatch.setattr(limits, "STREAMS_OF_ONE_MAX", 0)
    response = visitor.get("/events", headers={"accept": "application/json"})
    assert response.status_code == 429
    monkeypatch.setattr(limits, "STREAMS_OF_ONE_MAX", 10)
    monkeypatch.setattr(limits, "STREAMS_MAX", 0)
    assert visitor.get("/events/tail?topic=t").status_code == 429


# ---- paths and redirects -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/%2e%2e/app.py",
        "....//app.py",
        "/etc/passwd",
        "vendor/../../app.py",
        "console.css%00.js",
        "..\\app.py",
    ],
)
def test_path_of_a_request_reaches_no_other_file(visitor: Visitor, name: str) -> None:
    version = visitor.console.static.version
    response = visitor.get(f"/static/{version}/{name}")
    assert response.status_code == 404
    assert "import" not in response.text


@pytest.mark.parametrize(
    "target",
    [
        "http://attacker.example/",
        "//attacker.example",
        "/\\attacker.example",
        "/\t/attacker.example",
        "\\\\attacker.example",
        "javascript:alert(1)",
        "/x\r\nset-cookie: a=b",
        "topics",
        "",
    ],
)
def test_login_never_leads_to_another_site(guarded: Visitor, target: str) -> None:
    assert safe_target(target) == "/"
    response = log_in(guarded, PASSWORD, next=target)
    assert response.status_code == 303
    assert response.headers["location"] == "/"


def test_login_leads_back_to_the_page(guarded: Visitor) -> None:
    page = guarded.get("/topics?search=a&page=2")
    assert page.status_code == 303
    form = guarded.get(page.headers["location"])
    assert 'value="/topics?search=a&amp;page=2"' in form.text
    response = log_in(guarded, PASSWORD, next="/topics?search=a&page=2")
    assert response.headers["location"] == "/topics?search=a&page=2"


def test_body_is_a_download_that_no_browser_shows(visitor: Visitor) -> None:
    response = visitor.get(f"/message/body?topic=t&id={quote(ATTACK)}")
    assert response.content == ATTACK.encode()
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith('attachment; filename="script')
    assert "<" not in response.headers["content-disposition"]


def test_export_has_a_plain_name(visitor: Visitor) -> None:
    response = visitor.get(f"/export/dead-letters?group={quote(ATTACK)}&form=jsonl&id=1&id=2")
    assert response.status_code == 200
    assert response.text == f"jsonl {ATTACK}\n1,2"
    name = response.headers["content-disposition"].removeprefix('attachment; filename="')
    assert '"' not in name.removesuffix('"')
    assert visitor.get("/export/dead-letters?group=g&form=exe").status_code == 400
    assert visitor.get("/export/dead-letters").status_code == 400
    assert visitor.get("/export/dead-letters?group=g&begin=yesterday").status_code == 400


# ---- login ---------------------------------------------------------------------------------------


def test_nothing_is_shown_without_a_login(guarded: Visitor) -> None:
    for address in ("/", "/topics", "/message?topic=t&id=1", "/audit", "/export/dead-letters"):
        assert guarded.get(address).headers["location"].startswith("/login")
        assert guarded.get(address, headers={"accept": "application/json"}).status_code == 401
    for address in ("/events", "/events/tail?topic=t"):
        assert guarded.get(address).status_code == 401
    assert guarded.post("/actions/create-topic", {"topic": "t"}).status_code == 303
    assert guarded.view.done == []
    assert guarded.get("/nothing").status_code == 303, "not even which pages exist"


def test_login_makes_a_new_session_and_logout_ends_it(guarded: Visitor) -> None:
    guarded.get("/login")
    before = guarded.http.cookies[COOKIE]
    assert log_in(guarded, "wrong password").status_code == 403
    assert log_in(guarded, PASSWORD).status_code == 303
    after = guarded.http.cookies[COOKIE]
    assert before != after, "a session id that was known before the login is worthless"
    assert "operator" in guarded.text("/topics")
    assert guarded.get("/login").headers["location"] == "/"
    assert guarded.post("/actions/create-topic", {"topic": "t"}).status_code == 303
    assert guarded.console.audit.newest()[0].visitor == "operator"
    assert guarded.post("/logout").headers["location"] == "/login"
    guarded.http.cookies.set(COOKIE, after, domain="127.0.0.1", path="/")
    assert guarded.get("/topics").headers["location"].startswith("/login")


def test_session_ends_with_time(guarded: Visitor) -> None:
    log_in(guarded, PASSWORD)
    for _ in range(3):
        guarded.clock.seconds += limits.SESSION_IDLE_SECONDS - 1
        assert guarded.get("/audit").status_code == 200
    guarded.clock.seconds += limits.SESSION_IDLE_SECONDS + 1
    assert guarded.get("/audit").status_code == 303
    log_in(guarded, PASSWORD)
    for _ in range(12):
        guarded.clock.seconds += limits.SESSION_IDLE_SECONDS - 1
        assert guarded.get("/audit").status_code == 200
    guarded.clock.seconds += limits.SESSION_IDLE_SECONDS - 1
    assert guarded.get("/audit").status_code == 303, "also of a busy visitor"


def test_page_that_refreshes_itself_does_not_keep_a_session_alive(guarded: Visitor) -> None:
    log_in(guarded, PASSWORD)
    by_itself = {"x-downrange-refresh": "yes"}
    guarded.clock.seconds += limits.SESSION_IDLE_SECONDS - 1
    assert guarded.get("/topics", headers=by_itself).status_code == 200
    assert guarded.get("/events").status_code == 200, "the stream of each visible page"
    guarded.clock.seconds += 2
    assert guarded.get("/topics", headers=by_itself).status_code == 303
    assert guarded.get("/topics").status_code == 303


def test_login_page_leads_on_who_has_logged_in_elsewhere(guarded: Visitor) -> None:
    log_in(guarded, PASSWORD)
    assert guarded.get("/login?next=/topics").headers["location"] == "/topics"
    assert guarded.get("/login?next=//attacker.example").headers["location"] == "/"


def test_guessing_passwords_is_slow(guarded: Visitor) -> None:
    for _ in range(limits.LOGIN_FAILURES_MAX):
        assert log_in(guarded, "guess").status_code == 403
    refused = log_in(guarded, PASSWORD)
    assert refused.status_code == 429, "not even the right one"
    assert int(refused.headers["retry-after"]) > 0
    guarded.clock.seconds += limits.LOGIN_WINDOW_SECONDS + 1
    assert log_in(guarded, PASSWORD).status_code == 303


def test_guesses_from_many_addresses_are_limited_together() -> None:
    clock = FakeClock()
    limit = LoginLimit(clock)
    for number in range(limits.LOGIN_FAILURES_OF_ALL_MAX):
        assert limit.wait("new") == 0
        limit.add_failure(f"10.0.0.{number}")
    assert limit.wait("new") > 0
    clock.seconds += limits.LOGIN_WINDOW_SECONDS
    assert limit.wait("new") == 0


def test_memory_of_logins_and_sessions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 2)
    monkeypatch.setattr(limits, "LOGIN_ADDRESSES_MAX", 2)
    clock = FakeClock()
    sessions, limit = Sessions(clock), LoginLimit(clock)
    from downrange.console.accounts import Visitor as Who

    ids = [sessions.begin(Who(str(number), may_act=True)) for number in range(3)]
    assert [sessions.find(each) is None for each in ids] == [True, False, False]
    for number in range(3):
        limit.add_failure(str(number))
    assert len(limit._failures) == 2


def test_program_logs_in_and_acts(guarded: Visitor) -> None:
    as_program = {"accept": "application/json"}
    failed = guarded.post("/login", {"secret": "wrong"}, headers=as_program)
    assert failed.status_code == 403
    assert failed.json()["error"]["kind"] == "LoginFailed"
    session = guarded.post("/login", {"secret": PASSWORD}, headers=as_program).json()
    assert (session["visitor"], session["may_act"]) == ("operator", True)
    done = guarded.http.post(
        "/actions/create-topic",
        data={"topic": "t"},
        headers={**as_program, "x-downrange-token": session["token"]},
    )
    assert done.json()["is_ok"] is True


# ---- rights --------------------------------------------------------------------------------------


def test_read_only_console_refuses_every_action(make_visitor: Callable[..., Visitor]) -> None:
    from tests.unit.console.test_actions import CASES

    visitor = make_visitor(is_read_only=True)
    for fields, action, _ in CASES:
        response = visitor.post(f"/actions/{action.name}", {**fields, "preview": "yes"})
        assert response.status_code == 403
        assert visitor.post(f"/actions/{action.name}", fields).status_code == 403
    assert visitor.view.done == []
    for page in ("/topics", "/topics/t", "/groups/g", "/dead-letters/g", "/message?topic=t&id=1"):
        text = visitor.text(page)
        assert 'action="/actions/' not in text.replace('id="letters"', "").replace(
            '<form method="post" action="/actions/resend-dead-letters"', ""
        )
    assert "read-only" in visitor.text("/topics/t")
    assert 'id="settings-title"' in visitor.text("/topics/t"), "settings are shown without the form"


def test_account_sees_and_does_what_the_access_file_allows(with_accounts: Visitor) -> None:
    visitor = with_accounts
    assert 'name="name"' in visitor.get("/login").text
    assert log_in(visitor, "shop-secret", "no-such-account").status_code == 403
    assert log_in(visitor, "admin-secret", "shop-account").status_code == 403
    assert log_in(visitor, "shop-secret", "shop-account").status_code == 303
    assert visitor.get("/message?topic=orders&id=1").status_code == 200
    offered = '<datalist id="offered"><option value="orders"></option></datalist>'
    assert offered in visitor.text("/messages"), "only topics that it may read"
    for address in (
        "/message?topic=bills&id=1",
        "/message/body?topic=other&id=1",
        "/messages?topic=other",
        "/events/tail?topic=other",
        "/dead-letters/other",
        "/export/dead-letters?group=other",
    ):
        assert visitor.get(address).status_code == 403, address
    assert visitor.get("/dead-letters/billing").status_code == 200
    send = {"body": "x"}
    assert visitor.post("/actions/send-message", {"topic": "bills", **send}).status_code == 303
    refused = visitor.post("/actions/send-message", {"topic": "other", **send})
    assert refused.status_code == 403
    assert "no PUB permission" in refused.text
    refused = visitor.post("/actions/create-topic", {"topic": "t"})
    assert "not an administrator" in refused.text
    assert [record.is_ok for record in visitor.console.audit.newest()] == [False, False, True]
    assert "&lt;script&gt;alert" in visitor.text("/waiting"), "names of topics are shown"
    waiting = visitor.get("/waiting?format=json").json()
    assert waiting["newest_halves"] == [], "halves of other topics are hidden"
    assert waiting["delayed"] == [], "and so are delayed messages"
    assert "newest-title" not in visitor.text("/waiting")
    assert "delayed-title" not in visitor.text("/waiting")


#: As brokers and their access files have names: with the namespace.
ACCESS_IN_NAMESPACE = """
[accounts.shop-account]
secret_key = "shop-secret"
default_topic = "SUB"
topics = { "ns1%secret" = "DENY", "ns1%bills" = "PUB", "plain" = "DENY" }
groups = { "ns1%billing" = "SUB", "payroll" = "SUB" }
"""


@pytest.fixture
def in_namespace(make_visitor: Callable[..., Visitor], tmp_path: Path) -> Visitor:
    path = tmp_path / "access.toml"
    path.write_text(ACCESS_IN_NAMESPACE)
    connection = ConnectionOptions(namespace="ns1")
    visitor = make_visitor(access_file=path, connection=connection)
    log_in(visitor, "shop-secret", "shop-account")
    return visitor


def test_rights_are_those_for_names_with_the_namespace(in_namespace: Visitor) -> None:
    visitor = in_namespace
    for topic in ("secret", "ns1%secret", "bills"):
        for page in ("/messages?", "/message?id=1&", "/message/body?id=1&", "/events/tail?"):
            refused = visitor.get(page + urlencode({"topic": topic}))
            assert refused.status_code == 403, (page, topic)
    assert "for topic &#39;ns1%secret&#39;" in visitor.get("/messages?topic=secret").text
    assert visitor.get("/messages?topic=plain").status_code == 200, "it is ns1%plain"
    assert visitor.get("/dead-letters/billing").status_code == 200
    assert visitor.get("/dead-letters/payroll").status_code == 403
    send = {"body": "x"}
    assert visitor.post("/actions/send-message", {"topic": "bills", **send}).status_code == 303
    refused = visitor.post("/actions/send-message", {"topic": "plain", **send})
    assert "no PUB permission for topic &#39;ns1%plain&#39;" in refused.text


def test_waiting_messages_are_of_topics_as_brokers_name_them(in_namespace: Visitor) -> None:
    known = in_namespace.view.waiting
    topics = ("plain", "ns1%secret", "ns1%orders", "orders")

    async def waiting() -> WaitingPage:
        page = await known()
        return replace(
            page,
            delayed=tuple(replace(page.delayed[0], topic=topic) for topic in topics),
            newest_halves=tuple(replace(page.newest_halves[0], topic=topic) for topic in topics),
        )

    in_namespace.view.waiting = waiting  # type: ignore[method-assign]
    page = in_namespace.get("/waiting?format=json").json()
    for rows in (page["delayed"], page["newest_halves"]):
        assert [row["topic"] for row in rows] == ["ns1%orders", "orders"]


@pytest.mark.parametrize(
    ("connection", "namespace"),
    [
        (ConnectionOptions(namespace="ns1"), "ns1"),
        (ConnectionOptions(name_server="http://MQ_INST_1_2.mq.example.com:80"), "MQ_INST_1_2"),
    ],
    ids=["option", "address"],
)
def test_commands_of_actions_name_the_namespace(
    make_visitor: Callable[..., Visitor], connection: ConnectionOptions, namespace: str
) -> None:
    visitor = make_visitor(connection=connection)
    headers = {"accept": "application/json"}
    done = visitor.post("/actions/delete-topic", {"topic": "t", "typed": "t"}, headers=headers)
    command = done.json()["command"]
    assert command.endswith(f" --namespace {namespace} -- t")
    assert visitor.console.audit.newest()[0].command == command


def test_account_sees_only_its_own_actions(with_accounts: Visitor) -> None:
    visitor = with_accounts
    log_in(visitor, "admin-secret", "admin-account")
    visitor.post("/actions/send-message", {"topic": "orders", "body": "a secret order"})
    done = visitor.console.audit.newest()[0].id
    assert "a secret order" in visitor.text("/audit")
    assert "a secret order" in visitor.text(f"/topics?done={done}")
    visitor.post("/logout")
    log_in(visitor, "shop-secret", "shop-account")
    visitor.post("/actions/send-message", {"topic": "bills", "body": "an own bill"})
    assert "an own bill" in visitor.text("/audit")
    assert "a secret order" not in visitor.text("/audit")
    assert len(visitor.get("/audit?format=json").json()["records"]) == 1
    assert "a secret order" not in visitor.text(f"/topics?done={done}")


def test_administrator_of_the_access_file_may_do_everything(with_accounts: Visitor) -> None:
    log_in(with_accounts, "admin-secret", "admin-account")
    assert with_accounts.post("/actions/create-topic", {"topic": "t"}).status_code == 303
    assert with_accounts.get("/message?topic=any&id=1").status_code == 200
    assert with_accounts.console.audit.newest()[0].visitor == "admin-account"
    connection = with_accounts.console.accounts.connection()
    assert connection.access_key == "admin-account", "polls need an administrator"


def test_account_that_is_removed_or_changed_is_logged_out(
    with_accounts: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(with_accounts.console.accounts._file, "_interval", 0)
    log_in(with_accounts, "admin-secret", "admin-account")
    path = tmp_path / "access.toml"
    path.write_text(ACCESS.replace("admin = true", "admin = false"))
    assert with_accounts.post("/actions/create-topic", {"topic": "t"}).status_code == 403
    path.write_text(ACCESS.replace("admin-secret", "another-secret"))
    assert with_accounts.get("/topics").status_code == 303


# ---- options -------------------------------------------------------------------------------------


def test_off_loopback_needs_a_login_and_is_read_only_unless_told() -> None:
    with pytest.raises(OptionError, match="--password-file or --acl"):
        ConsoleOptions(host="0.0.0.0")
    options = ConsoleOptions(host="0.0.0.0", password=PASSWORD)
    assert (options.needs_login, options.refuses_actions) == (True, True)
    told = ConsoleOptions(host="::", has_login=False, is_read_only=False)
    assert (told.needs_login, told.refuses_actions) == (False, False)
    local = ConsoleOptions()
    assert (local.needs_login, local.refuses_actions) == (False, False)
    assert ConsoleOptions(password=PASSWORD).needs_login
    assert PASSWORD not in repr(options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"port": 70000}, "port"),
        ({"refresh": 0.0}, "refresh"),
        ({"refresh": float("nan")}, "refresh"),
        ({"password": "short"}, "characters"),
        ({"password": PASSWORD, "access_file": Path("x")}, "not both"),
        ({"https_key": Path("x")}, "https_key"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        ConsoleOptions(**options)


def test_loopback_addresses() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "LocalHost")]
    assert not any(is_loopback(each) for each in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil"))


# ---- events --------------------------------------------------------------------------------------


def test_overview_comes_as_events(visitor: Visitor) -> None:
    response = visitor.get("/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[0] == "retry: 2000"
    assert events[1].startswith('event: overview\ndata: {"state":')
    assert '"point":{"time":3.0,"sent":12.5' in events[1]
    assert '"recent"' not in events[1], "the series are loaded once"


def test_tail_comes_as_events_with_its_filter(visitor: Visitor) -> None:
    query = "topic=orders&kind=sql&filter=a%20%3E%205&start=earliest"
    text = visitor.get(f"/events/tail?{query}").text
    assert text.count("event: batch") == 2
    (request,) = visitor.view.tails
    assert (request.topic, request.filter_kind) == ("orders", "sql")
    assert (request.filter, request.start) == ("a > 5", "earliest")
    for wrong in ("kind=regex&topic=t", "start=middle&topic=t", ""):
        assert visitor.get(f"/events/tail?{wrong}").status_code == 400


def test_problem_of_a_tail_is_an_event(visitor: Visitor) -> None:
    visitor.view.failure = OptionError("the filter is wrong")
    text = visitor.get("/events/tail?topic=t").text
    assert 'event: problem\ndata: {"kind":"OptionError","text":"the filter is wrong"}' in text


def endless(visitor: Visitor, monkeypatch: pytest.MonkeyPatch, name: str, then: Any) -> None:
    """Let a stream of the view go on for long; call `then` after its first event."""
    first = getattr(visitor.view, name)

    async def events(*arguments: Any) -> AsyncIterator[Any]:
        values = [each async for each in first(*arguments)]
        for number in range(100):
            yield values[0]
            if not number:
                then()
            await asyncio.sleep(0)

    monkeypatch.setattr(visitor.view, name, events)
    monkeypatch.setattr(limits, "STREAM_CHECK_SECONDS", 0)


@pytest.mark.parametrize("change", ["logout", "idle", "removed", "right"])
@pytest.mark.parametrize("address", ["/events/tail?topic=orders", "/events"])
def test_stream_ends_with_the_session_the_account_or_the_right(
    with_accounts: Visitor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    change: str,
) -> None:
    visitor, is_tail = with_accounts, "tail" in address
    monkeypatch.setattr(visitor.console.accounts._file, "_interval", 0)
    log_in(visitor, "shop-secret", "shop-account")
    session = visitor.http.cookies[COOKIE]
    file = tmp_path / "access.toml"

    def then() -> None:
        if change == "logout":
            visitor.console.sessions.end(session)
        elif change == "idle":
            visitor.clock.seconds += limits.SESSION_IDLE_SECONDS + 1
        elif change == "removed":
            file.write_text(ACCESS.partition("[accounts.shop-account]")[0])
        else:
            file.write_text(ACCESS.replace('orders = "PUB|SUB"', 'orders = "PUB"'))

    endless(visitor, monkeypatch, "tail" if is_tail else "overviews", then)
    text = visitor.get(address).text
    sent = text.count("event: batch" if is_tail else "event: overview")
    if change == "right" and not is_tail:
        assert sent == 100, "everybody sees the overview"
        return
    assert 1 <= sent < 5
    kind = "Forbidden" if change == "right" else "LoginNeeded"
    assert text.split("\n\n")[-2].startswith(f'event: problem\ndata: {{"kind":"{kind}"')


def test_check_of_a_stream_is_no_use_of_the_session(
    guarded: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(guarded, PASSWORD)

    def then() -> None:
        guarded.clock.seconds += limits.SESSION_IDLE_SECONDS - 1

    endless(guarded, monkeypatch, "overviews", then)
    assert guarded.get("/events").text.count("event: overview") == 100
    guarded.clock.seconds += 2
    assert guarded.get("/topics").status_code == 303


def test_quiet_stream_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_CHECK_SECONDS", 0.01)
    checked: list[int] = []

    def check() -> None:
        checked.append(len(checked))
        if len(checked) == 3:
            raise Forbidden("the right is gone")

    async def quiet() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def read() -> list[Any]:
        response = stream(Streams(), "a", quiet(), check)
        return [piece async for piece in response.body_iterator]

    pieces = asyncio.run(asyncio.wait_for(read(), 30))
    assert pieces[1:4] == [b": alive\n\n"] * 3
    assert b"the right is gone" in pieces[-1]
    assert len(pieces) == 5


# ---- the source ----------------------------------------------------------------------------------


def test_templates_and_scripts_have_no_way_around_the_escaping() -> None:
    console = ROOT / "src" / "downrange" / "console"
    for path in (console / "templates").rglob("*.html"):
        text = path.read_text()
        for risky in ("|safe", "| safe", "autoescape", "<style", "style=", "javascript:"):
            assert risky not in text, path.name
    for path in (console / "static").glob("*.js"):
        text = path.read_text()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert risky not in text, path.name
        assert "http://" not in text
        assert "https://" not in text
    for path in console.rglob("*.py"):
        assert "Markup" not in path.read_text(), path.name
