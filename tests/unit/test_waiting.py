"""The waits that real-time tests use."""

from __future__ import annotations

import asyncio
import functools

import pytest

from tests.support.waiting import wait_until, wait_until_async


def test_the_first_true_result_is_returned() -> None:
    results = [None, False, 0, "", "found", "later"]
    assert wait_until(lambda: results.pop(0)) == "found"
    assert asyncio.run(wait_until_async(lambda: results.pop(0))) == "later"


def test_a_wait_that_fails_names_the_check_and_its_last_result() -> None:
    def check() -> str:
        return ""

    place = r"still not true after 0 s: the check at .*test_waiting\.py:\d+; .* was ''"
    with pytest.raises(AssertionError, match=place):
        wait_until(check, 0)
    with pytest.raises(AssertionError, match=place):
        asyncio.run(wait_until_async(check, 0))
    with pytest.raises(AssertionError, match=r"the check at .*partial"):
        wait_until(functools.partial(int, 0), 0)
