"""Every page: as HTML with hostile names, as JSON, in both languages."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from downrange.console import failures
from downrange.console.action_forms import ACTIONS
from downrange.console.cluster import problems
from downrange.console.cluster.pages.common import NOTES
from downrange.console.cluster.problems import ClusterGone, NoSuchBroker
from downrange.console.languages import load_languages
from downrange.console.rendering import UNKNOWN, about, duration, number, percent, rate, size
from downrange.errors import (
    ConnectFailed,
    GroupNotFound,
    OptionError,
    RocketMQError,
    RouteNotFound,
    server_error,
)
from tests.unit.console.fake_view import AT, ATTACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.console.conftest import Visitor

NAME = "127.0.0.1:9876"
PAGES = (
    "/",
    "/topics",
    f"/topics/{quote(ATTACK, safe='')}",
    "/messages",
    f"/messages?topic={quote(ATTACK)}&text={quote(ATTACK)}",
    f"/message?topic={quote(ATTACK)}&id={quote(ATTACK)}",
    "/groups",
    f"/groups/{quote(ATTACK, safe='')}",
    "/dead-letters",
    f"/dead-letters/{quote(ATTACK, safe='')}",
    "/waiting",
    "/clients",
    "/brokers",
    f"/brokers/{quote(ATTACK, safe='')}",
    "/traces",
    "/audit",
)


class Outline(HTMLParser):
    """Collects what a browser would run or load, the labels, and unclosed tags."""

    VOID = frozenset(("meta", "link", "img", "input", "br", "option", "progress"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.problems: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("address", PAGES)
def test_page_shows_hostile_text_as_text(visitor: Visitor, address: str, language: str) -> None:
    text = visitor.text(f"{address}{'&' if '?' in address else '?'}lang={language}")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(.{2})", text)
    outline = Outline(text)
    assert outline.problems == []
    for tag, attributes in outline.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert "style" not in attributes
        if tag in ("script", "img", "link"):
            place = attributes.get("src") or attributes.get("href") or ""
            assert place.startswith("/static/"), "nothing comes from elsewhere"


@pytest.mark.parametrize("address", PAGES)
def test_page_has_labels_landmarks_and_one_heading(visitor: Visitor, address: str) -> None:
    text = visitor.text(address)
    outline = Outline(text)
    names = [tag for tag, _ in outline.tags]
    assert [names.count(each) for each in ("h1", "main", "nav")] == [1, 1, 1]
    labelled = {attributes.get("for") for tag, attributes in outline.tags if tag == "label"}
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id occurs twice"
    for tag, attributes in outline.tags:
        if tag == "th":
            assert attributes.get("scope") == "col"
        is_checkbox = attributes.get("type") in ("checkbox", "radio")
        if tag == "input" and is_checkbox:
            assert attributes.get("id") in labelled or attributes.get("aria-label")
    fields = re.findall(
        r"<(?:input type=\"(?:text|search|number|password)\"|textarea|select)", text
    )
    inside = re.findall(r"<label[^>]*>(?:(?!</label>).)*?<(?:input|textarea|select)", text)
    named = re.findall(r"<(?:select|input)[^>]* aria-label=", text)
    assert len(inside) + len(named) >= len(fields)


@pytest.mark.parametrize("address", PAGES)
def test_page_has_a_json_form(visitor: Visitor, address: str) -> None:
    by_query = visitor.get(f"{address}{'&' if '?' in address else '?'}format=json")
    by_header = visitor.get(address, headers={"accept": "application/json"})
    for response in (by_query, by_header):
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert json.loads(response.content) == by_query.json()


def test_json_has_times_in_iso_8601_and_names_of_the_pages(visitor: Visitor) -> None:
    row = visitor.get("/topics?format=json").json()["rows"][1]
    assert row["topic"] == "orders"
    assert row["first_stored_at"] == AT.isoformat().replace("+00:00", "Z")
    assert row["span"] == 90061.0


def test_lists_pass_search_order_and_page_on(visitor: Visitor) -> None:
    text = visitor.text("/topics?search=ord&sort=lag&order=down&page=2&size=10&system=yes")
    (request,) = visitor.view.requests
    assert (request.search, request.sort, request.is_descending) == ("ord", "lag", True)
    assert (request.page, request.size, request.with_system) == (2, 10, True)
    assert "sort=lag&amp;order=up" in text, "the header of the sorted column turns the order"
    assert "page=3" in text
    visitor.text("/groups")
    assert (visitor.view.requests[1].sort, visitor.view.requests[1].is_descending) == ("lag", True)


@pytest.mark.parametrize(
    "query", ["page=0", "page=-1", "page=x", "page=9999999999999", "size=201", "order=left"]
)
def test_wrong_query_is_refused(visitor: Visitor, query: str) -> None:
    assert visitor.get(f"/topics?{query}").status_code == 400


def test_unknown_page_is_a_page(visitor: Visitor) -> None:
    response = visitor.get("/nothing")
    assert response.status_code == 404
    assert "there is no such page" in response.text
    assert visitor.get("/nothing?format=json").json()["error"]["kind"] == "PageNotFound"
    assert visitor.get("/actions/create-topic").status_code == 404, "only POST"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OptionError("the text <b>is</b> wrong"), 400),
        (RouteNotFound("orders", [NAME], "."), 404),
        (GroupNotFound("billing", [NAME]), 404),
        (NoSuchBroker("b", ["a"]), 404),
        (ConnectFailed(NAME, "refused"), 504),
        (ClusterGone((NAME,), AT, "refused"), 503),
        (RocketMQError("something else"), 502),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_error_becomes_a_page_with_its_status(
    visitor: Visitor, error: RocketMQError, status: int
) -> None:
    visitor.view.failure = error
    response = visitor.get("/topics/orders")
    assert response.status_code == status
    assert str(error) in unescape(response.text)
    assert "<b>is</b>" not in response.text
    assert ("data-reload-when-up" in response.text) == (status >= 500)
    found = visitor.get("/topics/orders?format=json")
    assert found.status_code == status
    assert found.json()["error"]["text"] == str(error)


def test_overview_is_shown_while_the_cluster_is_gone(visitor: Visitor) -> None:
    visitor.view.is_up = False
    text = visitor.text("/")
    assert "connection refused" in text
    assert visitor.get("/topics").status_code == 503
    assert visitor.get("/health").json() == {"status": "ok", "is_cluster_up": False}


def test_brokers_that_answer_with_an_error_are_up(visitor: Visitor) -> None:
    hidden = r'<div class="notice warn" id="refusing" role="status" hidden>'
    assert re.search(hidden, visitor.text("/"))
    visitor.view.problem = "no broker tells its figures: code 1"
    text = visitor.text("/")
    assert not re.search(hidden, text)
    assert '<p class="code" id="refusing-problem">no broker tells its figures: code 1</p>' in text
    assert re.search(r'id="gone" role="alert" hidden', text)
    assert re.search(r'<tr class="more"><td colspan="9"><span class="why">&lt;', text)
    assert "It answers, but does not tell its figures: &lt;" in visitor.text("/brokers/a")
    assert visitor.get("/health").json() == {"status": "ok", "is_cluster_up": True}


def test_language_is_that_of_the_browser_until_one_is_chosen(visitor: Visitor) -> None:
    chinese = visitor.get("/", headers={"accept-language": "fr,zh-CN;q=0.9"})
    assert '<html lang="zh-CN"' in chinese.text
    assert "总览" in chinese.text
    assert '<html lang="en"' in visitor.get("/", headers={"accept-language": "fr"}).text
    visitor.get("/?lang=zh")
    assert "总览" in visitor.get("/topics").text, "the choice is kept"
    visitor.get("/?lang=xx")
    assert "总览" in visitor.get("/topics").text, "an unknown language changes nothing"


def test_languages_have_the_same_keys_and_values() -> None:
    languages = load_languages()
    english, chinese = languages["en"].texts, languages["zh"].texts
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(
            re.findall(r"\{\w+\}", chinese[key])
        ), key
        assert text.strip() == text != ""


def test_footer_names_a_visitor_who_has_logged_in(
    visitor: Visitor, make_visitor: Callable[..., Visitor]
) -> None:
    assert "Signed in" not in visitor.text("/audit"), "without a login there is no name"
    reader = make_visitor(is_read_only=True)
    assert "<div>read-only</div>" in reader.text("/audit")
    guarded = make_visitor(password="correct horse")
    guarded.post("/login", {"secret": "correct horse"})
    assert "Signed in as operator" in guarded.text("/audit")


def test_box_of_each_list_says_what_it_adds(visitor: Visitor) -> None:
    assert "Include system topics" in visitor.text("/topics")
    assert "Include system groups" in visitor.text("/groups")
    assert 'name="system"' not in visitor.text("/clients")


def test_keys_are_cut_and_whole_in_their_title(visitor: Visitor) -> None:
    for page in ("/messages?topic=t", "/dead-letters/g", "/waiting"):
        found = re.findall(r'<td class="keys cut" title="([^"]*)">([^<]*)</td>', visitor.text(page))
        assert found, page
        assert all(title == text or not title for title, text in found)


def test_lost_tail_is_not_said_to_go_on() -> None:
    """tail.js ends it."""
    assert load_languages()["en"].texts["tail.lost"].endswith("start it again")


def test_note_is_translated_by_its_code() -> None:
    chinese = load_languages()["zh"]
    assert chinese.note("queues-cut", "the first", {"queues": 7}).startswith("共 7")
    assert chinese.note("queues-cut", "the first", {}) == "the first", "a value is missing"
    assert chinese.note("new-code", "the first", {}) == "the first"
    assert chinese.word("step", "unknown step") == "unknown step"


def test_a_problem_is_explained_in_other_languages(visitor: Visitor) -> None:
    page = visitor.get("/nowhere?lang=zh").text
    assert "没有这个页面。" in page
    assert '<p lang="en">there is no such page</p>' in page
    english = visitor.get("/nowhere?lang=en").text
    assert "<p>there is no such page</p>" in english
    languages = load_languages()
    refused = server_error(1, "no", "a:1")  # a kind without a text of its own
    assert languages["zh"].problem(refused) == languages["zh"].texts["problem.ServerError"]
    assert languages["zh"].problem(ValueError()) is None
    assert languages["en"].problem(refused) is None


def test_every_problem_and_action_has_a_text() -> None:
    known = {**vars(problems), **vars(failures)}.values()
    for kind in known:
        is_ours = getattr(kind, "__module__", "").startswith("downrange.console")
        if is_ours and isinstance(kind, type) and issubclass(kind, RocketMQError):
            assert f"problem.{kind.__name__}" in load_languages()["zh"].texts, kind
    for name in ACTIONS:
        assert f"action.{name}" in load_languages()["en"].texts, name


def test_every_note_of_the_cluster_has_a_text_made_of_its_values() -> None:
    for language in load_languages().values():
        for code, values in NOTES.items():
            names = re.findall(r"\{(\w+)\}", language.texts[f"note.{code}"])
            assert set(names) <= set(values), code


def test_theme_is_rendered_from_its_cookie(visitor: Visitor) -> None:
    assert "data-theme" not in visitor.text("/audit").split(">")[1]
    visitor.http.cookies.set("downrange_theme", "dark")
    assert 'data-theme="dark"' in visitor.text("/audit")
    visitor.http.cookies.set("downrange_theme", '"><script>')
    assert "<script>" not in visitor.text("/audit").replace('<script type="module"', "")


def test_numbers_are_written_for_people() -> None:
    assert [number(None), number(1234567)] == [UNKNOWN, "1,234,567"]
    assert [rate(0.25), rate(12345.6), rate(None)] == ["0.2", "12,346", UNKNOWN]
    assert [size(5), size(2048), size(3 * 1024**6), size(None)] == [
        "5 B",
        "2.0 KiB",
        "3,072.0 PiB",
        UNKNOWN,
    ]
    assert [about(2048), about(0), about(None)] == ["≈ 2.0 KiB", "0 B", UNKNOWN]
    assert [percent(0.256), percent(None)] == ["26 %", UNKNOWN]
    assert [duration(each) for each in (None, 0.01, 1.5, 75, 3600, 90061)] == [
        UNKNOWN,
        "10.0 ms",
        "1.5 s",
        "1 min 15 s",
        "1 h",
        "1 d 1 h",
    ]


def test_a_row_says_why_its_body_is_not_shown(visitor: Visitor) -> None:
    shown = f"cannot be shown here: {ATTACK}"
    for page in ("/messages?topic=orders", "/dead-letters/billing"):
        assert unescape(visitor.text(page)).count(shown) == 1
    rows = visitor.get("/messages?topic=orders&format=json").json()["messages"]
    assert [row["problem"] for row in rows] == [None, ATTACK]
