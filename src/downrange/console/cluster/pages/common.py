"""What several pages share: how a list is asked for, the state of the cluster, JSON.

Times are aware datetimes in UTC, durations are seconds, rates are messages per second. None means
that it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Which part of a list to show.

    Attributes:
        page: The page; the first one is 1. One past the end shows the last page.
        size: Rows of a page, at most `limits.PAGE_ROWS_MAX`.
        search: Only rows whose name contains this text, in upper or lower case.
        sort: The column to sort by; each page says which ones it has.
        is_descending: The largest first.
        with_system: Rows of the servers themselves, too.
    """

    page: int = 1
    size: int = 50
    search: str = ""
    sort: str = "name"
    is_descending: bool = False
    with_system: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Which part of a list a page shows.

    Attributes:
        request: What was asked for, with the page that is shown.
        page_count: How many pages there are; at least 1.
        total: Rows of all pages.
        columns: The columns that the list can be sorted by.
    """

    request: ListRequest
    page_count: int
    total: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Whether the cluster answers.

    Attributes:
        name_servers: The addresses that the console asks.
        is_up: Whether it answered the last time.
        since: Since when it is so; None before the first answer.
        checked_at: When it was asked last.
        problem: Why it does not answer; or, if it does, why no broker tells its figures.
    """

    name_servers: tuple[str, ...]
    is_up: bool
    since: datetime | None
    checked_at: datetime | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A broker that is missing from a page, and why."""

    broker: str
    address: str
    problem: str


#: The codes of all notes -> the names of their values, for texts in other languages.
NOTES: Final = {
    "broker-down": ("broker", "problem"),
    "broker-figures-refused": ("broker", "problem"),
    "broker-missing": ("broker", "problem"),
    "broker-settings-refused": ("broker", "problem"),
    "commit-time-not-told": (),
    "dead-letters-limited": ("counted", "groups"),
    "delay-levels-not-told": (),
    "delay-offsets-not-told": ("problem",),
    "delayed-not-read": ("problem",),
    "groups-limited": ("asked", "groups"),
    "half-ends-not-told": (),
    "half-state-not-told": (),
    "halves-not-read": ("problem",),
    "halves-not-told": (),
    "in-flight-not-told": (),
    "lags-incomplete": ("broker", "problem"),
    "members-not-asked": ("members",),
    "members-silent": ("members",),
    "order-by-sweep": ("known", "topics"),  # and "age", once all topics are known
    "producers-not-told": ("problem",),
    "queues-cut": ("queues",),
    "scanned": ("scanned", "stopped"),
    "sizes-estimated": (),
    "span-limited": ("topics", "queues"),
    "timers-not-told": ("problem",),
    "timers-too-old": ("brokers",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that a page cannot show, or shows with a limit.

    Attributes:
        code: One of `NOTES`; texts in other languages go by it.
        text: The English sentence.
        values: What the sentence speaks of, by name.
    """

    code: str
    text: str
    values: dict[str, str | int | float]

    def __post_init__(self) -> None:
        """Check that texts in other languages can be made of it."""
        assert set(NOTES.get(self.code, ())) <= self.values.keys(), self


def as_json(page: object) -> bytes:
    """Return a page as JSON: datetimes in ISO 8601, durations in seconds."""
    return msgspec.json.encode(page)


def as_values(page: object) -> Any:
    """Return a page as plain dicts, lists, texts and numbers, with the names of its JSON."""
    return msgspec.to_builtins(page)
