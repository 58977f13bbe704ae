"""Lists: search, order and pages, on this side, so that a browser gets only what it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from downrange.console.cluster import limits
from downrange.console.cluster.pages.common import ListRequest, Paging
from downrange.errors import OptionError
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

RowT = TypeVar("RowT")


def check_request(request: ListRequest, columns: Iterable[str]) -> None:
    """Check what a list is asked for.

    Raises:
        OptionError: A value is wrong; names it and what is valid.
    """
    known = tuple(columns)
    if request.sort not in known:
        similar = similar_names(request.sort, known)
        hint = f"; did you mean {similar[0]!r}?" if similar else f"; it is one of {list(known)}"
        raise OptionError(f"sort={request.sort!r} is not a column of this list{hint}")
    if request.page < 1:
        raise OptionError(f"page={request.page} is not a page; the first one is 1")
    if not 1 <= request.size <= limits.PAGE_ROWS_MAX:
        raise OptionError(f"size={request.size} is not between 1 and {limits.PAGE_ROWS_MAX}")
    check_text("search", request.search)


def check_text(name: str, text: str) -> None:
    """Check the text of a search box.

    Raises:
        OptionError: It is too long.
    """
    if len(text) > limits.SEARCH_TEXT_MAX:
        raise OptionError(f"{name} has {len(text)} characters, more than {limits.SEARCH_TEXT_MAX}")


def page_of(
    rows: Iterable[RowT],
    request: ListRequest,
    columns: Mapping[str, Callable[[RowT], Any]],
    texts: Callable[[RowT], Iterable[str]],
) -> tuple[list[RowT], Paging]:
    """Return the rows of a page.

    Args:
        rows: All rows.
        request: Which page.
        columns: Name of a column -> what to order by. "name" orders rows that are otherwise equal.
            A value that is not known is the smallest.
        texts: Returns the texts of a row that the search looks at.

    Raises:
        OptionError: The request is wrong.
    """
    check_request(request, columns)
    wanted = request.search.strip().lower()
    found = [row for row in rows if not wanted or any(wanted in t.lower() for t in texts(row))]
    found.sort(key=columns["name"])
    if request.sort != "name" or request.is_descending:
        value = columns[request.sort]
        # Sorting is stable, so equal rows stay in the order of their names.
        found.sort(key=lambda row: _known_last(value(row)), reverse=request.is_descending)
    page_count = max(-(-len(found) // request.size), 1)
    page = min(request.page, page_count)
    begin = (page - 1) * request.size
    paging = Paging(
        request=replace(request, page=page),
        page_count=page_count,
        total=len(found),
        columns=tuple(columns),
    )
    return found[begin : begin + request.size], paging


def _known_last(value: Any) -> tuple[bool, Any]:
    """Return a key by which unknown values come before known ones."""
    return (value is not None, 0 if value is None else value)
