from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from downrange.console.cluster.actions.offsets import read_target
from downrange.console.cluster.search_text import read_search
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
UNIQUE = "C000020210F2B667E23C569E603D0001"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "newest"),
        ("  ", "newest"),
        (UNIQUE, "id"),
        (UNIQUE.lower(), "id"),
        (UNIQUE + "0" * 24, "id"),
        (UNIQUE[:-1], "key"),
        ("order-7", "key"),
        ("20260131", "key"),
        ("15m", "time"),
        ("2026-01-31", "time"),
        ("2026-01-31T12:00+01:00", "time"),
        ("3:1200", "offset"),
        ("\u0663:\u0664", "key"),
        ("\uff11m", "key"),
        ("3@1200", "offset"),
        ("broker-a:3:1200", "offset"),
        ("broker-a/3@1200", "offset"),
        ("key=15m", "key"),
        ("key=" + UNIQUE, "key"),
        ("id=abc", "id"),
        ("time=2h", "time"),
        ("offset=0:0", "offset"),
        ("other=1", "key"),
    ],
)
def test_a_text_is_taken_for_the_likeliest_form(text: str, kind: str) -> None:
    assert read_search(text, NOW).kind == kind


@pytest.fixture
def far_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose zone is not UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_zone")
def test_a_time_without_a_zone_is_in_utc_as_the_pages_say() -> None:
    assert read_search("2026-01-31T12:00", NOW).at == NOW
    assert read_search("time=2026-01-31T12:00", NOW).at == NOW
    assert read_search("2026-01-31T12:00+01:00", NOW).at == NOW - timedelta(hours=1)
    assert read_target("2026-01-31T12:00", None, NOW) == NOW


def test_values_are_read() -> None:
    assert read_search("15m", NOW).at == NOW - timedelta(minutes=15)
    place = read_search("offset=my:broker:3:1200", NOW)
    assert (place.broker, place.queue, place.offset, place.is_certain) == (
        *("my:broker", 3, 1200),
        True,
    )
    assert read_search("3:1200", NOW).broker is None
    assert read_search("key= k 1 ", NOW).word == "k 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key=", "has nothing behind it"),
        ("time=soon", "is not one of"),
        ("offset=12", "neither queue:offset"),
        ("2026-13-45", "is not one of"),
        ("99999999999999d", "is not one of"),
    ],
)
def test_a_text_that_is_not_what_it_says_is_an_error(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_search(text, NOW)
