from __future__ import annotations

from typing import Any

import pytest

from downrange.console.cluster import limits
from downrange.console.cluster.listing import page_of
from downrange.console.cluster.pages.common import ListRequest, Paging
from downrange.errors import OptionError

ROWS = [("b", 2), ("a", None), ("c", 2), ("D", 1)]


def listed(**settings: Any) -> tuple[str, Paging]:
    columns: dict[str, Any] = {"name": lambda row: row[0], "count": lambda row: row[1]}
    rows, paging = page_of(ROWS, ListRequest(**settings), columns, lambda row: (row[0],))
    return "".join(name for name, _ in rows), paging


def test_rows_are_ordered_by_a_column_and_then_by_name() -> None:
    assert listed()[0] == "Dabc"
    assert listed(is_descending=True)[0] == "cbaD"
    assert listed(sort="count")[0] == "aDbc"
    assert listed(sort="count", is_descending=True)[0] == "bcDa"


def test_pages_are_cut_and_a_page_past_the_end_is_the_last() -> None:
    assert listed(size=3)[0] == "Dab"
    found, paging = listed(size=3, page=9)
    assert (found, paging.request.page, paging.page_count, paging.total) == ("c", 2, 2, 4)
    assert paging.columns == ("name", "count")


def test_search_ignores_case_and_an_empty_result_has_one_page() -> None:
    assert listed(search=" d ")[0] == "D"
    found, paging = listed(search="zz")
    assert (found, paging.total, paging.page_count) == ("", 0, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sort": "coutn"}, "did you mean 'count'"),
        ({"sort": "zzz"}, "it is one of"),
        ({"page": 0}, "the first one is 1"),
        ({"size": 0}, "is not between 1 and 200"),
        ({"size": limits.PAGE_ROWS_MAX + 1}, "is not between"),
        ({"search": "x" * (limits.SEARCH_TEXT_MAX + 1)}, "search has 1001 characters"),
    ],
)
def test_a_wrong_request_names_what_is_valid(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        listed(**settings)
