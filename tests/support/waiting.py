"""Waiting in tests for the work of another thread, task or process.

All limits are multiplied by the environment variable `DOWNRANGE_WAIT_SCALE`, for slow machines.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ResultT = TypeVar("ResultT")

WAIT_SCALE: Final = float(os.environ.get("DOWNRANGE_WAIT_SCALE", "1"))
#: Long enough for a busy machine; a test that passes does not wait for it.
WAIT_TIMEOUT: Final = 60.0


def wait_until(
    check: Callable[[], ResultT | Literal[False] | None], timeout: float = WAIT_TIMEOUT
) -> ResultT:
    """Call `check` until it returns something true, and return that.

    Raises:
        AssertionError: `check` stayed false for `timeout` seconds. The text names the check and its
            last result.
    """
    limit = timeout * WAIT_SCALE
    deadline = time.monotonic() + limit
    while not (result := check()):
        assert time.monotonic() < deadline, _failure(check, limit, result)
        time.sleep(0.01)
    return result


async def wait_until_async(
    check: Callable[[], ResultT | Literal[False] | None], timeout: float = WAIT_TIMEOUT
) -> ResultT:
    """Wait as `wait_until` does, without blocking the event loop."""
    limit = timeout * WAIT_SCALE
    deadline = time.monotonic() + limit
    while not (result := check()):
        assert time.monotonic() < deadline, _failure(check, limit, result)
        await asyncio.sleep(0.002)
    return result


def _failure(check: Callable[[], object], limit: float, result: object) -> str:
    code = getattr(check, "__code__", None)
    place = repr(check) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    return f"still not true after {limit:g} s: the check at {place}; its last result was {result!r}"
