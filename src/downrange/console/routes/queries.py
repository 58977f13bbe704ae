"""Queries of addresses, as typed values with limits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from downrange.console.cluster.limits import PAGE_ROWS_MAX
from downrange.console.cluster.pages.common import ListRequest
from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.console.visits import Visit

_PAGE_MAX: Final = 1_000_000
_DIGITS_MAX: Final = 12


def list_request(visit: Visit, *, sort: str = "name", is_descending: bool = False) -> ListRequest:
    """Return which part of a list is asked for.

    Args:
        visit: The visit; its query has page, size, search, sort, order and system.
        sort: The order if the query has none.
        is_descending: Its direction.

    Raises:
        OptionError: A value is not a number, or too large.
    """
    order = visit.query("order")
    if order not in ("", "up", "down"):
        raise OptionError(f"order: {order!r} is not up or down")
    return ListRequest(
        page=whole(visit, "page", 1, _PAGE_MAX),
        size=whole(visit, "size", 50, PAGE_ROWS_MAX),
        search=visit.query("search").strip(),
        sort=visit.query("sort") or sort,
        is_descending=order == "down" if order else is_descending and not visit.query("sort"),
        with_system=visit.query("system") == "yes",
    )


def whole(visit: Visit, name: str, default: int, highest: int) -> int:
    """Return a number of the query, from 1 to a limit."""
    text = visit.query(name)
    if not text:
        return default
    # The length is checked first: int() refuses some thousand digits with another error.
    is_short = len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    if not (is_short and 1 <= int(text) <= highest):
        raise OptionError(f"{name}: {text[:40]!r} is not a number from 1 to {highest:,}")
    return int(text)


def time(visit: Visit, name: str) -> datetime | None:
    """Return a time of the query; UTC unless it has a zone. None if it is empty."""
    text = visit.query(name)
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{name}: {text[:40]!r} is not a time such as 2026-01-31T12:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
