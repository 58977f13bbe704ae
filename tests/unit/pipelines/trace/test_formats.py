from __future__ import annotations

import pytest

from downrange.pipelines.trace import formats


def plain(html: str) -> str:
    return formats.bare(html).replace("\u202f", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234, "1,234"), (9_999_999, "9,999,999"), (12_345_678, "12.3 M"), (2e12, "2 T")],
)
def test_counts(value: float, text: str) -> None:
    assert plain(formats.count(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 /s"),
        (0.0012, "0.0012 /s"),
        (0.5, "0.50 /s"),
        (8.34, "8.3 /s"),
        (1234.5, "1,234 /s"),
    ],
)
def test_rates(value: float, text: str) -> None:
    assert plain(formats.rate(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0 %"), (0.00001, "<0.01 %"), (0.0012, "0.12 %"), (0.123, "12.3 %")),
        *((0.9999, "99.99 %"), (1, "100 %")),
    ],
)
def test_shares(value: float, text: str) -> None:
    assert plain(formats.share(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "<1 ms"), (12, "12 ms"), (-5, "-5 ms"), (1500, "1.5 s"), (90_000, "1.5 min")),
        *((5_400_000, "1.5 h"), (86_400_000 * 30, "30 d")),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert plain(formats.duration(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 * 1024**2, "3 MiB"),
        (2**52, "4.1e+03 TiB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert plain(formats.size(value)) == text


def test_what_is_not_there_is_a_dash() -> None:
    for write in (
        formats.count,
        formats.rate,
        formats.share,
        formats.duration,
        formats.size,
        formats.timestamp,
    ):
        assert write(None) == formats.NONE


def test_foreign_text_is_safe() -> None:
    assert formats.safe('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert formats.safe("a\x01b\n") == "a␁b␊"
    assert formats.name("<b>") == "&lt;b&gt;"
    assert "not named" in formats.name(None)
    long = formats.name('"' + "x" * 100)
    assert "…" in long
    assert '""' not in long


def test_times_are_utc() -> None:
    assert "2026-09-21 14:13:20" in formats.timestamp(1_790_000_000_000)
    assert "2026-09-21 14:13:20.007" in formats.timestamp(1_790_000_000_007, 494)
    assert formats.clock(1_790_000_000_000, 1000) == "14:13:20"
    assert formats.clock(1_790_000_000_000, 60_000) == "14:13"
    assert formats.clock(1_790_000_000_000, 86_400_000) == "21 Sep"


def test_round_numbers() -> None:
    assert [formats.round_up(value) for value in (0, 1, 1.1, 2.4, 2.6, 7, 70)] == [
        *(1.0, 1.0, 2.0, 2.5, 5.0, 10.0, 100.0),
    ]
