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
from downrange.pipelines.trace.figures import BUCKETS_MAX, Figures, Series, Span, _per_second
from downrange.pipelines.trace.findings import balance_verdict, findings_of, silences
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
        "variation": 0.0,
        "gini": 0.0,
        "over_queues": None,
        **more,
    }


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
            "unknown_count": 2,
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
    assert labels == ["0 ms", "10 ms", "1 s", "1 min"]


def test_cells_without_messages_are_not_drawn() -> None:
    span = Span(T0, 1000, 3)
    html = charts.heat_map(
        span, [Series("a", [4.0, 0.0, 2.0])], title="t", note="", value=formats.count
    )
    assert re.findall(r"--part:([\d.]+%)", html) == ["100.0%", "57.5%"]


def test_a_bucket_that_is_cut_short_keeps_its_rate() -> None:
    span = Span(T0, 1000, 4)
    assert _per_second(span, T0 + 500, T0 + 3399) == [2.0, 1.0, 1.0, None]
    assert _per_second(Span(T0, 1000, 1), T0 + 10, T0 + 10) == [1000.0]


# ---- spans, findings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length_ms", "bucket_ms"),
    [
        (0, 200),
        (60_000, 1000),
        (96_000, 2000),
        (3_600_000, 60_000),
        (86_400_000 * 365, 345_600_000),
    ],
)
def test_a_span_has_round_buckets(length_ms: int, bucket_ms: int) -> None:
    span = Span.over(T0, T0 + length_ms)
    assert span.bucket_ms == bucket_ms
    assert span.begin_ms <= T0
    assert T0 + length_ms < span.end_ms
    assert span.count <= BUCKETS_MAX


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, ("good", "even")),
        ({"used_count": 1}, ("bad", "all on one broker")),
        ({"max_over_mean": 1.6}, ("warn", "uneven")),
        ({"place_count": 3}, ("warn", "uneven")),
        ({"message_count": 19}, ("note", "too few messages")),
        ({"place_count": 1}, ("note", "one broker only")),
    ],
)
def test_balance_is_judged(more: dict[str, Any], verdict: tuple[str, str]) -> None:
    assert balance_verdict(balance_line(**more)) == verdict


def test_a_broker_is_silent_only_while_others_are_not() -> None:
    span = Span(T0, 1000, 8)
    heat = [
        Series("a", [9, 9, 9, 9, 9, 9, 9, 0]),
        Series("b", [0, 9, 0, 0, 0, 9, 0, 0]),
        Series("c", [0, 0, 0, 0, 0, 0, 0, 0]),
        Series("few", [1, 0, 0, 0, 0, 0, 0, 1]),
        Series("gone", [0, 9, 9, 0, 0, 0, 0, 0]),
    ]
    assert list(silences(span, heat)) == [
        ("b", T0 + 2000, T0 + 5000),
        ("gone", T0 + 3000, T0 + 8000),
    ]


def test_the_worst_comes_first_and_praise_only_alone() -> None:
    figures = hostile_figures()
    weights = [one.weight for one in findings_of(figures)]
    assert weights == sorted(weights, key=["bad", "warn", "note", "good"].index)
    assert weights[0] == "bad"
    assert "good" not in weights
    quiet = Figures(Span(T0, 1000, 1), totals={}, balance=[balance_line()])
    assert [one.weight for one in findings_of(quiet)] == ["good"]
