"""Tests of the native part: what both twins do is compared.

Tests that need it are skipped, with the reason, where it is not built. With
DOWNRANGE_REQUIRE_NATIVE=1 in the environment, as in CI, that is a failure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from downrange.native import find_binary
from downrange.wire.send_runs import PureSendRun, single_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.wire.send_runs import SendRun

REQUIRE_VARIABLE: Final = "DOWNRANGE_REQUIRE_NATIVE"


def require_native_part() -> None:
    """Skip the test, or the test file at its import, if the native part cannot be loaded."""
    module, reason = find_binary()
    if module is None:
        if os.environ.get(REQUIRE_VARIABLE, "0") not in ("", "0"):
            pytest.fail(f"{REQUIRE_VARIABLE} is set, but {reason}")
        pytest.skip(reason, allow_module_level=True)


class Outcome(NamedTuple):
    """What a call did."""

    value: object
    error: type[BaseException] | None = None
    text: str = ""


def outcome(function: Callable[..., object], *arguments: object) -> Outcome:
    """Call a function, and return its value or its error.

    A panic of the native part is a `BaseException`, so it ends the test.
    """
    try:
        return Outcome(function(*arguments))
    except Exception as error:
        return Outcome(None, type(error), str(error))


def assert_same(
    pure: Callable[..., object], native_twin: Callable[..., object], *arguments: object
) -> None:
    """Check that both return equal values of the same type, or raise the same error."""
    expected = outcome(pure, *arguments)
    found = outcome(native_twin, *arguments)
    assert found == expected
    assert type(found.value) is type(expected.value)


def in_python(run: SendRun, start: int, data: bytes) -> PureSendRun:
    """Return the same run, made in Python."""
    requests = single_requests(run)
    made = PureSendRun(data, start, requests[0].codec)
    for request in requests:
        assert made.add(request), "the native part took a send that is not plain"
    made.end = run.end
    return made
