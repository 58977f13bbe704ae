from __future__ import annotations

from tests import compatibility


def test_every_request_code_is_in_exactly_one_list() -> None:
    assert compatibility.unplaced() == set()


def test_the_page_lists_the_codes_that_are_served() -> None:
    page = compatibility.PAGE.read_text(encoding="utf-8")
    assert page == compatibility.page_with_section(), "run python -m tests.compatibility"
